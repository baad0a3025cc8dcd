"""A round of compaction with a loss of power between any two operations on files: after the start each key has its value, whatever part of
the swap is on disk. Relied upon: synced bytes stay, and the renames in a directory come to the disk in order."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "log"))

from cleaner_support import cleaner_of, live_values, run, stored_batches
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from forgetful_disk import FailingPower, NoPower
from log_support import START_MS, StandingClock, crash, open_manager

from fastq._native.records import build_batch

CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=60_000,
)


class JournalledNames(FailingPower):
    """Names are on disk as soon as they are changed: all that was done before the loss of power, in its order."""

    def _names_left(self, inode: int, path: str | None) -> dict[str, int]:
        if path is None:
            return super()._names_left(inode, path)
        return {entry.name: entry.stat().st_ino for entry in Path(path).iterdir()}


def make(directory: Path, files: FailingPower) -> tuple[LogManager, PartitionLog]:
    """A log of several segments, all of it on disk; half of the records are superseded."""
    directory.mkdir(parents=True)
    manager = open_manager(directory, CONFIG, files=files)
    log = manager.create("t", 0, bytes(16), CONFIG)
    for number in range(24):
        rows = [(START_MS + number, b"key-%d" % (number * 5 % 12), b"value-%d" % number)]
        log.append(build_batch(rows), leader_epoch=0, now_ms=START_MS, from_client=False)
    log.roll(START_MS)
    log.flush()
    manager.flusher.wait()
    assert len(log.segments) > 4
    files.all_on_disk(directory)
    return manager, log


def compact(manager: LogManager) -> None:
    """One round, and what follows on it: the replaced files go for good."""
    assert run(cleaner_of(manager), START_MS) == 1
    clock = manager.clock
    assert isinstance(clock, StandingClock)
    clock.advance(120_000)
    for _ in range(3):
        manager.tick()
        manager.flusher.wait()


@pytest.mark.parametrize("disk", [FailingPower, JournalledNames])
def test_each_key_has_its_value(tmp_path: Path, disk: type[FailingPower]) -> None:
    step, ended, finished, undone = 0, False, 0, 0
    while not ended:
        root, target = tmp_path / f"{step}", tmp_path / f"{step}-after"
        files = disk()
        manager, log = make(root, files)
        live, end, before = live_values(stored_batches(log)), log.log_end_offset, len(stored_batches(log))
        files.left = step
        try:
            compact(manager)
            ended = True
        except NoPower:
            pass
        files.left = None
        files.lose_power(root, target)
        crash(manager)
        swaps = list((target / "t-0").glob("*.log.swap"))
        again = open_manager(target, CONFIG)
        found = again.get("t", 0)
        assert found is not None
        found.load()
        batches = stored_batches(found)
        assert live_values(batches) == live, step
        assert found.log_end_offset == end
        assert not list((target / "t-0").glob("*.swap")) and not list((target / "t-0").glob("*.cleaned"))
        if swaps:
            finished += len(batches) < before
            undone += len(batches) == before
        run(cleaner_of(again), START_MS)
        assert live_values(stored_batches(found)) == live, step
        crash(again)
        shutil.rmtree(root)
        shutil.rmtree(target)
        step += 1
    assert step > 50
    assert bool(finished and undone) == (disk is JournalledNames)
