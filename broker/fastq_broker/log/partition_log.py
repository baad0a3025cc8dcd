"""One partition's log: appends, reads, rolls, truncation, and what becomes visible when.

Rules
- A log is loaded when it is first touched: until then it is a name and its checkpoints, so that thousands of them start at once.
- Every append is judged, stamped in place and written with one system call; nothing is acknowledged that is not written.
- The first failed write or sync takes the whole log directory offline (see log_dir).
Source: UnifiedLog, LocalLog.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastq._native.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    ControlRecord,
    build_transaction_marker,
    decode_control_record,
    decode_records,
    iter_headers,
    stamp,
    verify_crc,
)
from fastq._native.wire import DecodeError
from fastq.compression import Codec
from fastq.errors import ErrorCode, KafkaError, error_for_code

from .admission import Admission
from .config import UNLIMITED, LogConfig, copied
from .durability import Durability
from .files import is_shortage
from .leader_epochs import LeaderEpochs
from .log_dir import LogDir
from .log_reads import LogReads
from .log_segments import LogSegments
from .producer_state import BatchMetadata, ProducerState
from .recovery import UnrecoverableLog, load_log, make_log
from .scan import CorruptSegment
from .segment import (
    INT32_MAX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from .stored_batches import RecoveryReport
from .truncation import truncate_fully, truncate_log

logger = logging.getLogger(__name__)

_RECENT_APPENDS: Final = 64
CODEC_MAX: Final = max(Codec)


class AppendResult(NamedTuple):
    """Where a batch went. For a duplicate, where it had gone the first time."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with create time."""
    log_start_offset: int
    duplicate: bool


