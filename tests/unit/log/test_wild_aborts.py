"""Transaction indexes that are damaged while their log is in use: nothing aborted is told as committed, and a thread makes them again."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog, txn_index
from fastq_broker.log.index_rebuild import rebuild
from fastq_broker.log.scan import WildIndex
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, Later, Loop, StandingClock, crash, one_batch, open_manager

from fastq._native.records import iter_headers
from fastq.errors import KafkaError, KafkaStorageError, ReplicaNotAvailable

CONFIG = LogConfig(segment_bytes=2_000, file_delete_delay_ms=0)
COUNT = 40
PRODUCERS = 5


def _write(data: bytes, at: int = 0) -> Callable[[Path], None]:
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
    "a version that is none": _write(b"\0\7"),
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


@pytest.mark.parametrize("how", DAMAGES)
def test_nothing_aborted_is_told_as_committed(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    assert world.told() == world.wanted()
    (path, *_), good = world.paths(), [path.read_bytes() for path in world.paths()]
    DAMAGES[how](path)
    for _ in range(3):
        with pytest.raises(ReplicaNotAvailable, match="is being made again"):
            world.told()
    assert len(world.thread.jobs) == 1
    for number in range(COUNT, COUNT + 9):
        world.step(number)
    world.settle()
    assert [path.read_bytes() for path in world.paths()][: len(good) - 1] == good[:-1]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"{path} is damaged, it is made again from the segment")


def test_an_empty_file_is_no_error_and_still_looked_into(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Apache Kafka leaves such; an operator is told, and nothing is taken for committed."""
    world = World(tmp_path)
    path = world.paths()[0]
    none = Path(world.log.segments[0].path_of(TXN_INDEX_SUFFIX)).with_name(f"{0:020d}{TXN_INDEX_SUFFIX}")
    assert world.manager.close()
    DAMAGES["empty"](path)
    none.touch()
    world.begin()
    world.settle()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.levelname for record in told} == {"WARNING"}
    assert any(f"{path}: at byte 0: the file is empty" in record.message for record in told)
    assert path.stat().st_size and (none == path or not none.exists())


