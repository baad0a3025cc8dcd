"""One log's failure is its own: what is said of it, how often, and that the others go on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fastq_broker.log import FailureReports, LogConfig, PartitionLog
from fastq_broker.log.failures import REPORT_INTERVAL_S
from log_support import TOPIC_ID, StandingClock, one_batch, open_manager

from fastq.errors import KafkaStorageError


def test_a_place_is_heard_of_at_once_and_then_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    reports = FailureReports(lambda: now[0])

    def work() -> None:
        raise ValueError("broken")

    for _ in range(10):
        reports.attempt("syncing a-0", work)
        reports.attempt("syncing b-0", work)
        now[0] += REPORT_INTERVAL_S / 10
    # Clients of other tests may still be saying something in their threads.
    said = [record.getMessage() for record in caplog.records if record.name == FailureReports.__module__]
    assert said == [
        "syncing a-0 failed; the others go on",
        "syncing b-0 failed; the others go on",
    ]
    caplog.clear()
    reports.attempt("syncing a-0", work)
    (record,) = (record for record in caplog.records if record.name == FailureReports.__module__)
    assert record.getMessage() == "syncing a-0 failed (9 times more since it was last said); the others go on"
    assert record.exc_info is not None and repr(record.exc_info[1]) == "ValueError('broken')"


def test_what_a_disk_does_is_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise KafkaStorageError("deleting a log failed", log_dir="/d", errno="EIO")

    FailureReports(lambda: 0.0).attempt("deleting /d/a-0", work)
    (record,) = (record for record in caplog.records if record.name == FailureReports.__module__)
    assert record.getMessage().startswith("deleting /d/a-0 failed; the others go on: deleting a log failed")
    assert record.exc_info is None


def test_what_there_is_no_memory_to_say_ends_nothing_and_is_said_with_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The callbacks behind it were never run."""
    reports = FailureReports(lambda: 0.0)

    def work() -> None:
        raise ValueError("broken")

    def no_memory(*_given: object, **_named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(FailureReports.__module__), "error", no_memory)
        reports.attempt("syncing a-0", work)
    reports.attempt("syncing a-0", work)
    (record,) = (record for record in caplog.records if record.name == FailureReports.__module__)
    assert record.getMessage() == "syncing a-0 failed; the others go on"


def test_a_thousand_places_are_remembered_at_most() -> None:
    reports = FailureReports(lambda: 0.0)
    for number in range(3000):
        reports.report(f"place {number}", ValueError())
    assert len(reports._places) == 1000


@pytest.mark.parametrize("piece", ["retention", "flush", "producers", "checkpoint", "later"])
def test_one_log_that_raises_does_not_starve_housekeeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, piece: str
) -> None:
    clock = StandingClock()
    config = LogConfig(segment_bytes=200, retention_bytes=0, flush_ms=1000)
    manager = open_manager([tmp_path / "a", tmp_path / "b"], config, clock=clock)
    logs = [manager.create(name, 0, TOPIC_ID) for name in ("broken-" + piece, "whole")]
    for log in logs:
        for _ in range(5):
            log.append(one_batch([b"v" * 50]), leader_epoch=0, now_ms=clock())

    def broken(*_: object, **__: object) -> object:
        raise ValueError("this log is broken")

    if piece == "retention":
        monkeypatch.setattr("fastq_broker.log.log_manager.apply_retention", _for(logs[0], broken))
    elif piece == "flush":
        monkeypatch.setattr(PartitionLog, "flush_if_due", _for(logs[0], broken))
    elif piece == "producers":
        monkeypatch.setattr(logs[0].producers.__class__, "expire", broken)
    elif piece == "checkpoint":
        monkeypatch.setattr(manager, "write_checkpoints", broken)
    else:
        logs[0].dir.flush_later(1, broken)
    clock.advance(700_000)
    manager.tick()
    manager.flusher.wait()
    assert "this log is broken" in caplog.text
    assert logs[1].recovery_point == 5
    if piece != "retention":
        assert logs[1].log_start_offset == 5
    manager.tick()
    assert not manager.offline_dirs


def _for(log: PartitionLog, broken: object) -> object:
    def work(asked: PartitionLog, *rest: object) -> object:
        if asked is log:
            return broken()  # type: ignore[operator]
        return asked.flush() if not rest else 0

    return work


def test_what_clients_bring_about_is_said_at_once_and_then_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    reports, logger = FailureReports(lambda: now[0]), logging.getLogger("test.bounded")
    for number in range(100):
        reports.say(logger.warning, "fetch from a-0", "fetch from %s at %d: %s", "a-0", number, "damaged")
    now[0] += REPORT_INTERVAL_S
    reports.say(logger.warning, "fetch from a-0", "fetch from %s at %d: %s", "a-0", 100, "damaged")
    assert [record.getMessage() for record in caplog.records if record.name == "test.bounded"] == [
        "fetch from a-0 at 0: damaged",
        "fetch from a-0 at 100: damaged (99 times more since it was last said)",
    ]
