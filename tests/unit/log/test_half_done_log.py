"""A log that a shortage has left half cut: who waits for it, who holds it, and how often it is tried until the shortage is over."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog, loading, partition_log, truncation
from fastq_broker.log.dir_checkpoints import watermarks_of
from fastq_broker.log.durability import Durability
from fastq_broker.log.files import passes
from fastq_broker.log.half_done import OF_A_LOADED_LOG, RETRY_MS_MAX
from fastq_broker.log.log_dir import LogDir
from fastq_broker.log.recovery import UnrecoverableLog
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles
from forgetful_disk import ForgetfulFiles
from log_support import TOPIC_ID, StandingClock, crash, found_at, one_batch, open_manager, records_of

from fastq.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition

END, CUT = 30, 12
FSYNC = LogConfig(segment_bytes=600, durability="fsync", file_delete_delay_ms=0)


class World:
    """A log of some segments, of which all but the last record is on disk, and its manager."""

    def __init__(self, directory: Path, config: LogConfig = FSYNC, files: FaultyFiles | None = None) -> None:
        self.directory = directory
        self.config = config
        self.clock = StandingClock()
        self.files = files or FaultyFiles()
        self.manager = open_manager(directory, config, clock=self.clock, files=self.files)
        self.log = self.manager.create("t", 0, TOPIC_ID, config)
        self.told: list[KafkaError | None] = []
        self.write(END - 1)
        self.log.flush()
        self.manager.flusher.wait()
        self.write(1)

    def write(self, count: int, epoch: int = 1) -> None:
        for _ in range(count):
            value = b"%d-%d" % (epoch, self.log.log_end_offset)
            self.log.append(one_batch([value]), leader_epoch=epoch, now_ms=self.clock())

    def cut_half(self, at: int = CUT, *, repeat: bool = True) -> None:
        """Have a shortage amid a cut; `repeat`: which lasts."""
        self.files.plan(Fault("rename", errno.EMFILE, "t-0", passes=1, repeat=repeat))
        with pytest.raises(KafkaStorageError):
            self.log.truncate_to(at)
        assert not self.log.loaded

    def tick(self, count: int = 1, step_ms: int = 100) -> None:
        for _ in range(count):
            self.clock.advance(step_ms)
            self.manager.tick()
            self.manager.flusher.wait()

    def heal(self) -> None:
        self.files.heal()
        self.tick(step_ms=RETRY_MS_MAX)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def values(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for record in records_of(log.read(offset, 1 << 20)):
            found.append(record.value or b"")
            offset = record.offset + 1
    return found


def test_a_shortage_that_lasts_is_tried_and_told_at_a_bounded_rate(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cut_half()
    before = world.files.calls.get("list", 0)
    caplog.clear()
    for _ in range(300):
        world.tick()
        with pytest.raises(KafkaStorageError, match="try it again"):
            _ = world.log.log_end_offset
        assert len(world.log.dir._soon) < 4
    assert world.files.calls["list"] - before < 40, "in 30 s"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 60
    assert "are gone" not in caplog.text, "what is cut on purpose is no loss"
    assert not world.manager.offline_dirs
    world.heal()
    assert world.log.log_end_offset == CUT
    assert values(world.log) == [b"1-%d" % number for number in range(CUT)]


@pytest.mark.parametrize("why", ["offline", "deleted", "failure", "stop"])
def test_who_waits_is_answered_where_the_log_is_never_loaded(
    world: World, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.log
    log.wait_durable(END, world.told.append)
    world.cut_half()
    log.durability.wait(CUT - 2, world.told.append)
    log.durability.wait(CUT, world.told.append)
    assert not world.told
    if why == "offline":
        log.dir.fail("syncing", log.path, OSError(errno.EIO, "broken"))
    elif why == "deleted":
        world.files.heal()
        world.manager.delete("t", 0)
        with pytest.raises(UnknownTopicOrPartition):
            _ = log.log_end_offset
    elif why == "failure":
        world.files.heal()

        def refuse(*_: object) -> None:
            raise UnrecoverableLog("it is of another world")

        monkeypatch.setattr(partition_log, "load_log", refuse)
    elif why == "stop":
        assert not world.manager.close()
    if why != "stop":
        world.tick(3)
        assert bool(world.manager.offline_dirs) == (why == "offline")
    assert len(world.told) == 3 and None not in world.told, world.told
    log.durability.wait(END, world.told.append)
    assert len(world.told) == 4 or why == "stop", "and so is who comes later"


def test_who_waits_is_told_once_where_the_first_of_them_cuts_the_log(world: World) -> None:
    """Those behind it were told twice, as often as their records came to the disk again."""
    told: list[str] = []

    def cut(error: KafkaError | None) -> None:
        world.log.truncate_to(CUT)

    waiters = [(CUT - 2, cut), (CUT, lambda error: told.append("below")), (END, lambda error: told.append("above"))]
    world.log.durability._waiters.extend(waiters)  # type: ignore[arg-type]
    world.tick()
    world.write(1)
    world.tick(3)
    assert sorted(told) == ["above", "below"]


def test_a_flush_that_there_is_no_memory_to_put_off_aloud_is_put_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited did so until somebody wrote to the log."""
    world.manager.flusher.wait()
    with monkeypatch.context() as patch:
        patch.setattr(Durability, "_handles", raises_no_descriptors)
        patch.setattr(LogDir, "refuse", raises_memory_error)
        with pytest.raises(MemoryError):
            world.write(1)
        with pytest.raises(MemoryError):
            world.log.wait_durable(END + 1, world.told.append)
    world.tick(3)
    assert world.told == [None]


