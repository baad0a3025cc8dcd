"""A system without POSIX' calls on files: a broker does not begin there, and says why."""

from __future__ import annotations

import os

import pytest
from fastq_broker.__main__ import main
from fastq_broker.exit_codes import FAILED


@pytest.mark.parametrize("arguments", [[], ["--nodes", "3"], ["status"]])
def test_a_broker_says_what_it_needs(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "pread")
    assert main(arguments) == FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert "POSIX" in said.err
    assert "WSL" in said.err
    assert said.err.count("\n") == 1