class WatchedFiles(FaultyFiles):
    """Looks at a file after each operation that may have changed it."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: Path | None = None
        self.seen: list[bytes | None] = []

    def _look(self) -> None:
        if self.watched is not None:
            self.seen.append(self.watched.read_bytes() if self.watched.exists() else None)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._look()
        return super().pread(fd, size, position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:  # type: ignore[override]
        written = super().pwrite(fd, data, position)
        self._look()
        return written

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        super().rename(source, target)
        self._look()

    def unlink(self, path: str) -> None:  # type: ignore[override]
        super().unlink(path)
        self._look()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("how", [how for how in CERTAIN if how != "empty"])
def test_a_load_that_is_killed_leaves_the_damaged_file_or_the_whole_one(tmp_path: Path, how: str, clean: bool) -> None:
    files = WatchedFiles()
    world = World(tmp_path, files)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    path = max(world.paths(), key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    assert len(good) > txn_index.ENTRY_BYTES
    if clean:
        assert world.manager.close()
    else:
        crash(world.manager)
    DAMAGES[how](path)
    files.watched, damaged = path, path.read_bytes()
    world.begin()
    world.settle()
    assert [seen for number, seen in enumerate(files.seen) if number == files.seen.index(seen)] == [damaged, good]
    assert files.synced[str(path)] == len(good)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("again", ["heal", "crash"])
@pytest.mark.parametrize("which", [0, -1])
def test_room_that_is_short_while_a_load_makes_it(tmp_path: Path, which: int, again: str, cut: bool) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    crash(world.manager)
    path = world.paths()[which]
    good = path.read_bytes()
    DAMAGES["cut within an entry"](path)
    damaged = path.read_bytes()
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.begin()
    assert world.told() == world.wanted()
    if which == 0:  # else all of it lies where recovery looks
        assert path.read_bytes() == damaged, "the next process finds it damaged too"
    if cut:
        end = int(path.name[:20])
        world.log.truncate_to(end + 1)
        world.aborted = [each for each in world.aborted if each[2] <= end]
        assert world.told() == world.wanted()
    files.heal()
    if again == "heal":
        world.log.flush()
        world.log.dir.flusher.wait()
        world.manager.write_checkpoints(world.log.dir, wait=True)
    crash(world.manager)
    world.begin()
    assert world.log.dir.offline is None
    assert world.told() == world.wanted()
    world.log.roll(START_MS)
    assert cut or path.read_bytes() == good


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("which", [0, -1])
def test_whatever_goes_on_beside_it(tmp_path: Path, how: str, which: int) -> None:
    steps = ("append", "roll", "truncate", "delete", "close", "crash")
    for number, (step, when) in enumerate(itertools.product(steps, ("before", "beside", "heard"))):
        if step in ("close", "crash") and when == "before" and how not in CERTAIN:
            continue  # nobody has looked: it is not missed, nor by Apache Kafka
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(directory)
        assert world.told() == world.wanted()
        DAMAGES[how](world.paths()[which])
        if when != "before":
            with pytest.raises(ReplicaNotAvailable):
                world.told()
        if when == "heard":
            world.thread.run()
        log = world.log
        if step == "append":
            for each in range(COUNT, COUNT + 12):
                world.step(each)
        elif step == "roll":
            log.roll(START_MS)
        elif step == "truncate":
            end = max(last for _, _, last in world.aborted)
            log.truncate_to(end)
            world.aborted = [each for each in world.aborted if each[2] < end]
        elif step == "delete":
            log.high_watermark = log.log_end_offset
            log.delete_records_before(log.segments[1].base_offset)
            log.drop_oldest(1)
        else:
            if step == "close":
                assert world.manager.close()
            else:
                crash(world.manager)
            world.thread.jobs.clear()
            world.begin()
        world.loop.turn()
        world.settle()
        with contextlib.suppress(KafkaError):
            world.manager.close()
        world.begin()
        world.settle()


@pytest.mark.parametrize("when", ["beside", "made"])
def test_a_topic_that_is_deleted_meanwhile_takes_nothing_offline(tmp_path: Path, when: str) -> None:
    world = World(tmp_path)
    world.paths()[0].unlink()
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    if when == "made":
        world.thread.run()
    log = world.log
    world.manager.delete("t", 0)
    world.clock.advance(120_000)
    world.manager.tick()
    world.thread.run()
    world.loop.turn()
    assert log.dir.offline is None
    world.manager.create("t", 0, bytes(16)).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)


def test_room_that_is_short_while_it_is_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    path = world.paths()[0]
    _backwards(path)
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.thread.run()
    world.loop.turn()
    damaged = path.read_bytes()
    with pytest.raises((ReplicaNotAvailable, KafkaStorageError)):
        world.told()
    assert path.read_bytes() == damaged, "it is not forgotten that it is damaged"
    assert world.log.dir.offline is None
    files.heal()
    world.settle()


def _with_two_aborts(directory: Path, files: FaultyFiles | None = None) -> tuple[World, Path]:
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


LOST = pytest.mark.parametrize("how", ["cut within an entry", "cut between entries", "gone"])


@LOST
def test_what_is_aborted_behind_a_cut_does_not_make_a_damaged_file_whole(tmp_path: Path, how: str) -> None:
    world, path = _with_two_aborts(tmp_path)
    DAMAGES[how](path)
    world.log.truncate_to(world.log.log_end_offset - 1)
    world.abort(12)
    world.settle()
    crash(world.manager)
    world.begin()
    world.settle()


@LOST
def test_what_waits_for_a_file_that_could_not_be_made_again_does_not_make_it_whole(tmp_path: Path, how: str) -> None:
    files = FaultyFiles()
    world, path = _with_two_aborts(tmp_path, files)
    DAMAGES[how](path)
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    world.abort(12)
    fault = files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.thread.run()
    world.loop.turn()
    assert fault.struck
    files.heal()
    world.log.roll(START_MS)  # else a recovery would look at all of the segment
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    assert world.log.recovery_point == world.log.log_end_offset
    crash(world.manager)
    world.begin()
    world.settle()
    assert path.stat().st_size == 3 * txn_index.ENTRY_BYTES


@pytest.mark.parametrize("partial", [0, 16])
def test_what_was_cut_off_does_not_stay_before_an_entry_that_had_no_room(tmp_path: Path, partial: int) -> None:
    files = FaultyFiles()
    world, path = _with_two_aborts(tmp_path, files)
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX, partial=partial))
    world.abort(12)
    assert path.stat().st_size == 2 * txn_index.ENTRY_BYTES + partial
    end = world.log.log_end_offset
    cut = world.aborted[-2][1]
    world.log.truncate_to(cut)
    world.aborted = [each for each in world.aborted if each[2] < cut]
    files.heal()
    while world.log.log_end_offset < end:
        world.log.append(one_batch([b"v"]), leader_epoch=1, now_ms=START_MS)
    world.abort(13)
    assert Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX)) == path
    assert world.told() == world.wanted()


def test_an_only_entry_that_had_no_room_and_was_cut_off_leaves_no_file(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    world.log.roll(START_MS)
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX, partial=16))
    world.abort(10)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    assert path.stat().st_size == 16
    files.heal()
    world.log.truncate_to(world.aborted.pop()[2])
    assert not path.exists()
    assert world.told() == world.wanted()


def _roll_and_stop(world: World, stop: str | None) -> None:
    """Close the segment, with all of it on disk, and end as `stop` says; None: go on."""
    world.log.roll(START_MS)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    if stop == "clean":
        assert world.manager.close()
    elif stop == "crash":
        crash(world.manager)


def _damage_batch(log: Path, number: int, field: str) -> None:
    position = [position for position, _ in iter_headers(log.read_bytes(), strict=True)][number]
    at, wrong = {"length": (8, b"\x7f"), "checksum": (17, bytes(4))}[field]
    _write(wrong, position + at)(log)


@pytest.mark.parametrize("stop", [None, "clean", "crash", "not even closed"])
@pytest.mark.parametrize("field", ["length", "checksum"])
@pytest.mark.parametrize("batch", [2, 3])
def test_what_a_damaged_batch_said_of_aborted_transactions_is_kept(
    tmp_path: Path, batch: int, field: str, stop: str | None
) -> None:
    """The segment has a damaged batch, of the second transaction the first one or the marker, and the file has lost its last entry."""
    world = World(tmp_path)
    world.log.apply_config(replace(CONFIG, index_interval_bytes=100))
    world.log.roll(START_MS)
    for producer in range(10, 18):
        world.abort(producer)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    if stop != "not even closed":  # where entries of the offset index wait in memory
        _roll_and_stop(world, stop)
    _damage_batch(Path(segment.log.path), batch, field)
    DAMAGES["cut within an entry"](path)
    if stop in ("clean", "crash"):
        world.begin()
    world.settle()
    assert path.stat().st_size == 8 * txn_index.ENTRY_BYTES
    first, upper = world.aborted[-7][1], world.aborted[-7][2]
    told = world.log.aborted_transactions(first, upper)
    assert [each.first_offset for each in told] == [first]


def test_an_offset_index_that_is_made_again_comes_before_what_is_behind_damage(tmp_path: Path) -> None:
    """Until then it leads nowhere."""
    world = World(tmp_path)
    world.log.apply_config(replace(CONFIG, index_interval_bytes=100))
    world.log.roll(START_MS)
    for producer in range(10, 18):
        world.abort(producer)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    _damage_batch(Path(segment.log.path), 2, "length")
    DAMAGES["cut within an entry"](path)
    assert rebuild(world.log, segment, WildIndex(segment.index.path, 0, "wild"))
    world.settle()
    assert path.stat().st_size == 8 * txn_index.ENTRY_BYTES


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("field", ["length", "checksum"])
@pytest.mark.parametrize("which", ["a batch before", "the transaction's"])
def test_what_was_begun_in_a_segment_with_a_damaged_batch_is_known_in_the_next(
    tmp_path: Path, which: str, field: str, stop: str | None
) -> None:
    """What is open where a segment begins is told by the one before, where no snapshot does."""
    world = World(tmp_path)
    world.log.apply_config(replace(CONFIG, index_interval_bytes=100))
    world.log.roll(START_MS)
    for _ in range(4):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    damaged = Path(world.log.active_segment.log.path)
    first = world.begin_transaction(20)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.log.roll(START_MS)
    world.end_transaction(20, first)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for snapshot in path.parent.glob("*.snapshot"):
        if int(snapshot.stem) <= int(path.stem):
            snapshot.unlink()
    if which == "a batch before":
        _damage_batch(damaged, 1, field)
        path.write_bytes(b"torn")
    else:
        _damage_batch(damaged, 4, field)
        path.write_bytes(path.read_bytes() + b"torn")
    if stop is not None:
        world.begin()
    world.settle()


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_that_is_emptied_before_anybody_has_looked_is_made_again(tmp_path: Path, more: int) -> None:
    world, path = _with_two_aborts(tmp_path)
    assert world.manager.close()
    world.begin()
    world.log.load()
    DAMAGES["empty"](path)
    for number in range(more):
        world.abort(12 + number)
    world.settle()
    assert path.stat().st_size == (2 + more) * txn_index.ENTRY_BYTES


def test_zeros_are_no_transaction() -> None:
    """One has a record at least before its marker, in the first segment too."""
    assert txn_index.damage(bytes(txn_index.ENTRY_BYTES), "path", 0) is not None
