"""Makes the indexes of a loaded segment again from its batches, where a read has found that they are wild.

Rules
- The segment's entries go at once, so that no other read is led astray; what is appended from then on has entries again. What lies before
  is read by a thread, for an object of its own, and the loop puts its entries in front when they are all there.
- Reads meanwhile take what is there by then. Who would have to go through more than the loop has time for gets REPLICA_NOT_AVAILABLE, as
  where a log is recovered late; of the metadata's log, which nobody can be told that of, it is gone through.
- One at a time of a segment, and none for some time after it. One that is deleted, cut, replaced or closed meanwhile has no use of it.
- A transaction index that is damaged, or has less than was written, is made again likewise: committed records are refused until then.
- Behind a damaged batch it goes on where an old entry leads that its batch bears out: other offsets are served.
- A stop ends it; what it leaves is an index that has too few entries, which the next read finds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .failures import failures
from .files import FdBudget
from .half_done import no_memory
from .producer_state import CompletedTransaction, ProducerState
from .recovery_progress import RecoveryStopped
from .scan import CorruptSegment, WildIndex, batch_of_entry
from .segment import TXN_INDEX_SUFFIX, Segment
from .stored_batches import RecoveryReport, note_batches
from .stored_producers import find_aborts, holding, load_snapshot, replay
from .tell_loop import tell_loop
from .truncation import producer_snapshots
from .txn_index import encode_completed

if TYPE_CHECKING:
    from .log_dir import LogDir
    from .log_reads import LogReads
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

_INTERVAL_MS: Final = 60_000
"""Indexes that are wild again within this time are left so: reads do without."""


def _twin(log: LogReads, budget: FdBudget, segment: Segment) -> Segment:
    """The same segment for a thread, which opens its files for itself."""
    return Segment(
        log.files,
        budget,
        segment.directory,
        segment.base_offset,
        size=segment.size,
        index_interval_bytes=segment.index_interval_bytes,
        index_bytes_max=segment.index_bytes_max,
        created_ms=segment.created_ms,
    )


class IndexRebuild:
    """The indexes of one segment as they are made again, from its batches below `size`.

    Any thread calls `make`, once; all else is the event loop's. `made` has its entries in memory, and may be looked at meanwhile.
    """

    def __init__(self, log: LogReads, segment: Segment) -> None:
        self.log = log
        self.segment = segment
        self.size = segment.size
        self.stopped = False
        self._files = log.files
        self._handle = segment.log.handle()
        self._old = b""  # a flush cuts the file before a thread may come to it
        with contextlib.suppress(OSError):
            self._old = log.files.read_file(segment.index.path)
        self._old = self._old[: len(self._old) & ~7] + segment.index.raw_pending()
        self.made = _twin(log, FdBudget(2), segment)
        self.made.index.stay_in_memory()
        self.made.time_index.stay_in_memory()

    def make(self) -> None:
        """Go through the segment. Raises RecoveryStopped, OSError."""
        report = RecoveryReport(on_read=self._look_up)
        position, old = 0, None
        while True:
            try:
                note_batches(self._files, self.made, self._handle, position, report)
                return
            except CorruptSegment as error:
                logger.error("rebuilding indexes: %s", error)
                old = list(self._old_entries()) if old is None else old
                behind = self._behind(error.position, old)
                if behind is None:
                    return
                position = behind
                self.made.expect_entry()

    def _look_up(self, size: int) -> None:
        if self.stopped or self.segment.rebuilding is not self:
            raise RecoveryStopped

    def _old_entries(self) -> Iterator[tuple[int, int]]:
        """(position, last offset) as the index had them, in the order of positions."""
        base = self.segment.base_offset
        return iter(sorted((position, base + relative) for relative, position in struct.iter_unpack(">ii", self._old)))

    def _behind(self, position: int, old: Sequence[tuple[int, int]]) -> int | None:
        """Where whole batches begin again above `position`, by an entry that its batch bears out; None where none does."""
        last = self.made.index.last()[0]
        for at, offset in old[bisect_right(old, (position, self.segment.base_offset + (1 << 31))) :]:
            self._look_up(0)
            if at >= self.size:
                break
            found = batch_of_entry(self._files, self._handle, offset, at, self.size)
            if found is not None and found.base_offset > last:
                return at
        return None

    @property
    def wanted(self) -> bool:
        """Whether the segment still is the log's, and has not its entries."""
        return self.segment.rebuilding is self and self.segment in self.log.segments

    def install(self) -> None:
        """Give the segment its entries, where they are wanted. Raises OSError."""
        log, segment = self.log, self.segment
        if self.wanted:
            log.durability.unsettle(segment.base_offset)
            with contextlib.suppress(WildIndex):  # its file is wild once more, which the next read finds
                segment.take_indexes(self.made, closed=segment is not log.segments[-1])

    def refusal(self) -> KafkaError:
        """What to answer who cannot be served until then."""
        return refusal_of(self.log, self.segment.index.path)

    def give_up(self) -> None:
        """It has ended; where it has failed, nothing is known of the segment's times."""
        segment = self.segment
        if segment.rebuilding is self:
            segment.rebuilding = None
            segment.times_unchecked, segment.times_tried = True, False


