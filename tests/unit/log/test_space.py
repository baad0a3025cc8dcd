"""The room on the disks: marks, what is refused below them, the ballast."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.files import Space
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_appends import AppendResult
from fastq_broker.log.log_dir import LogDir
from fastq_broker.log.space import BALLAST, Level, Marks, SpaceGuard, SpaceLooker, judge
from faulty_files import FaultyFiles
from log_support import START_MS, one_batch, open_manager

from fastq._native.records import build_batch
from fastq.errors import KafkaStorageError

GIB = 1 << 30
NOW_MS = 1_700_000_000_000


class Later(Executor):
    """A thread that works when it is told to."""

    def __init__(self, count: int, name: str) -> None:
        self.waiting: list[tuple[Future[Any], Callable[..., Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, work))
        return future

    def work(self) -> None:
        for future, work in self.waiting:
            future.set_result(work())
        self.waiting.clear()


class RoomyFiles(FaultyFiles):
    """A file system of a size, of which the ballast takes its part and others `taken_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.size = size_bytes
        self.taken_bytes = 0
        self.allocated: dict[str, int] = {}
        self.sparse = True

    def space(self, path: str) -> Space:
        return Space(self.size - self.taken_bytes - sum(self.allocated.values()), self.size)

    def own_size_bytes(self, path: str) -> int:
        return self.allocated.get(path) or super().own_size_bytes(path)

    def allocate(self, path: str, size: int) -> bool:
        if self.sparse:
            self._check("write", path)
            self.allocated[path] = size
        return self.sparse

    def remove_if_exists(self, path: str) -> None:
        self.allocated.pop(path, None)


class Guarded:
    """A log of one directory, and who looks after its room."""

    def __init__(
        self, directory: Path, marks: Marks, size_bytes: int = 100 * GIB, *, has_metadata_alone: bool = False
    ) -> None:
        self.files = RoomyFiles(size_bytes)
        self.now_ms = 0
        self.manager = LogManager(
            [directory],
            default_config=LogConfig(),
            files=self.files,
            flusher=ManualFlusher(self.files),
            clock=lambda: NOW_MS,
        )
        self.manager.start()
        self.log = self.manager.create("t", 0, bytes(16))
        self.thread = Later(1, "")
        dirs = ((), self.manager.dirs) if has_metadata_alone else (self.manager.dirs, ())
        self.guard = SpaceGuard(dirs[0], lambda: self.now_ms, lambda count, name: self.thread, dirs[1])
        self.guard.apply(marks)

    def free(self, free_bytes: int) -> Level:
        """So much is free, and is found out."""
        self.files.taken_bytes = self.files.size - free_bytes - sum(self.files.allocated.values())
        self.look()
        (look,) = self.guard.looks.values()
        return look.level

    def look(self) -> None:
        self.now_ms += 1000
        for _ in range(2):  # one may have begun before
            self.guard.tick()
            self.thread.work()
        self.guard.tick()

    def append(self, *, from_client: bool = True) -> None:
        self.log.append(build_batch([(NOW_MS, None, b"v")]), leader_epoch=0, now_ms=NOW_MS, from_client=from_client)


@pytest.mark.parametrize(
    ("before", "free", "missing", "after"),
    [
        (Level.OK, 1000, 0, Level.OK),
        (Level.OK, 999, 0, Level.LOW),
        (Level.LOW, 1099, 0, Level.LOW),
        (Level.LOW, 1100, 0, Level.OK),
        (Level.OK, 99, 0, Level.REFUSING),
        (Level.LOW, 100, 0, Level.LOW),
        (Level.REFUSING, 109, 0, Level.REFUSING),
        (Level.REFUSING, 110, 0, Level.LOW),
        (Level.REFUSING, 159, 50, Level.REFUSING),
        (Level.REFUSING, 160, 50, Level.LOW),
        (Level.REFUSING, 5000, 0, Level.OK),
    ],
)
def test_back_takes_more_room_than_was_missed(before: Level, free: int, missing: int, after: Level) -> None:
    assert judge(before, free, Marks(1000, 100, 50), missing) is after


def test_without_marks_nothing_is_refused_or_said() -> None:
    assert judge(Level.OK, 0, Marks(0, 0), 0) is Level.OK
    assert judge(Level.REFUSING, 0, Marks(0, 0), 100) is Level.OK


@pytest.mark.parametrize(
    ("size", "warn", "refuse"),
    [
        (64 << 20, (64 << 20) // 20, (64 << 20) // 100),
        (1 << 40, 16 * GIB, 256 << 20),
        (10 * GIB, GIB // 2, 10 * GIB // 100),
    ],
)
def test_the_default_marks_leave_a_small_disk_its_use(size: int, warn: int, refuse: int) -> None:
    assert Marks().on(size) == (warn, refuse, 0)
    assert Marks(5, 0).on(size) == (5, 0, 0)


def test_clients_are_refused_before_the_disk_is_full_and_the_broker_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = Guarded(tmp_path, Marks(2 * GIB, GIB))
    assert one.free(50 * GIB) is Level.OK and not caplog.records
    assert one.free(2 * GIB - 1) is Level.LOW
    assert one.free(GIB) is Level.LOW
    one.append()
    assert len(caplog.records) == 1 and "fewer than disk.warn.free.bytes (2147483648)" in caplog.text
    assert one.free(GIB - 1) is Level.REFUSING
    with pytest.raises(KafkaStorageError, match=r"disk\.refuse\.free\.bytes \(1073741824\).*[Dd]elete topics"):
        one.append()
    one.append(from_client=False)
    one.log.append_as_follower(build_batch([(NOW_MS, None, b"v")], base_offset=2), now_ms=NOW_MS)
    assert one.log.log_end_offset == 3 and len(caplog.records) == 2
    assert one.free(GIB + 1) is Level.REFUSING
    assert one.free(GIB + GIB // 10) is Level.LOW
    one.append()
    assert one.free(40 * GIB) is Level.OK
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING", "INFO"]
    assert not one.manager.offline_dirs


def test_logs_have_no_room_ahead_of_them_where_there_is_little(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(2 * GIB, GIB))
    short: list[str] = []
    (log_dir,) = one.manager.dirs

    def give_back(found: LogDir) -> int:
        short.append(found.path)
        return 0

    log_dir.on_short = give_back
    for free, reserves, told in [
        (50, True, 0),
        (1, False, 1),
        (0, False, 1),
        (1, False, 1),
        (50, True, 1),
        (0, False, 2),
    ]:
        one.free(free * GIB)
        assert (log_dir.reserves, len(short)) == (reserves, told)


def test_settings_count_at_the_next_look(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, GIB))
    assert one.free(GIB - 1) is Level.REFUSING
    one.guard.apply(Marks(0, 0))
    one.now_ms -= 1000  # which is now
    assert one.free(GIB - 1) is Level.OK
    one.append()


def test_one_look_at_a_time_and_one_a_second(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks())
    for _ in range(5):
        one.guard.tick()
        one.now_ms += 5000  # a disk that does not answer
    assert len(one.thread.waiting) == 1
    one.thread.work()
    one.guard.tick()
    assert len(one.thread.waiting) == 1
    one.thread.work()
    one.guard.tick()
    one.files.taken_bytes = one.files.size - 4 * GIB  # which may be full in a second
    one.now_ms += 1000
    one.guard.tick()
    one.thread.work()
    for _ in range(3):
        one.guard.tick()
        assert len(one.thread.waiting) == 1
        one.thread.work()
    one.files.taken_bytes = 0
    one.guard.tick()
    one.thread.work()
    one.guard.tick()
    one.now_ms += 999
    one.guard.tick()
    assert not one.thread.waiting
    one.guard.close()
    one.now_ms += 10_000
    one.guard.tick()
    assert not one.thread.waiting


def test_a_directory_that_cannot_be_looked_at_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Guarded(tmp_path, Marks(0, GIB))
    assert one.free(GIB - 1) is Level.REFUSING

    def gone(path: str) -> Space:
        raise OSError(errno.EIO, "no answer", path)

    with monkeypatch.context() as patch:
        patch.setattr(one.files, "space", gone)
        one.look()
    assert not one.guard.looks
    with pytest.raises(KafkaStorageError):
        one.append()
    assert one.free(3 * GIB) is Level.OK
    one.append()


def test_a_directory_that_fails_stays_so_when_there_is_room(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, GIB))
    assert one.free(GIB - 1) is Level.REFUSING
    one.log.dir.fail("writing", "f", OSError(errno.EIO, "I/O error"))
    one.look()
    one.log.dir.open_to_clients()
    with pytest.raises(KafkaStorageError, match="offline"):
        one.append(from_client=False)


# --- ballast


def test_the_ballast_is_given_up_and_made_anew_once_there_is_room_for_it(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, 10 * GIB, 5 * GIB))
    path = str(tmp_path / BALLAST)
    one.free(60 * GIB)
    assert one.files.allocated == {path: 5 * GIB}
    assert one.free(9 * GIB) is Level.REFUSING
    assert not one.files.allocated
    one.look()
    assert one.free(14 * GIB) is Level.REFUSING, "what it gave up is no space for producers"
    assert one.free(16 * GIB) is Level.OK
    assert one.files.allocated == {path: 5 * GIB}
    one.append()


def test_a_ballast_that_somebody_removes_is_made_anew_where_there_is_room(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, 10 * GIB, 5 * GIB))
    one.free(60 * GIB)
    one.files.allocated.clear()
    assert one.free(12 * GIB) is Level.OK
    assert not one.files.allocated
    for _ in range(62):
        one.free(40 * GIB)
    assert one.files.allocated


def test_another_size_of_the_ballast_and_none(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, GIB, 5 * GIB))
    one.look()
    one.guard.apply(Marks(0, GIB, 3 * GIB))
    one.look()
    one.look()
    assert list(one.files.allocated.values()) == [3 * GIB]
    one.guard.apply(Marks(0, GIB, 0))
    one.look()
    assert not one.files.allocated


def test_of_a_disk_that_has_the_metadata_alone_it_is_said_what_that_means(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No client's records are refused, as there are none; logs give back the room ahead of their ends, and take some again."""
    caplog.set_level(logging.INFO)
    one = Guarded(tmp_path, Marks(2 * GIB, GIB), has_metadata_alone=True)
    (log_dir,) = one.manager.dirs
    levels = [one.free(free) for free in (50 * GIB, 2 * GIB - 1, 1, 2, 2 * GIB, 1, 50 * GIB)]
    assert levels == [Level.OK, Level.LOW, Level.REFUSING, Level.REFUSING, Level.LOW, Level.REFUSING, Level.OK]
    assert log_dir.refusal is None and log_dir.reserves
    said = [(record.levelname, record.getMessage().removeprefix(f"{log_dir.path} has ")) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "ERROR", "WARNING", "ERROR", "WARNING"]
    assert said[0][1].endswith("fewer than disk.warn.free.bytes (2147483648): the metadata needs room")
    assert "what comes of the metadata waits for room, and a controller leads no more; add space" in said[1][1]
    assert said[2][1] == "2147483648 bytes free again"


def test_what_keeps_the_ballast_away_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Guarded(tmp_path, Marks(0, GIB, 200 * GIB))
    for _ in range(200):
        one.look()
    assert caplog.text.count("there is no room for a ballast") == len(caplog.records) == 1
    other = Guarded(tmp_path / "other", Marks(0, GIB, GIB))
    other.files.sparse = False
    for _ in range(200):
        other.look()
    assert caplog.text.count("has no effect") == 1 and len(caplog.records) == 2


def test_a_ballast_that_was_never_there_keeps_nobody_out(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, 10 * GIB, 200 * GIB))
    one.look()
    assert one.free(9 * GIB) is Level.REFUSING
    assert one.free(11 * GIB) is Level.OK, "no disk of 100 GiB ever has room for it"
    one.append()


def test_one_that_was_given_up_and_is_wanted_smaller_keeps_out_until_there_is_room_for_that(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, 10 * GIB, 50 * GIB))
    one.free(70 * GIB)
    one.free(9 * GIB)
    one.look()
    assert one.free(15 * GIB) is Level.REFUSING
    one.guard.apply(Marks(0, 10 * GIB, 4 * GIB))
    assert one.free(14 * GIB) is Level.REFUSING
    assert one.free(15 * GIB) is Level.OK


def test_another_setting_is_tried_at_once_where_one_had_no_room(tmp_path: Path) -> None:
    one = Guarded(tmp_path, Marks(0, GIB, 200 * GIB))
    one.look()
    assert not one.files.allocated
    one.guard.apply(Marks(0, GIB, 3 * GIB))
    one.look()
    assert list(one.files.allocated.values()) == [3 * GIB]


@pytest.mark.parametrize("target_bytes", [0, 1 << 20, 77])
def test_a_link_in_the_ballasts_place_is_replaced_and_what_it_leads_to_is_left(
    tmp_path: Path, target_bytes: int
) -> None:
    from fastq_broker.log.files import Files

    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir()
    target.write_bytes(bytes(target_bytes))
    (data / BALLAST).symlink_to(target)
    looker = SpaceLooker(str(data), Files())
    for _ in range(2):
        found = looker.look(Marks(0, 0, 1 << 20))
    assert (found.problem, found.ballast_bytes) == ("", 1 << 20)
    assert not (data / BALLAST).is_symlink() and (data / BALLAST).stat().st_size == 1 << 20
    assert target.stat().st_size == target_bytes


def test_a_real_ballast_takes_its_room(tmp_path: Path) -> None:
    from fastq_broker.log.files import Files

    looker = SpaceLooker(str(tmp_path), Files())
    looker.look(Marks(0, 0, 1 << 20))
    found = (tmp_path / BALLAST).stat()
    assert (found.st_size, found.st_blocks * 512 >= 1 << 20) == (1 << 20, True)
    assert looker.look(Marks(0, 0, 1 << 20)).ballast_bytes == 1 << 20
    assert looker.look(Marks(0, 1 << 60, 1 << 20)).level is Level.REFUSING
    assert not (tmp_path / BALLAST).exists()


def test_a_batch_that_is_there_already_is_answered_as_such_while_others_are_refused(tmp_path: Path) -> None:
    """It needs no room, and its producer waits for nothing else. One out of its order waits, as what comes before it may be refused."""
    manager = open_manager(tmp_path, LogConfig())
    log = manager.create("t", 0, bytes(16))

    def send(sequence: int, producer_id: int = 5) -> AppendResult:
        batch = one_batch([b"a", b"b"], producer_id=producer_id, epoch=0, sequence=sequence)
        return log.append(batch, leader_epoch=0, now_ms=START_MS)

    first = send(0)
    log.dir.close_to_clients("7 bytes are free", "Add space")
    assert send(0) == first._replace(duplicate=True)
    for sequence, producer_id in ((2, 5), (4, 5), (0, 6), (-1, -1)):
        with pytest.raises(KafkaStorageError, match="7 bytes are free"):
            send(sequence, producer_id)
    assert log.log_end_offset == 2
    log.dir.open_to_clients()
    assert send(2).base_offset == 2
    log.dir.close_to_clients("7 bytes are free", "Add space")
    assert [send(at).base_offset for at in (0, 2)] == [0, 2]
    log.dir.fail("writing a batch", "a file", OSError(errno.EIO, "no"))
    with pytest.raises(KafkaStorageError, match="offline"):
        send(2)
