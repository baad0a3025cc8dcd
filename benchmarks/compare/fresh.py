"""What a newcomer waits for: an install from source, the demo in a fresh clone, the import of the clients.

    python benchmarks/compare/fresh.py [--rounds 3]

Rules: what is committed is what is tried, in a clone and an environment of their own; compiled by the machine's own compiler, with no cache
of it; downloads count, for a newcomer waits for them too. An import is timed in an interpreter of its own, from the installed package,
its bytecode written before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import ROOT, save

IMPORTS = {
    "import fastq": "import fastq",
    "Producer and Consumer": "from fastq import Consumer, Producer",
    "what Python itself takes: asyncio": "import asyncio",
}
IMPORT_TIMES = 21
TIMED = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


def environment() -> dict[str, str]:
    """Ours without what the project's own work sets."""
    left_out = ("CC", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def timed(*command: str | Path, cwd: Path) -> float:
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - begin


def clone(folder: Path) -> Path:
    timed("git", "clone", "-q", ROOT, folder, cwd=ROOT)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    installs, demos, imports = [], [], {}
    with tempfile.TemporaryDirectory(prefix="bench-fresh-") as name:
        for turn in range(rounds):
            folder = Path(name) / str(turn)
            folder.mkdir()
            timed(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
            python = folder / "venv" / "bin" / "python"
            installs.append(timed(python, "-m", "pip", "install", "-q", clone(folder / "source"), cwd=folder))
            demos.append(timed("make", "demo", cwd=clone(folder / "clone")))
            print(f"  round {turn + 1}/{rounds}  install {installs[-1]:.1f} s  make demo {demos[-1]:.1f} s", flush=True)
        for title, program in IMPORTS.items():
            timed(python, "-c", program, cwd=folder)
            found = [
                float(subprocess.check_output([python, "-c", TIMED.format(program)], cwd=folder, env=environment()))
                for _ in range(IMPORT_TIMES)
            ]
            imports[title] = statistics.median(found) * 1000
            print(f"  {title}: {imports[title]:.1f} ms", flush=True)
    figures = {"install_s": statistics.median(installs), "demo_s": statistics.median(demos), "import_ms": imports}
    print(save("fresh", figures))


if __name__ == "__main__":
    main()