def rebuild(log: LogReads, segment: Segment, error: WildIndex) -> bool:
    """Have the indexes of a segment made again, unless that goes on or was begun a short time ago: in a thread, where the log's directory
    has one for it. Whether it goes on, or is done. Raises OSError."""
    segment.doubt = None
    now_ms = log.dir.monotonic_ms()
    if segment.rebuilding is not None:
        return True
    if segment.rebuilt_ms is not None and now_ms - segment.rebuilt_ms < _INTERVAL_MS:
        return False
    work = IndexRebuild(log, segment)
    logger.warning(
        "%s is wild, its indexes are made again from the segment: at byte %d of it, %s",
        error.path,
        error.position,
        error.reason,
    )
    segment.rebuilt_ms = now_ms
    segment.begin_indexes_anew(work)
    _begin(work)
    return True


class AbortsRebuild:
    """The aborted transactions of one segment as they are found again, in its batches and in what was open at its begin.

    Any thread calls `make`, once; all else is the event loop's.
    """

    def __init__(self, log: LogReads, segment: Segment) -> None:
        self.log = log
        self.segment = segment
        self.stopped = False
        budget = FdBudget(16)
        self._sources = _up_to(log, segment)
        self._needed: list[Segment] = []  # those of them whose files are yet to be read
        self._segments: list[Segment] = []
        for each in self._sources:
            twin = _twin(log, budget, each)
            twin.index.start_as(each.index)  # behind damage it leads on
            self._segments.append(twin)
        self._begun_ms = [each.rebuilt_ms for each in self._sources]
        following = log.segments[len(self._sources) :]
        self._end_offset = following[0].base_offset if following else log.log_end_offset
        self._open = None if following else cast("PartitionLog", log).producers.open_since()
        self._made: list[CompletedTransaction] = []
        self._beside: str | None = None

    def make(self) -> None:
        """Go through the segment, and those before it since the last snapshot of producers. Raises RecoveryStopped, OSError."""
        log, own = cast("PartitionLog", self.log), self._segments[-1]
        report = RecoveryReport(on_read=self._look_up)
        producers = ProducerState(log.name, expiration_ms=log.producer_expiration_ms)
        snapshots = producer_snapshots(log)
        load_snapshot(log, producers, snapshots, own.base_offset)
        bases = {each.base_offset for each in holding(self._segments, producers.end_offset, own.base_offset)}
        self._needed = [each for each in self._sources if each.base_offset in bases]
        for number, each in enumerate(self._sources[:-1]):
            if each.base_offset in bases:
                end = self._segments[number + 1].base_offset
                replay(log, producers, self._segments, producers.end_offset, end, report)
                self._have_read(each, self._segments[number])
        find_aborts(log, own, producers, self._made, self._end_offset, snapshots, self._open, report)
        self._look_up(0)
        if self._made:  # here, where it may wait for the disk
            data = encode_completed(self._made)
            self._beside = log.files.write_beside(own.path_of(TXN_INDEX_SUFFIX), data, sync=True)

    def _have_read(self, each: Segment, twin: Segment) -> None:
        """One that has been there till here may go now, if it had its own file: what a compaction puts there has another size. Raises
        OSError."""
        if each in self.log.segments and os.fstat(twin.log.handle().fd).st_size == twin.size:
            self._needed.remove(each)

    def _look_up(self, size: int) -> None:
        if self.stopped or self.segment.aborts_rebuilding is not self:
            raise RecoveryStopped

    @property
    def wanted(self) -> bool:
        """Whether the segment still is the log's, and has not its file, and the ones before it were there until they were read, with the
        offset indexes that lead on behind damage: who asks next has it begun anew where retention or compaction has taken one, or such an
        index is made again."""
        if self.segment.aborts_rebuilding is not self:
            return False
        if any(each.rebuilt_ms != begun_ms for each, begun_ms in zip(self._sources, self._begun_ms, strict=True)):
            return False
        present = set(map(id, self.log.segments))
        return all(id(each) in present for each in (self.segment, *self._needed))

    def install(self) -> None:
        """Give the segment its file, where it is wanted. An index that could not lead on behind damage is to be made again before. Raises
        OSError."""
        log, segment = self.log, self.segment
        if not self.wanted:
            return
        for each, twin in zip(self._sources, self._segments, strict=True):
            each.doubt = each.doubt or twin.doubt
        if all(twin.doubt is None for twin in self._segments):
            log.durability.unsettle(segment.base_offset)
            segment.take_aborts(self._made, self._beside)

    def give_up(self) -> None:
        """It has failed: who asks next has it tried again."""
        if self.segment.aborts_rebuilding is self:
            self.segment.aborts_rebuilding = self.segment.aborts_rebuilt_ms = None

    def refusal(self) -> KafkaError:
        """What to answer who cannot be served until then."""
        return refusal_of(self.log, self.segment.path_of(TXN_INDEX_SUFFIX))


