"""Where the testing kit's broker keeps its bytecode."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from fastq.testing import broker_environment


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    return tmp_path / f"fastq-bytecode-{os.getuid()}"


def test_bytecode_goes_to_a_directory_of_its_own(temporary: Path) -> None:
    environment = broker_environment({"MINE": "1"})
    assert environment["PYTHONPYCACHEPREFIX"] == str(temporary) and environment["MINE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in environment and os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert broker_environment({})["PYTHONPYCACHEPREFIX"] == str(temporary), "the next broker finds it"


def test_what_others_can_write_is_not_used(temporary: Path) -> None:
    temporary.mkdir(mode=0o700)
    temporary.chmod(0o777)
    assert "PYTHONPYCACHEPREFIX" not in broker_environment({})
    temporary.rmdir()
    temporary.symlink_to(temporary.parent)
    assert "PYTHONPYCACHEPREFIX" not in broker_environment({})


def test_who_has_decided_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker_environment({"PYTHONPYCACHEPREFIX": "/x"})["PYTHONPYCACHEPREFIX"] == "/x"
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    assert "PYTHONPYCACHEPREFIX" not in broker_environment({}) and not temporary.exists()
