"""Searching a log by time. Nothing here changes a log, so a search may run in any thread; what an index says is believed as far as the
batch that it names bears it out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from fastq._native.legacy import decode_message_set
from fastq._native.records import decode_records, read_header
from fastq.values import NamedTuple

from .files import FileHandle, Files
from .scan import (
    HEADER_BYTES,
    NO_UPPER,
    BatchBounds,
    CorruptSegment,
    WildIndex,
    is_old_format,
    iter_bounds,
    largest_timestamp_in,
    verify_start,
)

if TYPE_CHECKING:
    from .segment import Segment

_BATCHES_MAX: Final = 10_000
"""More than lie between two index entries."""


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimestampPlace(NamedTuple):
    """Where to look in one segment: from the batch at `position` on, which the index has told for `offset`. `entry` is what the time index
    says, by which all before it is earlier; None where nothing rests on that."""

    handle: FileHandle
    position: int
    end: int
    segment: Segment
    offset: int
    entry: tuple[int, int] | None


class TimestampQuery(NamedTuple):
    """Where to look for the first record at or after a time: places in log order, and the offset from which to look on where it is in none
    of them, None where nothing follows."""

    files: Files
    timestamp_ms: int
    start_offset: int
    places: tuple[TimestampPlace, ...]
    followed: int | None

    def run(self) -> TimestampOffset | None:
        """The record, or None. Decompresses one batch where needed. Where an index is wild, which its segment remembers, all of the segment
        is searched. Raises CorruptSegment, OSError, and MissingPackage where the batch's codec is not installed."""
        for place in self.places:
            try:
                found = self._search(place)
            except WildIndex as error:
                place.segment.doubt = error
                found = self._search(place._replace(position=0, entry=None))
            if found is not None:
                return found
        return None

    def _search(self, place: TimestampPlace) -> TimestampOffset | None:
        handle, position, end, segment, offset, entry = place
        found = None
        try:
            for bounds in iter_bounds(self.files, handle, position, end):
                if bounds.position == position and position and bounds.base_offset > offset:
                    reason = f"for offset {offset} it leads to the batch at offset {bounds.base_offset}"
                    raise WildIndex(segment.index.path, position, reason)
                if entry is not None and bounds.last_offset >= entry[1]:
                    _bear_out(self.files, handle, segment, bounds, entry)
                    entry = None
                if found is None and bounds.last_offset >= self.start_offset:
                    found = self._in_batch(handle, bounds)
                if found is not None and entry is None:
                    return found
        except WildIndex:
            raise
        except CorruptSegment as error:
            if error.position == position and position:
                raise WildIndex(
                    segment.index.path, position, f"it leads to where no batch is: {error.reason}"
                ) from None
            raise
        if entry is not None:
            raise WildIndex(segment.time_index.path, position, f"it has offset {entry[1]}, where the segment has none")
        return None

    def _in_batch(self, handle: FileHandle, bounds: BatchBounds) -> TimestampOffset | None:
        raw = self.files.pread(handle.fd, HEADER_BYTES, bounds.position)
        if largest_timestamp_in(raw) < self.timestamp_ms:
            return None
        data = self.files.pread(handle.fd, bounds.end - bounds.position, bounds.position)
        try:
            if is_old_format(raw):
                epoch, records = -1, decode_message_set(data)[0]
            else:
                epoch, records = read_header(data).partition_leader_epoch, decode_records(data)
        except ValueError as error:
            raise CorruptSegment(handle.path, bounds.position, str(error)) from error
        for record in records:
            if record.timestamp_ms >= self.timestamp_ms and record.offset >= self.start_offset:
                return TimestampOffset(record.timestamp_ms, record.offset, epoch)
        return None


def time_problem(files: Files, segment: Segment, *, may_block: bool) -> WildIndex | None:
    """What is wrong with the largest timestamp that a segment has from its time index; None for nothing. The batch that the last entry
    names must have it, and the segment's last batch no larger one. Raises WouldBlock, OSError."""
    index, handle = segment.time_index, segment.log.handle()
    try:
        if not index.entry_count:
            if segment.first_timestamp() < 0:
                return None
            raise WildIndex(index.path, 0, "it has no entry")
        timestamp, offset = entry = index.last()
        if timestamp == segment.max_timestamp:
            for bounds in islice(_batches_from(files, segment, handle, offset, may_block), _BATCHES_MAX):
                if bounds.last_offset >= offset:
                    _bear_out(files, handle, segment, bounds, entry)
                    break
            else:
                raise WildIndex(index.path, 0, f"it has offset {offset}, where the segment has none")
        for bounds in islice(_batches_from(files, segment, handle, NO_UPPER, may_block), _BATCHES_MAX):
            if bounds.end == segment.size:
                found = _timestamp_of(files, handle, bounds)
                if found is not None and found > segment.max_timestamp:
                    reason = f"its largest timestamp is {segment.max_timestamp}, the batch there has {found}"
                    raise WildIndex(index.path, bounds.position, reason)
    except WildIndex as error:
        return error
    except CorruptSegment:
        pass  # the log's damage is its own
    return None


def _batches_from(
    files: Files, segment: Segment, handle: FileHandle, offset: int, may_block: bool
) -> Iterator[BatchBounds]:
    """The batches from where the index leads for `offset`. Raises WildIndex, CorruptSegment, WouldBlock, OSError."""
    position = segment.index.lookup(offset)
    if not 0 <= position < segment.size:
        raise WildIndex(segment.index.path, position, "it leads out of the segment")
    if position:
        verify_start(files, segment, position, offset, may_block=may_block)
    yield from iter_bounds(files, handle, position, segment.size, may_block=may_block)


def _timestamp_of(files: Files, handle: FileHandle, bounds: BatchBounds) -> int | None:
    """The largest timestamp of a batch, None of one of an old format. Raises OSError."""
    raw = files.pread(handle.fd, HEADER_BYTES, bounds.position)
    return None if is_old_format(raw) else largest_timestamp_in(raw)


def _bear_out(files: Files, handle: FileHandle, segment: Segment, bounds: BatchBounds, entry: tuple[int, int]) -> None:
    """See that the batch that an entry of the time index names has its timestamp. Raises WildIndex, OSError."""
    timestamp = _timestamp_of(files, handle, bounds)
    if timestamp is not None and timestamp != entry[0]:
        reason = f"it has timestamp {entry[0]} for offset {entry[1]}, whose batch has {timestamp}"
        raise WildIndex(segment.time_index.path, bounds.position, reason)