def _up_to(log: LogReads, segment: Segment) -> list[Segment]:
    """A segment and those before it."""
    return log.segments[: log.segments.index(segment) + 1]


def rebuild_aborts_of(log: LogReads, segment: Segment, error: CorruptSegment) -> bool:
    """Have the transaction index of a segment made again, as `rebuild` has the others; False where that was begun a short time ago.
    Raises OSError, CorruptSegment, ReplicaNotAvailable while an offset index is made again that is to lead it behind damage."""
    now_ms = log.dir.monotonic_ms()
    if segment.aborts_rebuilt_ms is not None and now_ms - segment.aborts_rebuilt_ms < _INTERVAL_MS:
        return False
    for each in _up_to(log, segment):
        if each.doubt is not None:
            rebuild(log, each, each.doubt)
        if each.rebuilding is not None:
            raise each.rebuilding.refusal()
    work = AbortsRebuild(log, segment)
    segment.begin_aborts_anew(work)
    logger.warning(
        "%s is damaged, it is made again from the segment: at byte %d, %s", error.path, error.position, error.reason
    )
    segment.aborts_rebuilt_ms = now_ms
    _begin(work)
    return True


def _begin(work: Rebuild) -> None:
    """Do it in a thread, or where there is none at once. Raises OSError."""
    begin = work.log.dir.index_rebuild
    try:
        if begin is not None and begin(work):
            return
    except MemoryError as error:
        work.give_up()
        work.segment.rebuilt_ms = None  # it was not begun
        raise no_memory(error) from error
    try:
        work.make()
        work.install()
    finally:
        work.give_up()


def refusal_of(log: LogReads, path: str) -> KafkaError:
    return error_for_code(
        ErrorCode.REPLICA_NOT_AVAILABLE,
        "an index of the segment was damaged and is being made again",
        topic=log.topic,
        partition=log.partition,
        file=path,
        hint="Try it again",
    )


Rebuild = IndexRebuild | AbortsRebuild


class IndexRebuilds:
    """One thread, begun with the first of them. Event-loop thread only."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._threads: Callable[[int, str], Executor]
        self._thread: Executor | None = None
        self._under_way: dict[Rebuild, Future[None]] = {}

    def attach(self, dirs: Sequence[LogDir], loop: Any, threads: Callable[[int, str], Executor]) -> None:
        """Have them made so for the logs of these directories from now on; see LateRecovery.attach."""
        self._loop = loop
        self._threads = threads
        for log_dir in dirs:
            log_dir.index_rebuild = self.begin

    def begin(self, work: Rebuild) -> bool:
        """Whether a thread does it."""
        if self._thread is None:
            self._thread = self._threads(1, "fastq-rebuild-indexes")
        try:
            future = self._thread.submit(work.make)
        except RuntimeError:  # no thread can be started
            self._thread = None
            return False
        self._under_way[work] = future
        future.add_done_callback(partial(self._done, work))
        return True

    def close(self) -> None:
        """The broker stops. Idempotent."""
        for work, future in self._under_way.items():
            work.stopped = True
            future.cancel()
        self._under_way.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _done(self, work: Rebuild, future: Future[None]) -> None:
        """Runs in the thread, or where the future was cancelled, of which nobody has to hear."""
        if not future.cancelled():
            tell_loop(self._loop, self._heard, work, future)

    def _heard(self, work: Rebuild, future: Future[None]) -> None:
        if self._under_way.pop(work, None) is None:
            return
        log, segment, wanted = work.log, work.segment, work.wanted
        try:
            future.result()
            work.install()
        except (RecoveryStopped, CancelledError):
            pass
        except OSError as error:
            if wanted:  # else its files were deleted, moved or replaced, and nothing is wrong with the disk
                log.dir.refuse("making an index again", error.filename or segment.log.path, error)
        except Exception as error:
            failures.report(f"making the index of {segment.log.path} again", error)
        finally:
            work.give_up()
