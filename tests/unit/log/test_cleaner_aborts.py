"""Compaction and the files that tell of aborted transactions: what these lack for a while is never taken for committed."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaner_support import DirectWorker, run
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, PartitionLog
from fastq_broker.log.cleaner_job import CleaningJob
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, Later, Loop, StandingClock, flush_rolled, one_batch, open_manager

from fastq._native.records import decode_records, iter_headers
from fastq.errors import ReplicaNotAvailable

CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)


class World:
    """A compacted log whose key was committed as b"committed", and in a transaction, that was aborted, as b"aborted"; a cleaner of it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.files, self.clock = directory, FaultyFiles(), StandingClock()
        self.loop, self.thread = Loop(), Later()
        self.sequence = 0
        self.jobs: list[CleaningJob] = []
        self.begin()

    def begin(self) -> None:
        self.manager = open_manager(self.directory, CONFIG, files=self.files, clock=self.clock)
        self.manager.late.attach(self.manager.dirs, self.loop, lambda count, name: self.thread)
        self.log = self.manager.create("t", 0, TOPIC_ID)
        self.cleaner = LogCleaner(self.manager, CleanerConfig(backoff_ms=0), start_worker=self._worker)

    def _worker(self, job: CleaningJob) -> DirectWorker:
        self.jobs.append(job)
        return DirectWorker(job, self.manager.files)

    def put(self, value: bytes) -> None:
        self.log.append(one_batch([value]), leader_epoch=0, now_ms=START_MS)

    def transact(self, value: bytes) -> None:
        batch = one_batch([value], producer_id=5, epoch=0, sequence=self.sequence, transactional=True)
        self.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=1)
        self.sequence += 1

    def end(self, commit: bool = False) -> None:
        self.log.append_transaction_marker(
            producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=commit, leader_epoch=0, now_ms=START_MS
        )

    def roll(self) -> None:
        self.log.roll(START_MS)
        flush_rolled(self.log)

    def fill(self) -> None:
        """The transaction's marker is in another segment than its record."""
        self.put(b"committed")
        self.transact(b"aborted")
        self.roll()
        self.end()

    def aborts(self) -> Path:
        (found,) = Path(self.log.path).glob("*" + TXN_INDEX_SUFFIX)
        return found

    def rounds(self) -> int:
        self.clock.advance(400_000)  # whatever is to be tried again, is
        return run(self.cleaner, START_MS)

    def told(self) -> list[bytes | None]:
        """The values that a reader of what is committed gets."""
        log = self.log
        aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        return values(log, [(one.first_offset, one.last_offset) for one in aborted])


def values(log: PartitionLog, aborted: list[tuple[int, int]]) -> list[bytes | None]:
    found = []
    for segment in log.segments:
        data = log.files.read_file(segment.log.path)
        for position, header in iter_headers(data, strict=True):
            hidden = header.is_transactional and any(first <= header.base_offset < last for first, last in aborted)
            if not header.is_control and not hidden:
                found += [record.value for record in decode_records(data, position)]
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_an_abort_that_waits_to_be_written_is_one(tmp_path: Path, code: int) -> None:
    world = World(tmp_path)
    fault = world.files.plan(Fault("open", code, TXN_INDEX_SUFFIX))
    world.fill()
    assert fault.struck and world.log.active_segment.unwritten_aborts
    assert world.rounds() == 0
    assert not world.jobs, "a worker would not know of the abort"
    world.files.heal()
    assert world.rounds() == 1
    assert world.told() == [b"committed"]
    assert world.aborts().stat().st_size
    assert world.log.dir.offline is None


def test_an_abort_in_a_file_that_is_made_again_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill()
    world.aborts().unlink()
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    assert world.rounds() == 0
    assert not world.jobs
    world.thread.run()
    world.loop.turn()
    assert world.rounds() == 1
    assert world.told() == [b"committed"]


