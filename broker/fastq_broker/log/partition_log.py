"""One partition's log: what it is made of, and how it is loaded, cut off, moved and closed.

Rules
- A log is loaded when it is first touched: until then it is a name and its checkpoints, so that thousands of them start at once. One
  that has much to read for it is left to a thread (see late_recovery), and refused meanwhile.
- The first failed write or sync takes the whole log directory offline (see log_dir).
- What a shortage leaves half done, a cut or a compacted segment's swap, is finished by a load, with a recovery, when the log is touched
  next, or at the next tick: nobody reads or appends before (see half_done).
- One that is deleted is not loaded any more, whoever has it still: its path may be that of another log by then.
Source: UnifiedLog, LocalLog.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .admission import Admission
from .config import UNLIMITED, LogConfig, copied
from .durability import Durability
from .files import READ, FileHandle, is_shortage, passes
from .half_done import HalfDone, forget, let_go, no_memory, unload
from .leader_epochs import LeaderEpochs
from .loading import load_log, make_log
from .log_appends import LogAppends
from .log_dir import LogDir
from .log_reads import LogReads
from .producer_state import ProducerState
from .recovery import UnrecoverableLog, first_segment
from .scan import CorruptSegment
from .segment import Segment
from .stored_batches import MuchToRead, RecoveryReport
from .truncation import Cut, find_cut, producer_snapshots, truncate_fully, truncate_log

logger = logging.getLogger(__name__)

_RECENT_APPENDS: Final = 64
LOOP_BYTES_MAX: Final = 1 << 20
"""What the loop reads of a log that is not whole: 35 ms of it where batches are small."""


class PartitionLog(LogReads, LogAppends):
    """The log of one partition. Event-loop thread only; slices and timestamp queries that it hands out run anywhere.

    Invariants once loaded: `segments` is never empty, in offset order, the last one active; `log_end_offset` is one above the last
    record; `recovery_point` <= `log_end_offset`, and everything below it is known to be on disk, indexes included.
    `on_disk_offset` is the same for the records alone.

    Attributes that only a loaded log has load it when they are first read (see _NotLoaded). Raises KafkaStorageError then when the
    directory cannot be read, ReplicaNotAvailable while a thread recovers it, UnknownTopicOrPartition once it was deleted.
    """

    __slots__ = (
        "_flush_messages",
        "_flushed_at_ms",
        "_loading",
        "_making",
        "_synchronous",
        "checkpointed_start_offset",
        "clean",
        "cleaned_offset",
        "clock",
        "dir",
        "durability",
        "failure",
        "files",
        "future",
        "half_done",
        "known_producers",
        "loaded",
        "lost_start",
        "partition",
        "path",
        "producer_expiration_ms",
        "producers",
        "random",
        "recovering",
        "recovery",
        "recovery_point",
        "takes_long",
        "topic",
        "topic_id",
        "truncations",
        "unmade",
    )

    _active: Segment
    _bases: list[int]
    _recent: deque[tuple[int, int]]
    epochs: LeaderEpochs
    leader_epoch: int
    log_start_offset: int
    producers: ProducerState
    recovery: RecoveryReport
    segments: list[Segment]

    def __init__(
        self,
        log_dir: LogDir,
        path: str,
        topic: str,
        partition: int,
        *,
        config: LogConfig,
        clock: Callable[[], int],
        topic_id: bytes | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = -1,
        cleaned_offset: int = 0,
        clean: bool = True,
        producer_expiration_ms: int = 86_400_000,
        randomness: random.Random | None = None,
    ) -> None:
        self.dir = log_dir
        self.files = log_dir.files
        self.clock = clock
        """The time in ms since the epoch."""
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.recovery_point = recovery_point
        self.checkpointed_start_offset = log_start_offset
        self.checkpointed_watermark = high_watermark
        """What the last process wrote down; below 0 for a new log, and once it does not count any more: see `share`."""
        self.shared = False
        """Whether other nodes have the log too, so that the high watermark is what this one is told."""
        self.cleaned_offset = cleaned_offset
        """Below it, compaction has left one record a key; 0 where it has never been."""
        self.truncations = 0
        """How often records were cut off at the end: what was learnt about the segments before is void."""
        self.unmade = False
        """Whether the directory of a new log is still to be made: by the manager's thread, or when the log is first touched."""
        self._making = threading.Lock()
        self.clean = clean
        """Whether the broker had been stopped cleanly: files are whole and need no recovery."""
        self.producer_expiration_ms = producer_expiration_ms
        self.random = randomness or random.Random()
        self.loaded = False
        self.future: PartitionLog | None = None
        """The copy that is to take this log's place, in another directory: see dir_moves."""
        self.failure: KafkaError | None = None
        """Why the log cannot be loaded, although its directory is fine; it stays so until the broker is started again."""
        self.recovering: KafkaError | None = None
        """What to answer while a thread recovers the log: it is refused, and may be asked for again."""
        self.takes_long = False
        """Whether it is loaded at once however much there is to read: a thread has done what it could."""
        self.known_producers: ProducerState | None = None  # that thread's; there may be no snapshot that tells as much
        self.lost_start: tuple[int, int] | None = None
        """Where the log should have begun, and where it does, as the files of the records between were gone when it was loaded."""
        self._loading = False
        self.half_done: HalfDone | None = None
        """What a shortage has left half done of the log, which is not loaded until that is done."""
        self.__class__ = _NotLoaded
        self.pending_leader_epoch = -1
        self._flushed_at_ms = log_dir.monotonic_ms()
        self._listeners: tuple[Callable[[PartitionLog], None], ...] = ()
        self.durability = Durability(self)
        self.apply_config(config)

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic}-{self.partition}, {self.path!r}, {'loaded' if self.loaded else 'not loaded'})"
        )

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def unchecked(self) -> bool:
        """Whether its files may not be whole: a recovery of it has failed, goes on, or was never begun."""
        return not self.loaded and (not self.clean or (self.failure or self.recovering) is not None)

    # -- loading and configuration

    def load(self) -> None:
        """Read the directory, unless that has been done. After an unclean stop this recovers the log.

        Raises KafkaStorageError: the directory is offline then, or this log alone has a `failure`. Raises ReplicaNotAvailable where a
        thread reads it: try it again later. Raises UnknownTopicOrPartition of one that was deleted: its path may be another's by now.
        """
        if self.loaded:
            return
        refusal = self.durability.deleted or self.failure or self.recovering
        if refusal is not None:
            raise refusal.with_traceback(None)
        half_done = self.half_done
        if half_done is not None:
            half_done.load()
            self._announce()
            return
        self.load_files()
        if self.pending_leader_epoch >= 0:
            self.assign_leader_epoch(self.pending_leader_epoch)

    def load_files(self) -> None:
        """The same of a log that is to be loaded, whatever is to be done of it. Raises as `load` does."""
        at_once = self.takes_long or self.dir.on_recovery_read is not None  # which the broker's start waits for
        late = None if at_once else self.dir.late_recovery
        watermark = self.checkpointed_watermark
        self._loading = True
        self.__class__ = PartitionLog
        try:
            if self.unmade:
                self.make()
            load_log(self, None if late is None else LOOP_BYTES_MAX)
            self.loaded = True
        except MuchToRead:
            assert late is not None
            raise late(self) from None
        except OSError as error:
            raise self.dir.refuse("loading a log", error.filename or self.path, error) from error
        except (UnrecoverableLog, CorruptSegment) as error:
            logger.error("%s", error)
            self.failure = error_for_code(
                ErrorCode.KAFKA_STORAGE_ERROR, str(error), topic=self.topic, partition=self.partition
            )
            raise self.failure from None
        finally:
            self._loading = False
            if not self.loaded:  # it may have failed behind what it has installed
                self.__class__ = _NotLoaded
                self.checkpointed_watermark = watermark
                forget(self)

    def make(self) -> None:
        """Make the directory of a new log and its first, empty files, unless that has been done. Any thread. Raises OSError."""
        with self._making:
            if self.unmade:
                make_log(self)
                self.unmade = False

    def forget_unmade(self) -> bool:
        """Whether there is no directory yet; then none will be made."""
        with self._making:
            unmade, self.unmade = self.unmade, False
            return unmade

    def install(
        self,
        segments: list[Segment],
        epochs: LeaderEpochs,
        producers: ProducerState,
        end: int,
        start: int,
        watermark: int | None = None,
    ) -> None:
        """Take over what loading or a truncation has found. Below `watermark` it is visible; None: all, or what was of a shared log."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._recent = deque(maxlen=_RECENT_APPENDS)
        self.epochs = epochs
        self.leader_epoch = epochs.latest
        self.producers = producers
        self.log_start_offset = start
        self._overstated = True
        self._leave_deleted()
        self.log_end_offset = end
        self.durability.unsettle(0)
        self.high_watermark = self._first_watermark(start, end) if watermark is None else watermark
        self.last_stable_offset = self._stable_offset()

    def apply_config(self, config: LogConfig) -> None:
        """Use other settings from now on.

        Records that the new settings call acknowledged become visible, and who waits for them is told, before this returns. The high
        watermark never goes back. In a directory that is offline nothing becomes visible.
        """
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._synchronous = config.synchronous
        self._shows_appends = not (config.synchronous or self.shared)
        self._flush_messages = config.flush_messages
        self._admission = Admission(self.topic, self.partition, config)
        if self.loaded:
            self._active.apply_limits(
                roll_ms=config.roll_ms,
                index_bytes_max=config.segment_index_bytes,
                index_interval_bytes=config.index_interval_bytes,
            )
            self._promise_changed()
            self.durability.settings_changed()
        if self.future is not None:
            self.future.apply_config(copied(config))

    def make_segment(self, base_offset: int, *, size: int, created_ms: int) -> Segment:
        """A segment object with this log's settings; no file is touched."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.roll_ms)
        return Segment(
            self.files,
            self.dir.budget,
            self.path,
            base_offset,
            size=size,
            index_interval_bytes=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            created_ms=created_ms,
            roll_ms=config.roll_ms,
            roll_jitter_ms=self.random.randrange(jitter) if jitter > 0 else 0,
        )

    # -- durability

    def flush(self) -> None:
        """Start to sync everything that has been appended, with its indexes; the recovery point moves when that is done."""
        self.durability.request(full=True)

    def sync_now(self) -> None:
        """Sync the records up to the end in this thread, without the jobs that the flusher has for others. KafkaStorageError when the disk
        fails."""
        end = self.log_end_offset
        for segment in self.segments_from(self.durability.unsynced_from):
            self._sync_with(self.files.sync_data, segment.log.handle)
        self._sync_with(self.files.sync_names, partial(FileHandle, self.files, self.path, READ))
        self.durability.synced(end)

    def _sync_with(self, sync: Callable[[int], None], opened: Callable[[], FileHandle]) -> None:
        """Sync one file, which is closed again where others need its descriptor. Raises KafkaStorageError."""
        try:  # who lacks a descriptor has not failed to sync
            handle = opened()
        except OSError as error:
            raise self.dir.refuse("opening what is to be synced", error.filename or self.path, error) from error
        try:
            sync(handle.fd)
        except OSError as error:
            raise self.dir.fail("syncing", error.filename or self.path, error) from error

    def flushed_now(self, offset: int) -> bool:
        """Have the records below `offset` synced, and wait for it in this thread; whether they are on disk."""
        self.durability.wait(offset, lambda error: None)
        self.dir.flusher.wait()
        return self.on_disk_offset >= offset

    def flush_if_due(self) -> None:
        """Start a flush when flush.ms has passed since the last one (at first: since the start) and there is something to flush."""
        if self.config.flush_ms == UNLIMITED or self.durability.flushing or self.recovery_point >= self.log_end_offset:
            return
        now_ms = self.dir.monotonic_ms()
        if now_ms - self._flushed_at_ms >= self.config.flush_ms:
            self._flushed_at_ms = now_ms
            self.flush()

    # -- truncation and closing

    def give_back_room(self) -> int:
        """Have no room on the disk ahead of the log's end; how much it was. What cannot be given back now is when the segment is closed."""
        if not self.loaded or not self._active.log.is_ahead:
            return 0
        ahead = self._active.log.reserved - self._active.log.size
        with contextlib.suppress(OSError):
            self._active.log.give_back()
        return ahead

    @property
    def gap_offset(self) -> int | None:
        """Where records are missing in the middle of the log first, which a crash has left so; None: nowhere. It is known until they are
        there again, or the log begins behind them."""
        return next((first for first, following in self.recovery.gaps if following > self.log_start_offset), None)

    @property
    def missing_offsets(self) -> int:
        """How many offsets have lost their records, from the log's start on; what is gone before it counts as long as it begins there."""
        start = self.log_start_offset
        count = sum(max(0, following - max(first, start)) for first, following in self.recovery.gaps)
        if self.lost_start is not None and self.lost_start[1] >= start:
            count += self.lost_start[1] - self.lost_start[0]
        return count

    @property
    def checkpointed_recovery_point(self) -> int:
        """What the recovery-point-offset-checkpoint has to say: below a gap, so that the next process looks for it there, after a clean
        stop too."""
        gap = self.gap_offset if self.loaded and self.recovery.gaps else None
        return self.recovery_point if gap is None else min(self.recovery_point, gap)

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at and above `offset`; False when there are none. Raises KafkaStorageError: nothing was changed where the
        directory is online after it, or the log is cut when it is touched next; it may be tried again.

        Leader epochs that begin there go in any case: one that has no record is told to nobody any more.
        """
        if offset >= self.log_end_offset:
            self._cut_future(offset)
            try:
                self.epochs.truncate_from_end(offset)
            except OSError as error:
                raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
            finally:
                self.leader_epoch = self.epochs.latest
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        self._cut_future(offset)
        try:
            cut = find_cut(self, offset)
        except OSError as error:
            raise self.dir.refuse("truncating", error.filename or self.path, error) from error
        try:
            truncate_log(self, cut)
        except BaseException as error:
            raise self._half_cut("truncating", error, PartitionLog.truncate_to, offset, cut.kept) from no_memory(error)
        self.recovery.gaps = [gap for gap in self.recovery.gaps if gap[0] < offset]
        if self.half_done is None:  # else nobody hears of the log before all is done
            self._announce()
        return True

    def insist_on(self, cut: Callable[[], object], offset: int) -> None:
        """Do a cut at `offset` (`truncate_to`, or the other), of what must not stay: where a shortage lets it not even begin, it is done
        before anybody reads or appends. Raises KafkaStorageError, after a shortage too."""
        if self.half_done is not None:  # nobody is to hear of the log between what it is loaded for and this
            self.half_done.add(cut)
            self.load()
            return
        try:
            cut()
        except BaseException as error:
            if self.dir.offline is None and (not isinstance(error, KafkaError) or passes(error)):
                try:
                    if self.loaded:
                        self.unload(self.segments_from(offset)[0].base_offset, cut)
                    elif self.half_done is not None:
                        self.half_done.add(cut)
                except BaseException:
                    self.dir.fail_inside()
                    raise
            offline = self.dir.offline
            if offline is not None and isinstance(error, MemoryError):
                raise offline.with_traceback(None) from offline.__cause__  # not from this one, which passes
            raise self._refusal("truncating", error) from no_memory(error)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the log is empty and begins at `offset`. Raises KafkaStorageError, as `truncate_to` does."""
        self._cut_future(0)
        segments = self.segments
        try:
            snapshots, fresh = producer_snapshots(self), first_segment(self, segments, offset)
        except OSError as error:
            raise self.dir.refuse("truncating", error.filename or self.path, error) from error
        try:
            truncate_fully(self, offset, snapshots, fresh)
        except BaseException as error:
            again = PartitionLog.truncate_fully_and_start_at
            raise self._half_cut("truncating", error, again, offset, 1) from no_memory(error)
        self.recovery.gaps.clear()
        self.lost_start = None
        if self.half_done is None:
            self._announce()

    def _take_back(self, end_offset: int, position: int) -> None:
        """Cut off what an append that fails inside has written behind `end_offset`, where the log ended at this position of its active
        segment, unless it is in the log by now. Where that fails too the directory goes offline; after a shortage it is done by a load."""
        if self.log_end_offset > end_offset or self.dir.offline is not None:
            return
        try:
            truncate_log(self, Cut(end_offset, len(self.segments), position, producer_snapshots(self)))
        except BaseException as error:  # who asks for it raises what it was that failed first
            self._half_cut("taking a batch back", error, PartitionLog.truncate_to, end_offset, len(self.segments))

    def _half_cut(
        self,
        action: str,
        error: BaseException,
        again: Callable[[PartitionLog, int], object],
        offset: int,
        kept: int,
    ) -> KafkaError:
        """The error of a cut at `offset` that has failed amid it, where `kept` segments are to be left, and the last of these to be cut.
        After a shortage, or a mistake, `again` finishes it, when the log is touched next. Raises what is a mistake."""
        if not isinstance(error, OSError) or is_shortage(error):
            try:
                base = self.segments[kept - 1].base_offset
                self.recovery_point = min(self.recovery_point, base)
                self.high_watermark = min(self.high_watermark, offset)
                if self.half_done is None:  # else it is one of since the first cut
                    self.pending_leader_epoch = -1  # an epoch that has no record is told to nobody any more
                self.unload(base, partial(again, self, offset))
            except BaseException:  # nobody may go on with it as it is
                self.dir.fail_inside()
                raise
        return self._refusal(action, error)

    def half_swapped(self, error: BaseException, base: int) -> KafkaError:
        if not isinstance(error, OSError) or is_shortage(error):
            self.pending_leader_epoch = self.leader_epoch  # which has no record, perhaps, and is told to who asks
            self.unload(base)
        return self._refusal("replacing compacted segments", error)

    def _refusal(self, action: str, error: BaseException) -> KafkaError:
        if not isinstance(error, OSError | MemoryError):
            raise error
        problem = no_memory(error)
        return self.dir.refuse(action, problem.filename or self.path, problem)

    def unload(self, base: int, cut: Callable[[], object] | None = None) -> None:
        """Have the log loaded anew before anybody has it, and `cut` then: see half_done."""
        unload(self, base, cut)
        self.loaded = self.clean = self.takes_long = False
        self.__class__ = _NotLoaded
        forget(self)

    def _cut_future(self, offset: int) -> None:
        """The copy on its way has nothing that this log has not: it is cut first. Where its disk fails it is given up, which concerns
        nobody else. Raises KafkaStorageError at a shortage."""
        if self.future is not None:
            try:
                self.future.truncate_to(offset)
            except KafkaError:
                if self.future.dir.offline is None:
                    raise

    # -- another directory

    def begin_segment_at(self, offset: int, now_ms: int) -> None:
        """The log ends at `offset`, above its last record: compaction has taken what was between. Raises KafkaStorageError."""
        if self._overstated:
            self._restate()
        self.roll(now_ms, offset)
        self._advance_end(offset)

    def renamed(self, path: str) -> None:
        """The log's directory has another name."""
        self.path = path
        if self.loaded:
            for segment in self.segments:
                segment.moved(path)
            self.epochs.moved(path)
            self.durability.renamed()

    def exchange(self, other: PartitionLog) -> None:
        """Take over the files of a copy that has all this log has, which gets this one's. Who waits for the disk waits for the new one."""
        names = "_active", "_bases", "_recent", "dir", "durability", "epochs", "path", "recovery_point", "segments"
        for name in names:
            mine = getattr(self, name)
            setattr(self, name, getattr(other, name))
            setattr(other, name, mine)
        other.durability.give_place(self.durability)
        self._overstated = True  # there, perhaps

    def may_finish(self) -> bool:
        """Whether there is something to finish, as the broker stops. Who waits for a log that a shortage has left half done waits no more:
        the next start recovers it."""
        if self.half_done is not None:
            self.half_done.end()
        return self.loaded

    def finish(self) -> bool:
        """Leave the files as Kafka's clean stop does; a sync still has to follow. Whether that went well: failures take the directory
        offline."""
        self.durability.unsettle(0)
        try:
            for segment in self.segments:
                if segment is self._active or segment.log.is_open():
                    segment.finish()
            self.durability.take_snapshot()
            self.epochs.write_if_behind()
        except OSError as error:
            self.dir.refuse("closing a log", error.filename or self.path, error)
            return False
        return True

    def close(self) -> None:
        """Finish the files of a log that stands alone and start their sync; the caller waits for the flusher."""
        self.finish()
        if not self.durability.settled:
            self.flush()

    def abandon(self) -> None:
        """Let go of all files, as the log is deleted; whoever waits for it gets an error, and who touches it from now on."""
        if self.loaded:
            let_go(self)
        self.loaded = False
        self.__class__ = _NotLoaded
        code, words = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition was deleted"
        self.durability.abandon(error_for_code(code, words, topic=self.topic, partition=self.partition))


class _NotLoaded(PartitionLog):
    """A log that has not been touched yet. A class of its own, because `__getattr__` makes every attribute of a class slower."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            self.load()
            return object.__getattribute__(self, name)
