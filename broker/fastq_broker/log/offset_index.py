"""The `.index` file of a segment: from an offset to a place in the `.log` file.

An entry has 8 bytes, big-endian:
    0  offset 4    last offset of a batch, relative to the segment's base offset
    4  position 4  where that batch begins in the .log file
There is one entry for some index.interval.bytes of log, none for the first batch. Both columns grow. Source: OffsetIndex.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from fastq._native.index import lookup_offset

from .index_file import IndexFile
from .scan import WildIndex

_ENTRY = struct.Struct(">ii")


class OffsetIndex(IndexFile):
    """Sparse index from offsets to file positions. Event-loop thread only."""

    ENTRY_BYTES = 8
    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """Add the batch that ends with `offset` and begins at `position`. May write; OSError leaves it pending."""
        self._append(_ENTRY.pack(offset - self.base_offset, position))

    def entry_at(self, number: int) -> tuple[int, int]:
        """(offset, position) of an entry, counted from 0."""
        relative, position = _ENTRY.unpack(self.entry(number))
        return self.base_offset + relative, position

    def last(self) -> tuple[int, int]:
        """The last entry; (base offset, 0) when there is none."""
        count = self.entry_count
        return self.entry_at(count - 1) if count else (self.base_offset, 0)

    def lookup(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`: from there on, a scan finds it."""
        relative = offset - self.base_offset
        found = None
        if self._pending:
            found = lookup_offset(self._pending, relative)
        if found is None and self.entry_count > len(self._pending) // 8:
            found = lookup_offset(self._mapping(), relative, self._written)
        return found[1] if found else 0

    def lookup_position(self, position: int) -> int:
        """The highest indexed batch start at or below `position`; 0 when there is none."""
        rank = self._rank(position)
        return self.entry_at(rank - 1)[1] if rank else 0

    def position_from(self, position: int) -> int | None:
        """The lowest indexed batch start at or above `position`; None when there is none."""
        rank = self._rank(position - 1)
        found = self.entry_at(rank)[1] if rank < self.entry_count else -1
        return found if found >= position else None

    def trusted_count(self, position: int, offset: int | None = None) -> int:
        """How many entries from the first on ascend and point below `position` (with `offset`: and lie below that offset).

        Unlike a search it does not believe that what follows is sorted.
        """
        limit = (1 << 31) - 1 if offset is None else offset - self.base_offset
        last_relative, last_position = -1, 0
        count = 0
        with contextlib.suppress(WildIndex):
            for entry in range(self.entry_count):
                relative, at = _ENTRY.unpack(self.entry(entry))
                if not last_relative < relative < limit or not last_position < at < position:
                    break
                last_relative, last_position = relative, at
                count += 1
        return count

    def put_before(self, made: OffsetIndex) -> None:
        """Have the entries of another one, which lie below all of these, in memory and before them. Raises OSError, WildIndex."""
        own = list(self.entries())
        self.start_empty()
        self._pending += made._pending
        for offset, position in own:
            self.append(offset, position)

    def entries(self) -> Iterator[tuple[int, int]]:
        for number in range(self.entry_count):
            yield self.entry_at(number)

    def _rank(self, position: int) -> int:
        """Number of entries that point at or below `position`."""
        low, high = 0, self.entry_count
        written = self._written
        data = self._mapping() if written else b""
        while low < high:
            middle = (low + high) // 2
            if middle < written:
                value = _ENTRY.unpack_from(data, middle * 8)[1]
            else:
                value = _ENTRY.unpack_from(self._pending, (middle - written) * 8)[1]
            if value <= position:
                low = middle + 1
            else:
                high = middle
        return low
