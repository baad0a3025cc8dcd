"""A log with aborted transactions, and ways to damage the files that tell of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastq_broker.log import LogConfig, PartitionLog, txn_index
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from faulty_files import FaultyFiles
from log_support import START_MS, TOPIC_ID, Later, Loop, StandingClock, one_batch, open_manager

from fastq.errors import ReplicaNotAvailable

CONFIG = LogConfig(segment_bytes=2_000, file_delete_delay_ms=0)
COUNT = 40
PRODUCERS = 5


def overwrite(data: bytes, at: int = 0) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return damage


def _cut(size: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.truncate(max(0, path.stat().st_size - size))

    return damage


def _backwards(path: Path) -> None:
    data, size = path.read_bytes(), txn_index.ENTRY_BYTES
    path.write_bytes(b"".join(data[at : at + size] for at in range(len(data) - size, -1, -size)))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a version that is none": overwrite(b"\0\7"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "backwards": _backwards,
    "cut within an entry": _cut(5),
    "cut between entries": _cut(txn_index.ENTRY_BYTES),
    "empty": _cut(1 << 20),
    "gone": lambda path: path.unlink(),
}
CERTAIN = [how for how in DAMAGES if how not in ("cut between entries", "gone")]
"""What the next process finds too."""


class World:
    """A log with transactions that pass from segment to segment, and what of them was aborted."""

    def __init__(self, directory: Path, files: FaultyFiles | None = None) -> None:
        self.directory, self.files, self.clock = directory, files, StandingClock()
        self.loop, self.thread = Loop(), Later()
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.begin()
        for number in range(COUNT):
            self.step(number)
        assert len(self.log.segments) > 3

    def begin(self) -> None:
        self.manager = open_manager(self.directory, CONFIG, files=self.files, clock=self.clock)
        self.manager.late.attach(self.manager.dirs, self.loop, lambda count, name: self.thread)
        self.manager.create("t", 0, TOPIC_ID)

    @property
    def log(self) -> PartitionLog:
        return self.manager.logs["t", 0]

    def step(self, number: int) -> None:
        producer = number % PRODUCERS
        if producer in self.open:
            commit = number % 3 == 0
            ended = self.log.append_transaction_marker(
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=commit,
                leader_epoch=0,
                now_ms=START_MS,
            )
            first = self.open.pop(producer)
            if not commit:
                self.aborted.append((producer, first, ended.base_offset))
        batch = one_batch(
            [b"v" * 90], producer_id=producer, epoch=0, sequence=self.sequences[producer], transactional=True
        )
        self.sequences[producer] += 1
        self.open[producer] = self.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=1).base_offset

    def begin_transaction(self, producer: int) -> int:
        """Of a producer that is new; answers its first offset."""
        batch = one_batch([b"v"], producer_id=producer, epoch=0, sequence=0, transactional=True)
        return self.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=1).base_offset

    def end_transaction(self, producer: int, first: int) -> None:
        """Abort it."""
        ended = self.log.append_transaction_marker(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=False, leader_epoch=0, now_ms=START_MS
        )
        self.aborted.append((producer, first, ended.base_offset))

    def abort(self, producer: int) -> None:
        """Begin a transaction of a producer that is new, and abort it at once."""
        self.end_transaction(producer, self.begin_transaction(producer))

    def told(self) -> list[tuple[int, int, int]]:
        log = self.log
        found = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        return sorted((each.producer_id, each.first_offset, each.last_offset) for each in found)

    def wanted(self) -> list[tuple[int, int, int]]:
        return sorted(each for each in self.aborted if each[2] >= self.log.log_start_offset)

    def paths(self) -> list[Path]:
        paths = (Path(segment.path_of(TXN_INDEX_SUFFIX)) for segment in self.log.segments)
        return [path for path in paths if path.exists()]

    def settle(self) -> None:
        for _ in range(20):
            try:
                assert self.told() == self.wanted()
                return
            except ReplicaNotAvailable:
                self.thread.run()
                self.loop.turn()
        raise AssertionError("it goes on and on")


def with_two_aborts(directory: Path, files: FaultyFiles | None = None) -> tuple[World, Path]:
    """A world whose active segment tells of two aborted transactions, and that file; a record lies behind them."""
    world = World(directory, files)
    world.log.roll(START_MS)
    world.abort(10)
    world.abort(11)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert world.told() == world.wanted()
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    assert path.stat().st_size == 2 * txn_index.ENTRY_BYTES
    return world, path
