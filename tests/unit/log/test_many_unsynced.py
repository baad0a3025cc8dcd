"""Logs with more segments to sync than there are descriptors: rolls that the disk is behind of, or what a crash has left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.durability import SEGMENTS_PER_JOB
from faulty_files import FaultyFiles
from log_support import START_MS, crash, one_batch, open_manager

SEGMENTS = 5 * SEGMENTS_PER_JOB + 3
SPARE = 6
"""Beside the files of a job: its directories, the snapshot, the epochs, what is written."""


class ScarceFiles(FaultyFiles):
    """Has `limit` descriptors at a time, as long as it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: int | None = None
        self._opened: dict[int, tuple[int, int]] = {}

    def _open_count(self) -> int:
        for fd, identity in list(self._opened.items()):
            try:
                found = os.fstat(fd)
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != identity:
                del self._opened[fd]
        return len(self._opened)

    def open(self, path: str, flags: int) -> int:
        while self.limit is not None and self._open_count() >= self.limit:
            if self.make_room is None or not self.make_room():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        fd = super().open(path, flags)
        found = os.fstat(fd)
        self._opened[fd] = found.st_dev, found.st_ino
        return fd


def many(directory: Path, config: LogConfig) -> tuple[LogManager, PartitionLog, ScarceFiles]:
    files = ScarceFiles()
    manager = open_manager(directory, config, files=files)
    log = manager.create("t", 0, bytes(16))
    for number in range(SEGMENTS):
        batch = one_batch([b"v"], producer_id=5, epoch=0, sequence=number, transactional=True)
        log.append(batch, leader_epoch=0, now_ms=START_MS, from_client=False)
        log.append_transaction_marker(
            producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=False, leader_epoch=0, now_ms=START_MS
        )
        log.roll(START_MS)
    return manager, log, files


def assert_on_disk(log: PartitionLog, files: ScarceFiles, *, indexes: bool) -> None:
    for segment in log.segments:
        assert files.synced[segment.log.path] == segment.size
        if indexes and segment is not log.active_segment:
            for suffix in (".timeindex", ".txnindex"):  # no offset index has an entry
                path = segment.path_of(suffix)
                assert files.synced[path] == os.path.getsize(path) > 0


def test_a_flush_syncs_so_many_segments_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager, log, files = many(tmp_path, LogConfig())
    files.limit = 4 * SEGMENTS_PER_JOB + SPARE
    log.flush()
    points = [log.recovery_point]
    while log.durability.flushing:
        assert log.dir.flusher.drain() == 1
        points.append(log.recovery_point)
    assert points == [*range(0, 2 * SEGMENTS, 2 * SEGMENTS_PER_JOB), log.log_end_offset]
    assert log.durability.settled
    assert_on_disk(log, files, indexes=True)
    assert "WARNING" not in caplog.text
    crash(manager)


def test_who_waits_for_the_disk_hears_of_each_job(tmp_path: Path) -> None:
    manager, log, files = many(tmp_path, LogConfig())
    files.limit = SEGMENTS_PER_JOB + SPARE
    told: list[int] = []
    for offset in (2, SEGMENTS, log.log_end_offset):
        log.durability.wait(offset, lambda error, offset=offset: told.append(offset if error is None else -1))  # type: ignore[misc]
    log.dir.flusher.drain()
    assert told == [2] and log.on_disk_offset == 2 * SEGMENTS_PER_JOB
    log.dir.flusher.wait()
    assert told == [2, SEGMENTS, log.log_end_offset] and log.on_disk_offset == log.log_end_offset
    assert_on_disk(log, files, indexes=False)
    crash(manager)


def test_what_was_cut_waits_for_the_job_that_reaches_it(tmp_path: Path) -> None:
    manager, log, files = many(tmp_path, LogConfig())
    files.limit = 4 * SEGMENTS_PER_JOB + SPARE
    log.truncate_to(2 * SEGMENTS - 3)
    cut = log.active_segment
    log.flush()
    log.dir.flusher.drain()
    assert not log.durability.settled and log.durability.unsynced_from == 2 * SEGMENTS_PER_JOB
    assert cut.log.path not in files.synced
    log.dir.flusher.wait()
    assert log.durability.settled and files.synced[cut.log.path] == cut.size
    crash(manager)


@pytest.mark.parametrize("how", ["sync_now", "sync_alone", "recovery"])
def test_a_thread_that_syncs_itself_has_few_files_open(tmp_path: Path, how: str) -> None:
    manager, log, files = many(tmp_path, LogConfig())
    if how == "recovery":
        crash(manager)
        files.synced.clear()
        files.limit = SPARE
        manager = open_manager(tmp_path, LogConfig(flush_messages=1), files=files)
        log = manager.logs["t", 0]
        assert log.on_disk_offset == log.log_end_offset == 2 * SEGMENTS
    elif how == "sync_now":
        files.limit = SPARE
        log.sync_now()
        assert log.on_disk_offset == log.log_end_offset
    else:
        files.limit = 4 * SEGMENTS_PER_JOB + SPARE
        log.durability.sync_alone()
    assert_on_disk(log, files, indexes=how == "sync_alone")
    crash(manager)
