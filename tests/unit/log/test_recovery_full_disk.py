"""Recovery on a disk that is full to the last byte: what follows from the batches waits in memory, and nothing is lost by it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, crash, one_batch, open_manager, records_of

SIZE = len(one_batch([b"v000"]))
CONFIG = LogConfig(segment_bytes=1000 * SIZE, index_interval_bytes=5 * SIZE)
COUNT = 250


def append(log: PartitionLog, number: int) -> None:
    batch = one_batch([b"v%03d" % number], timestamp_ms=START_MS + number, producer_id=5, epoch=0, sequence=number)
    log.append(batch, leader_epoch=number // 50, now_ms=START_MS)


def full_disk() -> FaultyFiles:
    files = FaultyFiles()
    files.plan(Fault("write", errno.ENOSPC))
    return files


def reopen(
    manager: LogManager, directory: Path, files: FaultyFiles, config: LogConfig = CONFIG
) -> tuple[LogManager, PartitionLog]:
    crash(manager)
    manager = open_manager(directory, config, files=files)
    log = manager.get("t", 0)
    assert log is not None and log.loaded
    return manager, log


def index_files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in (directory / "t-0").iterdir()
        if path.suffix in (".index", ".timeindex")
    }


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
@pytest.mark.parametrize("lost", ["nothing", "indexes and epochs"])
def test_a_crash_on_a_full_disk_is_recovered_in_memory(tmp_path: Path, durability: str, lost: str) -> None:
    config = replace(CONFIG, durability=durability)
    manager = open_manager(tmp_path, config)
    log = manager.create("t", 0, bytes(16))
    for number in range(COUNT):
        append(log, number)
    epochs, entries = log.epochs.entries(), list(log.active_segment.index.entries())
    assert len(entries) > 30
    if lost != "nothing":
        for path in (tmp_path / "t-0").iterdir():
            if path.suffix in (".index", ".timeindex") or "epoch" in path.name:
                path.unlink()
    files = full_disk()
    for _ in range(2):  # the second one finds what the first has left
        manager, log = reopen(manager, tmp_path, files, config)
        assert (log.log_end_offset, log.recovery_point, log.epochs.entries()) == (COUNT, 0, epochs)
        assert list(log.active_segment.index.entries()) == entries
        assert records_of(log.read(200, 1 << 20))[0].value == b"v200"
        found = log.active_segment.time_index.lookup(START_MS + 177)
        assert found is not None and found[1] > 150
        assert not manager.offline_dirs
    log.flush()  # what would move the recovery point waits for room, too
    manager.tick()
    manager.flusher.wait()
    assert log.recovery_point == 0
    files.heal()
    manager.tick()
    manager.flusher.wait()
    manager.flusher.drain()
    assert log.recovery_point == COUNT
    append(log, COUNT)
    assert manager.close()
    whole = index_files(tmp_path)
    log = open_manager(tmp_path, config).get("t", 0)  # type: ignore[assignment]
    assert log.log_end_offset == COUNT + 1 and log.recovery.bytes_read == 0
    assert list(log.active_segment.index.entries())[: len(entries)] == entries
    assert [len(data) % 4 for data in whole.values()] == [0, 0]


def test_entries_that_were_cut_off_never_come_back_with_those_that_waited(tmp_path: Path) -> None:
    """The file is cut with the first write that has room, and not trusted before."""
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, bytes(16))
    for number in range(COUNT):
        append(log, number)
    log.active_segment.index.write_pending()
    log.active_segment.time_index.write_pending()
    files = full_disk()
    files.plan(Fault("truncate", errno.ENOSPC, "index"))
    with open(tmp_path / "t-0" / f"{0:020d}.log", "r+b") as file:  # what was not on disk is gone
        file.truncate(100 * SIZE)
    before = index_files(tmp_path)
    manager, log = reopen(manager, tmp_path, files)
    assert log.log_end_offset == 100 and index_files(tmp_path) == before
    entries = list(log.active_segment.index.entries())
    assert entries and entries[-1][0] < 100
    files.heal()
    log.flush()
    manager.tick()
    manager.flusher.wait()
    manager.flusher.drain()
    assert log.recovery_point == 100
    manager, log = reopen(manager, tmp_path, FaultyFiles())
    assert list(log.active_segment.index.entries()) == entries
