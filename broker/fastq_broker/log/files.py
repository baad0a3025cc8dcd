"""File operations of the log, injectable, and the budget of open file descriptors.

Rules
- The log calls the operating system only through a `Files` object: tests and the simulator hand in one that fails on purpose.
- A `FileHandle` closes its descriptor when the last reference to it goes. So a fetch response that is still being sent keeps the
  descriptor of a segment which the budget has closed or retention has deleted meanwhile.
- What holds a descriptor that can be opened again is `Evictable`, and known to one `FdBudget`.
- A shortage (SHORTAGES) says nothing about the disk: an open that lacks a descriptor has others closed and is tried once more. A disk
  that is full (FULL) is one: what it has no room for is done when it has.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fastq._native.flusher import is_resident, reserve_range, sync_filesystem, write_range
from fastq.errors import FastqError, KafkaError, KafkaStorageError, ReplicaNotAvailable
from fastq.values import NamedTuple

READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not blocking says nothing of files; but a pipe in a file's place would hold the loop up until somebody writes into it."""
READ_WRITE = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
READ_WRITE_CREATE = READ_WRITE | os.O_CREAT
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_RWF_DONTCACHE = 0x80 if sys.platform == "linux" and hasattr(os, "pwritev") else 0
"""Linux's; Python has no name for it yet."""

_sync_data = getattr(os, "fdatasync", os.fsync)

BLOCK_BYTES = 512
"""Of `st_blocks`, whatever the file system's are."""
SLACK_BYTES = 1 << 18
"""What a file may take beyond its size for its last block and the file system's own notes about it."""
PIECE_BYTES = 128 << 10
"""Of `write_pieces`; a multiple of a page."""
BRING_IN_BYTES = 1 << 20
AHEAD_BYTES = 4 << 20
"""What `bring_in` reads at a time, and what it has the kernel begin with behind that."""
LOOKS = 3
"""As often a page that was read may be gone before its file system counts as one that keeps none."""

NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
"""What a sync of a directory says on file systems that have none: names last there without."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""There is no room on the file system, or no more of it for this user."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}) | FULL
"""What the process or the machine is short of for now. Of a sync they say that pages may be lost, as any other error does: the kernel
reports the error of the write-back there, so a failed sync is never taken for a shortage."""


def is_shortage(error: OSError) -> bool:
    """Whether an operation may succeed later, its file and disk being fine: descriptors, memory or room are short, or it was
    interrupted."""
    return error.errno in SHORTAGES


def is_full(error: OSError) -> bool:
    """Whether it is room on the disk that is short."""
    return error.errno in FULL


UNREADABLE = (KafkaStorageError, ReplicaNotAvailable, MemoryError)
"""What a log raises that cannot be read now, or ever: see `passes`."""


def passes(error: KafkaError | MemoryError) -> bool:
    """Whether a log has met such a shortage, or is being recovered, and no disk has failed."""
    if isinstance(error, ReplicaNotAvailable | MemoryError):
        return True
    return isinstance(error.__cause__, OSError) and is_shortage(error.__cause__)


def is_for_now(error: FastqError | OSError) -> bool:
    """`is_shortage` or `passes`, whatever has been said around the error."""
    if isinstance(error, OSError):
        return is_shortage(error)
    if isinstance(error, ReplicaNotAvailable):
        return True
    return isinstance(error.__cause__, FastqError | OSError) and is_for_now(error.__cause__)


class Space(NamedTuple):
    """A file system: what a process without privileges may still write to it, and its size."""

    free_bytes: int
    size_bytes: int


_uncached_devices: set[int] = set()
"""File systems that read past the page cache, as ZFS and those on DAX do: there it says nothing of what a read waits for."""


def is_absent(fd: int, position: int, size: int) -> bool:
    """Whether something of a range of a file is not in memory, as far as the system can tell: False else."""
    return is_resident(fd, position, size) is False and os.fstat(fd).st_dev not in _uncached_devices


def bring_in(fd: int, position: int, size: int, pread: Callable[[int, int, int], bytes] = os.pread) -> None:
    """Read a range of a file into memory, as far as the file goes, and have the kernel begin with what comes behind it. It waits for the
    disk: not for the event loop. Raises OSError.

    From then on reads of this descriptor begin no read-ahead: the kernel begins one near the end of the last, whoever comes by, and the
    loop waits for memory and for the disk's queue in it. Where what was read is not in memory then, nothing ever is on this file system.
    """
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):
            advise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    end = position + size
    at = position
    while at < end:
        got = len(pread(fd, min(BRING_IN_BYTES, end - at), at))
        if not got:
            return
        at += got  # less than was asked for comes before a page that cannot be read: the next read says so
    if size > 0 and not _stays(fd, end - 1, pread):
        found = os.fstat(fd)
        if end <= found.st_size:  # it was not cut meanwhile
            _uncached_devices.add(found.st_dev)
    if advise is not None:
        with contextlib.suppress(OSError):
            advise(fd, end, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)


def _stays(fd: int, position: int, pread: Callable[[int, int, int], bytes]) -> bool:
    """Whether what has been read is in memory, as far as the system can tell. One that is short of memory may give a page away before
    somebody looks, but hardly each time."""
    for _ in range(LOOKS):
        if is_resident(fd, position, 1) is not False:
            return True
        pread(fd, 1, position)
    return is_resident(fd, position, 1) is not False


class Files:
    """The operating system's file operations, as they are. Errors are OSError.

    Subclasses change single operations; every write, truncation and sync of the log passes here. `make_room`, where there is one, gives
    descriptors back when there are no more; it answers whether there were any to give.
    """

    make_room: Callable[[], bool] | None = None

    pwrite = staticmethod(os.pwrite)
    pread = staticmethod(os.pread)
    truncate = staticmethod(os.ftruncate)
    sync_data = staticmethod(_sync_data)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    mkdir = staticmethod(os.mkdir)
    listdir = staticmethod(os.listdir)

    def open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self.make_room is None or not self.make_room():
                raise
        return os.open(path, flags, 0o644)

    def size_bytes(self, path: str) -> int:
        """Size of a file; 0 when there is none."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def takes_more(self, path: str, size: int) -> bool:
        """Whether a file is not of this size, or takes more room of the disk than it needs (see `reserve`). Where there is none, its size
        is 0."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return size != 0
        return found.st_size != size or getattr(found, "st_blocks", 0) * BLOCK_BYTES - size > SLACK_BYTES

    def own_size_bytes(self, path: str) -> int:
        """Size of what lies there itself, not of what a link leads to; 0 when there is nothing."""
        try:
            return os.lstat(path).st_size
        except FileNotFoundError:
            return 0

    def space(self, path: str) -> Space:
        """The file system of a directory. It may wait for the disk: not for the event loop's thread."""
        if hasattr(os, "statvfs"):
            found = os.statvfs(path)
            return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
        usage = shutil.disk_usage(path)
        return Space(usage.free, usage.total)

    def allocate(self, path: str, size: int) -> bool:
        """Have a new file that takes `size` bytes of the disk; False where the system cannot. A failure leaves none. Raises OSError."""
        if not hasattr(os, "posix_fallocate"):
            return False
        fd = self.open(path, READ_WRITE_CREATE | os.O_EXCL)
        try:
            return self.preallocate(fd, size)
        except OSError:
            self.remove_if_exists(path)
            raise
        finally:
            os.close(fd)

    def preallocate(self, fd: int, size: int) -> bool:
        """Have a file take `size` bytes of the disk, and be so long; False where the system cannot. Raises OSError."""
        if not hasattr(os, "posix_fallocate"):
            return False
        os.posix_fallocate(fd, 0, size)
        return True

    def write_all(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`; short writes are continued, so an OSError means that the end is unknown."""
        written = self.pwrite(fd, data, position)
        size = len(data)
        if written == size:
            return
        view = memoryview(data)
        while written < size:
            count = self.pwrite(fd, view[written:], position + written)
            if count <= 0:
                raise OSError(errno.EIO, "the operating system accepted no bytes")
            written += count

    def write_pieces(self, fd: int, data: memoryview, position: int) -> None:
        """`write_all` that others on the machine feel less. In pieces: the kernel copies a write as one piece of work, in which nobody
        else gets that core. And what is written stays in memory for no longer than until the disk has it, where the system knows how:
        memory that was not in use costs a virtual machine up to ten times the copy, and others' data its place. The last page stays: what
        follows begins in it."""
        end = position + len(data)
        whole = end - end % mmap.PAGESIZE
        at = position
        while at < whole:
            until = min(at - at % PIECE_BYTES + PIECE_BYTES, whole)
            at += self.pwrite_uncached(fd, data[at - position : until - position], at)
        if at < end:
            self.write_all(fd, data[at - position :], at)

    def pwrite_uncached(self, fd: int, data: memoryview, position: int) -> int:
        """Write what is to leave the memory once it is on the disk, which is begun at once (Linux 6.14; not all file systems do); how many
        bytes that was. Where the system cannot, or a subclass has its own `pwrite`, all is written by `write_all`. Raises OSError."""
        written = 0
        if _RWF_DONTCACHE and self.pwrite is os.pwrite:
            with contextlib.suppress(OSError, NotImplementedError):  # what is really wrong, the other says too
                written = os.pwritev(fd, (data,), position, _RWF_DONTCACHE)
        if written <= 0:
            self.write_all(fd, data, position)
            written = len(data)
        return written

    def read_file(self, path: str) -> bytes:
        """The whole of a small file."""
        fd = self.open(path, READ)
        try:
            chunks = []
            position = 0
            while chunk := self.pread(fd, 1 << 20, position):
                chunks.append(chunk)
                position += len(chunk)
            return b"".join(chunks)
        except OSError as error:
            error.filename = error.filename or path
            raise
        finally:
            os.close(fd)

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replace a file at once: write `path.tmp`, sync it when asked, rename it over `path`. What could not be written whole takes no
        room of the disk. Raises OSError."""
        self.rename(self.write_beside(path, data, sync=sync), path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def write_beside(self, path: str, data: bytes, *, sync: bool) -> str:
        """The first half of it: answers the path of what is to be renamed. Raises OSError."""
        temporary = path + ".tmp"
        fd = self.open(temporary, READ_WRITE_CREATE | os.O_TRUNC)
        try:
            self.write_all(fd, data, 0)
            if sync:
                self.sync_data(fd)
        except OSError as error:
            error.filename = error.filename or path
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return temporary

    def sync_directory(self, path: str) -> None:
        """Make created, renamed and deleted names of a directory last."""
        fd = self.open(path, READ)
        try:
            self.sync_names(fd)
        finally:
            os.close(fd)

    def sync_names(self, fd: int) -> None:
        """`sync_directory` for one that is open."""
        try:
            self.sync_data(fd)
        except OSError as error:
            if error.errno not in NO_DIRECTORY_SYNC:
                raise

    def sync(self, fd: int) -> None:
        """`sync_data` of a file, `sync_names` of a directory."""
        (self.sync_names if stat.S_ISDIR(os.fstat(fd).st_mode) else self.sync_data)(fd)

    def sync_filesystem(self, fd: int) -> None:
        """Make everything last that has been written on the file system of this descriptor."""
        sync_filesystem(fd)

    def write_range(self, fd: int, position: int, size: int, *, wait: bool = False) -> bool:
        """Begin to write a range of a file to the disk, or wait for what was begun; False where the system cannot. It is no sync."""
        return write_range(fd, position, size, wait)

    def reserve(self, fd: int, position: int, size: int) -> bool:
        """Take room of the disk for a range past a file's end, whose size stays; False where that cannot be done. A truncation gives it
        back."""
        return reserve_range(fd, position, size)

    def remove_if_exists(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)

    def is_cached(self, fd: int, position: int, size: int) -> bool | None:
        """Whether the first and the last page of a range are in memory, where the platform tells also all between; None when it cannot."""
        if is_absent(fd, position, size):
            return False
        if not _RWF_NOWAIT:
            return None
        probe = bytearray(1)
        try:
            for at in (position, position + size - 1):
                os.preadv(fd, [probe], at, _RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def read_if_cached(self, fd: int, size: int, position: int) -> bytes | None:
        """Up to `size` bytes at `position` without waiting for a disk; None when that is not possible."""
        if is_absent(fd, position, size):
            return None
        if not _RWF_NOWAIT:
            return self.pread(fd, size, position)
        buffer = bytearray(size)
        try:
            count = os.preadv(fd, [buffer], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return self.pread(fd, size, position)
        return bytes(memoryview(buffer)[:count])


class FileHandle:
    """An open descriptor, closed with the last reference to this object."""

    __slots__ = ("fd", "path")

    def __init__(self, files: Files, path: str, flags: int) -> None:
        self.fd = -1
        self.path = path
        self.fd = files.open(path, flags)

    def __del__(self) -> None:
        if self.fd >= 0:
            try:  # no context manager, for which there may be no memory
                os.close(self.fd)
            except OSError:
                pass
            self.fd = -1

    def __repr__(self) -> str:
        return f"FileHandle({self.path!r}, fd={self.fd})"


class Evictable(Protocol):
    """Something that holds a descriptor (or a map, which holds one too) and can open it again."""

    recently_used: bool

    def release(self) -> None: ...

    def is_open(self) -> bool: ...


ROOM_FILES = 16


class FdBudget:
    """Keeps the number of open files and maps of all logs at or below a limit, closing those that were not used lately.

    Clock algorithm: users only set `recently_used`, which costs the hot path one store. Event-loop thread only.
    A file that was just opened is never the one that is closed.
    """

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"a budget of {limit} descriptors cannot hold one open file beside another")
        self.limit = limit
        self._ring: deque[Evictable] = deque()
        self._thread = threading.get_ident()

    def opened(self, holder: Evictable) -> None:
        """Say that `holder` has opened its file; may close others."""
        ring = self._ring
        holder.recently_used = True
        while len(ring) >= self.limit:
            candidate = ring.popleft()
            if not candidate.is_open() or candidate is holder:
                continue
            if candidate.recently_used:
                candidate.recently_used = False
                ring.append(candidate)
            else:
                candidate.release()
        ring.append(holder)

    def make_room(self) -> bool:
        """Close the files that come next, ROOM_FILES at most, because the process has no descriptor left; whether any was open.

        For the thread that made the budget; another one's open fails.
        """
        if threading.get_ident() != self._thread:
            return False
        closed = 0
        for _ in range(len(self._ring)):
            holder = self._ring.popleft()
            if holder.is_open():
                holder.release()
                closed += 1
                if closed == ROOM_FILES:
                    break
        return closed > 0

    def close(self) -> None:
        """Close all files: who holds one has nothing more to do with it. What is still being read of one keeps its descriptor."""
        while self._ring:
            self._ring.popleft().release()


def default_fd_budget() -> int:
    """Half of the descriptors that the process may open, at most 50,000: the other half is for connections."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        soft = 1024
    return max(16, min(soft // 2, 50_000))


def map_file(files: Files, path: str, size: int) -> mmap.mmap:
    """Map the first `size` (> 0) bytes of a file for reading. The map keeps a descriptor of its own."""
    handle = FileHandle(files, path, READ)
    try:
        return mmap.mmap(handle.fd, size, access=mmap.ACCESS_READ)
    except OSError as error:
        error.filename = path
        raise
