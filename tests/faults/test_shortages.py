"""A process that is short of descriptors or memory, a disk that is full: that is no broken disk. What cannot be done is refused or put off,
the directory stays online, and what was acknowledged is there, also after the next start."""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from faulty_files import Fault, FaultyFiles, Operation

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import KafkaStorageError

CODES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT]
OPERATIONS: list[Operation] = ["open", "write", "truncate", "rename", "unlink", "read"]
START_MS = 1_700_000_000_000


class World:
    """A manager with one log, whose files fail when they are told to. `acknowledged` is what a client was promised."""

    def __init__(self, directory: Path, durability: str) -> None:
        self.directory = directory
        self.now_ms = START_MS
        self.config = LogConfig(
            segment_bytes=700,
            index_interval_bytes=100,
            retention_bytes=3000,
            durability=durability,
            file_delete_delay_ms=50,
        )
        self.acknowledged: dict[int, bytes] = {}
        self.open()

    def open(self) -> None:
        self.files = FaultyFiles()
        self.manager = LogManager(
            [self.directory],
            default_config=self.config,
            files=self.files,
            flusher=ManualFlusher(self.files),
            clock=lambda: self.now_ms,
            fd_budget=4,
            retention_check_interval_ms=200,
            checkpoint_interval_ms=300,
        )
        self.manager.start()
        self.log: PartitionLog = self.manager.create("t", 0, bytes(16))

    def append(self, value: bytes) -> None:
        """Append; it counts once the log says that it is durable."""
        try:
            result = self.log.append(
                build_batch([(self.now_ms, None, value)]),
                leader_epoch=(self.now_ms - START_MS) // 500,
                now_ms=self.now_ms,
            )
        except KafkaStorageError:
            return

        def durable(error: BaseException | None) -> None:
            assert error is None
            self.acknowledged[result.base_offset] = value

        self.log.wait_durable(result.last_offset + 1, durable)

    def turn(self) -> None:
        self.now_ms += 100
        self.manager.tick()

    def check(self) -> None:
        """Everything that was acknowledged and not deleted by retention can be read; the directory is online."""
        assert not self.manager.offline_dirs
        found: dict[int, bytes | None] = {}
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            raw = self.log.read(offset, 1 << 20, upper_offset=self.log.high_watermark).read()
            for position, header in iter_headers(raw, strict=True):
                found[header.base_offset] = decode_records(raw, position)[0].value
                offset = header.next_offset
        wanted = {at: value for at, value in self.acknowledged.items() if at >= self.log.log_start_offset}
        assert wanted.items() <= found.items()


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
@pytest.mark.parametrize("seed", range(12))
def test_shortages_lose_nothing_and_take_nothing_offline(tmp_path: Path, seed: int, durability: str) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, durability)
    for step in range(300):
        if rng.random() < 0.15:
            passes = rng.randrange(3)
            world.files.plan(
                Fault(rng.choice(OPERATIONS), rng.choice(CODES), passes=passes, partial=rng.choice([0, 9, 70]))
            )
        if rng.random() < 0.3:
            world.files.heal()
        world.append(b"%d-" % step + b"v" * rng.randrange(200))
        world.turn()
        assert not world.manager.offline_dirs, f"seed {seed}, step {step}"
        if rng.random() < 0.05:
            world.files.heal()
            world.check()
        if rng.random() < 0.03:  # what a crash would leave, or a clean stop, then another start
            world.files.heal()
            if rng.random() < 0.5:
                world.turn()
                world.manager.close()
                assert (tmp_path / ".kafka_cleanshutdown").exists()
            else:
                world.manager.release_locks()
            world.open()
            world.check()
    world.files.heal()
    world.append(b"last")
    for _ in range(4):
        world.turn()
    world.check()
    assert world.acknowledged[world.log.log_end_offset - 1] == b"last"  # nobody waits any more
    world.manager.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("code", CODES)
def test_a_stop_that_could_not_finish_a_log_leaves_no_mark_of_a_clean_one(tmp_path: Path, code: int) -> None:
    world = World(tmp_path, "page-cache")
    world.append(b"v")
    world.files.plan(Fault("open", code, ".snapshot"))
    world.manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    world.open()
    world.check()


