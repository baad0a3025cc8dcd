"""What is published: the sdist holds what a build needs, and no more; `make wheels` makes a wheel for a machine that this one is not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_sdist_has_the_sources_and_not_what_is_made_of_them(tmp_path: Path) -> None:
    (tmp_path / "egg").mkdir()
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", tmp_path / "egg", "sdist", "-d", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as source:
        names = [name.partition("/")[2] for name in source.getnames()]
    native = {Path(name).name for name in names if name.startswith("src/fastq/_native/")}
    here = ROOT / "src" / "fastq" / "_native"
    wanted = {path.name for pattern in ("*.pyx", "*.pxd", "*.h", "*.pyi", "*.py") for path in here.glob(pattern)}
    assert native - {""} == wanted
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= set(names)


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
