"""Indexes that are damaged while their log is in use: no read is led astray, and a thread makes them again beside the broker."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog, log_reads, scan
from fastq_broker.log.config import METADATA_TOPIC
from fastq_broker.log.index_rebuild import IndexRebuilds
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles
from log_support import (
    START_MS,
    TOPIC_ID,
    Later,
    Loop,
    StandingClock,
    clock_of,
    crash,
    found_at,
    one_batch,
    open_manager,
    records_of,
)

from fastq._native.records import stamp
from fastq.errors import CorruptMessage, KafkaError, KafkaStorageError, ReplicaNotAvailable

SIZE = len(one_batch([b"v000"]))
CONFIG = LogConfig(
    segment_bytes=60 * SIZE,
    index_interval_bytes=2 * SIZE,
    retention_ms=1 << 40,
    file_delete_delay_ms=0,
    message_timestamp_after_max_ms=1 << 40,
)
COUNT = 150
DAY_MS = 86_400_000

Entries = list[tuple[int, int]]
Damage = Callable[[Path, str, Entries], None]


def _written(change: Callable[[Entries], Entries]) -> Damage:
    def damage(path: Path, layout: str, entries: Entries) -> None:
        with path.open("r+b") as file:  # the same file: it is mapped
            file.write(b"".join(struct.pack(layout, *entry) for entry in change(entries)))

    return damage


def _cut(path: Path, layout: str, entries: Entries) -> None:
    with path.open("r+b") as file:
        file.truncate(len(entries) // 3 * struct.calcsize(layout))


def _empty(path: Path, layout: str, entries: Entries) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


def _torn(path: Path, layout: str, entries: Entries) -> None:
    with path.open("r+b") as file:
        file.truncate(len(entries) // 2 * struct.calcsize(layout) + 3)


def _shuffled(entries: Entries) -> Entries:
    return random.Random(5).sample(entries, len(entries))


def _crossed(entries: Entries) -> Entries:
    """The keys as they were, what they lead to in another order."""
    return [(key, value) for (key, _), (_, value) in zip(entries, _shuffled(entries), strict=True)]


DAMAGES: dict[str, Damage] = {
    "beyond the end": _written(lambda entries: [(1, 0x7FFFFFFF)] * len(entries)),
    "below the begin": _written(lambda entries: [(key, -value - 1) for key, value in entries]),
    "the middle of batches": _written(lambda entries: [(key, value + 7) for key, value in entries]),
    "all of them the last": _written(lambda entries: [(key, entries[-1][1]) for key, _ in entries]),
    "backwards": _written(lambda entries: entries[::-1]),
    "out of order": _written(_shuffled),
    "crossed": _written(_crossed),
    "zeros": _written(lambda entries: [(0, 0)] * len(entries)),
    "a short file": _cut,
    "a file cut within an entry": _torn,
    "an empty file": _empty,
    "a file that is gone": lambda path, layout, entries: path.unlink(),
}
FILES = {".index": ">ii", ".timeindex": ">qi"}


class World:
    """A log in use whose indexes are made again by a thread that is at work when the test says so."""

    def __init__(self, directory: Path, config: LogConfig = CONFIG, files: FaultyFiles | None = None) -> None:
        self.directory, self.config = directory, config
        self.loop, self.thread = Loop(), Later()
        self.clock = StandingClock()
        self.manager = open_manager(directory, config, files=files, clock=self.clock)
        self.attach()
        self.manager.create("t", 0, TOPIC_ID)
        self.next = 0

    def attach(self) -> None:
        self.manager.late.attach(self.manager.dirs, self.loop, lambda count, name: self.thread)

    @property
    def log(self) -> PartitionLog:
        return self.manager.logs["t", 0]

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            batch = one_batch([b"v%03d" % self.next], timestamp_ms=START_MS + self.next)
            assert self.log.append(batch, leader_epoch=0, now_ms=START_MS).base_offset == self.next
            self.next += 1

    def work(self) -> None:
        self.thread.run()
        self.loop.turn()

    def settle(self, attempts: int = 20) -> None:
        """Look at all that an index may be asked until nothing is being made any more."""
        for _ in range(attempts):
            refused = self.look(random.Random(3))
            self.work()
            if not refused and not any(segment.rebuilding or segment.doubt for segment in self.log.segments):
                return
        raise AssertionError("it goes on and on")

    def look(self, rng: random.Random) -> int:
        """Ask for offsets and times: what is answered is right; how many were refused for now."""
        log, refused = self.log, 0
        start, end = log.log_start_offset, log.log_end_offset
        assert end == self.next
        for offset in rng.sample(range(start, end), min(end - start, 40)):
            upper = rng.choice([None, rng.randint(offset + 1, end)])
            limit = rng.choice([1, 3 * SIZE, 11 * SIZE, 1 << 20])
            try:
                piece = log.read(offset, limit, upper_offset=upper)
                piece.warm()
            except ReplicaNotAvailable:
                refused += 1
                continue
            found = [record.offset for record in records_of(piece)]
            following = next((base for base in log._bases if base > offset), end)
            last = min(offset + max(1, limit // SIZE), upper or end, following)
            assert found == list(range(offset, last)), (offset, limit, upper)
            assert log.upper_offset_of(piece) >= last
        for number in rng.sample(range(start, end), min(end - start, 20)):
            try:
                at = found_at(log, START_MS + number)
                assert at is not None and (at.offset, at.timestamp_ms) == (number, START_MS + number)
                assert log.largest_timestamp() == START_MS + end - 1
            except ReplicaNotAvailable:
                refused += 1
        return refused

    def entries(self, number: int) -> tuple[Entries, Entries]:
        segment = self.log.segments[number]
        return list(segment.index.entries()), list(segment.time_index.entries())

    def path(self, number: int, suffix: str) -> Path:
        return Path(self.log.segments[number].path_of(suffix))

    def damage(self, how: str, suffix: str, number: int) -> None:
        segment = self.log.segments[number]
        segment.index.write_pending()
        segment.time_index.write_pending()
        path, layout = self.path(number, suffix), FILES[suffix]
        data = path.read_bytes() if path.exists() else b""
        entries = list(struct.iter_unpack(layout, data[: len(data) - len(data) % struct.calcsize(layout)]))
        if entries:
            DAMAGES[how](path, layout, entries)


@pytest.fixture(autouse=True)
def small_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes through a few batches only, as it does of a segment of 1 GiB."""
    monkeypatch.setattr(scan, "_WINDOW_BYTES", 3 * SIZE)
    monkeypatch.setattr(scan, "_WALK_WINDOWS", 3)
    monkeypatch.setattr(log_reads, "WALK_BYTES_MAX", 9 * SIZE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.append(COUNT)
    assert len(made.log.segments) == 3
    made.look(random.Random(1))  # indexes are mapped, timestamps known
    yield made
    with contextlib.suppress(KafkaError):
        made.manager.close()


def all_damages() -> list[tuple[str, str, int]]:
    return list(itertools.product(DAMAGES, FILES, (0, 2)))


@pytest.mark.parametrize(("how", "suffix", "number"), all_damages())
def test_no_read_is_led_astray_and_the_index_is_whole_afterwards(
    world: World, how: str, suffix: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    good = world.entries(number)
    world.damage(how, suffix, number)
    for _ in range(3):
        world.look(random.Random(2))
    world.settle()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    if said:
        assert len(said) == 1
        assert said[0].startswith(str(world.path(number, suffix).with_suffix("")))
        assert world.entries(number)[0] == good[0]
        assert [entry for entry in world.entries(number)[1] if entry in good[1]] == good[1]
    elif (suffix, number) == (".index", 0):
        # Else it is not asked: for the last appends, and where times lead too far back.
        assert how == "a file that is gone", "it is mapped"
    assert world.look(random.Random(4)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("reopened", [False, True])
def test_whatever_goes_on_beside_it(tmp_path: Path, how: str, suffix: str, reopened: bool, soak: bool) -> None:
    """Reads, appends, rolls, truncations, deletions and a stop, before the thread, beside it and after it; each, but in the long form,
    with a third of the damages."""
    steps = ("append", "roll", "truncate", "retention", "delete", "close", "crash", "damage again")
    for number, (step, when) in enumerate(itertools.product(steps, ("before", "beside", "heard"))):
        if not soak and (number + list(DAMAGES).index(how)) % 3:
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(directory)
        world.append(COUNT)
        if reopened:
            world.manager.close()
            world.manager = open_manager(directory, CONFIG, clock=world.clock)
            world.attach()
            world.log.load()
        else:
            world.look(random.Random(1))
        for each in (0, 2):
            world.damage(how, suffix, each)
        if when != "before":
            world.look(random.Random(2))
        if when == "heard":
            world.thread.run()
        _do(world, step, directory, how, suffix)
        world.loop.turn()
        world.settle()
        world.append(30)
        world.settle()
        assert world.log.dir.offline is None
        assert world.manager.close()


def _do(world: World, step: str, directory: Path, how: str, suffix: str) -> None:
    log = world.log
    if step == "append":
        world.append(70)  # through a roll
    elif step == "roll":
        log.roll(START_MS)
    elif step == "truncate":
        for end in (140, 45):
            while True:
                try:
                    log.truncate_to(end)
                    break
                except ReplicaNotAvailable:
                    assert log.log_end_offset > end
                    world.work()
            world.next = end
    elif step == "retention":
        with contextlib.suppress(KafkaError):
            assert apply_retention(log, START_MS + DAY_MS) == 0
    elif step == "delete":
        log.delete_records_before(77)
        apply_retention(log, START_MS)
    elif step in ("close", "crash"):
        if step == "close":
            assert world.manager.close()
        else:
            crash(world.manager)
        world.manager = open_manager(directory, CONFIG, clock=world.clock)
        world.attach()
        for _ in range(3):  # a log that is not whole is recovered in the thread
            with contextlib.suppress(ReplicaNotAvailable):
                world.log.load()
            world.work()
    else:
        world.damage(how, suffix, 0)


def test_records_are_not_deleted_for_what_a_damaged_time_index_says(world: World) -> None:
    """Apache Kafka believes it, and deletes."""
    world.manager.close()
    path = world.path(0, ".timeindex")
    entries = list(struct.iter_unpack(">qi", path.read_bytes()))
    path.write_bytes(b"".join(struct.pack(">qi", 1000 + number, at) for number, (_, at) in enumerate(entries)))
    world.manager = open_manager(world.directory, LogConfig(retention_ms=DAY_MS), clock=world.clock)
    world.attach()
    with pytest.raises(ReplicaNotAvailable):
        apply_retention(world.log, START_MS + 1000)
    world.work()
    assert apply_retention(world.log, START_MS + 1000) == 0
    assert world.log.log_start_offset == 0
    assert apply_retention(world.log, START_MS + 59 + DAY_MS + 1) == 1, "what is old indeed goes"


def test_nor_for_an_index_that_could_not_be_made_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, replace(CONFIG, retention_ms=DAY_MS), files)
    world.append(COUNT)
    os.utime(world.path(0, ".log"), (1000, 1000))  # what counts where no record has a time
    world.damage("beyond the end", ".index", 0)
    with pytest.raises(ReplicaNotAvailable):
        world.log.read(50, 1)
    files.plan(Fault("read", errno.EAGAIN, ".log", repeat=False))
    world.work()
    for wait_ms in (0, 60_000):  # so soon it is not tried again
        clock_of(world.manager).advance(wait_ms)
        with pytest.raises(ReplicaNotAvailable):
            apply_retention(world.log, START_MS + 1000)
        assert len(world.thread.jobs) == bool(wait_ms)
    world.work()
    assert apply_retention(world.log, START_MS + 1000) == 0
    assert world.log.log_start_offset == 0


def test_what_it_is_and_why_is_said_in_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.damage("the middle of batches", ".index", 0)
    for offset in range(20, 55):
        with contextlib.suppress(ReplicaNotAvailable):
            world.log.read(offset, 1)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{world.path(0, '.index')} is wild, its indexes are made again")
    assert "it leads to where no batch is" in record.getMessage()


def test_one_of_a_segment_at_a_time_and_no_sooner_than_a_minute_later(world: World) -> None:
    world.damage("beyond the end", ".index", 0)
    with pytest.raises(ReplicaNotAvailable, match=r"00000000000000000000\.index.*is being made again"):
        world.log.read(50, 1)
    with pytest.raises(ReplicaNotAvailable):
        world.log.read(40, 1)
    assert len(world.thread.jobs) == 1
    world.work()
    assert [record.offset for record in records_of(world.log.read(50, 1))] == [50]
    world.damage("beyond the end", ".index", 0)
    piece = world.log.read(50, 1)  # a thread goes through the segment
    assert (piece.cold, len(world.thread.jobs)) == (True, 0)
    assert [record.offset for record in records_of(piece)] == [50]
    clock_of(world.manager).advance(60_000)
    with pytest.raises(ReplicaNotAvailable):
        world.log.read(50, 1)
    world.work()
    assert not world.log.read(50, 1).cold


def test_indexes_that_there_was_no_memory_to_have_made_again_are_made_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused until the next start, as its index was said to be being made."""

    def no_memory(_work: object) -> None:
        raise MemoryError

    world.damage("beyond the end", ".index", 0)
    with monkeypatch.context() as short:
        short.setattr(world.thread, "submit", no_memory)
        with pytest.raises(KafkaStorageError, match="try it again"):
            world.log.read(50, 1)
    world.settle()
    assert [record.offset for record in records_of(world.log.read(50, 1))] == [50]


def test_the_end_of_the_log_is_served_all_the_while(world: World) -> None:
    world.damage("the middle of batches", ".index", 2)
    with contextlib.suppress(ReplicaNotAvailable):
        world.log.read(122, 1)
    world.append(4)
    assert [record.offset for record in records_of(world.log.read(world.next - 2, 1 << 20))] == [152, 153]


def test_damage_of_the_log_is_not_the_indexs_and_what_lies_behind_it_is_served(world: World) -> None:
    with world.path(0, ".log").open("r+b") as file:
        file.seek(30 * SIZE + 8)
        file.write(b"\xff\xff\xff\xff")
    for offset in (5, 29, 30, 31, 50):
        for _ in range(3):
            with contextlib.suppress(ReplicaNotAvailable, CorruptMessage, scan.CorruptSegment):
                world.log.read(offset, 1).warm()
            world.work()
    with pytest.raises((CorruptMessage, scan.CorruptSegment)) as caught:
        world.log.read(30, 1).warm()
    assert str(world.path(0, ".log")) in str(caught.value)
    for offset in (5, 29, 35, 50):
        piece = world.log.read(offset, 1)
        assert not piece.cold
        assert [record.offset for record in records_of(piece)] == [offset]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_while_it_is_made(tmp_path: Path, code: int) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files=files)
    world.append(COUNT)
    world.look(random.Random(1))
    world.damage("beyond the end", ".index", 0)
    with pytest.raises(ReplicaNotAvailable):
        world.log.read(50, 1)
    files.plan(Fault("write", code, "index"))
    world.work()
    assert [record.offset for record in records_of(world.log.read(50, 1))] == [50]
    assert (world.log.dir.offline is None) == (code == errno.ENOSPC)
    files.heal()
    if code == errno.ENOSPC:
        good = world.entries(0)
        assert world.manager.close()
        world.manager = open_manager(tmp_path, CONFIG)
        assert world.entries(0)[0] == good[0]


def test_a_segment_that_cannot_be_read_is_refused_and_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files=files)
    world.append(COUNT)
    world.damage("beyond the end", ".index", 0)
    files.plan(Fault("open", errno.EMFILE, ".log"))
    files.plan(Fault("open", errno.EMFILE, ".index"))
    for segment in world.log.segments:
        segment.log.release()
        segment.index.release()
    with pytest.raises(KafkaStorageError):
        world.log.read(50, 1)
    files.heal()
    world.settle()
    assert world.log.dir.offline is None


@pytest.mark.parametrize("how", DAMAGES)
def test_without_a_thread_it_is_made_at_once(world: World, how: str) -> None:
    world.manager.dirs[0].index_rebuild = None
    good = world.entries(0)
    world.damage(how, ".index", 0)
    assert world.look(random.Random(2)) == 0
    if how != "a file that is gone":  # it is mapped
        assert world.entries(0)[0] == good[0]


def test_a_stop_ends_it(world: World) -> None:
    world.damage("beyond the end", ".index", 0)
    with pytest.raises(ReplicaNotAvailable):
        world.log.read(50, 1)
    ((future, _),) = world.thread.jobs
    assert world.manager.close()
    assert future.cancelled()
    world.manager = open_manager(world.directory, CONFIG, clock=world.clock)
    world.attach()
    world.settle()


def test_it_can_be_ended_before_it_has_begun() -> None:
    IndexRebuilds().close()


@pytest.mark.parametrize("follows", [False, True])
def test_what_comes_meanwhile_has_the_entries_that_it_would_have_had(tmp_path: Path, follows: bool) -> None:
    twins = []
    for number, suffix in enumerate((None, ".index", ".timeindex")):
        world = World(tmp_path / str(number), replace(CONFIG, segment_bytes=1000 * SIZE))
        twins.append(world)
        world.append(150)
        if suffix is not None:
            world.damage("beyond the end", suffix, 0)
            with contextlib.suppress(ReplicaNotAvailable):
                world.log.read(40, 1)
            with contextlib.suppress(ReplicaNotAvailable):
                found_at(world.log, START_MS + 3)
            with contextlib.suppress(ReplicaNotAvailable):
                world.log.read(40, 1)
            assert len(world.thread.jobs) == 1
        for _ in range(61):
            if follows:
                batch = one_batch([b"v%03d" % world.next], timestamp_ms=START_MS + world.next)
                stamp(batch, 0, world.next, 0)
                world.next = world.log.append_as_follower(batch, now_ms=START_MS)
            else:
                world.append()
        world.settle()
    assert twins[0].entries(0) == twins[1].entries(0) == twins[2].entries(0)


def test_a_thread_of_its_own_beside_a_log_that_goes_on(world: World) -> None:
    thread = ThreadPoolExecutor(1)
    world.manager.late.attach(world.manager.dirs, world.loop, lambda count, name: thread)
    good = world.entries(0)
    world.damage("out of order", ".index", 0)
    with contextlib.suppress(ReplicaNotAvailable):
        for offset in range(59, 0, -1):
            world.log.read(offset, 1)
    world.append(90)
    world.look(random.Random(1))
    thread.submit(lambda: None).result()
    world.loop.turn()
    assert world.entries(0)[0] == good[0]
    assert world.look(random.Random(2)) == 0


def test_of_the_metadata_log_nobody_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.manager.create(METADATA_TOPIC, 0, bytes(16))
    for number in range(50):
        log.append(one_batch([b"v%03d" % number]), leader_epoch=0, now_ms=START_MS)
    log.roll(START_MS)
    log.append(one_batch([b"v050"]), leader_epoch=0, now_ms=START_MS)
    path = Path(log.segments[0].index.path)
    DAMAGES["the middle of batches"](path, ">ii", list(struct.iter_unpack(">ii", path.read_bytes())))
    for offset in (45, 20, 49):
        assert [record.offset for record in records_of(log.read(offset, 1))] == [offset]
    assert len(world.thread.jobs) == 1
    assert log.truncate_to(47)
    world.work()
    assert [record.offset for record in records_of(log.read(46, 1))] == [46]
    assert log.log_end_offset == 47