def test_who_waits_for_what_was_cut_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load finds the records cut already: nothing is left that would tell of it."""
    world.log.wait_durable(END, world.told.append)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(truncation, "load_producers", fail)
        with pytest.raises(KafkaStorageError):
            world.log.truncate_to(CUT)
    world.heal()
    world.write(END)
    world.tick()
    (error,) = world.told
    assert error is not None and "cut off" in str(error)


@pytest.mark.parametrize(
    ("when", "kind"),
    [(when, kind) for when in ("cut", "load", "finish") for kind in (MemoryError, RuntimeError, OSError)],
)
def test_an_error_of_any_kind_has_nobody_served_an_uncut_log(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENFILE, "Too many open files in system") if kind is OSError else kind("no")

    if when == "cut":
        with monkeypatch.context() as patch:
            patch.setattr(truncation, "load_producers", fail)
            with pytest.raises(RuntimeError if kind is RuntimeError else KafkaStorageError):
                world.log.truncate_to(CUT)
        assert not world.log.loaded
    else:
        world.cut_half(repeat=False)
        with monkeypatch.context() as patch:
            if when == "load":
                patch.setattr(partition_log, "load_log", fail)
            else:
                patch.setattr(partition_log, "find_cut", fail)
            world.tick(30)
            with pytest.raises(KafkaStorageError):
                world.log.read(0, 100)
            assert not world.log.loaded
    assert not world.manager.offline_dirs
    world.tick(step_ms=RETRY_MS_MAX)
    assert world.log.loaded, "without that anybody has touched it"
    assert values(world.log) == [b"1-%d" % number for number in range(CUT)]


def test_a_log_that_is_to_be_led_keeps_its_new_epoch(world: World) -> None:
    world.cut_half()
    world.log.assign_leader_epoch(7)
    world.heal()
    assert world.log.leader_epoch == 7
    assert world.log.epoch_end_offset(7) == (7, CUT)


def test_no_high_watermark_above_the_cut_is_written_down(world: World) -> None:
    world.log.share(True)
    world.log.advance_high_watermark(END - 2)
    world.cut_half()
    assert watermarks_of([(("t", 0), world.log)]) == {("t", 0): CUT}
    world.heal()
    assert world.log.high_watermark == CUT


def test_others_that_get_a_log_half_way_leave_it_what_is_certain_to_be_there(world: World) -> None:
    world.log.share(False)
    world.log.flush()
    world.manager.flusher.wait()
    world.cut_half()
    world.log.share(True)
    world.heal()
    assert 0 < world.log.high_watermark <= CUT


@pytest.mark.parametrize("shared", [True, False])
def test_a_load_that_fails_at_its_end_leaves_nothing_that_is_taken_for_a_loaded_log(
    world: World, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left the log as it was before the cut to whoever asked where it ends, and a high watermark at its start."""
    log = world.log
    log.share(shared)
    world.cut_half(repeat=False)
    with monkeypatch.context() as patch:
        patch.setattr(loading, "_sync_recovered", raises_no_descriptors)
        for _ in range(2):
            world.tick(step_ms=RETRY_MS_MAX)
            for name in OF_A_LOADED_LOG:
                with pytest.raises(KafkaStorageError, match="try it again"):
                    getattr(log, name)
        assert not shared or watermarks_of([(("t", 0), log)]) == {("t", 0): CUT}
    world.heal()
    assert (log.log_end_offset, log.high_watermark) == (CUT, CUT)


