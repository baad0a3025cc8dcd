"""README's programs run as they stand, one after another, against a broker at the address that they name.

Rules: a block is taken from the file, never copied; only the port differs, so that a broker on 9092 is left alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastq.testing import Broker

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.slow
def test_every_program_of_the_readme_runs(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 3
    with Broker(data_dir=tmp_path / "data") as broker:
        for number, block in enumerate(BLOCKS):
            program = tmp_path / f"program_{number}.py"
            program.write_text(block.replace("127.0.0.1:9092", broker.bootstrap_servers))
            done = subprocess.run(
                [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip(), f"the program printed nothing:\n{block}"
