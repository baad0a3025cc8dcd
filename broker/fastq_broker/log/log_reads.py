"""The reading half of a partition's log: slices for fetches, aborted transactions, searches by time.

Rules
- A read finds its place without waiting for a disk: by the positions of recent appends, else by the index and a short walk over headers
  that are in memory. What is not in memory becomes a cold slice, which any thread can finish.
- An index that points out of its segment is rebuilt from it, and the read goes on.
- A segment that holds no batch where one should begin is reported with file and position; other offsets are served.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from typing import NoReturn

from fastq.errors import ErrorCode, KafkaError, error_for_code

from . import txn_index
from .durability import Durability, first_segment_from
from .failures import failures
from .files import Files
from .log_dir import LogDir
from .recovery import rebuild_indexes
from .scan import NO_UPPER, CorruptSegment, LogSlice, SliceQuery, WouldBlock
from .segment import TXN_INDEX_SUFFIX, Segment
from .stored_batches import RecoveryReport
from .timestamps import TimestampQuery

logger = logging.getLogger(__name__)


class LogReads:
    """Reads of a partition's log; see PartitionLog for what the attributes are. Event-loop thread only."""

    __slots__ = ()

    _active: Segment
    _bases: list[int]
    _recent: deque[tuple[int, int]]  # offsets and positions of the last batches, which have no gap between them
    dir: LogDir
    durability: Durability
    files: Files
    log_end_offset: int
    log_start_offset: int
    partition: int
    path: str
    segments: list[Segment]
    topic: str

    def read(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, upper_offset: int | None = None
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, up to `max_bytes`, none that begins at or above `upper_offset`.

        `upper_offset` None is the log's end. `min_one_batch` lets the first batch pass `max_bytes`. Empty when there is nothing
        between. Waits for no disk: see LogSlice.cold. Raises OffsetOutOfRange, CorruptMessage with file and position,
        KafkaStorageError.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            self._out_of_range(offset)
        upper = end_offset if upper_offset is None or upper_offset > end_offset else upper_offset
        if offset >= upper:
            return LogSlice(self.files, None, 0, 0, offset)
        active = self._active
        if offset >= active.base_offset and self._recent and offset >= self._recent[0][0]:
            for base, position in reversed(self._recent):
                if base <= offset:
                    size = active.log.size - position
                    if upper == end_offset and size <= max_bytes:
                        return LogSlice(self.files, active.log.handle(), position, size, offset)
                    break
            return self._read_segment(
                active, offset, position, max_bytes, min_one_batch, NO_UPPER if upper == end_offset else upper
            )
        number = bisect_right(self._bases, offset) - 1
        while True:
            segment = self.segments[number]
            number += 1
            last = number == len(self.segments)
            limit = NO_UPPER if upper >= (end_offset if last else self._bases[number]) else upper
            found = self._read_segment(segment, offset, -1, max_bytes, min_one_batch, limit)
            if last or found.size or found.cold or found.position < segment.size:
                return found  # else the offset lies in a gap at the segment's end, which compaction leaves

    def _read_segment(
        self, segment: Segment, offset: int, start: int, max_bytes: int, min_one_batch: bool, upper: int
    ) -> LogSlice:
        """The slice of one segment; `start` is a batch's position at or before `offset`, -1 to ask the index."""
        try:
            if start < 0:
                start = self._indexed_position(segment, offset)
            cut = segment.index.lookup_position(start + max_bytes)
            if upper != NO_UPPER:
                cut = min(cut, segment.index.lookup(upper))
            handle = segment.log.handle()
            query = SliceQuery(self.files, handle, offset, start, cut, segment.size, upper, max_bytes, min_one_batch)
            position, size = query.bounds(may_block=False)
        except WouldBlock:
            return LogSlice(self.files, handle, start, 0, offset, query)
        except CorruptSegment as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.dir.refuse("reading", segment.log.path, error) from error
        return LogSlice(self.files, handle, position, size, offset)

    def _indexed_position(self, segment: Segment, offset: int) -> int:
        position = segment.index.lookup(offset)
        if 0 <= position < segment.size or not segment.size:
            return position
        logger.error("%s has position %d outside of the segment: rebuilding it", segment.index.path, position)
        rebuild_indexes(self.files, segment, RecoveryReport())
        self.durability.unsettle(segment.base_offset)
        return segment.index.lookup(offset)

    def _corrupt(self, error: CorruptSegment) -> KafkaError:
        failures.say(logger.error, f"corrupt {error.path}", "corrupt segment: %s", error)
        return error_for_code(
            ErrorCode.CORRUPT_MESSAGE,
            f"corrupt segment: {error}",
            topic=self.topic,
            partition=self.partition,
            file=error.path,
            position=error.position,
        )

    def _out_of_range(self, offset: int) -> NoReturn:
        raise error_for_code(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside of {self.log_start_offset} to {self.log_end_offset}",
            topic=self.topic,
            partition=self.partition,
        )

    def aborted_transactions(self, first_offset: int, upper_offset: int) -> list[txn_index.AbortedTransaction]:
        """Aborted transactions with records between the two offsets (the upper one excluded), for read_committed.

        A marker may lie far above its records, so later segments are asked too, until one says that nothing can follow; of those
        without aborted transactions nothing is read. Raises KafkaStorageError, CorruptMessage.
        """
        found: list[txn_index.AbortedTransaction] = []
        segments = self.segments
        for number in range(first_segment_from(self._bases, first_offset), len(segments)):
            try:
                entries, complete = segments[number].aborted(first_offset, upper_offset)
            except OSError as error:
                path = segments[number].path_of(TXN_INDEX_SUFFIX)
                raise self.dir.refuse("reading the transaction index", path, error) from error
            except CorruptSegment as error:  # aborted records would be read as committed ones
                raise self._corrupt(error) from error
            found += entries
            if complete:
                break
        return found

    def upper_offset_of(self, piece: LogSlice) -> int:
        """An offset above all records of a slice that was read from this log, as near to them as the index tells."""
        bases = self._bases
        file = piece.file
        for number in range(first_segment_from(bases, piece.first_offset), len(bases)):
            segment = self.segments[number]
            if file is not None and segment.log.path == file.path:
                following = segment.index.offset_from(piece.position + piece.size)
                if following is not None:
                    return following
                return bases[number + 1] if number + 1 < len(bases) else self.log_end_offset
        return self.log_end_offset  # compaction or retention has replaced the segment since

    # -- times

    def timestamp_query(self, timestamp_ms: int) -> TimestampQuery:
        """A search for the first record at or after a time; its `run()` may wait for the disk, in any thread."""
        starts = []
        try:
            for segment in self.segments:
                if segment.size and segment.largest_timestamp() >= timestamp_ms:
                    offset = max(segment.time_index.lookup(timestamp_ms), self.log_start_offset)
                    starts.append((segment.log.handle(), segment.index.lookup(offset), segment.size))
        except OSError as error:
            raise self.dir.refuse("searching by time", error.filename or self.path, error) from error
        return TimestampQuery(self.files, timestamp_ms, self.log_start_offset, tuple(starts))

    def largest_timestamp(self) -> int:
        """Of all records, as segments have it: when the file changed where none has one; -1 of an empty log."""
        try:
            return max((segment.largest_timestamp() for segment in self.segments if segment.size), default=-1)
        except OSError as error:
            raise self.dir.refuse("searching by time", error.filename or self.path, error) from error