def raises_no_descriptors(*_given: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_segment_that_a_shortage_has_kept_is_dropped_once_more(tmp_path: Path) -> None:
    """What was put off for the log as it was would take the files from under the log that is loaded since."""
    world = World(tmp_path, LogConfig(segment_bytes=600, file_delete_delay_ms=0))
    log = world.log
    first = log.segments[1].base_offset
    log.delete_records_before(first)
    world.files.plan(Fault("rename", errno.EMFILE, f"{0:020d}.log"))
    apply_retention(log, world.clock())
    assert log.segments[0].base_offset == first
    world.files.plan(Fault("rename", errno.EMFILE, "t-0", passes=4, repeat=False))
    with pytest.raises(KafkaStorageError):
        log.truncate_to(CUT)
    assert not log.loaded
    world.files.heal()
    assert (log.log_start_offset, log.log_end_offset) == (first, CUT), "touched before the tick"
    world.tick(3)
    assert found_at(log, 0) is not None
    assert log.finish()
    apply_retention(log, world.clock())
    assert log.segments[0].base_offset == first
    world.tick(3)
    assert not world.manager.offline_dirs
    assert sorted(name for name in os.listdir(log.path) if name.endswith(".log"))[0].startswith(f"{first:020d}")


def test_of_a_segment_that_a_shortage_has_left_half_removed_nothing_stays(tmp_path: Path) -> None:
    """The file that had its other name by then stayed until the next start."""
    world = World(tmp_path, LogConfig(segment_bytes=600, file_delete_delay_ms=0))
    log = world.log
    log.delete_records_before(log.segments[1].base_offset)
    world.files.plan(Fault("rename", errno.ENOMEM, f"{0:020d}.index"))
    apply_retention(log, world.clock())
    world.files.heal()
    world.tick(3)
    assert not [name for name in os.listdir(log.path) if name.startswith(f"{0:020d}.")]


def test_what_must_not_stay_goes_before_anybody_reads(world: World) -> None:
    log = world.log
    world.files.plan(Fault("list", errno.EMFILE))
    with pytest.raises(KafkaStorageError):
        log.insist_on(lambda: log.truncate_to(CUT), CUT)
    assert not log.loaded
    with pytest.raises(KafkaStorageError):
        log.insist_on(lambda: log.truncate_to(CUT - 2), CUT - 2)
    world.heal()
    assert log.log_end_offset == CUT - 2
    assert not world.manager.offline_dirs


def test_what_must_not_stay_goes_where_there_is_no_memory_to_begin_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed: half a change of the metadata was committed with the next one."""
    log = world.log
    with monkeypatch.context() as patch, pytest.raises(KafkaStorageError, match="try it again"):
        patch.setattr(partition_log, "find_cut", raises_memory_error)
        log.insist_on(lambda: log.truncate_to(CUT), CUT)
    assert not log.loaded and not world.manager.offline_dirs
    assert log.log_end_offset == CUT
    with monkeypatch.context() as patch, pytest.raises(KafkaStorageError):
        patch.setattr(partition_log, "find_cut", raises_memory_error)
        patch.setattr(PartitionLog, "unload", raises_memory_error)
        try:
            log.insist_on(lambda: log.truncate_to(CUT - 2), CUT - 2)
        except MemoryError:
            raise log.dir.offline or AssertionError("it is read, and appended to") from None


def test_the_error_of_a_directory_that_went_offline_does_not_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had a shortage for its cause, by which whoever met it went on: a half cut metadata log was led."""
    log = world.log
    with monkeypatch.context() as patch, pytest.raises(KafkaStorageError, match="offline"):
        patch.setattr(partition_log, "truncate_log", raises_memory_error)
        patch.setattr(partition_log, "partial", raises_memory_error)
        log.insist_on(lambda: log.truncate_to(CUT), CUT)
    assert log.dir.offline is not None and not passes(log.dir.offline)


def raises_memory_error(*_given: object, **_named: object) -> None:
    raise MemoryError


def test_a_batch_for_which_there_is_no_memory_to_take_it_back_goes_before_anybody_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the directory offline."""
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(PartitionLog, "_advance_end", raises_memory_error)
        patch.setattr(partition_log, "truncate_log", raises_memory_error)
        world.write(1)
    assert world.log.dir.offline is None and not world.log.loaded
    world.write(1, epoch=2)
    assert values(world.log) == [*(b"1-%d" % number for number in range(END)), b"2-%d" % END]


@pytest.mark.parametrize("what", ["cut", "append"])
def test_a_log_is_half_cut_for_nobody_where_memory_is_short_for_that_too(
    world: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed as it was, and was read and appended to."""
    monkeypatch.setattr(partition_log, "truncate_log", raises_memory_error)
    monkeypatch.setattr(partition_log, "partial", raises_memory_error)
    with pytest.raises(MemoryError):
        if what == "cut":
            world.log.truncate_to(CUT)
        else:
            monkeypatch.setattr(PartitionLog, "_advance_end", raises_memory_error)
            world.write(1)
    assert world.log.dir.offline is not None


def test_a_loss_of_power_at_any_step_leaves_the_log_cut_or_not(tmp_path: Path) -> None:
    """Amid the cut, before the load, in it, and behind it: what is acknowledged is there, and nothing comes back between."""
    done = False
    for step in range(200):
        directory, target = tmp_path / f"{step}", tmp_path / f"{step}-after"
        directory.mkdir()
        world = World(directory, files=ForgetfulFiles())
        files = world.files
        assert isinstance(files, ForgetfulFiles)
        files.all_on_disk(directory)
        world.cut_half(repeat=False)
        left = step
        acknowledged: list[int] = []

        class NoPower(BaseException):
            pass

        def passes(operation: str, path: str) -> None:
            nonlocal left
            if operation in ("write", "truncate", "sync", "rename", "unlink"):
                if not left:
                    raise NoPower
                left -= 1

        strike = files._strike

        def counted(operation, path, strike=strike, passes=passes):  # type: ignore[no-untyped-def]
            passes(operation, path)
            return strike(operation, path)

        files._strike = counted  # type: ignore[method-assign]
        try:
            world.heal()
            for _ in range(4):
                world.write(2, epoch=3)
                world.log.wait_durable(
                    world.log.log_end_offset,
                    lambda error, end=world.log.log_end_offset, acked=acknowledged: acked.append(end),  # type: ignore[misc]
                )
                world.tick()
            done = True
        except NoPower:
            pass
        files._strike = strike  # type: ignore[method-assign]
        files.lose_power(directory, target)
        crash(world.manager)
        again: LogManager = open_manager(target, FSYNC)
        log = again.create("t", 0, TOPIC_ID, FSYNC)
        found = values(log)
        assert log.gap_offset is None and not again.offline_dirs, step
        end = len(found)
        old, new = [b"1-%d" % n for n in range(END)], [b"3-%d" % n for n in range(CUT, END)]
        assert found in (old[:end], (old[:CUT] + new)[:end]), step
        assert end >= max(acknowledged, default=CUT), step
        if acknowledged:
            assert found[CUT:].count(b"3-%d" % CUT) == 1, step
        crash(again)
        if done:
            assert step > 10
            return
    raise AssertionError("it never ends")
