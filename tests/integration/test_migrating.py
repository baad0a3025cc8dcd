"""The programs of docs/migrating.md run as they stand, those for the other clients and those for fastq.

Rules: a block is taken from the file, never copied; only the address differs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastq.testing import Broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_every_program_of_the_page_runs(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 16
    with Broker(data_dir=tmp_path / "data", config={"group.initial.rebalance.delay.ms": 0}) as broker:
        for number, block in enumerate(BLOCKS):
            program = tmp_path / f"program_{number}.py"
            program.write_text(block.replace("127.0.0.1:9092", broker.bootstrap_servers))
            done = subprocess.run(
                [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip(), f"the program printed nothing:\n{block}"
