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

from .index_file import IndexFile

_ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1


class TimeIndex(IndexFile):
    """Sparse index from timestamps to offsets. Event-loop thread only."""

    ENTRY_BYTES = 12
    __slots__ = ()

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Add an entry unless `timestamp` is at or below the last one's."""
        if timestamp > self.last()[0]:
            self._append(_ENTRY.pack(timestamp, offset - self.base_offset))

    def entry_at(self, number: int) -> tuple[int, int]:
        """(timestamp, offset) of an entry, counted from 0."""
        timestamp, relative = _ENTRY.unpack(self.entry(number))
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """The last entry; (-1, base offset) when there is none."""
        count = self.entry_count
        return self.entry_at(count - 1) if count else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """An offset before which all records of the segment are earlier than `timestamp`."""
        low, high = 0, self.entry_count
        while low < high:
            middle = (low + high) // 2
            if self.entry_at(middle)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry_at(low - 1)[1] if low else self.base_offset

    def count_up_to_offset(self, offset: int) -> int:
        """How many entries are at or below `offset`."""
        low, high = 0, self.entry_count
        while low < high:
            middle = (low + high) // 2
            if self.entry_at(middle)[1] <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self) -> Iterator[tuple[int, int]]:
        for number in range(self.entry_count):
            yield self.entry_at(number)
