"""Where nothing may be left out, as in the whole check, a test that is left out has failed, however it was left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
WAYS = """
import pytest

@pytest.mark.skip(reason="no kcat here")
def test_by_a_mark(): ...

def test_by_a_call():
    pytest.skip("no kcat here")

def test_by_what_it_needs():
    pytest.importorskip("no_such_package_as_this")

@pytest.fixture
def peer():
    pytest.skip("no kcat here")

def test_by_its_fixture(peer): ...

@pytest.mark.xfail(reason="known", strict=True)
def test_known_to_fail():
    assert False

def test_that_runs(): ...
"""


WHOLE_FILE = """
import pytest

pytest.importorskip("no_such_package_as_this")

def test_anything(): ...
"""


def run(directory: Path, text: str, no_skips: str) -> tuple[int, str]:
    """pytest's exit code and what it prints for a file of tests beside our conftest.py, which imports of our tools."""
    (directory / "test_ways.py").write_text(text)
    (directory / "conftest.py").write_text((TESTS / "conftest.py").read_text(encoding="utf-8"))
    path = os.pathsep.join(filter(None, [str(TESTS.parent / "tools"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "FASTQ_NO_SKIPS": no_skips, "PYTHONPATH": path}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(directory),
        str(directory),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=directory, env=environment)
    return done.returncode, done.stdout


def test_a_test_that_is_left_out_counts_as_failed(tmp_path: Path) -> None:
    code, told = run(tmp_path, WAYS, "1")
    assert code == 1
    assert "2 failed, 1 passed, 1 xfailed, 2 errors" in told
    assert told.count("left out, where nothing may be") >= 4 and "no kcat here" in told


def test_a_file_that_is_left_out_counts_as_failed(tmp_path: Path) -> None:
    code, told = run(tmp_path, WHOLE_FILE, "1")
    assert code not in (0, 5)
    assert "left out, where nothing may be" in told and "no_such_package_as_this" in told


def test_elsewhere_it_is_left_out(tmp_path: Path) -> None:
    code, told = run(tmp_path, WAYS, "")
    assert code == 0
    assert "1 passed, 4 skipped, 1 xfailed" in told
    assert "1 skipped" in run(tmp_path, WHOLE_FILE, "")[1]
