"""`Files.write_pieces`: what a follower writes that catches up, in pieces that leave the memory once the disk has them."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import LogConfig
from fastq_broker.log import files as files_module
from fastq_broker.log.files import READ_WRITE_CREATE, Files
from faulty_files import FaultyFiles
from log_support import TOPIC_ID, one_batch, open_manager

from fastq._native.flusher import is_resident

PAGE = mmap.PAGESIZE
PIECE = files_module.PIECE_BYTES
DATA = bytes(range(251)) * 3000
SIZES = (0, 1, PAGE - 1, PAGE, PAGE + 1, PIECE, PIECE + 1, 2 * PIECE + 77)
POSITIONS = (0, 1, PAGE - 1, PAGE, PIECE - 1, PIECE + 5)

PwriteV = Callable[[int, Any, int, int], int]


@pytest.fixture
def fd(tmp_path: Path) -> Any:
    descriptor = os.open(tmp_path / "log", READ_WRITE_CREATE)
    yield descriptor
    os.close(descriptor)


def failing(error: Exception) -> PwriteV:
    def pwritev(fd: int, buffers: Any, position: int, flags: int) -> int:
        raise error

    return pwritev


def partly(taken: int) -> PwriteV:
    """One that takes so many bytes at most."""

    def pwritev(fd: int, buffers: Any, position: int, flags: int) -> int:
        return os.pwrite(fd, buffers[0][:taken], position) if taken else 0

    return pwritev


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    "pwritev",
    [
        os.pwritev,
        partly(1000),
        partly(61),
        partly(0),
        failing(OSError(errno.EOPNOTSUPP, "not on this file system")),
        failing(OSError(errno.ENOSYS, "not in this kernel")),
        failing(PermissionError(errno.EPERM, "not in this container")),
        failing(NotImplementedError("not in this libc")),
    ],
    ids=["system", "short", "few", "nothing", "file system", "kernel", "container", "libc"],
)
def test_all_is_written_whatever_the_system_can(
    fd: int, position: int, pwritev: PwriteV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", pwritev)
    for size in SIZES:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"\xff" * position, 0)
        Files().write_pieces(fd, memoryview(DATA)[:size], position)
        assert os.pread(fd, len(DATA) + position, 0) == b"\xff" * position + DATA[:size]


def test_pieces_end_where_pages_do_and_the_last_page_stays(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of which the disk has a part and the memory nothing has to be read again, in the loop, for what follows in it."""
    gone: list[tuple[int, int]] = []
    stays: list[tuple[int, int]] = []

    def pwritev(fd: int, buffers: Any, position: int, flags: int) -> int:
        assert flags == files_module._RWF_DONTCACHE
        gone.append((position, position + len(buffers[0])))
        return len(buffers[0])

    def write_all(self: Files, fd: int, data: Any, position: int) -> None:
        stays.append((position, position + len(data)))

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(Files, "write_all", write_all)
    for position in POSITIONS:
        for size in SIZES:
            gone.clear()
            stays.clear()
            Files().write_pieces(fd, memoryview(DATA)[:size], position)
            written = gone + stays
            assert [end for _, end in written[:-1]] == [begin for begin, _ in written[1:]]
            assert not written if not size else (written[0][0], written[-1][1]) == (position, position + size)
            assert all(end % PAGE == 0 and end - begin <= PIECE for begin, end in gone)
            assert all(end % PAGE and end - begin < PAGE for begin, end in stays)


def test_it_leaves_the_memory_where_the_system_can(fd: int) -> None:
    data = memoryview(DATA)[: 2 * PIECE]
    try:
        os.pwritev(fd, (data,), 0, files_module._RWF_DONTCACHE)
        able = True
    except OSError:
        able = False
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    os.fsync(fd)
    assert is_resident(fd, 0, len(data)) is not False, "else this says nothing of what follows"
    os.ftruncate(fd, 0)
    Files().write_pieces(fd, data, 0)
    os.fsync(fd)
    assert (is_resident(fd, 0, len(data)) is False) == (able and is_resident(fd, 0, 1) is not None)
    assert os.pread(fd, len(data), 0) == data


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_is_the_systems(fd: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(fd: int, data: Any, position: int) -> int:
        raise OSError(code, os.strerror(code))

    class Refusing(Files):
        pass

    monkeypatch.setattr(os, "pwritev", failing(OSError(code, os.strerror(code))))
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(Refusing, "pwrite", staticmethod(pwrite))
    with pytest.raises(OSError, match=os.strerror(code)) as refused:
        Refusing().write_pieces(fd, memoryview(DATA)[:PIECE], 0)
    assert refused.value.errno == code


def test_a_full_device() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            Files().write_pieces(descriptor, memoryview(DATA)[:PIECE], 0)
    finally:
        os.close(descriptor)


def test_a_write_of_a_subclass_is_the_one_that_is_called(fd: int) -> None:
    """So what a test or the simulation does to `pwrite` it does to all writes of a log."""
    calls = []

    class Counting(Files):
        def pwrite(self, fd: int, data: Any, position: int) -> int:  # type: ignore[override]
            calls.append(position)
            return os.pwrite(fd, data, position)

    Counting().write_pieces(fd, memoryview(DATA)[: 2 * PIECE], 0)
    assert calls == [0, PIECE]


def test_what_threads_read_of_a_log_that_moves_is_written_so(tmp_path: Path) -> None:
    """But not what is at hand in memory, as what is written to it meanwhile: that is what consumers read."""
    pieces: list[int] = []

    class Noting(FaultyFiles):
        def write_pieces(self, fd: int, data: memoryview, position: int) -> None:
            pieces.append(len(data))
            super().write_pieces(fd, data, position)

    manager = open_manager([tmp_path / "a", tmp_path / "b"], LogConfig(segment_bytes=2000), files=Noting())
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(30):
        log.append(one_batch([b"%d" % number]), leader_epoch=0, now_ms=log.clock())
    size = log.size_bytes
    manager.moves.begin(log, manager.dirs[1])
    while manager.moves.moves:
        manager.tick()
        manager.flusher.wait()
    assert 0 < sum(pieces) < size, "a thread's part, and what was at hand"
    assert log.dir is manager.dirs[1] and log.log_end_offset == 30
    assert manager.close()
