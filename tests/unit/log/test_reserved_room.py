"""Room on the disk ahead of a log's end: for large appends only, a small part of the log, and given back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from fastq_broker.log.files import SLACK_BYTES, Space
from fastq_broker.log.log_dir import RESERVE_AGAIN_MS
from fastq_broker.log.log_file import RESERVED_BYTES_MAX, RESERVED_BYTES_MIN, RESERVED_SHARE
from fastq_broker.log.space import Level, Marks, SpaceGuard
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, crash, one_batch, open_manager, records_of

from fastq._native.flusher import reserve_range
from fastq.errors import KafkaError

LARGE = 1_000_000
ENOUGH = RESERVED_SHARE * RESERVED_BYTES_MIN // LARGE + 1
"""Appends of LARGE after which there is something to reserve."""


class ReservingFiles(FaultyFiles):
    """Notes what is reserved and given back, of log files; `answer` is what a reservation comes to."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[tuple[int, int]] = []
        self.truncated: list[int] = []
        self.answer: bool | OSError = True

    def reserve(self, fd: int, position: int, size: int) -> bool:
        self.reserved.append((position, position + size))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def truncate(self, fd: int, size: int) -> None:
        self.truncated.append(size)
        super().truncate(fd, size)


def new_log(directory: Path, files: FaultyFiles, config: LogConfig | None = None) -> PartitionLog:
    return open_manager(directory, config, files=files).create("t", 0, bytes(16))


def append(log: PartitionLog, count: int, size: int = LARGE) -> None:
    for _ in range(count):
        log.append(one_batch([bytes(size)]), leader_epoch=0, now_ms=START_MS)


def overhang(path: str) -> int:
    found = os.stat(path)
    return found.st_blocks * 512 - found.st_size


def test_large_appends_have_room_ahead_of_them_once_the_log_is_much_larger(tmp_path: Path) -> None:
    files = ReservingFiles()
    log = new_log(tmp_path, files)
    append(log, ENOUGH)
    assert not files.reserved
    append(log, 5 * ENOUGH)
    size = log.size_bytes
    assert len(files.reserved) < 5 * ENOUGH // 2
    begun = 0
    for begin, end in files.reserved:  # from an append's begin to its end, and some more
        assert begun <= begin <= size
        assert RESERVED_BYTES_MIN < end - begin <= min(begin // RESERVED_SHARE, RESERVED_BYTES_MAX) + LARGE + 100
        begun = begin
    assert files.reserved[-1][1] >= size


def test_small_appends_reserve_nothing(tmp_path: Path) -> None:
    files = ReservingFiles()
    log = new_log(tmp_path, files)
    append(log, ENOUGH)
    append(log, 100, 10_000)
    assert not files.reserved


@pytest.mark.parametrize(
    "answer", [False, OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), OSError(errno.EIO, "?")]
)
def test_what_cannot_be_reserved_costs_nothing_but_time(tmp_path: Path, answer: bool | OSError) -> None:
    files = ReservingFiles()
    log = new_log(tmp_path, files)
    append(log, ENOUGH)
    files.answer = answer
    size = log.size_bytes
    append(log, 3)
    assert len(files.reserved) == 1
    assert files.truncated[-1:] == ([size] if isinstance(answer, OSError) else [])  # what was had of it is given back
    assert log.dir.offline is None
    records = records_of(log.read(0, 64 << 20))
    assert [record.offset for record in records] == list(range(ENOUGH + 3))


def test_a_preallocated_segment_has_its_room_and_keeps_it(tmp_path: Path) -> None:
    """What fails to get more, past the segment's end, gave back what was to be written to."""
    files = ReservingFiles()
    config = LogConfig(preallocate=True, segment_bytes=(ENOUGH + 9) * LARGE)
    log = new_log(tmp_path, files, config)
    files.answer = OSError(errno.ENOSPC, "full")
    append(log, ENOUGH + 8)
    (segment,) = log.segments
    assert not files.reserved
    assert os.stat(segment.log.path).st_size == config.segment_bytes
    append(log, 1)  # which rolls
    assert os.stat(segment.log.path).st_size == segment.size < config.segment_bytes


def test_a_full_disk_has_back_what_the_logs_of_the_directory_have_ahead(tmp_path: Path) -> None:
    files = ReservingFiles()
    manager = open_manager([tmp_path / "a", tmp_path / "b"], files=files)
    idle, elsewhere, writer = (manager.create(name, 0, bytes(16)) for name in ("idle", "elsewhere", "t"))
    assert writer.dir is idle.dir is not elsewhere.dir
    for log in (idle, elsewhere):
        append(log, ENOUGH + 1)
        assert log.active_segment.log.is_ahead
    idle.active_segment.release()  # as who keeps the number of open files does
    files.plan(Fault("write", errno.EDQUOT, "t-0"))
    with pytest.raises(KafkaError):
        append(writer, 1, 100)
    files.heal()
    assert not idle.active_segment.log.is_ahead
    assert files.truncated == [idle.size_bytes, 0]  # and the batch that is not whole
    assert elsewhere.active_segment.log.is_ahead
    asked = len(files.reserved)
    append(idle, 5)
    assert len(files.reserved) == asked, "before somebody has found that there is room"
    assert [record.offset for record in records_of(idle.read(0, 64 << 20))] == list(range(ENOUGH + 6))