class PartitionLog(LogReads, LogSegments):
    """The log of one partition. Event-loop thread only; slices and timestamp queries that it hands out run anywhere.

    Invariants once loaded: `segments` is never empty, in offset order, the last one active; `log_end_offset` is one above the last
    record; `recovery_point` <= `log_end_offset`, and everything below it is known to be on disk, indexes included.
    `on_disk_offset` is the same for the records alone.

    Attributes that only a loaded log has load it when they are first read (see _NotLoaded). Raises KafkaStorageError then when the
    directory cannot be read.
    """

    __slots__ = (
        "_admission",
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
        "leader_epoch",
        "loaded",
        "partition",
        "path",
        "pending_leader_epoch",
        "producer_expiration_ms",
        "producers",
        "random",
        "recovery",
        "recovery_point",
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
        """What the last process wrote down; -1 for a new log, and once it does not count any more: see `share`."""
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
        self._loading = False
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

    # -- loading and configuration

    def load(self) -> None:
        """Read the directory, unless that has been done. After an unclean stop this recovers the log.

        Raises KafkaStorageError: the directory is offline then, or this log alone has a `failure`.
        """
        if self.loaded:
            return
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        self._loading = True
        self.__class__ = PartitionLog
        try:
            if self.unmade:
                self.make()
            load_log(self)
            self.loaded = True
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
            if not self.loaded:
                self.__class__ = _NotLoaded
        if self.pending_leader_epoch >= 0:
            self.assign_leader_epoch(self.pending_leader_epoch)

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

    # -- appends

    def append(
        self,
        batches: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        from_client: bool = True,
        transaction_version: int = -1,
    ) -> AppendResult:
        """Append the one batch that `batches` holds (writable: offsets, epoch and times are stamped into it).

        `from_client` False is for the broker's own batches: control records are allowed, sequences and sizes are not judged.
        `transaction_version`: the coordinator has this partition in the producer's open transaction, under this version of the
        protocol; -1: nobody has asked it, so a transactional batch is refused.
        Raises CorruptMessage, InvalidRecord (with `record_errors`), InvalidTimestamp, MessageTooLarge, RecordListTooLarge,
        UnsupportedCompressionType, OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTxnState, KafkaStorageError.
        """
        if not self.loaded:
            self.load()
        if self.dir.refusal is not None:
            if from_client and self.dir.offline is None:
                before = self._written_before(batches, now_ms, transaction_version)
                if before is not None:
                    return before
            self.dir.check_append(from_client)
        admission = self._admission
        header = admission.validate(batches, now_ms, from_client, transaction_version)
        producer_id = header.producer_id
        if producer_id >= 0 and from_client:
            earlier = self.producers.check(header, transaction_version)
            if earlier is not None:
                return self._duplicate(earlier)
        batch, max_timestamp = admission.prepare(batches, header, now_ms, from_client)
        size = len(batch)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        active = self._active
        try:
            if (
                active.log.size + size > self._segment_bytes
                or active.indexes_full
                or last_offset - active.base_offset > INT32_MAX
                or active.time_to_roll(now_ms, max_timestamp)
            ):
                if from_client:
                    admission.check_segment_size(size)
                active = self.roll(now_ms)
        except OSError as error:
            raise self._not_read(active, error) from error
        if leader_epoch > self.leader_epoch:
            self.assign_leader_epoch(leader_epoch)
        stamp(batch, 0, base_offset, leader_epoch)
        position = active.log.size
        try:
            active.append(batch, size, last_offset, max_timestamp)
        except OSError as error:
            raise self._append_failed(active, position, error) from error
        self._recent.append((base_offset, position))
        if producer_id >= 0:
            self._note_producer(header, base_offset, last_offset, max_timestamp, now_ms, batch)
        self._advance_end(last_offset + 1)
        return AppendResult(
            base_offset, last_offset, now_ms if admission.log_append_time else -1, self.log_start_offset, False
        )

    def _written_before(
        self, batches: bytearray | memoryview, now_ms: int, transaction_version: int
    ) -> AppendResult | None:
        """What a client is told that sends a batch once more while records of clients are refused; None for all others, those of a wrong
        sequence too: what should come before it may have been refused. Raises what `append` does of batches that are none."""
        header = self._admission.validate(batches, now_ms, True, transaction_version)
        if header.producer_id < 0:
            return None
        with contextlib.suppress(KafkaError):
            earlier = self.producers.check(header, transaction_version)
            return None if earlier is None else self._duplicate(earlier)
        return None

    def _duplicate(self, earlier: BatchMetadata) -> AppendResult:
        append_time = earlier.timestamp if self._admission.log_append_time else -1
        return AppendResult(earlier.base_offset, earlier.last_offset, append_time, self.log_start_offset, True)

    def append_transaction_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> AppendResult:
        """End a producer's transaction with a control batch. Raises InvalidProducerEpoch, TransactionCoordinatorFenced, ..."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        marker = build_transaction_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(marker, leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)

    def _not_read(self, segment: Segment, error: OSError) -> KafkaError:
        """The error of an append that could not read when its segment begins."""
        return self.dir.refuse("reading a segment's first batch", error.filename or segment.log.path, error)

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int) -> int:
        """Append batches that carry their offsets and epochs already, byte for byte; answers the new log end offset.

        All are checked before the first is written, and those that go to one segment are one write. Raises CorruptMessage for a bad
        size, magic or checksum, InvalidRecord for offsets that do not follow the log's end or each other, KafkaStorageError.
        """
        if not self.loaded:
            self.load()
        if self.dir.offline is not None:
            raise self.dir.offline.with_traceback(None)
        view = memoryview(batches)
        headers = self._judge_replicated(view)
        position = done = 0
        while done < len(headers):
            active = self._active_for_replicated(headers[done], now_ms)
            room = self._segment_bytes - active.log.size
            size, count = headers[done].size_bytes, 1
            for header in headers[done + 1 : done + active.index_room]:
                if size + header.size_bytes > room or header.last_offset - active.base_offset > INT32_MAX:
                    break
                size += header.size_bytes
                count += 1
            self._append_replicated(active, view[position : position + size], headers[done : done + count], now_ms)
            position += size
            done += count
        return self.log_end_offset

    def _judge_replicated(self, view: memoryview) -> list[BatchHeader]:
        """The headers of batches that a follower may append. As with Kafka, the leader has judged the records."""
        headers, expected = [], self.log_end_offset
        try:
            for position, header in iter_headers(view, strict=True):
                if header.base_offset < expected:
                    self._admission.invalid_record(
                        f"a batch at offset {header.base_offset} does not follow the log's end {expected}"
                    )
                if header.last_offset_delta < 0 or header.codec > CODEC_MAX:
                    self._admission.corrupt(f"the header of the batch at offset {header.base_offset} makes no sense")
                if not verify_crc(view, position):
                    self._admission.corrupt(f"the CRC of the batch at offset {header.base_offset} is wrong")
                if header.is_control and header.producer_id >= 0:
                    _marker_of(view[position : position + header.size_bytes])
                headers.append(header)
                expected = header.next_offset
        except DecodeError as error:
            self._admission.corrupt(str(error))
        return headers

    def _active_for_replicated(self, header: BatchHeader, now_ms: int) -> Segment:
        """The segment that a leader's batch goes to: a new one where that is due."""
        active = self._active
        try:
            if (
                active.log.size + header.size_bytes > self._segment_bytes
                or active.indexes_full
                or header.last_offset - active.base_offset > INT32_MAX
                or active.time_to_roll(now_ms, header.max_timestamp)
            ):
                active = self.roll(now_ms, header.base_offset)
        except OSError as error:
            raise self._not_read(active, error) from error
        return active

    def _append_replicated(self, active: Segment, data: memoryview, headers: list[BatchHeader], now_ms: int) -> None:
        """Append batches to the active segment, which has room for them."""
        for header in headers:
            if header.partition_leader_epoch > self.leader_epoch:
                try:
                    self.epochs.assign(header.partition_leader_epoch, header.base_offset)
                except OSError as error:
                    raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
                self.leader_epoch = header.partition_leader_epoch
        start = active.log.size
        try:
            active.append_run(data, headers)
        except OSError as error:
            raise self._append_failed(active, start, error) from error
        active.begin_write_back(self.dir.flusher)
        at = 0
        for header in headers:
            base_offset, size = header.base_offset, header.size_bytes
            self._recent.append((base_offset, start + at))
            if header.producer_id >= 0:
                batch = data[at : at + size]
                self._note_producer(header, base_offset, header.last_offset, header.max_timestamp, now_ms, batch)
            at += size
        self._advance_end(headers[-1].next_offset)

    def _note_producer(
        self,
        header: BatchHeader,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
        batch: bytearray | memoryview,
    ) -> None:
        """Take an appended batch of a producer into the producer state, and an abort into the transaction index."""
        if not header.is_control:
            self.producers.update(header, base_offset, last_offset, max_timestamp, now_ms)
            return
        marker = _marker_of(batch)
        if marker is None or marker.type not in (CONTROL_ABORT, CONTROL_COMMIT):
            return
        completed = self.producers.complete(
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
            aborted=marker.type == CONTROL_ABORT,
            offset=base_offset,
            now_ms=now_ms,
        )
        if completed is not None and completed.aborted:
            try:
                self._active.note_abort(completed)
            except OSError as error:
                path = self._active.path_of(TXN_INDEX_SUFFIX)
                raise self.dir.fail("writing the transaction index", path, error) from error

    def _append_failed(self, segment: Segment, position: int, error: OSError) -> KafkaError:
        """Cut a batch that is not wholly written off again, and take the directory offline, unless it was for a shortage."""
        segment.log.size = position
        failure = self.dir.refuse("writing a batch", error.filename or segment.log.path, error)
        try:
            segment.log.truncate(position)
        except OSError as second:
            if is_shortage(second) and self.dir.offline is None:
                return failure  # the next batch is written over it
            self.dir.fail("cutting a partial batch off", segment.log.path, second)
            logger.error(
                "%s: cutting a partial batch off at byte %d failed too: %s; recovery will do it",
                segment.log.path,
                position,
                second,
            )
        return failure

    # -- leader epochs

    def assign_leader_epoch(self, epoch: int) -> None:
        """The leader has this epoch from the log's end on. A log that is not loaded remembers it for later."""
        if not self.loaded and not self._loading:
            self.pending_leader_epoch = max(epoch, self.pending_leader_epoch)
            return
        if epoch <= self.leader_epoch:
            return
        try:
            self.epochs.assign(epoch, self.log_end_offset)
        except OSError as error:
            raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
        self.leader_epoch = epoch

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, offset): the largest epoch at or below the given one, and where it ends; (-1, -1) when not known."""
        return self.epochs.end_offset(leader_epoch, self.log_end_offset)

    # -- durability

    def flush(self) -> None:
        """Start to sync everything that has been appended, with its indexes; the recovery point moves when that is done."""
        self.durability.request(full=True)

    def sync_now(self) -> None:
        """Sync the records up to the end in this thread, without the jobs that the flusher has for others. KafkaStorageError when the disk
        fails."""
        end = self.log_end_offset
        try:
            for segment in self.segments_from(self.on_disk_offset):
                self.files.sync_data(segment.log.handle().fd)
            self.files.sync_directory(self.path)
        except OSError as error:
            raise self.dir.fail("syncing", error.filename or self.path, error) from error
        self.durability.synced(end)

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

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at and above `offset`; False when there are none. Raises KafkaStorageError.

        Leader epochs that begin there go in any case: one that has no record is told to nobody any more.
        """
        if offset >= self.log_end_offset:
            try:
                self.epochs.truncate_from_end(offset)
            except OSError as error:
                raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
            self.leader_epoch = self.epochs.latest
            self._cut_future(offset)
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            truncate_log(self, offset)
        except OSError as error:
            raise self.dir.fail("truncating", error.filename or self.path, error) from error
        self._cut_future(offset)
        self._announce()
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the log is empty and begins at `offset`. Raises KafkaStorageError."""
        try:
            truncate_fully(self, offset)
        except OSError as error:
            raise self.dir.fail("truncating", error.filename or self.path, error) from error
        self._cut_future(0)
        self._announce()

    def _cut_future(self, offset: int) -> None:
        """The copy on its way has what this log has. Where its disk fails it is given up, which concerns nobody else."""
        if self.future is not None:
            with contextlib.suppress(KafkaError):
                self.future.truncate_to(offset)

    # -- another directory

    def begin_segment_at(self, offset: int, now_ms: int) -> None:
        """The log ends at `offset`, above its last record: compaction has taken what was between. Raises KafkaStorageError."""
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
        for name in (
            "_active",
            "_bases",
            "_recent",
            "dir",
            "durability",
            "epochs",
            "path",
            "recovery_point",
            "segments",
        ):
            mine = getattr(self, name)
            setattr(self, name, getattr(other, name))
            setattr(other, name, mine)
        other.durability.give_place(self.durability)

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
        """Let go of all files, as the log is deleted; whoever waits for it gets an error."""
        if self.loaded:
            for segment in self.segments:
                segment.release()
        self.durability.abandon(
            error_for_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "the partition was deleted",
                topic=self.topic,
                partition=self.partition,
            )
        )


def _marker_of(batch: bytearray | memoryview) -> ControlRecord | None:
    """What a control batch says; None where compaction has taken its record, as its transaction is gone. Raises DecodeError."""
    records = decode_records(batch)
    return decode_control_record(records[0].key, records[0].value) if records else None


class _NotLoaded(PartitionLog):
    """A log that has not been touched yet. A class of its own, because `__getattr__` makes every attribute of a class slower."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            self.load()
            return object.__getattribute__(self, name)
