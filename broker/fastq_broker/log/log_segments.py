"""The segments of a partition's log: a new one begins, old ones go, cleaned ones take their place.

Rules
- `segments`, `_bases` and `_active` change together, here and where a log is loaded or cut off.
- Files of a segment that is no part of the log any more are renamed at once, and unlinked after file.delete.delay.ms.
- The log's start only rises here.
Source: LogSegments, LocalLog, UnifiedLog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .cleaner_swap import NotAsMade, NotUndone, begin_swap, swap_in
from .config import LogConfig
from .durability import first_segment_from
from .files import Files, is_full
from .half_done import no_memory
from .leader_epochs import LeaderEpochs
from .segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from .visibility import Visibility


class LogSegments(Visibility):
    """The segments of a partition's log; see PartitionLog for what the attributes are. Event-loop thread only."""

    __slots__ = ("_active", "_bases", "_recent", "_segment_bytes", "config", "epochs", "log_start_offset", "segments")

    _active: Segment
    _bases: list[int]
    _recent: deque[tuple[int, int]]
    _segment_bytes: int
    config: LogConfig
    epochs: LeaderEpochs
    files: Files
    log_start_offset: int
    partition: int
    path: str
    segments: list[Segment]
    topic: str

    def make_segment(self, base_offset: int, *, size: int, created_ms: int) -> Segment:
        raise NotImplementedError

    def half_swapped(self, error: BaseException, base: int) -> KafkaError:
        """The error of a swap that has failed amid it, of the segment that begins at `base`. After a shortage, or a mistake, the load
        finishes it. Raises what is a mistake."""
        raise NotImplementedError

    # -- rolling

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin a new one at the log's end (or at `base_offset` above it); the old one is flushed soon.

        Raises KafkaStorageError.
        """
        base = max(self.log_end_offset, base_offset or 0)
        old = self._active
        segment = self.make_segment(base, size=0, created_ms=now_ms)
        try:
            if base == old.base_offset:
                return old
            old.finish()
            self.durability.take_snapshot()
        except OSError as error:
            raise self.dir.refuse("rolling a segment", error.filename or segment.log.path, error) from error
        try:
            segment.create_files(self._segment_bytes if self.config.preallocate else 0)
            segments, bases = [*self.segments, segment], [*self._bases, base]
        except BaseException as error:
            self._remove_unbegun(segment)
            if isinstance(error, OSError):
                raise self.dir.refuse("rolling a segment", error.filename or segment.log.path, error) from error
            raise
        self.segments, self._bases, self._active = segments, bases, segment
        self._recent.clear()
        self.durability.request_later()
        return segment

    def _remove_unbegun(self, segment: Segment) -> None:
        """Remove the files of a segment that could not be begun, at a shortage later: the log would end there after a restart, wherever it
        is cut before."""
        if not self.loaded or segment.base_offset in self._bases:  # it was begun since, or the load has found it
            return
        try:
            segment.remove_files()
        except OSError as error:
            self.dir.refuse("removing a segment that could not be begun", error.filename or segment.log.path, error)
            if self.dir.offline is None:
                self.dir.soon(partial(self._remove_unbegun, segment))

    def drop_oldest(self, count: int) -> None:
        """Remove the files of the first `count` segments, which are not all; the log starts at the next one. Raises KafkaStorageError."""
        gone = self.segments[:count]
        del self.segments[:count], self._bases[:count]
        self.raise_start(max(self.log_start_offset, self._bases[0]))
        try:
            self.epochs.keep_if_behind()  # before the files go: after a crash they would be missing, as far as can be told
        except OSError as error:
            raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
        for segment in gone:
            self._remove_dropped(segment)

    def _remove_dropped(self, segment: Segment) -> None:
        """Remove the files of a segment that is no part of the log any more, at a shortage later. Raises KafkaStorageError."""
        if not self.loaded or segment.base_offset in self._bases:  # a load has found it: it is dropped once more
            return
        try:
            self.remove_files(segment)
        except OSError as error:
            failure = self.dir.refuse("deleting segments", error.filename or self.path, error)
            if self.dir.offline is not None:
                raise failure from error
            self.dir.soon(partial(self._remove_dropped, segment))

    def replace_segments(self, old: Sequence[Segment], made: Mapping[str, int]) -> None:
        """Put the cleaned segment that lies beside consecutive closed ones, under the first one's offset, in their place. `made` are the
        sizes of its files by their suffixes.

        Raises KafkaStorageError, NotAsMade: nothing was changed where the directory is online after it, or the load finishes it.
        """
        first = self.segments.index(old[0])
        if self.segments[first : first + len(old)] != list(old) or old[-1] is self._active:
            raise ValueError(f"{self.name}: compaction has replaced segments that are not there any more")
        try:
            begin_swap(self.files, old[0], made)
        except NotAsMade:
            raise
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, NotUndone):
                raise self.dir.refuse("replacing compacted segments", error.filename or self.path, error) from error
            raise self.half_swapped(error, old[0].base_offset) from no_memory(error)
        try:
            cleaned = swap_in(self, old, made)
        except BaseException as error:
            raise self.half_swapped(error, old[0].base_offset) from no_memory(error)
        self.segments[first : first + len(old)] = [cleaned]
        self._bases[first : first + len(old)] = [cleaned.base_offset]
        self.durability.unsettle(cleaned.base_offset)

    def delete_records_before(self, offset: int) -> int:
        """Let the log start at `offset` (-1: at the high watermark); answers the new start. Files go with the next retention.

        Raises OffsetOutOfRange above the high watermark, PolicyViolation for a topic without the delete policy, KafkaStorageError.
        """
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise error_for_code(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records can be deleted up to the high watermark {self.high_watermark}, not {offset}",
                topic=self.topic,
                partition=self.partition,
            )
        if "delete" not in self.config.cleanup_policy:
            raise error_for_code(
                ErrorCode.POLICY_VIOLATION,
                f"cleanup.policy is {','.join(sorted(self.config.cleanup_policy)) or 'empty'}: records are deleted only with 'delete'",
                topic=self.topic,
                partition=self.partition,
            )
        if offset > self.log_start_offset:
            self.raise_start(offset)
        return self.log_start_offset

    def raise_start(self, offset: int) -> None:
        """The log starts at `offset`, which lies above its start and not above its high watermark."""
        self.log_start_offset = offset
        self._leave_deleted()
        self.epochs.truncate_from_start(offset)
        self.last_stable_offset = self._stable_offset()
        self._announce()

    def _leave_deleted(self) -> None:
        """Of a mirror's log, what is open below its start has ended, as far as is known: its end may be among what the source had deleted
        before it was copied, and then no marker comes. Of other logs a coordinator ends it."""
        if self.config.mirror_source:
            self.producers.leave_below(self.log_start_offset)

    # -- files

    def remove_files(self, segment: Segment, *, keep_snapshot: bool = False) -> None:
        """Take the files of a segment out of the directory at once: rename them, unlink them after file.delete.delay.ms.

        Raises OSError. Slices that are still being sent keep the data.
        """
        segment.release()
        renamed: list[str] = []
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        try:
            for suffix in suffixes[:-1] if keep_snapshot else suffixes:
                path = segment.path_of(suffix)
                try:
                    self.files.rename(path, path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if not is_full(error):
                        raise
                    self.files.remove_if_exists(path)  # a longer name may take room, and this makes some
                    continue
                renamed.append(path + DELETED_SUFFIX)
        finally:  # who tries it again does not find these any more
            self.dir.delete_later(renamed, self.config.file_delete_delay_ms)

    # -- size

    @property
    def size_bytes(self) -> int:
        """Bytes of the .log files."""
        return sum(segment.size for segment in self.segments)

    def segments_from(self, offset: int) -> list[Segment]:
        """The segment that holds `offset`, and those after it."""
        return self.segments[first_segment_from(self._bases, offset) :]

    @property
    def active_segment(self) -> Segment:
        return self._active
