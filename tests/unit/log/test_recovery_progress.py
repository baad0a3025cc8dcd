"""The progress of a recovery: what is said, how often, and how it is stopped."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.recovery_progress import LINE_INTERVAL_MS, RecoveryProgress, RecoveryStopped
from faulty_files import FaultyFiles

from fastq._native.records import build_batch

NOW_MS = 1_700_000_000_000


def test_lines_come_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0
    progress = RecoveryProgress(lambda: now_ms)
    progress.logs = 40
    with caplog.at_level(logging.INFO):
        for now_ms in range(0, 10 * LINE_INTERVAL_MS, 100):
            progress.begin("t-1")
            progress.read(1 << 20)
            progress.done = now_ms // 1500
    assert 9 <= len(caplog.messages) <= 10
    assert caplog.messages[0] == "recovering, 3 of 40 logs, 52 MB read, now t-1"


def crashed(directory: Path, partitions: int) -> None:
    files = FaultyFiles()
    manager = LogManager([directory], files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS)
    manager.start()
    for partition in range(partitions):
        log = manager.create("t", partition, bytes(16))
        for _ in range(5):
            log.append(build_batch([(NOW_MS, None, b"v")]), leader_epoch=0, now_ms=NOW_MS)
    manager.release_locks()


def stop_after(manager: LogManager, pieces: int) -> None:
    """Have the recovery stopped once so many pieces have been read."""
    read = manager.recovery.read
    left = pieces

    def count(size: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            manager.recovery.stop()
        read(size)

    manager.recovery.read = count  # type: ignore[method-assign]


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
@pytest.mark.parametrize("pieces", range(9))
def test_a_recovery_that_was_stopped_anywhere_is_done_again(tmp_path: Path, pieces: int, durability: str) -> None:
    crashed(tmp_path, 4)
    config = LogConfig(durability=durability)
    files = FaultyFiles()
    manager = LogManager(
        [tmp_path], default_config=config, files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS
    )
    manager.find()
    assert manager.recovery.under_way and manager.recovery.logs == 4
    stop_after(manager, pieces)
    if pieces < 8:
        with pytest.raises(RecoveryStopped):
            manager.recover()
    else:
        manager.recover()
        assert not manager.recovery.under_way
    assert not manager.offline_dirs
    manager.release_locks()
    again = LogManager([tmp_path], default_config=config, clock=lambda: NOW_MS)
    again.start()
    assert [log.high_watermark for log in again.logs.values()] == [5] * 4
    again.close()


@pytest.mark.parametrize("lost", ["gone", "empty", "rubbish"])
@pytest.mark.parametrize("pieces", range(7))
def test_leader_epochs_that_were_lost_are_all_found_after_a_stop(tmp_path: Path, pieces: int, lost: str) -> None:
    """They are taken from all segments, of which recovery has to read the last one only."""
    files = FaultyFiles()
    manager = LogManager([tmp_path], files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS)
    manager.start()
    log = manager.create("t", 0, bytes(16))
    for epoch in range(3):
        for _ in range(5):
            log.append(build_batch([(NOW_MS, None, b"v")]), leader_epoch=epoch, now_ms=NOW_MS)
        if epoch < 2:
            log.roll(NOW_MS)
            log.flush()
            manager.flusher.wait()
    manager.write_checkpoints(log.dir, wait=True)
    assert log.recovery_point == 10
    expected = log.epochs.entries()
    manager.release_locks()
    path = Path(log.epochs.path)
    path.unlink() if lost == "gone" else path.write_bytes(b"" if lost == "empty" else b"rubbish")
    manager = LogManager([tmp_path], files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS)
    manager.find()
    stop_after(manager, pieces)
    if pieces < 5:  # the log, its last segment, and all three for the epochs
        with pytest.raises(RecoveryStopped):
            manager.recover()
    else:
        manager.recover()
    manager.release_locks()
    again = LogManager([tmp_path], clock=lambda: NOW_MS)
    again.start()
    assert again.logs["t", 0].epochs.entries() == expected
    again.close()
