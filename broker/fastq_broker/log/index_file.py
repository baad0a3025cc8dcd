"""What the offset index and the time index share: a file of sorted fixed-size entries.

Rules
- Entries are appended by write, never stored into a mapping: a store into a hole of a full disk kills the process (SIGBUS).
- Fresh entries wait in memory (`pending`) and are written in one go: when there are many, and before a flush, a roll and a close.
  A crash loses at most entries past the recovery point, which recovery rebuilds from the log anyway.
- Entries that are dropped leave the file with the next write at the latest: a disk that is full may refuse even that for a while.
- Searches go over a read-only map of the written part, and over the pending part. A file that somebody has cut or removed since is found
  before it is looked at (WildIndex): a page of the map past its end would end the process (SIGBUS).
- Apache Kafka preallocates a live index with zeros and trims it when the segment is rolled. Trailing zero entries are therefore
  taken for the absence of entries; our files hold exactly their entries, which Kafka accepts.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from typing import ClassVar, Final

from .files import READ_WRITE_CREATE, FdBudget, FileHandle, Files, is_full, is_shortage, map_file
from .scan import WildIndex

SPILL_BYTES: Final = 4096


class IndexFile:
    """Sorted entries of one segment's index.

    Invariants: the file's first `_written` entries are valid; `entry_count` counts them and the pending ones.
    Event-loop thread only.
    """

    ENTRY_BYTES: ClassVar[int]

    __slots__ = (
        "_budget",
        "_files",
        "_map",
        "_mapped",
        "_mapped_bytes",
        "_pending",
        "_spill_bytes",
        "_uncut",
        "_written",
        "base_offset",
        "path",
        "recently_used",
        "unsynced",
    )

    def __init__(self, files: Files, budget: FdBudget, path: str, base_offset: int) -> None:
        self._files = files
        self._budget = budget
        self.path = path
        self.base_offset = base_offset
        self.recently_used = False
        self.unsynced = False
        """Whether the file has changed since it was last handed to a sync."""
        self._pending = bytearray()
        self._spill_bytes = SPILL_BYTES
        self._written = -1  # entries in the file; -1 until it has been looked at
        self._uncut = False  # whether the file may go on behind them, with entries that do not count
        self._map: mmap.mmap | None = None
        self._mapped = 0  # entries under the map
        self._mapped_bytes = 0

    # -- counting and loading

    @property
    def entry_count(self) -> int:
        if self._written < 0:
            self._count_entries()
        return self._written + len(self._pending) // self.ENTRY_BYTES

    def start_empty(self) -> None:
        """Take the file for new: no entries, whatever it holds."""
        self.release()
        self._pending.clear()
        self._written = 0
        self._uncut = True

    def stay_in_memory(self) -> None:
        """Have no entries yet, and never a file."""
        self._written = 0
        self._spill_bytes = sys.maxsize

    def start_as(self, other: IndexFile) -> None:
        """Have the entries that another object of the same file has by now, in its memory too; they are to be looked at only. Where the
        file may go on behind them, all that it has: those may be the ones that were to be made again, and were not. Raises OSError."""
        self._written = other._written
        if other._uncut:  # a write may cut it at any time
            self._written = 0
            with contextlib.suppress(FileNotFoundError):
                data = self._files.read_file(self.path)
                self._pending += data[: len(data) - len(data) % self.ENTRY_BYTES]
        self._pending += other._pending

    def raw_pending(self) -> bytes:
        """The entries that wait in memory."""
        return bytes(self._pending)

    @property
    def is_behind(self) -> bool:
        """Whether a sync has something to do for it: what its file has, or what is yet to be written there."""
        return self.unsynced or self._uncut or len(self._pending) > 0

    def _count_entries(self) -> None:
        """Count the file's entries, leaving out the zeros of a preallocated tail."""
        size = self.ENTRY_BYTES
        count = self._files.size_bytes(self.path) // size
        if count:
            data = memoryview(map_file(self._files, self.path, count * size))
            zero = bytes(size)
            if data[(count - 1) * size : count * size] == zero:
                low, high = 0, count  # entries below `low` are valid, those from `high` on are zero
                while low < high:
                    middle = (low + high) // 2
                    if data[middle * size : (middle + 1) * size] == zero:
                        high = middle
                    else:
                        low = middle + 1
                count = low
            data.release()
        self._written = count

    # -- reading

    def entry(self, number: int) -> bytes:
        """The raw bytes of an entry, counted from 0."""
        size = self.ENTRY_BYTES
        if self._written < 0:
            self._count_entries()
        if number >= self._written:
            at = (number - self._written) * size
            return bytes(self._pending[at : at + size])
        return self._mapping()[number * size : (number + 1) * size]

    def _mapping(self) -> mmap.mmap:
        """A map over all written entries; there must be some. Raises OSError, WildIndex where the file has fewer."""
        self.recently_used = True
        mapped = self._map
        if mapped is not None and self._mapped >= self._written:
            if mapped.size() >= self._mapped_bytes:
                return mapped
            self.release()
            raise self._cut_short(mapped.size())
        self.release()
        size = self._written * self.ENTRY_BYTES
        try:
            mapped = map_file(self._files, self.path, size)
        except FileNotFoundError:
            raise WildIndex(self.path, 0, "the file is gone") from None
        except ValueError:
            raise self._cut_short(self._files.size_bytes(self.path)) from None
        self._map = mapped
        self._mapped, self._mapped_bytes = self._written, size
        self._budget.opened(self)
        return mapped

    def _cut_short(self, size: int) -> WildIndex:
        return WildIndex(self.path, 0, f"the file has {size} bytes, {self._written * self.ENTRY_BYTES} were written")

    # -- writing

    def _append(self, entry: bytes) -> None:
        self._pending += entry
        if len(self._pending) >= self._spill_bytes:
            try:
                self.write_pending()
            except OSError as error:
                if not is_shortage(error):  # else they wait on: for the next entry, or for a flush
                    raise

    def write_pending(self) -> None:
        """Write the entries that wait in memory. After an OSError they still wait."""
        if self._pending or self._uncut:
            self._write()

    def _write(self) -> None:
        """Cut the file to its entries where it may go on behind them, then write what is pending."""
        if self._written < 0:
            self._count_entries()
        handle = FileHandle(self._files, self.path, READ_WRITE_CREATE)
        size = self._written * self.ENTRY_BYTES
        try:
            found = os.fstat(handle.fd).st_size
            if found < size:  # somebody has cut it: what follows shall not lie behind a hole
                self.release()
                self._written = found // self.ENTRY_BYTES
                size = self._written * self.ENTRY_BYTES
            if self._uncut and found != size:
                self._files.truncate(handle.fd, size)
                self.unsynced = True
            self._uncut = False
            if self._pending:
                self._files.write_all(handle.fd, self._pending, size)
        except OSError as error:
            error.filename = error.filename or self.path
            raise
        if self._pending:
            self._written += len(self._pending) // self.ENTRY_BYTES
            self._pending.clear()
            self.unsynced = True

    def truncate_entries(self, count: int) -> None:
        """Keep the first `count` entries, in memory and, as far as there is room on the disk, in the file."""
        if self._written < 0:
            self._count_entries()
        self.release()
        if count >= self._written:
            del self._pending[(count - self._written) * self.ENTRY_BYTES :]
        else:
            self._pending.clear()
            self._written = count
        self.trim_if_room()

    def trim(self) -> None:
        """Write what is pending and cut the file to its entries, as Kafka leaves it; creates an absent file."""
        if self._written < 0:
            self._count_entries()
        self.release()
        self._uncut = True
        self._write()

    def trim_if_room(self) -> None:
        """The same, but for a full disk: then the entries wait in memory, for the next write that has room. Raises OSError."""
        try:
            self.trim()
        except OSError as error:
            if not is_full(error):
                raise
            self.unsynced = True

    # -- descriptors

    def is_open(self) -> bool:
        return self._map is not None

    def release(self) -> None:
        """Drop the map; the next search makes one again."""
        self._map = None
        self._mapped = 0
