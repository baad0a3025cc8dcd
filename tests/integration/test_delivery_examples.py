"""The examples of delivery semantics show what they say: a worker dies in the middle, another one goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "delivery"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("at_most_once", "lost: 1, handled twice: 0"),
        ("at_least_once", "lost: 0, handled twice: 1"),
        ("exactly_once", "lost: 0, made twice: 0"),
    ],
)
def test_a_crash_shows_the_difference(tmp_path: Path, name: str, verdict: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == verdict, done.stdout + done.stderr
