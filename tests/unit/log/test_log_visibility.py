"""A log that other nodes have too: its high watermark is what it is told, and after a start what was written down of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.flusher import ManualFlusher
from log_support import START_MS, TOPIC_ID, crash, one_batch, open_manager

FSYNC = LogConfig(durability="fsync")


def shared_log(manager: LogManager, config: LogConfig | None = None) -> PartitionLog:
    log = manager.create("events", 0, TOPIC_ID, config or LogConfig())
    log.share(True)
    return log


def append(log: PartitionLog, count: int = 1, **batch: int | bool) -> None:
    log.append(one_batch([b"v"] * count, **batch), leader_epoch=0, now_ms=START_MS, transaction_version=2)  # type: ignore[arg-type]


def drain(log: PartitionLog) -> None:
    assert isinstance(log.dir.flusher, ManualFlusher)
    log.dir.flusher.wait()


@pytest.mark.parametrize("config", [LogConfig(), FSYNC], ids=["page-cache", "fsync"])
def test_nothing_is_visible_before_it_is_said_to_be(tmp_path: Path, config: LogConfig) -> None:
    log = shared_log(open_manager(tmp_path, config), config)
    heard: list[tuple[int, int, int]] = []
    log.on_advance(lambda log: heard.append((log.log_end_offset, log.durable_end, log.high_watermark)))
    append(log, 3)
    drain(log)
    assert heard[-1] == (3, 3, 0)
    log.advance_high_watermark(2)
    assert heard[-1] == (3, 3, 2)
    log.advance_high_watermark(1)
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)
    log.advance_high_watermark(9)
    assert log.high_watermark == 3


def test_what_is_on_disk_is_told_and_not_shown(tmp_path: Path) -> None:
    log = shared_log(open_manager(tmp_path, FSYNC), FSYNC)
    heard: list[int] = []
    append(log, 3)
    log.on_advance(lambda log: heard.append(log.durable_end))
    drain(log)
    assert (heard, log.high_watermark) == ([3], 0)


def test_an_open_transaction_holds_back_the_stable_offset_alone(tmp_path: Path) -> None:
    log = shared_log(open_manager(tmp_path))
    append(log)
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    log.advance_high_watermark(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)


def test_other_settings_show_nothing_of_a_shared_log(tmp_path: Path) -> None:
    log = shared_log(open_manager(tmp_path, FSYNC), FSYNC)
    append(log, 3)
    heard: list[int] = []
    log.on_advance(lambda log: heard.append(log.durable_end))
    log.apply_config(LogConfig())
    assert (heard[-1], log.high_watermark) == (3, 0)
    log.apply_config(FSYNC)
    append(log)
    drain(log)
    assert log.high_watermark == 0


def test_a_log_that_is_nobody_elses_any_more_shows_all(tmp_path: Path) -> None:
    log = shared_log(open_manager(tmp_path))
    append(log, 3)
    log.share(False)
    assert log.high_watermark == 3
    append(log)
    assert log.high_watermark == 4
    log.share(True)
    append(log)
    assert log.high_watermark == 4


def test_a_follower_takes_what_its_leader_says_as_far_as_it_has_it(tmp_path: Path) -> None:
    log = shared_log(open_manager(tmp_path))
    append(log, 4)
    append(log, 4)
    log.advance_as_follower(6, 9)
    assert (log.high_watermark, log.log_start_offset) == (6, 6)
    log.advance_as_follower(99, 2)
    assert (log.high_watermark, log.log_start_offset) == (8, 6)
    log.truncate_to(4)
    assert (log.high_watermark, log.log_end_offset) == (4, 4)


def restarted(path: Path, watermark: int, *, clean: bool) -> PartitionLog:
    """A log with records below 6 whose high watermark had been written down."""
    manager = open_manager(path)
    log = shared_log(manager)
    for _ in range(2):
        append(log, 3)
    log.advance_high_watermark(watermark)
    if clean:
        manager.close()
    else:
        manager.write_checkpoints(log.dir, wait=True)
        crash(manager)
    manager = open_manager(path)
    manager.write_checkpoints(manager.logs["events", 0].dir, wait=True)  # before anybody knows who has the log
    crash(manager)
    manager = open_manager(path)
    return manager.logs["events", 0]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
def test_after_a_start_a_shared_log_shows_what_it_had_shown(tmp_path: Path, clean: bool) -> None:
    log = restarted(tmp_path, 4, clean=clean)
    log.share(True)
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (4, 4, 6)
    log.advance_high_watermark(5)
    log.share(True)
    assert log.high_watermark == 5


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
def test_after_a_start_a_log_of_one_node_shows_all(tmp_path: Path, clean: bool) -> None:
    log = restarted(tmp_path, 4, clean=clean)
    log.share(False)
    assert log.high_watermark == 6


def test_what_was_never_written_down_is_not_shown_after_a_crash(tmp_path: Path) -> None:
    """The records may be in no other log."""
    manager = open_manager(tmp_path)
    append(shared_log(manager), 3)
    crash(manager)
    log = open_manager(tmp_path).logs["events", 0]
    assert log.log_end_offset == 3
    log.share(True)
    assert log.high_watermark == 0


def test_a_log_that_others_get_before_anybody_has_read_it_shows_what_it_had_alone(tmp_path: Path) -> None:
    """It began with nothing: all that had been acknowledged was out of sight until the others had it."""
    manager = open_manager(tmp_path)
    log = manager.create("events", 0, TOPIC_ID, LogConfig())
    append(log, 3)
    manager.close()
    manager = open_manager(tmp_path)
    log = manager.logs["events", 0]
    log.share(False)
    log.share(True)
    manager.write_checkpoints(log.dir, wait=True)
    assert not log.loaded
    log.load()
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (3, 3, 3)
    append(log)
    assert log.high_watermark == 3