def test_what_a_file_takes_less_than_its_size_does_not_hide_what_it_has_ahead(tmp_path: Path) -> None:
    """Compressed by its file system, or a copy that leaves zeros out."""
    files = ReservingFiles()  # which answers, and takes nothing: as what is hidden
    manager = open_manager(tmp_path, files=files)
    log = manager.create("t", 0, bytes(16))
    append(log, ENOUGH + 1)
    assert log.active_segment.log.is_ahead and not files.takes_more(log.active_segment.log.path, log.size_bytes)
    manager.close()
    assert files.truncated == [log.size_bytes]


def test_a_disk_that_was_full_is_asked_again_when_it_has_room(tmp_path: Path) -> None:
    files = ReservingFiles()
    log = new_log(tmp_path, files)
    append(log, ENOUGH)
    files.answer = OSError(errno.ENOSPC, "full")
    files.plan(Fault("write", errno.ENOSPC, ".log"))
    with pytest.raises(KafkaError):
        append(log, 1)
    files.heal()
    files.answer = True
    log.dir.reserves = True  # as who looks at the disk says
    append(log, 1)
    assert len(files.reserved) == 2
    assert log.log_end_offset == ENOUGH + 1


def test_a_disk_on_which_there_is_enough_without_the_room_ahead_is_not_short_of_it_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was given back was more than what tells enough from too little: it was taken again, and warned of, every few seconds."""
    files = ReservingFiles()
    log = new_log(tmp_path, files)
    guard = SpaceGuard([log.dir], lambda: 0)
    guard.apply(Marks(warn_bytes=RESERVED_BYTES_MIN, refuse_bytes=0))
    end = log.active_segment.log

    def look(free_bytes: int) -> Level:
        """So much is free where no log has room ahead."""
        files.room = Space(free_bytes - (end.reserved - end.size if end.is_ahead else 0), 1 << 40)
        guard.look_now()
        return guard.looks[log.dir.path].level

    enough = 2 * RESERVED_BYTES_MIN
    append(log, ENOUGH + 1)
    assert look(enough) is Level.LOW
    assert look(enough) is Level.OK
    append(log, ENOUGH)
    assert look(enough) is Level.OK and len(files.reserved) == 1
    assert len(caplog.records) == 1 and "fewer than disk.warn.free.bytes" in caplog.text
    assert look(2 * enough) is Level.OK
    append(log, 1)
    assert end.is_ahead


def test_after_a_write_that_found_the_disk_full_there_is_room_ahead_no_sooner_than_a_while_later(
    tmp_path: Path,
) -> None:
    """A quota is seen by nobody who looks: logs took it up each second, and the appends of others were refused."""
    files, now_ms = ReservingFiles(), [0]
    log = new_log(tmp_path, files)
    log.dir.monotonic_ms = lambda: now_ms[0]
    files.room = Space(1 << 40, 1 << 41)
    guard = SpaceGuard([log.dir], lambda: now_ms[0])
    append(log, ENOUGH)
    files.plan(Fault("write", errno.EDQUOT, ".log"))
    with pytest.raises(KafkaError):
        append(log, 1)
    files.heal()
    asked = len(files.reserved)
    for now_ms[0] in (1_000, RESERVE_AGAIN_MS - 1):
        guard.look_now()
        append(log, 1)
        assert len(files.reserved) == asked
    now_ms[0] = RESERVE_AGAIN_MS
    guard.look_now()
    append(log, 1)
    assert len(files.reserved) == asked + 1


def test_a_roll_and_a_stop_give_back_what_was_reserved(tmp_path: Path) -> None:
    with open(tmp_path / "probe", "wb") as probe:
        able = reserve_range(probe.fileno(), 0, RESERVED_BYTES_MAX)
        assert overhang(probe.name) >= (RESERVED_BYTES_MAX if able else 0)
    manager = open_manager(tmp_path / "data", LogConfig(segment_bytes=(2 * ENOUGH) * (LARGE + 100)))
    log = manager.create("t", 0, bytes(16))
    append(log, ENOUGH + 1)
    (first,) = log.segments
    assert (overhang(first.log.path) > SLACK_BYTES) == able
    append(log, 2 * ENOUGH)
    second = list(log.segments)[1]
    assert overhang(first.log.path) <= SLACK_BYTES
    assert (overhang(second.log.path) > SLACK_BYTES) == able
    manager.close()
    assert overhang(second.log.path) <= SLACK_BYTES


def test_what_a_crash_left_reserved_is_given_back_by_the_next_start(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    append(log, ENOUGH + 1)
    (segment,) = log.segments
    crash(manager)
    manager = open_manager(tmp_path)
    assert overhang(segment.log.path) <= SLACK_BYTES
    assert records_of(manager.logs["t", 0].read(0, 64 << 20))[-1].offset == ENOUGH
