"""The reading half of a partition's log: slices for fetches, aborted transactions, searches by time.

Rules
- A read finds its place without waiting for a disk: by the positions of recent appends, else by the index and a short walk over headers
  that are in memory. What is not in memory becomes a cold slice, which any thread can finish.
- What an index says is believed as far as the batch bears it out that it leads to. One that is wild is made again, in a thread; the read
  does without it, or is refused for so long (see index_rebuild).
- A segment that holds no batch where one should begin is reported with file and position; other offsets are served.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from typing import NoReturn

from fastq.errors import ErrorCode, KafkaError, error_for_code

from . import txn_index
from .config import METADATA_TOPIC
from .durability import Durability, first_segment_from
from .failures import failures
from .files import FileHandle, Files
from .index_rebuild import rebuild, rebuild_aborts_of, refusal_of
from .log_dir import LogDir
from .scan import (
    NO_UPPER,
    WALK_BYTES_MAX,
    CorruptSegment,
    LogSlice,
    LongWalk,
    SliceQuery,
    WildIndex,
    WouldBlock,
    iter_bounds,
    verify_start,
)
from .segment import TXN_INDEX_SUFFIX, Segment
from .timestamps import TimestampPlace, TimestampQuery, time_problem

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
        indexed = start < 0
        try:
            if indexed:
                start = self._indexed_position(segment, offset)
            cut = segment.index.lookup_position(start + max_bytes)
            if upper != NO_UPPER:
                cut = min(cut, segment.index.lookup(upper))
            handle = segment.log.handle()
            query = SliceQuery(
                self.files, handle, offset, start, cut, segment.size, upper, max_bytes, min_one_batch, segment, indexed
            )
            position, size = query.bounds(may_block=False)
        except WouldBlock as error:
            return self._walk_on(segment, query, error)
        except WildIndex as error:
            self._rebuild(segment, error)
            return self._read_unindexed(segment, offset, 0 if indexed else start, max_bytes, min_one_batch, upper)
        except CorruptSegment as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.dir.refuse("reading", segment.log.path, error) from error
        return LogSlice(self.files, handle, position, size, offset)

    # -- wild indexes

    def _read_unindexed(
        self, segment: Segment, offset: int, start: int, max_bytes: int, min_one_batch: bool, upper: int
    ) -> LogSlice:
        """The slice of one segment, from a batch's position at or before `offset`, where the index is of no use."""
        try:
            handle = segment.log.handle()
            query = SliceQuery(
                self.files, handle, offset, start, 0, segment.size, upper, max_bytes, min_one_batch, segment, False
            )
            position, size = query.bounds(may_block=False)
        except WouldBlock as error:
            return self._walk_on(segment, query, error)
        except CorruptSegment as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.dir.refuse("reading", segment.log.path, error) from error
        return LogSlice(self.files, handle, position, size, offset)

    def _walk_on(self, segment: Segment, query: SliceQuery, why: WouldBlock) -> LogSlice:
        """The slice of a walk that is not for the loop: a thread's, unless the index that would shorten it is being made."""
        if query.indexed and isinstance(why, LongWalk) and segment.is_indexed_sparsely(WALK_BYTES_MAX):
            reason = f"there is no entry for {WALK_BYTES_MAX} bytes"
            self._rebuild(segment, WildIndex(segment.index.path, query.start, reason))
        if segment.rebuilding is not None and self.topic != METADATA_TOPIC:
            raise segment.rebuilding.refusal()
        return LogSlice(self.files, query.handle, query.start, 0, query.offset, query)

    def _rebuild(self, segment: Segment, error: WildIndex) -> bool:
        """Have the indexes of a segment made again that have turned out to be wild; False where that was done a short time ago. Raises
        KafkaStorageError."""
        try:
            return rebuild(self, segment, error)
        except OSError as failure:
            raise self.dir.refuse("making an index again", failure.filename or segment.log.path, failure) from failure

    def _indexed_position(self, segment: Segment, offset: int) -> int:
        """Where a batch at or before `offset` begins, by the index. Raises WildIndex, OSError."""
        if segment.doubt is not None:
            self._rebuild(segment, segment.doubt)
        position = segment.index.lookup(offset)
        if segment.rebuilding is not None:
            position = max(position, segment.rebuilding.made.index.lookup(offset))
        if 0 <= position < segment.size or not segment.size:
            return position
        raise WildIndex(segment.index.path, position, "it leads out of the segment")

    def verified_position(self, segment: Segment, offset: int) -> int:
        """The same, for who may wait for the disk: the index that is wild is made again, or done without. Raises OSError,
        KafkaStorageError, ReplicaNotAvailable while it is made."""
        try:
            position = self._indexed_position(segment, offset)
            if position:
                verify_start(self.files, segment, position, offset)
        except WildIndex as error:
            self._rebuild(segment, error)
            position = 0
        if segment.rebuilding is not None and segment.size > WALK_BYTES_MAX and self.topic != METADATA_TOPIC:
            raise segment.rebuilding.refusal()
        return position

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
        without aborted transactions nothing is read. Raises KafkaStorageError, CorruptMessage, ReplicaNotAvailable while a file is made
        again.
        """
        found: list[txn_index.AbortedTransaction] = []
        segments = self.segments
        for number in range(first_segment_from(self._bases, first_offset), len(segments)):
            try:
                entries, complete = self._aborted_in(segments[number], first_offset, upper_offset)
            except OSError as error:
                path = error.filename or segments[number].path_of(TXN_INDEX_SUFFIX)
                raise self.dir.refuse("reading the transaction index", path, error) from error
            except CorruptSegment as error:  # aborted records would be read as committed ones
                raise self._corrupt(error) from error
            found += entries
            if complete:
                break
        return found

    def _aborted_in(
        self, segment: Segment, first_offset: int, upper_offset: int
    ) -> tuple[list[txn_index.AbortedTransaction], bool]:
        """What a segment says of them; a damaged file is made again. Raises ReplicaNotAvailable until then, CorruptSegment, OSError."""
        try:
            if segment.aborts_rebuilding is None:
                return segment.aborted(first_offset, upper_offset)
        except CorruptSegment as error:
            if not rebuild_aborts_of(self, segment, error):
                raise
        if segment.aborts_rebuilding is not None:
            raise segment.aborts_rebuilding.refusal()
        return segment.aborted(first_offset, upper_offset)

    def upper_offset_of(self, piece: LogSlice) -> int:
        """An offset above all records of a slice that was read from this log, as near to them as the index tells."""
        bases = self._bases
        file = piece.file
        for number in range(first_segment_from(bases, piece.first_offset), len(bases)):
            segment = self.segments[number]
            if file is not None and segment.log.path == file.path:
                following = self._batch_after(segment, file, piece.position + piece.size)
                if following is not None:
                    return following
                return bases[number + 1] if number + 1 < len(bases) else self.log_end_offset
        return self.log_end_offset  # compaction or retention has replaced the segment since

    def _batch_after(self, segment: Segment, file: FileHandle, position: int) -> int | None:
        """The first offset of some batch at or after `position`, by the index and what the batch says; None where that needs the disk."""
        try:
            at = segment.index.position_from(position)
            if at is not None:
                for bounds in iter_bounds(self.files, file, at, segment.size, may_block=False):
                    return bounds.base_offset
        except (CorruptSegment, WouldBlock, OSError):
            pass
        return None

    # -- times

    def timestamp_query(self, timestamp_ms: int, since_offset: int = 0) -> TimestampQuery:
        """A search for the first record at or after a time, in the first segment that has one, of those from `since_offset` on; its `run()`
        may wait for the disk, in any thread. One that finds nothing is `followed` by another: the files of one segment are open at a time.
        Raises KafkaStorageError, ReplicaNotAvailable while an index is made again."""
        segments, bases = self.segments, self._bases
        try:
            number = self._segment_since(timestamp_ms, since_offset)
            places = () if number is None else (self._place_of_time(segments[number], timestamp_ms),)
        except OSError as error:
            raise self.dir.refuse("searching by time", error.filename or self.path, error) from error
        followed = bases[number + 1] if number is not None and number + 1 < len(bases) else None
        return TimestampQuery(self.files, timestamp_ms, self.log_start_offset, places, followed)

    def _segment_since(self, timestamp_ms: int, since_offset: int) -> int | None:
        """Number of the first one with a record at or after a time. Of those without one, the last one before it, and any that seems to be
        older than one before it, are looked at closely: a damaged index would have them passed over. Raises KafkaError, OSError."""
        # What lies before the offset was searched for its times.
        before, highest = None, timestamp_ms if since_offset else -1
        found = None
        for number in range(first_segment_from(self._bases, since_offset), len(self.segments)):
            segment = self.segments[number]
            if not segment.size:
                continue
            largest = self._largest_timestamp(segment, closely=False)
            if largest < min(timestamp_ms, highest):
                largest = self._largest_timestamp(segment)
            highest = max(highest, largest)
            if largest >= timestamp_ms:
                found = number
                break
            before = number
        if before is not None and self._largest_timestamp(self.segments[before]) >= timestamp_ms:
            return before
        return found

    def _place_of_time(self, segment: Segment, timestamp_ms: int) -> TimestampPlace:
        start, handle = self.log_start_offset, segment.log.handle()
        try:
            entry = segment.time_index.lookup(timestamp_ms)
            offset = start if entry is None or entry[1] <= start else entry[1]
            position = self._indexed_position(segment, offset)
        except WildIndex as error:
            self._rebuild(segment, error)
            self._largest_timestamp(segment)
            entry, offset, position = None, start, 0
        return TimestampPlace(handle, position, segment.size, segment, offset, entry if offset != start else None)

    def _largest_timestamp(self, segment: Segment, *, closely: bool = True, may_block: bool = False) -> int:
        """Of a segment's records. What the time index alone says of it is believed once the batches have borne it out: one look, where they
        are in memory, unless it `may_block`. Raises KafkaStorageError, ReplicaNotAvailable while the index is made again, OSError."""
        found = segment.largest_timestamp()
        if closely and segment.times_unchecked and segment.doubt is None and (may_block or not segment.times_tried):
            segment.times_tried = True
            with suppress(WouldBlock):
                segment.doubt = time_problem(self.files, segment, may_block=may_block)
                segment.times_unchecked = False
        if segment.doubt is not None:
            if not self._rebuild(segment, segment.doubt):
                segment.times_unchecked = True
                if may_block:
                    raise refusal_of(self, segment.time_index.path)
            found = segment.largest_timestamp()
        if segment.rebuilding is not None:
            raise segment.rebuilding.refusal()
        return found

    def largest_timestamp(self) -> int:
        """Of all records, -1 where none has one. Raises KafkaStorageError, ReplicaNotAvailable while an index is made again."""
        segments = [segment for segment in self.segments if segment.size]
        try:
            for segment in segments[-1:]:
                self._largest_timestamp(segment)
            while segments:
                for segment in segments:
                    self._largest_timestamp(segment, closely=False)
                latest = max(segments, key=lambda segment: segment.max_timestamp)
                largest = latest.max_timestamp  # no file's own time: it says nothing of records
                self._largest_timestamp(latest)
                if latest.max_timestamp == largest:
                    return largest
        except OSError as error:
            raise self.dir.refuse("searching by time", error.filename or self.path, error) from error
        return -1

    def expired_at(self, segment: Segment) -> int:
        """The largest timestamp of a segment that is to be deleted for its age, looked at closely: for a damaged index records would be
        lost. Raises KafkaError where it cannot be told now, OSError."""
        return self._largest_timestamp(segment, may_block=True)
