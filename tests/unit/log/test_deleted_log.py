"""A log that is deleted while somebody has it still: who touches it is told so, and nothing is wrong with the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, StandingClock, crash, one_batch, open_manager, records_of

from fastq.errors import KafkaError, UnknownTopicOrPartition

CONFIG = LogConfig(segment_bytes=200, index_interval_bytes=0)


def append(log: PartitionLog, value: bytes = b"v") -> object:
    return log.append(one_batch([value]), leader_epoch=0, now_ms=START_MS)


def as_follower(log: PartitionLog) -> object:
    batch = one_batch([b"v"])
    batch[:8] = (20).to_bytes(8, "big")
    return log.append_as_follower(batch, now_ms=START_MS)


TOUCHES: dict[str, Callable[[PartitionLog], object]] = {
    "load": lambda log: log.load(),
    "read": lambda log: log.read(0, 1000),
    "read of what is recent": lambda log: log.read(9, 1000),
    "append": append,
    "append as a follower": as_follower,
    "cut": lambda log: log.truncate_to(5),
    "cut of epochs": lambda log: log.truncate_to(1000),
    "cut of all": lambda log: log.truncate_fully_and_start_at(7),
    "roll": lambda log: log.roll(START_MS),
    "start": lambda log: log.raise_start(3),
    "sync": lambda log: log.sync_now(),
    "time": lambda log: log.timestamp_query(0),
    "largest time": lambda log: log.largest_timestamp(),
    "aborts": lambda log: log.aborted_transactions(0, 5),
    "epoch": lambda log: log.epoch_end_offset(0),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
@pytest.mark.parametrize("known", ["loaded", "not loaded", "not made"])
def test_it_says_so_and_takes_nothing_offline(
    tmp_path: Path, touch: Callable[[PartitionLog], object], known: str
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(10):
        append(log)
    if known == "not loaded":
        manager.close()
        manager = open_manager(tmp_path, CONFIG)
        log = manager.logs["t", 0]
        assert not log.loaded
    elif known == "not made":
        log = manager.make_log(log.dir, ("new", 0), config=CONFIG)
        log.unmade = True
        manager.logs["new", 0] = log
    manager.delete(log.topic, 0)
    with pytest.raises(UnknownTopicOrPartition, match="deleted"):
        touch(log)
    assert manager.offline_dirs == {}
    other = manager.create("other", 0, TOPIC_ID)
    append(other)
    manager.tick()
    manager.flusher.wait()
    assert manager.close(), "there is a directory that is not whole"


def test_another_of_its_name_has_nothing_of_it(tmp_path: Path) -> None:
    """Its files have the paths that the deleted one's had."""
    manager = open_manager(tmp_path, CONFIG)
    gone = manager.create("t", 0, TOPIC_ID)
    for _ in range(10):
        append(gone, b"old")
    manager.delete("t", 0)
    log = manager.create("t", 0, bytes(16))
    append(log, b"new")
    for touch in TOUCHES.values():
        with pytest.raises(UnknownTopicOrPartition):
            touch(gone)
    assert [record.value for record in records_of(log.read(0, 1000))] == [b"new"]
    append(log, b"newer")
    assert manager.close()
    log = open_manager(tmp_path, CONFIG).logs["t", 0]
    assert [record.value for record in records_of(log.read(0, 1000))] == [b"new", b"newer"]


def test_what_its_offsets_were_is_known(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, TOPIC_ID)
    append(log)
    manager.delete("t", 0)
    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset) == (0, 1, 1, 1)


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_a_sync_that_was_under_way_concerns_nobody(tmp_path: Path, durability: Literal["page-cache", "fsync"]) -> None:
    manager = open_manager(tmp_path, replace(CONFIG, durability=durability))
    log = manager.create("t", 0, TOPIC_ID)
    told: list[KafkaError | None] = []
    append(log)
    log.flush()
    log.durability.wait(1, told.append)
    append(log)
    log.flush()
    manager.delete("t", 0)
    assert [type(error) for error in told] == [UnknownTopicOrPartition]
    manager.flusher.wait()
    manager.tick()
    assert len(told) == 1 and manager.offline_dirs == {}


def test_one_that_a_shortage_kept_from_going_is_not_served_again(tmp_path: Path) -> None:
    """The partition is placed here again before its directory has its other name."""
    files, clock = FaultyFiles(), StandingClock()
    manager = open_manager(tmp_path, CONFIG, files=files, clock=clock)
    gone = manager.create("t", 0, TOPIC_ID)
    append(gone, b"old")
    fault: Any = files.plan(Fault("rename", errno.ENOMEM, "t-0"))
    manager.delete("t", 0)
    assert fault.struck
    files.heal()
    log = manager.create("t", 0, TOPIC_ID)
    assert log is not gone and log.log_end_offset == 0
    append(log, b"new")
    clock.advance(1000)
    manager.tick()
    assert [record.value for record in records_of(log.read(0, 1000))] == [b"new"]
    crash(manager)
    assert open_manager(tmp_path, CONFIG).logs["t", 0].log_end_offset == 1
