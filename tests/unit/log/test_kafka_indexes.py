"""Indexes as followers of Apache Kafka up to 4.0.0 leave them: an entry has the position of an append's first batch, offset of its last.

They are as good as any: what lies at or above an entry's offset lies behind its position.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.index_rebuild import rebuild
from fastq_broker.log.scan import WildIndex
from log_support import START_MS, TOPIC_ID, crash, flush_rolled, found_at, one_batch, open_manager, records_of

CONFIG = LogConfig(index_interval_bytes=0)
AT_ONCE = 8
"""Batches of one append, of two records each."""
COUNT = 100


def fill(directory: Path, config: LogConfig = CONFIG) -> LogManager:
    manager = open_manager(directory, config)
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(COUNT):
        batch = one_batch([b"v" * 1000, b"%d" % number], timestamp_ms=START_MS + 2 * number)
        log.append(batch, leader_epoch=0, now_ms=START_MS)
    return manager


def as_of_old(directory: Path, change: Callable[[list[int]], None] = lambda entry: None) -> list[tuple[int, int]]:
    """Write the index as such a follower does, and `change` its last entry; answers the entries, of relative offsets."""
    (path,) = (directory / "t-0").glob("*.index")
    old = list(struct.iter_unpack(">ii", path.read_bytes()))
    assert len(old) == COUNT - 1
    groups = [old[at : at + AT_ONCE] for at in range(3, len(old) - AT_ONCE - 5, AT_ONCE)]
    entries = [[group[-1][0], group[0][1]] for group in groups]
    change(entries[-1])
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    return [(offset, position) for offset, position in entries]


def check(log: PartitionLog, end: int = 2 * COUNT) -> None:
    assert log.log_end_offset == end
    for offset in range(0, end, 7):
        assert records_of(log.read(offset, 1))[offset % 2].offset == offset
        assert found_at(log, START_MS + offset) == (START_MS + offset, offset, 0)


def test_after_a_clean_stop_nothing_is_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert fill(tmp_path).close()
    entries = as_of_old(tmp_path)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, TOPIC_ID)
    check(log)
    assert (log.recovery.bytes_read, caplog.records) == (0, [])
    assert list(log.segments[0].index.entries()) == entries
    assert manager.close()
    check(open_manager(tmp_path, CONFIG).create("t", 0, TOPIC_ID))


def _higher(by: int) -> Callable[[list[int]], None]:
    def change(entry: list[int]) -> None:
        entry[0] += by

    return change


@pytest.mark.parametrize("change", [_higher(1), _higher(-2 * AT_ONCE), _higher(1000), _higher(1 << 30)])
def test_an_offset_at_which_no_batch_ends_is_damage(
    tmp_path: Path, change: Callable[[list[int]], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert fill(tmp_path).close()
    as_of_old(tmp_path, change)
    log = open_manager(tmp_path, CONFIG).create("t", 0, TOPIC_ID)
    check(log)
    assert "recovering a log although it was closed cleanly" in caplog.text
    assert log.recovery.bytes_read


def test_after_a_crash_what_lies_before_the_last_entry_is_not_read(tmp_path: Path) -> None:
    manager = fill(tmp_path)
    log = manager.logs["t", 0]
    log.flush()
    manager.flusher.wait()
    manager.checkpoint(log.dir)
    manager.flusher.wait()
    size = log.size_bytes
    crash(manager)
    as_of_old(tmp_path)
    log = open_manager(tmp_path, CONFIG).logs["t", 0]
    check(log)
    assert 0 < log.recovery.bytes_read < size // 2


@pytest.mark.parametrize("back", range(1, 4 * AT_ONCE, 3))
def test_a_cut_amid_an_append(tmp_path: Path, back: int, caplog: pytest.LogCaptureFixture) -> None:
    assert fill(tmp_path).close()
    as_of_old(tmp_path)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, TOPIC_ID)
    with caplog.at_level(logging.WARNING):
        log.truncate_to(2 * (COUNT - back))
    assert not caplog.records
    check(log, 2 * (COUNT - back))
    assert log.segments[0].index.last()[0] < log.log_end_offset
    log.append(one_batch([b"v", b"w"], timestamp_ms=log.log_end_offset + START_MS), leader_epoch=0, now_ms=START_MS)
    check(log, 2 * (COUNT - back + 1))
    assert manager.close()
    check(open_manager(tmp_path, CONFIG).create("t", 0, TOPIC_ID), 2 * (COUNT - back + 1))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_lies_behind_a_damaged_batch_is_found_by_them(tmp_path: Path) -> None:
    assert fill(tmp_path).close()
    as_of_old(tmp_path)
    (path,) = (tmp_path / "t-0").glob("*.log")
    log = open_manager(tmp_path, CONFIG).create("t", 0, TOPIC_ID)
    log.roll(START_MS)
    flush_rolled(log)
    segment = log.segments[0]
    size = segment.size // COUNT
    with path.open("r+b") as file:
        file.seek(30 * size + 8)
        file.write(b"\xff\xff\xff\xff")
    assert rebuild(log, segment, WildIndex(segment.index.path, 0, "somebody says so"))
    entries = list(segment.index.entries())
    assert entries and entries[-1][0] > 150, "it went on behind the damage"
    assert records_of(log.read(150, 1))[0].offset == 150
