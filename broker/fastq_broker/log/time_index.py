"""The `.timeindex` file of a segment: from a timestamp to an offset.

An entry has 12 bytes, big-endian:
    0  timestamp 8  the largest timestamp of the segment up to here, ms since the epoch
    8  offset 4     last offset of the batch that holds it, relative to the segment's base offset
An entry is added where the offset index gets one, and at roll and close, if the timestamp is above the last entry's.
Source: TimeIndex.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from fastq._native.index import lookup_timestamp

from .files import FdBudget, Files
from .index_file import IndexFile
from .scan import WildIndex

_ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1


class TimeIndex(IndexFile):
    """Sparse index from timestamps to offsets. Event-loop thread only."""

    ENTRY_BYTES = 12
    __slots__ = ("last_timestamp",)

    def __init__(self, files: Files, budget: FdBudget, path: str, base_offset: int) -> None:
        super().__init__(files, budget, path, base_offset)
        self.last_timestamp: int | None = None
        """The last entry's, where it is known."""

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Add an entry unless `timestamp` is at or below the last one's. One that cannot be read is none: who looks a time up finds out."""
        last = self.last_timestamp
        if last is None:
            last = self.know_last()
        if timestamp > last:
            self._append(_ENTRY.pack(timestamp, offset - self.base_offset))
            self.last_timestamp = timestamp

    def know_last(self) -> int:
        """The last entry's timestamp, for which nothing is read from then on. Raises OSError."""
        try:
            self.last_timestamp = last = self.last()[0]
        except WildIndex:
            self.last_timestamp = last = NO_TIMESTAMP
        return last

    def start_empty(self) -> None:
        super().start_empty()
        self.last_timestamp = None

    def truncate_entries(self, count: int) -> None:
        super().truncate_entries(count)
        self.last_timestamp = None

    def entry_at(self, number: int) -> tuple[int, int]:
        """(timestamp, offset) of an entry, counted from 0."""
        timestamp, relative = _ENTRY.unpack(self.entry(number))
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """The last entry; (-1, base offset) when there is none."""
        count = self.entry_count
        return self.entry_at(count - 1) if count else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry at or below `timestamp`, before whose batch all records of the segment are earlier; None when there is none."""
        found = None
        if self._pending:
            found = lookup_timestamp(self._pending, timestamp)
        if found is None and self.entry_count > len(self._pending) // 12:
            found = lookup_timestamp(self._mapping(), timestamp, self._written)
        return (found[0], self.base_offset + found[1]) if found else None

    def trusted_count(self, offset: int) -> int:
        """How many entries from the first on ascend and lie below `offset`; what follows need not be sorted."""
        last_timestamp, last_offset = NO_TIMESTAMP, self.base_offset
        count = 0
        with contextlib.suppress(WildIndex):
            for timestamp, at in self.entries():
                if timestamp <= last_timestamp or not last_offset <= at < offset:
                    break
                last_timestamp, last_offset = timestamp, at
                count += 1
        return count

    def put_before(self, made: TimeIndex) -> None:
        """Have the entries of another one, which are of batches before all of these, in memory and before them; the times ascend.
        Raises OSError, WildIndex."""
        own = list(self.entries())
        self.start_empty()
        self._pending += made._pending
        for timestamp, offset in own:
            self.append_if_later(timestamp, offset)

    def entries(self) -> Iterator[tuple[int, int]]:
        for number in range(self.entry_count):
            yield self.entry_at(number)
