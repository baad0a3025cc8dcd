"""The `.timeindex` file of a segment: from a timestamp to an offset.

An entry has 12 bytes, big-endian:
    0  timestamp 8  the largest timestamp of the segment up to here, ms since the epoch
    8  offset 4     last offset of the batch that holds it, relative to the segment's base offset
An entry is added where the offset index gets one, and at roll and close, if the timestamp is above the last entry's.
Source: TimeIndex.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fastq._native.index import lookup_timestamp

from .files import FdBudget, Files
from .index_file import IndexFile

_ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1


class TimeIndex(IndexFile):
    """Sparse index from timestamps to offsets. Event-loop thread only."""

    ENTRY_BYTES = 12
    __slots__ = ("_last_timestamp",)

    def __init__(self, files: Files, budget: FdBudget, path: str, base_offset: int) -> None:
        super().__init__(files, budget, path, base_offset)
        self._last_timestamp: int | None = None  # the last entry's, where it is known

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Add an entry unless `timestamp` is at or below the last one's."""
        last = self._last_timestamp
        if last is None:
            last = self._last_timestamp = self.last()[0]
        if timestamp > last:
            self._append(_ENTRY.pack(timestamp, offset - self.base_offset))
            self._last_timestamp = timestamp

    def start_empty(self) -> None:
        super().start_empty()
        self._last_timestamp = None

    def truncate_entries(self, count: int) -> None:
        super().truncate_entries(count)
        self._last_timestamp = None

    def entry_at(self, number: int) -> tuple[int, int]:
        """(timestamp, offset) of an entry, counted from 0."""
        timestamp, relative = _ENTRY.unpack(self.entry(number))
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """The last entry; (-1, base offset) when there is none."""
        count = self.entry_count
        return self.entry_at(count - 1) if count else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """An offset before whose batch all records of the segment are earlier than `timestamp`."""
        found = None
        if self._pending:
            found = lookup_timestamp(self._pending, timestamp)
        if found is None and self.entry_count > len(self._pending) // 12:
            found = lookup_timestamp(self._mapping(), timestamp, self._written)
        return self.base_offset + found[1] if found else self.base_offset

    def trusted_count(self, offset: int) -> int:
        """How many entries from the first on ascend and lie below `offset`; what follows need not be sorted."""
        last_timestamp, last_offset = NO_TIMESTAMP, self.base_offset
        count = 0
        for timestamp, at in self.entries():
            if timestamp <= last_timestamp or not last_offset <= at < offset:
                break
            last_timestamp, last_offset = timestamp, at
            count += 1
        return count

    def entries(self) -> Iterator[tuple[int, int]]:
        for number in range(self.entry_count):
            yield self.entry_at(number)
