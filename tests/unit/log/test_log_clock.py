"""The wall clock is set while the broker runs: timers go on as if nothing had happened, what is compared with records follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, log_manager
from fastq_broker.log.cleaner import Worker
from fastq_broker.log.cleaner_job import CleaningJob
from fastq_broker.log.durability import ROLL_FLUSH_DELAY_MS
from faulty_files import FaultyFiles
from log_support import TOPIC_ID, StandingClock, one_batch, open_manager, reconfigure

DAY_MS = 24 * 3600 * 1000
JUMPS = (-DAY_MS, DAY_MS)


class Clocks:
    """A wall clock that somebody sets, and a monotonic one."""

    def __init__(self) -> None:
        self.wall = StandingClock()
        self.monotonic = StandingClock(5_000)

    def advance(self, ms: int) -> None:
        self.wall.advance(ms)
        self.monotonic.advance(ms)


@pytest.mark.parametrize("jump", JUMPS)
def test_flushes_checkpoints_and_deletions_come_when_they_are_due(tmp_path: Path, jump: int) -> None:
    clocks = Clocks()
    config = LogConfig(flush_ms=10_000, retention_ms=-1, file_delete_delay_ms=20_000, segment_bytes=200)
    manager = open_manager(tmp_path, config, clock=clocks.wall, monotonic_ms=clocks.monotonic)
    log, rolled, gone = (manager.create(name, 0, TOPIC_ID) for name in ("t", "rolled", "gone"))
    reconfigure(manager, "rolled", LogConfig())
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clocks.wall())
    rolled.append(one_batch([b"v"]), leader_epoch=0, now_ms=clocks.wall())
    rolled.roll(clocks.wall())
    manager.delete("gone", 0)
    clocks.wall.advance(jump)
    clocks.advance(ROLL_FLUSH_DELAY_MS - 1)
    manager.tick()
    manager.flusher.wait()
    assert (log.recovery_point, rolled.recovery_point) == (0, 0), "nothing comes early"
    clocks.advance(1)
    manager.tick()
    manager.flusher.wait()
    assert (log.recovery_point, rolled.recovery_point) == (0, 1)
    clocks.advance(5_000)
    manager.tick()
    manager.flusher.wait()
    assert log.recovery_point == 1
    assert gone.path and list(tmp_path.glob("*-delete"))
    clocks.advance(10_000)
    manager.tick()
    manager.flusher.wait()
    assert not list(tmp_path.glob("*-delete"))
    point = tmp_path / "recovery-point-offset-checkpoint"
    assert not point.exists()
    clocks.advance(40_000)
    manager.tick()
    manager.flusher.wait()
    assert "t 0 1" in point.read_text()


@pytest.mark.parametrize("interval_ms", [5_000, None])
def test_high_watermarks_are_written_down_apart_where_others_have_the_logs_too(
    tmp_path: Path, interval_ms: int | None
) -> None:
    clocks = Clocks()
    manager = open_manager(
        tmp_path, LogConfig(), clock=clocks.wall, monotonic_ms=clocks.monotonic, watermark_interval_ms=interval_ms
    )
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clocks.wall())
    watermarks = tmp_path / "replication-offset-checkpoint"
    clocks.advance(4_999)
    manager.tick()
    manager.flusher.wait()
    assert not watermarks.exists()
    clocks.advance(1)
    manager.tick()
    manager.flusher.wait()
    assert watermarks.exists() == (interval_ms is not None)
    assert interval_ms is None or "t 0 1" in watermarks.read_text()
    assert not (tmp_path / "recovery-point-offset-checkpoint").exists()


@pytest.mark.parametrize("jump", JUMPS)
def test_rounds_of_retention_go_on_and_compare_with_the_time_of_the_records(tmp_path: Path, jump: int) -> None:
    clocks = Clocks()
    config = LogConfig(retention_ms=DAY_MS // 2, segment_bytes=100)
    manager = open_manager(
        tmp_path, config, clock=clocks.wall, monotonic_ms=clocks.monotonic, retention_check_interval_ms=60_000
    )
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"], timestamp_ms=clocks.wall()), leader_epoch=0, now_ms=clocks.wall())
    clocks.wall.advance(jump)
    clocks.advance(60_000)
    manager.tick()
    assert (log.log_start_offset == 1) == (jump > 0)
    clocks.wall.advance(-jump)
    for _ in range(2):
        clocks.advance(DAY_MS)
        manager.tick()
    assert log.log_start_offset == 1


def test_a_round_that_takes_longer_than_its_interval_comes_to_every_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_manager, "_LOGS_PER_TICK", 1)
    clocks = Clocks()
    manager = open_manager(
        tmp_path,
        LogConfig(retention_ms=1, flush_ms=1),
        clock=clocks.wall,
        monotonic_ms=clocks.monotonic,
        retention_check_interval_ms=1_000,
        producer_expiration_check_interval_ms=1_000,
        producer_expiration_ms=1,
    )
    logs = [manager.create("t", partition, TOPIC_ID) for partition in range(25)]
    for log in logs:
        batch = one_batch([b"v"], timestamp_ms=clocks.wall(), producer_id=7, epoch=0, sequence=0)
        log.append(batch, leader_epoch=0, now_ms=clocks.wall())
    for done in range(1, 27):
        clocks.advance(500)
        manager.tick()
        manager.flusher.wait()
        if done == 3:
            assert all(log.recovery_point == 1 for log in logs), "flush.ms is far over for each"
        if done == 4:
            assert not any(log.producers for log in logs)
    assert all(log.log_start_offset == 1 for log in logs)


@pytest.mark.parametrize("jump", JUMPS)
def test_producers_at_work_are_remembered_and_silent_ones_forgotten(tmp_path: Path, jump: int) -> None:
    clocks = Clocks()
    manager = open_manager(
        tmp_path,
        LogConfig(retention_ms=-1),
        clock=clocks.wall,
        monotonic_ms=clocks.monotonic,
        producer_expiration_ms=3_600_000,
        producer_expiration_check_interval_ms=60_000,
    )
    log = manager.create("t", 0, TOPIC_ID)

    def send(producer_id: int, sequence: int) -> bool:
        now = clocks.wall()
        batch = one_batch([b"v"], timestamp_ms=now, producer_id=producer_id, epoch=0, sequence=sequence)
        return log.append(batch, leader_epoch=0, now_ms=now).duplicate

    for producer_id in (1, 2):
        assert not send(producer_id, 0)
    clocks.wall.advance(jump)
    clocks.advance(1_800_000)
    manager.tick()
    assert send(1, 0), "a batch that is sent again is known in spite of the jump"
    assert not send(1, 1)
    clocks.advance(1_800_000)
    manager.tick()
    assert [producer_id for producer_id, _ in log.producers.items()] == [1]


@pytest.mark.parametrize("jump", JUMPS)
def test_the_cleaner_backs_off_by_the_monotonic_clock(tmp_path: Path, jump: int) -> None:
    clocks = Clocks()
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=100, min_cleanable_dirty_ratio=0.0)
    files = FaultyFiles()
    manager = open_manager(tmp_path, config, clock=clocks.wall, monotonic_ms=clocks.monotonic, files=files)
    asked: list[int] = []

    def start(job: CleaningJob) -> Worker:
        asked.append(clocks.monotonic())
        raise OSError("no process now")

    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=5_000), start_worker=start)
    cleaner.tick(clocks.wall())
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(3):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clocks.wall())
    log.flush()
    manager.flusher.wait()
    clocks.wall.advance(jump)
    clocks.advance(4_999)
    cleaner.tick(clocks.wall())
    assert asked == []
    clocks.advance(1)
    cleaner.tick(clocks.wall())
    assert len(asked) == 1
