"""Run `make test` again and again, and write down who failed: a test that fails in one of many runs is broken.

    make steady RUNS=10          # or: python tools/steady.py 10

Rules
- Each run is a line of benchmarks/results/steady.txt: when it began, the commit, how many tests passed, in how many minutes, who failed.
  Lines are only added, so ten runs may be made on several days; the file's first line says how many there are, and how many were clean.
- A run of files that are not what the commit says has a `+` behind it. Nothing is tried a second time; nothing else is to run beside it.
- What the tests print goes to build/steady-<number>.log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = ROOT / "benchmarks/results/steady.txt"
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s\b")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)")


class Outcome:
    """What one run printed: how many passed, and who did not."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.passed = self.parts = 0
        self.failed: list[str] = []
        for line in lines:
            if found := SUMMARY.match(line):
                self.parts += 1
                self.passed += sum(int(count) for count in re.findall(r"(\d+) passed", found[1]))
            elif found := FAILED.match(line):
                self.failed.append(found[1])

    def words(self, code: int) -> str:
        """As the line says it; `code` is what make ended with."""
        if code == 0:
            return f"{self.passed} passed"
        return f"{self.passed} passed, failed: {', '.join(self.failed) or f'nobody, but make ended with {code}'}"


def commit() -> str:
    """The commit that is checked out, with a `+` where files differ from it."""
    told = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ":!benchmarks/results"], cwd=ROOT, capture_output=True, text=True
    )
    return (told.stdout.strip() or "no commit") + ("+" if changed.stdout.strip() else "")


def written_down(line: str, before: str) -> str:
    """The file's text with one run more."""
    runs = [*before.splitlines()[1:], line]
    clean = sum("failed:" not in run for run in runs)
    return (
        "\n".join([f"# make test, run {len(runs)} times, each the first try: {clean} times all passed", *runs]) + "\n"
    )


def main() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    clean = True
    for number in range(1, int(sys.argv[1]) + 1):
        what, began, log = commit(), time.time(), ROOT / f"build/steady-{number}.log"
        with log.open("w") as file:
            code = subprocess.run(["make", "test"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT).returncode
        outcome = Outcome(log.read_text(errors="replace").splitlines())
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(began))
        minutes = (time.time() - began) / 60
        line = f"{when} {what} {os.cpu_count()} cores, {minutes:.1f} min: {outcome.words(code)}"
        WRITTEN.write_text(written_down(line, WRITTEN.read_text() if WRITTEN.exists() else ""))
        print(line, flush=True)
        clean = clean and code == 0
    sys.exit(not clean)


if __name__ == "__main__":
    main()
