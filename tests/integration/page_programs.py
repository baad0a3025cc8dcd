"""The programs of a page of the documentation: taken from the file, never copied, and run as they stand.

Rules: only the address differs, so that a broker on 9092 is left alone. Each program has to print something.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page: str) -> list[str]:
    """The Python blocks of a page, which is named from the project's root."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run_blocks(blocks: list[str], bootstrap_servers: str, folder: Path) -> None:
    """Run them one after another against one broker."""
    for number, block in enumerate(blocks):
        program = folder / f"program_{number}.py"
        program.write_text(block.replace("127.0.0.1:9092", bootstrap_servers))
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"the program printed nothing:\n{block}"
