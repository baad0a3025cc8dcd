"""`make wheels`: one wheel for a machine that this one is not, from the sources to the checks. Long: every extension is compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_a_wheel_for_another_machine(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-U", "pip"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--group", "wheels"], check=True, cwd=ROOT)
    command = [python, "tools/wheels.py", "--output", tmp_path / "dist", "cp312-manylinux_aarch64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built, checked" in done.stdout
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.endswith("-cp312-cp312-manylinux_2_28_aarch64.whl")
    assert wheel.stat().st_size <= 6_000_000