def test_an_aborted_transaction_is_known_although_its_index_could_not_be_written(tmp_path: Path) -> None:
    world = World(tmp_path, "page-cache")
    batch = build_batch([(START_MS, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    world.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=2)
    fault = world.files.plan(Fault("open", errno.EMFILE, ".txnindex"))
    world.log.append_transaction_marker(
        producer_id=7, producer_epoch=1, coordinator_epoch=0, commit=False, leader_epoch=0, now_ms=START_MS
    )
    assert fault.struck
    with pytest.raises(KafkaStorageError):
        world.log.aborted_transactions(0, 2)
    world.files.heal()
    assert [entry.first_offset for entry in world.log.aborted_transactions(0, 2)] == [0]
    world.manager.close()
    world.open()
    assert [entry.first_offset for entry in world.log.aborted_transactions(0, 2)] == [0]


def test_a_start_without_descriptors_is_refused(tmp_path: Path) -> None:
    """Going on would make new logs in the place of those that were not seen."""
    world = World(tmp_path, "page-cache")
    world.manager.close()
    files = FaultyFiles()
    files.plan(Fault("open", errno.EMFILE, "recovery-point"))
    manager = LogManager([tmp_path], files=files, flusher=ManualFlusher(files))
    with pytest.raises(OSError, match="Too many open files"):
        manager.start()


def test_shortages_are_said_at_a_bounded_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles()
    now_ms = 0
    log_dir = LogDir(str(tmp_path), files, FdBudget(4), ManualFlusher(files), monotonic_ms=lambda: now_ms)
    error = OSError(errno.EMFILE, "Too many open files")
    for now_ms in range(0, 35_000, 100):  # noqa: B007 - the clock
        log_dir.refuse("reading", "here", error)
        log_dir.tick()
    assert log_dir.offline is None
    lines = [record.getMessage() for record in caplog.records]
    assert 4 <= len(lines) <= 9
    assert "raise the limit of open files" in lines[0].lower()
    assert any("more operations met a shortage" in line for line in lines)


def test_a_failed_sync_is_never_a_shortage(tmp_path: Path) -> None:
    """The kernel reports the error of the write-back there: pages may be gone."""
    world = World(tmp_path, "fsync")
    world.files.plan(Fault("sync", errno.ENOMEM, ".log"))
    world.log.append(build_batch([(START_MS, None, b"v")]), leader_epoch=0, now_ms=START_MS)
    world.turn()
    assert world.manager.offline_dirs


def test_an_open_without_a_descriptor_closes_files_that_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Held:
        recently_used = True
        held = True

        def is_open(self) -> bool:
            return self.held

        def release(self) -> None:
            self.held = False

    files, budget, held = Files(), FdBudget(8), Held()
    files.make_room = budget.make_room
    budget.opened(held)
    import os

    real = os.open

    def scarce(path: str, flags: int, mode: int = 0o777) -> int:
        if held.held:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    descriptor = files.open(str(tmp_path / "f"), os.O_RDWR | os.O_CREAT)
    os.close(descriptor)
    assert not held.held and not any(holder.is_open() for holder in budget._ring)
    held.held = True  # but nobody to close: the error stands
    with pytest.raises(OSError, match="Too many"):
        files.open(str(tmp_path / "f"), os.O_RDWR)


@pytest.mark.parametrize("code", [*CODES, errno.EIO])
def test_a_first_append_that_cannot_read_its_segment_is_refused_as_a_failed_disk_is(tmp_path: Path, code: int) -> None:
    """It was an OSError, which producers are told as an error that no retry helps against."""
    world = World(tmp_path, "page-cache")
    world.append(b"v")
    world.manager.close()
    world.open()
    world.log.load()
    world.files.plan(Fault("read", code, ".log"))
    with pytest.raises(KafkaStorageError):
        world.log.append(build_batch([(START_MS, None, b"w")]), leader_epoch=0, now_ms=START_MS)
    assert bool(world.manager.offline_dirs) == (code == errno.EIO)
    if code != errno.EIO:
        world.files.heal()
        world.append(b"w")
        world.check()
        assert world.acknowledged[1] == b"w"


@pytest.mark.parametrize(("operation", "fully"), [("list", False), ("open", False), ("list", True), ("open", True)])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_a_truncation_that_cannot_begin_changes_nothing(
    tmp_path: Path, operation: Operation, fully: bool, code: int
) -> None:
    """Followers truncate at every change of leaders."""
    world = World(tmp_path, "page-cache")
    for number in range(20):
        world.append(b"%d" % number)
    world.manager.close()
    world.open()
    world.log.load()
    fault = world.files.plan(Fault(operation, code, "t-0"))
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            world.log.truncate_fully_and_start_at(40) if fully else world.log.truncate_to(7)
    assert fault.struck and world.log.log_end_offset == 20
    world.files.heal()
    world.check()
    if fully:
        world.log.truncate_fully_and_start_at(40)
    else:
        world.log.truncate_to(7)
    assert world.log.log_end_offset == (40 if fully else 7) and not world.manager.offline_dirs


@pytest.mark.parametrize("passes", range(12))
def test_a_log_that_begins_anew_is_there_wherever_it_is_stopped(tmp_path: Path, passes: int) -> None:
    """Without any file of its own it would be taken for one that somebody has removed."""
    world = World(tmp_path, "page-cache")
    for number in range(20):
        world.append(b"%d" % number)
    for operation in ("open", "rename", "unlink", "write"):
        world.files.plan(Fault(operation, errno.ENOSPC, "t-0", passes=passes))
    with contextlib.suppress(KafkaStorageError):
        world.log.truncate_fully_and_start_at(40)
    assert list((tmp_path / "t-0").glob("*.log"))


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE])
def test_a_deletion_that_cannot_rename_is_done_later(tmp_path: Path, code: int) -> None:
    world = World(tmp_path, "page-cache")
    world.append(b"v")
    fault = world.files.plan(Fault("rename", code, "t-0"))
    assert world.manager.delete("t", 0)
    world.turn()
    assert fault.struck > 1 and (tmp_path / "t-0").exists() and not world.manager.offline_dirs
    world.files.heal()
    world.turn()
    assert not (tmp_path / "t-0").exists() and not world.manager.offline_dirs


