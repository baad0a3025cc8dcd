"""Moves of logs between directories: nothing is lost wherever one is interrupted, and one log is left in the end."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.dir_moves import Phase
from faulty_files import Fault, FaultyFiles
from log_support import TOPIC_ID, StandingClock, crash, flush_rolled, one_batch, open_manager, records_of

from fastq.errors import ErrorCode, KafkaError

KEY = ("t", 0)
SEEDS = 500 if os.environ.get("FASTQ_SOAK") else 10
SMALL = LogConfig(segment_bytes=2000)


def opened(tmp_path: Path, config: LogConfig = SMALL, home: str | None = None, **settings: object) -> LogManager:
    manager = open_manager([tmp_path / "a", tmp_path / "b"], config, **settings)  # type: ignore[arg-type]
    manager.create(*KEY, TOPIC_ID, config, home=home and str(tmp_path / home))
    return manager


def write(log: PartitionLog, count: int, first: int = 0) -> list[bytes]:
    values = [b"%06d" % (first + number) for number in range(count)]
    for value in values:
        log.append(one_batch([value]), leader_epoch=1, now_ms=log.clock())
    return values


def read_all(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        records = records_of(log.read(offset, 1 << 20))
        found += [record.value or b"" for record in records if record.offset >= offset]
        offset = records[-1].offset + 1
    return found


def run(manager: LogManager, ticks: int = 50) -> None:
    """Let moves end."""
    for _ in range(ticks):
        manager.tick()
        manager.flusher.wait()
        if not manager.moves.moves:
            return
    raise AssertionError(f"{manager.moves.moves} do not end")


def directories(tmp_path: Path) -> list[str]:
    """The names of logs and copies, without what is to be deleted."""
    return sorted(
        f"{part}/{name.partition('.')[0]}{name[name.rfind('-') :] if '.' in name else ''}"
        for part in "ab"
        for name in os.listdir(tmp_path / part)
        if name.startswith("t-") and not name.endswith("-delete")
    )


def test_a_log_moves_with_all_it_has_while_it_is_written_to(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    values = write(log, 100)
    heard: list[int] = []
    log.on_advance(lambda log: heard.append(log.log_end_offset))
    manager.moves.begin(log, manager.dirs[1])
    assert directories(tmp_path) == ["a/t-0", "b/t-0-future"]
    for _ in range(3):
        manager.tick()
        manager.flusher.wait()
        values += write(log, 3, len(values))
    run(manager)
    assert directories(tmp_path) == ["b/t-0"]
    assert manager.get(*KEY) is log and log.dir is manager.dirs[1]
    assert read_all(log) == values and log.high_watermark == len(values)
    values += write(log, 30, len(values))
    assert heard[-1] == len(values), "who listened goes on listening"
    assert read_all(log) == values
    assert manager.close()
    again = opened(tmp_path)
    assert read_all(again.create(*KEY)) == values


def test_the_same_directory_is_no_move_and_ends_one(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 10)
    manager.moves.begin(log, log.dir)
    assert not manager.moves.moves
    manager.moves.begin(log, manager.dirs[1])
    first = log.future
    manager.moves.begin(log, manager.dirs[1])
    assert log.future is first, "asked for twice, it is one"
    manager.moves.begin(log, log.dir)
    assert log.future is None and directories(tmp_path) == ["a/t-0"]


def test_it_waits_for_the_metadata(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 10)
    known = manager.dirs[0]
    changes: list[str] = []
    manager.moves.may_swap = lambda log, log_dir: log_dir is known
    manager.moves.on_changed = lambda log: changes.append(manager.moves.home(log).path)
    manager.moves.begin(log, manager.dirs[1])
    with pytest.raises(AssertionError):
        run(manager, 5)
    assert changes == [str(tmp_path / "b")] and manager.moves.moves[log].phase is Phase.READY
    assert directories(tmp_path) == ["a/t-0", "b/t-0-future"]
    known = manager.dirs[1]
    run(manager)
    assert directories(tmp_path) == ["b/t-0"]


def test_a_move_given_up_tells_where_the_log_stays(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    manager.moves.may_swap = lambda log, log_dir: False
    changes: list[str] = []
    manager.moves.on_changed = lambda log: changes.append(manager.moves.home(log).path)
    manager.moves.begin(log, manager.dirs[1])
    for _ in range(3):
        manager.tick()
        manager.flusher.wait()
    manager.moves.begin(log, manager.dirs[0])
    assert changes == [str(tmp_path / "b"), str(tmp_path / "a")]


def test_what_is_cut_off_meanwhile_is_in_no_copy(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    values = write(log, 60)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    assert log.future is not None and log.future.log_end_offset > 20
    log.truncate_to(20)
    assert log.future.log_end_offset == 20
    log.assign_leader_epoch(2)
    for value in (b"other-%d" % number for number in range(30)):
        log.append(one_batch([value]), leader_epoch=2, now_ms=log.clock())
    epochs = log.epochs.entries()
    run(manager)
    assert read_all(log)[:20] == values[:20] and read_all(log)[20] == b"other-0" and log.log_end_offset == 50
    assert log.epochs.entries() == epochs == [(1, 0), (2, 20)]


def test_a_piece_that_was_read_before_a_truncation_is_not_taken(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 10)
    held: list[tuple[object, object]] = []
    manager.moves._run = lambda work, done: held.append((work, done))  # type: ignore[method-assign]
    manager.moves.begin(log, manager.dirs[1])
    manager.moves._go_on()
    (work, done) = held.pop()
    work()  # type: ignore[operator]
    log.truncate_to(5)
    write(log, 10, 50)
    done()  # type: ignore[operator]
    assert log.future is not None and log.future.log_end_offset == 0
    del manager.moves._run
    run(manager)
    assert read_all(log) == [b"%06d" % n for n in (*range(5), *range(50, 60))]


def test_retention_and_deleted_records_are_followed(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 100)
    manager.moves.begin(log, manager.dirs[1])
    log.delete_records_before(60)
    log.drop_oldest(1)
    manager.tick()
    log.delete_records_before(70)
    run(manager)
    assert log.log_start_offset == 70 and len(read_all(log)) == 30
    manager.close()
    again = opened(tmp_path).create(*KEY)
    assert again.log_start_offset == 70 and len(read_all(again)) == 30


def test_a_log_that_starts_within_a_batch(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    log.append(one_batch([b"a", b"b", b"c", b"d"]), leader_epoch=1, now_ms=log.clock())
    write(log, 3)
    log.delete_records_before(2)
    manager.moves.begin(log, manager.dirs[1])
    run(manager)
    assert log.log_start_offset == 2 and len(read_all(log)) == 5


def test_compaction_leaves_a_log_alone_that_moves(tmp_path: Path) -> None:
    from fastq_broker.log import LogCleaner

    config = LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    manager = opened(tmp_path, config)
    log = manager.create(*KEY)
    write(log, 40)
    flush_rolled(log)
    log.flush()
    manager.flusher.wait()
    started: list[object] = []

    def start(job: object) -> None:
        started.append(job)
        raise OSError(errno.EAGAIN, "none here")

    cleaner = LogCleaner(manager, start_worker=start)  # type: ignore[arg-type]
    manager.moves.begin(log, manager.dirs[1])
    cleaner.tick(log.clock())
    assert not started
    run(manager)
    log.flush()
    manager.flusher.wait()
    cleaner._look_at_ms = 0
    cleaner.tick(log.clock())
    assert len(started) == 1


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_a_target_that_fails_gives_the_move_up_and_the_log_goes_on(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    manager = opened(tmp_path, files=files)
    log = manager.create(*KEY)
    values = write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    files.plan(Fault(operation, errno.EIO, str(tmp_path / "b")))  # type: ignore[arg-type]
    values += write(log, 40, 50)
    run(manager)
    assert log.future is None and log.dir is manager.dirs[0]
    assert manager.dirs[1].offline is not None and manager.dirs[0].offline is None
    assert read_all(log) == values
    files.heal()
    values += write(log, 1, 90)
    manager.close()
    again = opened(tmp_path)
    run(again)
    assert directories(tmp_path) == ["b/t-0"], "with the directory back, it goes on"
    assert read_all(again.create(*KEY)) == values


def test_a_source_that_cannot_be_read_gives_the_move_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What has come since the copying began is read by the loop, where it is in memory."""
    files = FaultyFiles()
    manager = opened(tmp_path, files=files)
    log = manager.create(*KEY)
    values = write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    values += write(log, 1, 50)
    files.plan(Fault("read", errno.EIO, str(tmp_path / "a")))
    run(manager)
    assert log.future is None and log.dir is manager.dirs[0]
    assert "a piece of it cannot be read: [Errno 5]" in caplog.text and "Traceback" not in caplog.text
    files.heal()
    assert read_all(log) == values


