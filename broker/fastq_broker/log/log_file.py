"""The `.log` file of a segment, and the room on the disk that it has ahead of its end."""

from __future__ import annotations

import contextlib
from typing import Final

from .files import READ_WRITE, FdBudget, FileHandle, Files

NEVER: Final = (1 << 63) - 1
RESERVE_FROM_BYTES: Final = 64 << 10
RESERVED_BYTES_MIN: Final = 1 << 20
RESERVED_BYTES_MAX: Final = 16 << 20
RESERVED_SHARE: Final = 8
"""A segment that gets appends of RESERVE_FROM_BYTES or more has room on the disk ahead of its end: the file system then need not find a
place for each block as it is written, which is a third of what a write costs. To reserve costs as much as to write a megabyte, so it is for
several appends at once; of what the segment has it is a share at most, and it is given back where the disk is short of room, so that many
partitions take none that would be missed."""


class LogFile:
    """The `.log` file, opened when first used. Appends are written at the known end, never at the file's.

    Invariant: bytes before `size` are whole batches in offset order. Event-loop thread only.
    """

    __slots__ = ("_budget", "_files", "_handle", "path", "recently_used", "reserved", "size")

    def __init__(self, files: Files, budget: FdBudget, path: str, size: int) -> None:
        self._files = files
        self._budget = budget
        self._handle: FileHandle | None = None
        self.path = path
        self.size = size
        self.reserved = 0
        """Up to where there is room on the disk, as far as this object has seen to it; NEVER to be extended where it cannot."""
        self.recently_used = False

    def handle(self, flags: int = READ_WRITE) -> FileHandle:
        self.recently_used = True
        handle = self._handle
        if handle is None:
            handle = self._handle = FileHandle(self._files, self.path, flags)
            self._budget.opened(self)
        return handle

    def is_open(self) -> bool:
        return self._handle is not None

    def release(self) -> None:
        self._handle = None

    def truncate(self, size: int) -> None:
        self._files.truncate(self.handle().fd, size)
        self.size = size
        self.reserved = min(self.reserved, size)

    def reserve(self, end: int) -> None:
        """Have room on the disk up to `end`, where an append will end, and some more. What cannot be had costs time and nothing else."""
        ahead = min(self.size // RESERVED_SHARE, RESERVED_BYTES_MAX)
        if ahead < RESERVED_BYTES_MIN:
            return
        fd = self.handle().fd
        try:
            able = self._files.reserve(fd, self.size, end + ahead - self.size)
        except OSError:  # a full disk, for one: the write will say so, if it has no room either
            able = False
            with contextlib.suppress(OSError):
                self._files.truncate(fd, self.size)
        self.reserved = end + ahead if able else NEVER

    @property
    def is_ahead(self) -> bool:
        """Whether it has reserved room that is not written to yet."""
        return self.size < self.reserved < NEVER

    def give_back(self) -> None:
        """Take no more room of the disk than the file needs: what was reserved, and what a process before this one has left behind its
        end. Where the file takes less than its size (a file system that compresses, a sparse copy) only `reserved` tells. Raises OSError.
        """
        if self.is_ahead or self._files.takes_more(self.path, self.size):
            self.truncate(self.size)
