"""The audit log's file: renamed away, gone, unwritable, full; no line is lost, and nothing goes on that it could not tell of."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from console_served import Browser, Served

from fastq.console.audit import AuditFailed, AuditLog


def noted(log: AuditLog, what: str) -> None:
    log.write(who="ann", address="", what=what, cluster=None, on={}, outcome="done")


def told(path: Path) -> list[str]:
    return [json.loads(line)["what"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_log_that_is_renamed_away_goes_on_in_a_new_file(tmp_path: Path, is_made_anew: bool) -> None:
    path, old = tmp_path / "audit", tmp_path / "audit.1"
    log = AuditLog(path)
    noted(log, "before")
    path.rename(old)
    if is_made_anew:
        path.touch()
    noted(log, "after")
    noted(log, "and after that")
    assert told(old) == ["before"] and told(path) == ["after", "and after that"]
    assert [line["what"] for line in log.recent()] == ["and after that", "after"]
    if not is_made_anew:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log.close()


def test_rotations_leave_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path)
    noted(log, "first")
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        path.rename(tmp_path / f"audit.{n}")
        noted(log, f"{n}")
    assert len(os.listdir("/proc/self/fd")) == before
    log.close()


def test_a_log_that_cannot_be_opened_again_lets_nothing_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, old = tmp_path / "audit", tmp_path / "audit.1"
    log = AuditLog(path)
    log.check()
    path.rename(old)
    path.touch()
    log.check()  # even where nothing is to be written: a change would go on into what nobody reads
    path.rename(tmp_path / "audit.2")
    path.mkdir()  # nor may root write into it
    with pytest.raises(AuditFailed, match="Is a directory"):
        log.check()
    noted(log, "refused")
    assert "refused" in caplog.text and str(path) in caplog.text and not old.read_text()
    path.rmdir()
    log.check()
    assert told(path) == ["refused"]
    log.close()


def test_a_line_that_was_torn_by_a_rotation_is_whole_in_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old, write, left = tmp_path / "audit", tmp_path / "audit.1", os.write, [200]

    def until_full(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr("fastq.console.audit.os.write", until_full)
    log = AuditLog(path)
    for n in range(4):
        noted(log, f"thing {n}")
    with pytest.raises(AuditFailed, match="No space left"):
        log.check()
    path.rename(old)
    left[0] = 1_000_000
    log.check()
    whole = old.read_text().splitlines()[:-1]
    assert [json.loads(line)["what"] for line in whole] + told(path) == [f"thing {n}" for n in range(4)]
    log.close()


def test_a_change_after_a_rotation_is_told_or_refused(
    served: Callable[..., Served], new_topic_name: Callable[[], str], tmp_path: Path
) -> None:
    path, names = tmp_path / "audit", [new_topic_name() for _ in range(3)]
    with Browser(served(audit_log=path).url) as browser:
        form = "/c/test/new-topic", "/c/test/create-topic"
        assert browser.submit(*form, name=names[0]).status_code == 200
        path.rename(tmp_path / "audit.1")
        path.touch()
        assert browser.submit(*form, name=names[1]).status_code == 200
        assert names[1] in path.read_text() and names[1] in browser.get("/audit").text
        path.unlink()
        path.mkdir()
        refused = browser.submit(*form, name=names[2])
        assert refused.status_code == 503 and "Nothing was done" in refused.text
        assert browser.get(f"/c/test/topics/{names[2]}").status_code == 404