def _spoiled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1] = 7
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        _spoiled,
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        Path.unlink,
        lambda path: path.write_bytes(b""),
    ],
    ids=["of another version", "longer", "gone", "empty"],
)
@pytest.mark.parametrize("where", ["round", "beyond"])
def test_a_file_that_the_worker_finds_damaged_is_made_again(
    tmp_path: Path, damage: Callable[[Path], object], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody fetches from the log: the cleaner is the first that meets it."""
    world = World(tmp_path)
    world.fill()
    if where == "round":
        world.roll()
        world.put(b"another")
        world.roll()
    expected = world.told()
    damage(world.aborts())
    with caplog.at_level(logging.WARNING):
        assert world.rounds() == 0
    assert len(world.jobs) == 1 and not world.cleaner.uncleanable
    assert "is damaged, it is made again from the segment" in caplog.text
    assert "dump-log" not in caplog.text
    assert world.rounds() == 0
    assert len(world.jobs) == 1, "it waits until it is there"
    world.thread.run()
    world.loop.turn()
    assert world.rounds() >= 1
    assert world.told() == expected[-1:]
    assert not list(Path(world.log.path).glob("*.cleaned"))


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("where", ["round", "beyond"])
def test_a_file_that_is_emptied_before_anybody_has_looked_is_made_again(tmp_path: Path, where: str, more: int) -> None:
    """Nobody knows how much it had, and what is aborted later does not come into it."""
    world = World(tmp_path)
    world.fill()
    if where == "round":
        world.roll()
        world.put(b"another")
        world.roll()
    expected = world.told()
    path = world.aborts()
    assert world.manager.close()
    world.begin()
    world.log.load()
    path.write_bytes(b"")
    for _ in range(more):
        world.transact(b"aborted, too")
        world.end()
    world.log.flush()
    world.log.dir.flusher.wait()
    assert world.rounds() == 0
    world.thread.run()
    world.loop.turn()
    assert world.rounds() >= 1
    assert world.told() == expected[-1:]


def test_an_abort_that_begins_its_file_while_the_worker_runs_is_no_damage(tmp_path: Path) -> None:
    """The file is there before its entry is."""
    world = World(tmp_path)
    world.put(b"committed")
    world.roll()

    def late(job: CleaningJob) -> DirectWorker:
        Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX)).touch()
        return DirectWorker(job, world.manager.files)

    world.cleaner = LogCleaner(world.manager, CleanerConfig(backoff_ms=0), start_worker=late)
    assert world.rounds() == 1


def test_one_that_is_made_again_while_the_worker_runs_is_none_of_a_failure_for_good(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill()

    def late(job: CleaningJob) -> DirectWorker:
        world.aborts().write_bytes(b"")
        with pytest.raises(ReplicaNotAvailable):
            world.told()
        return DirectWorker(job, world.manager.files)

    world.cleaner = LogCleaner(world.manager, CleanerConfig(backoff_ms=0), start_worker=late)
    assert world.rounds() == 0
    assert not world.cleaner.uncleanable
    world.thread.run()
    world.loop.turn()
    world.cleaner = LogCleaner(world.manager, CleanerConfig(backoff_ms=0), start_worker=world._worker)
    assert world.rounds() == 1
    assert world.told() == [b"committed"]


def test_a_file_that_nobody_has_looked_into_counts_beside_a_segment_that_is_emptied(tmp_path: Path) -> None:
    """What lies in an earlier segment was aborted all the same."""
    world = World(tmp_path)
    world.fill()
    world.roll()
    emptied = Path(world.log.segments[1].log.path)
    assert world.manager.close()
    emptied.write_bytes(b"")
    world.begin()
    world.log.load()
    world.put(b"another")
    world.rounds()
    assert len(world.jobs) == 1
    found = [value for segment in world.log.segments for value in _raw(segment.log.path)]
    assert b"committed" in found and b"aborted" not in found


def _raw(path: str) -> list[bytes | None]:
    data = Path(path).read_bytes()
    return [
        record.value for position, _ in iter_headers(data, strict=True) for record in decode_records(data, position)
    ]