def test_a_topic_that_is_made_again_before_its_deletion_is_done_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    world = World(tmp_path, "page-cache")
    world.append(b"old")
    world.files.plan(Fault("rename", errno.ENOMEM, "t-0", repeat=False))
    assert world.manager.delete("t", 0)
    log = world.manager.create("t", 0, bytes(range(16)))
    assert log.log_end_offset == 0
    world.turn()
    world.turn()
    assert world.manager.logs["t", 0] is log and (tmp_path / "t-0").exists() and not world.manager.offline_dirs


@pytest.mark.parametrize("part", ["t-0", ".log"])
def test_a_sync_that_lacks_a_descriptor_has_not_failed(tmp_path: Path, part: str) -> None:
    world = World(tmp_path, "fsync")
    world.append(b"v")
    for segment in world.log.segments:
        segment.release()
    world.files.plan(Fault("open", errno.ENFILE, part))
    with pytest.raises(KafkaStorageError):
        world.log.sync_now()
    world.files.heal()
    world.log.sync_now()
    world.check()
    assert world.log.on_disk_offset == 1


@pytest.mark.parametrize("when", ["smaller", "begun", "broken"])
def test_files_of_a_segment_that_could_not_be_begun_go_when_they_can(tmp_path: Path, when: str) -> None:
    """A file system that copies what it writes may lack the room even to remove one."""
    world = World(tmp_path, "page-cache")
    world.append(b"v" * 500)
    world.log.apply_config(replace(world.config, preallocate=True))
    world.files.plan(Fault("allocate", errno.ENOSPC))
    code = errno.EIO if when == "broken" else errno.ENOSPC
    unlink = world.files.plan(Fault("unlink", code, "00000000000000000001"))
    world.append(b"v" * 500)
    world.log.apply_config(world.config)
    assert world.log.log_end_offset == 1 and unlink.struck
    assert bool(world.manager.offline_dirs) == (when == "broken")
    world.files.heal()
    if when == "broken":
        return
    world.append(b"v" * (500 if when == "begun" else 5))
    world.turn()
    names = [segment.log.path for segment in world.log.segments]
    assert sorted(str(path) for path in tmp_path.glob("t-0/*.log")) == names
    assert len(list(tmp_path.glob("t-0/*.index"))) == len(names) == (2 if when == "begun" else 1)
    world.manager.release_locks()
    world.open()
    world.check()
    assert len(world.acknowledged) == world.log.log_end_offset == 2
