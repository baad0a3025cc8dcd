"""Each step on a disk that is full: names that get longer, cuts, syncs. What can be survived is, and makes room where that is its purpose;
what a failed sync has lost is not taken for kept."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.controller.snapshot import write_snapshot
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.checkpoints import RECOVERY_POINT
from fastq_broker.log.config import UNLIMITED
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles

from fastq._native.records import build_batch
from fastq.errors import KafkaStorageError

NOW_MS = 1_700_000_000_000
SIZE = len(build_batch([(NOW_MS, None, b"v000")]))
CONFIG = LogConfig(segment_bytes=10 * SIZE, index_interval_bytes=2 * SIZE, retention_ms=UNLIMITED)


def started(directory: Path, files: FaultyFiles, config: LogConfig = CONFIG) -> LogManager:
    manager = LogManager(
        [directory], default_config=config, files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS
    )
    manager.start()
    return manager


def filled(manager: LogManager, count: int = 35) -> PartitionLog:
    log = manager.create("t", 0, bytes(16))
    for number in range(log.log_end_offset, count):
        batch = build_batch([(NOW_MS, None, b"v%03d" % number)])
        log.append(batch, leader_epoch=number // 10, now_ms=NOW_MS)
    return log


def reopened(manager: LogManager, directory: Path, config: LogConfig = CONFIG) -> PartitionLog:
    """After a crash."""
    manager.release_locks()
    log = started(directory, FaultyFiles(), config).get("t", 0)
    assert log is not None and log.loaded
    return log


def make_full(files: FaultyFiles) -> None:
    """Not even a longer name has room."""
    files.plan(Fault("rename", errno.ENOSPC))
    files.plan(Fault("write", errno.ENOSPC))


def test_retention_makes_room_although_no_name_may_grow(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = started(tmp_path, files)
    log = filled(manager)
    log.apply_config(replace(CONFIG, retention_bytes=15 * SIZE))
    make_full(files)
    assert apply_retention(log, NOW_MS) == 2
    assert not manager.offline_dirs and log.log_start_offset == 20
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log")) == [f"{20:020d}.log", f"{30:020d}.log"]
    log = reopened(manager, tmp_path)
    assert (log.log_start_offset, log.log_end_offset) == (20, 35)


@pytest.mark.parametrize("to", [33, 20, 12, 0])
def test_a_follower_is_cut_back_on_a_full_disk(tmp_path: Path, to: int) -> None:
    files = FaultyFiles()
    manager = started(tmp_path, files)
    log = filled(manager)
    make_full(files)
    log.truncate_to(to)
    assert not manager.offline_dirs
    assert (log.log_end_offset, log.leader_epoch) == (to, (to - 1) // 10 if to else -1)
    files.heal()
    assert filled(manager, 40).log_end_offset == 40
    log = reopened(manager, tmp_path)
    assert (log.log_end_offset, log.leader_epoch, manager.offline_dirs) == (40, 3, {})


def test_a_log_begins_anew_on_a_full_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = started(tmp_path, files)
    log = filled(manager)
    make_full(files)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.leader_epoch) == (100, 100, -1)
    assert not manager.offline_dirs
    log = reopened(manager, tmp_path)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)


def test_a_deleted_log_makes_the_room_that_its_new_name_takes(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = started(tmp_path, files)
    filled(manager)
    files.plan(Fault("rename", errno.ENOSPC, repeat=False))
    assert manager.delete("t", 0)
    assert not manager.offline_dirs
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert left.name.endswith("-delete") and not list(left.glob("*.log"))
    assert filled(manager, 3).log_end_offset == 3


def test_a_recovered_log_whose_sync_fails_is_not_synced_again(tmp_path: Path) -> None:
    """The pages may be gone, and a second sync would succeed without them: after a full disk, too."""
    config = replace(CONFIG, durability="fsync")
    manager = started(tmp_path, FaultyFiles(), config)
    filled(manager)
    manager.release_locks()
    files = FaultyFiles()
    fault = files.plan(Fault("sync", errno.ENOSPC, ".log", repeat=False))
    with pytest.raises(KafkaStorageError, match=r"syncing a recovered log failed.*offline"):
        started(tmp_path, files, config)
    assert fault.struck == 1


@pytest.mark.parametrize("part", [f"{RECOVERY_POINT}.tmp", ""])
def test_a_checkpoint_whose_sync_finds_no_room_is_written_anew(tmp_path: Path, part: str) -> None:
    """It is no file in use: the one that is stays, and the next one is written from its begin."""
    files = FaultyFiles()
    manager = started(tmp_path, files)
    log = filled(manager)
    log.flush()
    manager.flusher.wait()
    manager.flusher.drain()
    fault = files.plan(Fault("sync", errno.ENOSPC, part))
    manager.write_checkpoints(log.dir, wait=False)
    for _ in range(3):
        manager.flusher.wait()
        manager.flusher.drain()
    assert fault.struck and not manager.offline_dirs
    files.heal()
    manager.write_checkpoints(log.dir, wait=False)
    for _ in range(3):
        manager.flusher.wait()
        manager.flusher.drain()
    assert reopened(manager, tmp_path).recovery_point > 30  # an index interval is checked again


def test_files_that_could_not_be_written_whole_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    files.plan(Fault("write", errno.ENOSPC, partial=5))
    with pytest.raises(OSError, match="No space"):
        files.write_file(str(tmp_path / "a"), b"0123456789", sync=True)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_snapshot(
            tmp_path / "b", [], epoch=1, timestamp_ms=1, last_timestamp_ms=1, kraft_version=None, voters=None
        )
    assert not list(tmp_path.iterdir())