def test_a_shortage_only_holds_it_up(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = opened(tmp_path, files=files)
    log = manager.create(*KEY)
    values = write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    for operation in ("read", "write", "rename"):
        files.plan(Fault(operation, errno.EMFILE, "t-0", repeat=False))  # type: ignore[arg-type]
    run(manager)
    assert read_all(log) == values and directories(tmp_path) == ["b/t-0"]


def test_a_source_that_fails_leaves_the_copy_for_the_next_start(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = opened(tmp_path, files=files)
    log = manager.create(*KEY)
    write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    log.dir.fail("testing", "t", OSError(errno.EIO, "gone"))
    run(manager)
    assert log.future is None
    with pytest.raises(KafkaError) as refused:
        manager.moves.begin(log, manager.dirs[1])
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_deleted_topic_takes_its_copy_along(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    manager.delete(*KEY)
    assert directories(tmp_path) == [] and not manager.moves.moves
    manager.close()
    assert not list(opened(tmp_path).moves.copies())


def test_a_deleted_topics_copy_that_a_stop_has_left_is_no_new_topics(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    write(log, 50)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    crash(manager)
    shutil.rmtree(tmp_path / "a" / "t-0")
    again = open_manager([tmp_path / "a", tmp_path / "b"], SMALL)
    log = again.create(*KEY, bytes(16), SMALL)
    assert log.log_end_offset == 0 and not again.moves.moves
    assert [name.partition("/")[2] for name in directories(tmp_path)] == ["t-0"]


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    manager = open_manager([tmp_path / "a", tmp_path / "b"], SMALL)
    log = manager.create("t" * 230, 0, TOPIC_ID)
    with pytest.raises(KafkaError) as refused:
        manager.moves.begin(log, manager.dirs[0 if log.dir is manager.dirs[1] else 1])
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_log_to_come_is_made_where_it_is_to_be(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    for number in range(1, 4):
        manager.moves.prefer(("t", number), manager.dirs[0])
        assert manager.create("t", number, TOPIC_ID).dir is manager.dirs[0]
    assert not manager.moves.preferred


def test_the_rate_bounds_what_is_copied(tmp_path: Path) -> None:
    clock = StandingClock()
    manager = opened(tmp_path, clock=clock)
    log = manager.create(*KEY)
    values = write(log, 1000)
    manager.moves.rate.bytes_per_s_max = 5000
    manager.moves.begin(log, manager.dirs[1])
    started = clock.now_ms
    while manager.moves.moves:
        manager.tick()
        manager.flusher.wait()
        clock.advance(100)
    seconds = (clock.now_ms - started) / 1000
    assert 0.5 < log.size_bytes / 5000 / seconds < 1.5
    assert read_all(log) == values


def test_while_the_rate_is_exceeded_one_timer_waits_and_a_higher_rate_ends_that(tmp_path: Path) -> None:
    clock = StandingClock()
    manager = opened(tmp_path, clock=clock)
    log = manager.create(*KEY)
    values = write(log, 1000)
    timers: list[Any] = []

    def call_later(delay_s: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(live=True)
        timer.cancel = lambda: setattr(timer, "live", False)
        timers.append(timer)
        return timer

    loop = SimpleNamespace(
        call_later=call_later, call_soon=lambda call: call(), call_soon_threadsafe=lambda call: call()
    )

    class AtOnce:
        def submit(self, work: Callable[[], None]) -> None:
            work()

        def shutdown(self, cancel_futures: bool) -> None:
            pass

    manager.moves.attach(loop, lambda count, name: AtOnce())  # type: ignore[arg-type, return-value]
    manager.moves.rate.bytes_per_s_max = 1
    manager.moves.begin(log, manager.dirs[1])
    for _ in range(50):
        manager.tick()
        clock.advance(100)
    (move,) = manager.moves.moves.values()
    assert 0 < move.future.log_end_offset < log.log_end_offset
    assert [timer.live for timer in timers].count(True) == 1
    manager.moves.rate.bytes_per_s_max = float("inf")
    for _ in range(5):
        manager.tick()
        manager.flusher.wait()
    assert not manager.moves.moves and read_all(log) == values
    assert not any(timer.live for timer in timers)


def test_acknowledged_as_on_disk_stays_so(tmp_path: Path) -> None:
    """With durability fsync a record that was told to be on disk is, in the copy too, before that is the log."""
    files = FaultyFiles()
    manager = opened(tmp_path, LogConfig(durability="fsync", segment_bytes=2000), files=files)
    log = manager.create(*KEY)
    acknowledged: list[int] = []
    values: list[bytes] = []
    manager.moves.begin(log, manager.dirs[1])
    for turn in range(40):
        values += write(log, 2, len(values))
        log.wait_durable(log.log_end_offset, lambda error, end=log.log_end_offset: acknowledged.append(end))  # type: ignore[misc]
        manager.tick()
        if turn % 3:
            manager.flusher.drain()
        if acknowledged:
            assert log.on_disk_offset >= acknowledged[-1] and log.high_watermark >= acknowledged[-1]
            found: dict[str, int] = {}  # by file: those of a copy are known under its name
            for path, size in files.synced.items():
                if path.startswith(log.dir.path) and path.endswith(".log"):
                    found[os.path.basename(path)] = max(size, found.get(os.path.basename(path), 0))
            assert sum(found.values()) >= log.size_bytes * acknowledged[-1] / log.log_end_offset
    assert log.dir is manager.dirs[1]
    manager.flusher.wait()
    assert acknowledged == sorted(acknowledged) and acknowledged[-1] == len(values)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", range(12))
def test_a_stop_anywhere_loses_nothing(tmp_path: Path, at: int, clean: bool) -> None:
    """Stopped after so many ticks: it goes on, and ends with everything."""
    manager = opened(tmp_path, LogConfig(segment_bytes=2000, segment_ms=10**9))
    log = manager.create(*KEY)
    values = write(log, 120)
    manager.moves.begin(log, manager.dirs[1])
    for _ in range(at):
        manager.tick()
        manager.flusher.drain()
        values += write(log, 1, len(values))
    if clean:
        manager.close()
    else:
        crash(manager)
    home = "b" if log.dir is manager.dirs[1] else "a"
    again = opened(tmp_path, home=home)
    run(again)
    assert directories(tmp_path) == ["b/t-0"]
    assert read_all(again.create(*KEY)) == values


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("kill_at", range(1, 9))
def test_a_kill_around_each_rename_loses_nothing(tmp_path: Path, kill_at: int, fsync: bool) -> None:
    """The process ends just before, or just after, the first, second... rename: one of the two directories is the log."""

    class Killed(BaseException):
        pass

    class Files(FaultyFiles):
        left = -1

        def rename(self, source: str, target: str) -> None:  # type: ignore[override]
            if "checkpoint" not in source and "snapshot" not in source and self.left >= 0:
                self.left -= 1
                if self.left == 0:
                    raise Killed
                super().rename(source, target)
                self.left -= 1
                if self.left == 0:
                    raise Killed
            else:
                super().rename(source, target)

    files = Files()
    config = LogConfig(segment_bytes=2000, durability="fsync" if fsync else "page-cache")
    manager = opened(tmp_path, config, files=files)
    log = manager.create(*KEY)
    values = write(log, 100)
    known = "a"

    def tell(log: PartitionLog) -> None:
        nonlocal known
        known = os.path.basename(manager.moves.home(log).path)

    manager.moves.on_changed = tell
    manager.moves.may_swap = lambda log, log_dir: known == os.path.basename(log_dir.path)
    manager.moves.begin(log, manager.dirs[1])
    files.left = kill_at
    try:
        run(manager)
    except Killed:
        pass
    crash(manager)
    again = opened(tmp_path, config, home=known)
    log = again.create(*KEY)
    assert read_all(log) == values
    values += write(log, 10, 100)
    run(again)
    left = [name for name in directories(tmp_path) if not name.endswith("-stray")]
    assert left == ["b/t-0"]
    assert read_all(log) == values


def test_renames_of_a_swap_that_a_loss_of_power_undoes_in_any_order(tmp_path: Path) -> None:
    """The log's name is gone, that of the copy not there yet: the copy is the log, as the metadata says."""
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    values = write(log, 100)
    manager.moves.begin(log, manager.dirs[1])
    run(manager)
    crash(manager)
    os.rename(tmp_path / "b" / "t-0", tmp_path / "b" / f"t-0.{'0' * 32}-future")
    again = opened(tmp_path, home="b")
    assert read_all(again.create(*KEY)) == values and directories(tmp_path) == ["b/t-0"]


class Walk:
    """A log that moves to and fro while it is written to, cut, and stopped; `expected` are all its records, as they should be."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.known = "a"
        """Where the metadata has it."""
        self.expected: list[bytes] = []
        self.epoch = 1
        self.written = self.begun = 0
        self.start()

    def start(self) -> None:
        self.manager = opened(self.root, home=self.known)
        self.manager.moves.on_changed = self.tell
        self.manager.moves.may_swap = lambda log, log_dir: self.known == os.path.basename(log_dir.path)
        self.log = self.manager.create(*KEY)

    def tell(self, log: PartitionLog) -> None:
        if self.rng.random() < 0.7:
            self.known = os.path.basename(self.manager.moves.home(log).path)

    def step(self) -> None:
        name = self.rng.choices(("write", "go_on", "move", "cut", "delete", "stop"), (35, 40, 10, 5, 4, 4))[0]
        getattr(self, name)()
        start = self.log.log_start_offset
        assert read_all(self.log) == self.expected[start:]

    def write(self) -> None:
        log = self.log
        for _ in range(self.rng.randrange(1, 20)):
            values = [b"%d-%06d" % (self.epoch, self.written)] * self.rng.randrange(1, 3)
            log.append(one_batch(values), leader_epoch=self.epoch, now_ms=log.clock())
            self.expected += values
            self.written += 1

    def go_on(self) -> None:
        self.manager.tick()
        self.manager.flusher.drain()
        if self.log in self.manager.moves.moves:
            self.tell(self.log)

    def move(self) -> None:
        target = self.rng.choice(self.manager.dirs)
        self.begun += target is not self.log.dir
        self.manager.moves.begin(self.log, target)
        self.tell(self.log)

    def cut(self) -> None:
        log = self.log
        log.truncate_to(self.rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        del self.expected[log.log_end_offset :]
        self.epoch += 1
        log.assign_leader_epoch(self.epoch)

    def delete(self) -> None:
        log = self.log
        log.delete_records_before(self.rng.randrange(log.log_start_offset, log.high_watermark + 1))
        if len(log.segments) > 1 and log.segments[1].base_offset <= log.log_start_offset:
            log.drop_oldest(1)

    def stop(self) -> None:
        start = self.log.log_start_offset
        if self.log.future is None:
            self.known = os.path.basename(self.log.dir.path)
        if self.rng.random() < 0.5:
            self.manager.close()
        else:
            crash(self.manager)
        self.start()
        if start > self.log.log_start_offset:  # that is written down once a minute
            self.log.delete_records_before(start)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_walks(tmp_path: Path, seed: int) -> None:
    """Whatever happens between the steps of moves to and fro, the log holds what was written and not cut off."""
    walk = Walk(tmp_path, seed)
    for _ in range(120):
        walk.step()
    assert walk.begun
