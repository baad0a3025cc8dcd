"""One partition's log: appends, reads, rolls, truncation, and what becomes visible when.

Rules
- A log is loaded when it is first touched: until then it is a name and its checkpoints, so that thousands of them start at once.
- Every append is judged, stamped in place and written with one system call; nothing is acknowledged that is not written.
- Offsets: log start <= last stable offset <= high watermark <= log end. As the only replica, a log moves its high watermark itself:
  at the append, or with durability "fsync" once the data is on disk.
- The first failed write or sync takes the whole log directory offline (see log_dir).
Source: UnifiedLog, LocalLog.
"""

from __future__ import annotations

import logging
import os
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from fastq._native.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    InvalidBatch,
    build_transaction_marker,
    decode_control_record,
    decode_records,
    read_header,
    recompress,
    stamp,
    stamp_log_append_time,
    stamp_max_timestamp,
    validate_batch,
)
from fastq.compression import Codec, codec_by_name, decompress
from fastq.errors import ErrorCode, KafkaError, error_for_code

from . import txn_index
from .config import UNLIMITED, LogConfig
from .files import READ, FileHandle
from .leader_epochs import LeaderEpochs
from .log_dir import LogDir
from .producer_state import ProducerState
from .recovery import RecoveryReport, load_log, truncate_fully, truncate_log
from .scan import NO_UPPER, CorruptSegment, LogSlice, SliceQuery, WouldBlock
from .segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    INT32_MAX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    offset_file_name,
)
from .timestamps import TimestampOffset, TimestampQuery

logger = logging.getLogger(__name__)

_RECENT_APPENDS: Final = 64
_CODEC_NONE_NAMES: Final = frozenset({"uncompressed", "none"})


class AppendResult(NamedTuple):
    """Where a batch went. For a duplicate, where it had gone the first time."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with create time."""
    log_start_offset: int
    duplicate: bool


class PartitionLog:
    """The log of one partition. Event-loop thread only; slices and timestamp queries that it hands out run anywhere.

    Invariants once loaded: `segments` is never empty, in offset order, the last one active; `log_end_offset` is one above the last
    record; `recovery_point` <= `log_end_offset`, and everything below it is known to be on disk, indexes included.
    `on_disk_offset` is the same for the records alone.

    Attributes that only a loaded log has load it when they are first read (`__getattr__`). Raises KafkaStorageError then when the
    directory cannot be read.
    """

    __slots__ = (
        "_active",
        "_after_max_ms",
        "_bases",
        "_before_max_ms",
        "_decompress",
        "_flush_again",
        "_flush_messages",
        "_flushing",
        "_listeners",
        "_loading",
        "_name_synced",
        "_recent",
        "_segment_bytes",
        "_snapshot_offset",
        "_synchronous",
        "_target_codec",
        "_timestamp_type",
        "_waiters",
        "checkpointed_start_offset",
        "clean",
        "clock",
        "config",
        "dir",
        "epochs",
        "files",
        "high_watermark",
        "last_flush_ms",
        "last_stable_offset",
        "leader_epoch",
        "loaded",
        "log_end_offset",
        "log_start_offset",
        "on_disk_offset",
        "partition",
        "path",
        "pending_leader_epoch",
        "producer_expiration_ms",
        "producers",
        "random",
        "recovery",
        "recovery_point",
        "segments",
        "topic",
        "topic_id",
    )

    _active: Segment
    _bases: list[int]
    _recent: deque[tuple[int, int]]
    epochs: LeaderEpochs
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    log_end_offset: int
    log_start_offset: int
    on_disk_offset: int
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
        self.clean = clean
        """Whether the broker had been stopped cleanly: files are whole and need no recovery."""
        self.producer_expiration_ms = producer_expiration_ms
        self.random = randomness or random.Random()
        self.loaded = False
        self._loading = False
        self.pending_leader_epoch = -1
        self.last_flush_ms = 0
        self._name_synced = False
        self._snapshot_offset = -1
        self._flushing = False
        self._flush_again: bool | None = None  # None: no; else whether the next flush is a full one
        self._listeners: tuple[Callable[[PartitionLog], None], ...] = ()
        self._waiters: deque[tuple[int, Callable[[KafkaError | None], None]]] = deque()
        self.apply_config(config)

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic}-{self.partition}, {self.path!r}, {'loaded' if self.loaded else 'not loaded'})"
        )

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if self.loaded or self._loading:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            self.load()
            return object.__getattribute__(self, name)

    # -- loading and configuration

    def load(self) -> None:
        """Read the directory, unless that has been done. After an unclean stop this recovers the log."""
        if self.loaded:
            return
        self._loading = True
        try:
            load_log(self)
        except OSError as error:
            raise self.dir.fail("loading a log", error.filename or self.path, error) from error
        finally:
            self._loading = False
        self.loaded = True
        if self.pending_leader_epoch >= 0:
            self.assign_leader_epoch(self.pending_leader_epoch)

    def install(
        self, segments: list[Segment], epochs: LeaderEpochs, producers: ProducerState, end: int, start: int
    ) -> None:
        """Take over what loading or a truncation has found."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._recent = deque(maxlen=_RECENT_APPENDS)
        self.epochs = epochs
        self.leader_epoch = epochs.latest
        self.producers = producers
        self.log_start_offset = start
        self.log_end_offset = end
        self.on_disk_offset = end
        self.high_watermark = end
        self.last_stable_offset = self._stable_offset()

    def apply_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._synchronous = config.synchronous
        self._flush_messages = config.flush_messages
        self._timestamp_type = 1 if config.message_timestamp_type == "LogAppendTime" else 0
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._decompress = decompress if config.compacted else None
        name = config.compression_type
        if name == "producer":
            self._target_codec = -1
        else:
            self._target_codec = int(Codec.NONE) if name in _CODEC_NONE_NAMES else int(codec_by_name(name))
        if self.loaded:
            self._active.roll_ms = config.segment_ms
            self._active.index_bytes_max = config.segment_index_bytes
            self._active.index_interval_bytes = config.index_interval_bytes

    def make_segment(self, base_offset: int, *, size: int, created_ms: int) -> Segment:
        """A segment object with this log's settings; no file is touched."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        return Segment(
            self.files,
            self.dir.budget,
            self.path,
            base_offset,
            size=size,
            index_interval_bytes=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            created_ms=created_ms,
            roll_ms=config.segment_ms,
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
    ) -> AppendResult:
        """Append the one batch that `batches` holds (writable: offsets, epoch and times are stamped into it).

        `from_client` False is for the broker's own batches: control records are allowed, sequences and sizes are not judged.
        Raises CorruptMessage, InvalidRecord (with `record_errors`), InvalidTimestamp, MessageTooLarge, RecordListTooLarge,
        UnsupportedCompressionType, OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTxnState, KafkaStorageError.
        """
        if not self.loaded:
            self.load()
        if self.dir.offline is not None:
            raise self.dir.offline
        size = len(batches)
        if size > self.config.max_message_bytes and from_client:
            self._too_large(size)
        timestamp_type = self._timestamp_type
        try:
            header = validate_batch(
                batches,
                0,
                size,
                from_client=from_client,
                compacted=self._decompress is not None,
                timestamp_type=timestamp_type,
                now_ms=now_ms,
                before_max_ms=self._before_max_ms,
                after_max_ms=self._after_max_ms,
                decompress=self._decompress,
            )
        except InvalidBatch as error:
            raise self._invalid(error) from None
        producer_id = header.producer_id
        if from_client:
            if header.base_offset:
                self._invalid_record(f"the base offset of a produced batch must be 0, got {header.base_offset}")
            if producer_id >= 0:
                earlier = self.producers.check(header)
                if earlier is not None:
                    append_time = earlier.timestamp if timestamp_type else -1
                    return AppendResult(
                        earlier.base_offset, earlier.last_offset, append_time, self.log_start_offset, True
                    )
            if self._target_codec >= 0 and header.codec != self._target_codec:
                batches = self._recompress(batches)
                size = len(batches)
        if timestamp_type:
            stamp_log_append_time(batches, 0, now_ms)
            max_timestamp = now_ms
        else:
            max_timestamp = header.max_timestamp
            if header.records_max_timestamp != max_timestamp and from_client:
                max_timestamp = self._settle_timestamp(batches, header, now_ms)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        active = self._active
        if (
            active.log.size + size > self._segment_bytes
            or active.indexes_full
            or last_offset - active.base_offset > INT32_MAX
            or active.time_to_roll(now_ms, max_timestamp)
        ):
            if size > self._segment_bytes and from_client:
                self._larger_than_segment(size)
            active = self.roll(now_ms)
        if leader_epoch > self.leader_epoch:
            self.assign_leader_epoch(leader_epoch)
        stamp(batches, 0, base_offset, leader_epoch)
        position = active.log.size
        try:
            active.append(batches, size, last_offset, max_timestamp)
        except OSError as error:
            raise self._append_failed(active, position, error) from error
        self._recent.append((base_offset, position))
        if producer_id >= 0:
            self._note_producer(header, base_offset, last_offset, max_timestamp, now_ms, batches)
        self._advance_end(last_offset + 1)
        return AppendResult(base_offset, last_offset, now_ms if timestamp_type else -1, self.log_start_offset, False)

    def append_transaction_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """End a producer's transaction with a control batch. Raises InvalidProducerEpoch, TransactionCoordinatorFenced, ..."""
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        marker = build_transaction_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(marker, leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int) -> int:
        """Append batches that carry their offsets and epochs already; answers the new log end offset.

        Raises CorruptMessage for a bad checksum or structure, InvalidRecord for offsets that do not follow the log's end.
        """
        view = memoryview(batches)
        position = 0
        while position < len(view):
            header = read_header(view, position)
            end = position + header.size_bytes
            batch = view[position:end]
            try:
                validate_batch(batch, 0, len(batch), from_client=False)
            except InvalidBatch as error:
                raise self._invalid(error) from None
            self._append_replicated(batch, header, now_ms)
            position = end
        return self.log_end_offset

    def _append_replicated(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        if self.dir.offline is not None:
            raise self.dir.offline
        base_offset, last_offset = header.base_offset, header.last_offset
        if base_offset < self.log_end_offset:
            self._invalid_record(f"a batch at offset {base_offset} does not follow the log's end {self.log_end_offset}")
        active = self._active
        size = len(batch)
        if (
            active.log.size + size > self._segment_bytes
            or active.indexes_full
            or last_offset - active.base_offset > INT32_MAX
            or active.time_to_roll(now_ms, header.max_timestamp)
        ):
            active = self.roll(now_ms, base_offset)
        if header.partition_leader_epoch > self.leader_epoch:
            self.epochs.assign(header.partition_leader_epoch, base_offset)
            self.leader_epoch = header.partition_leader_epoch
        position = active.log.size
        try:
            active.append(batch, size, last_offset, header.max_timestamp)
        except OSError as error:
            raise self._append_failed(active, position, error) from error
        self._recent.append((base_offset, position))
        if header.producer_id >= 0:
            self._note_producer(header, base_offset, last_offset, header.max_timestamp, now_ms, batch)
        self._advance_end(last_offset + 1)

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
        record = decode_records(batch)[0]
        marker = decode_control_record(record.key, record.value)
        if marker.type not in (CONTROL_ABORT, CONTROL_COMMIT):
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
            path = self._active.path_of(TXN_INDEX_SUFFIX)
            try:
                txn_index.append_entry(self.files, path, completed)
            except OSError as error:
                raise self.dir.fail("writing the transaction index", path, error) from error

    def _recompress(self, batches: bytearray | memoryview) -> bytearray:
        config = self.config
        level = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }.get(Codec(self._target_codec))
        try:
            return recompress(batches, 0, self._target_codec, level=level)
        except ValueError as error:
            raise error_for_code(
                ErrorCode.CORRUPT_MESSAGE,
                f"the records cannot be decompressed: {error}",
                topic=self.topic,
                partition=self.partition,
            ) from error

    def _settle_timestamp(self, batches: bytearray | memoryview, header: BatchHeader, now_ms: int) -> int:
        """The largest timestamp of a client's batch: corrected where the records were walked, checked where they were not."""
        if not header.codec or self._decompress is not None:
            stamp_max_timestamp(batches, 0, header.records_max_timestamp)
            return header.records_max_timestamp
        timestamp = header.max_timestamp
        if timestamp != -1 and not -self._before_max_ms <= timestamp - now_ms <= self._after_max_ms:
            raise error_for_code(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is not within {self._before_max_ms} ms before and {self._after_max_ms} ms after "
                f"the broker's time {now_ms} (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                topic=self.topic,
                partition=self.partition,
            )
        return timestamp

    def _append_failed(self, segment: Segment, position: int, error: OSError) -> KafkaError:
        """Cut a batch that is not wholly written off again, and take the directory offline."""
        segment.log.size = position
        failure = self.dir.fail("writing a batch", segment.log.path, error)
        try:
            segment.log.truncate(position)
        except OSError as second:
            logger.error(
                "%s: cutting a partial batch off at byte %d failed too: %s; recovery will do it",
                segment.log.path,
                position,
                second,
            )
        return failure

    def _too_large(self, size: int) -> NoReturn:
        raise error_for_code(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes is above the topic's max.message.bytes {self.config.max_message_bytes}: "
            "send smaller batches or raise the topic's limit",
            topic=self.topic,
            partition=self.partition,
        )

    def _larger_than_segment(self, size: int) -> NoReturn:
        raise error_for_code(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {size} bytes does not fit into a segment of {self._segment_bytes} bytes (segment.bytes)",
            topic=self.topic,
            partition=self.partition,
        )

    def _invalid(self, error: InvalidBatch) -> KafkaError:
        return error_for_code(
            error.error_code,
            str(error),
            topic=self.topic,
            partition=self.partition,
            record_errors=error.record_errors or None,
        )

    def _invalid_record(self, message: str) -> NoReturn:
        raise error_for_code(ErrorCode.INVALID_RECORD, message, topic=self.topic, partition=self.partition)

    # -- what is visible

    def _advance_end(self, end: int) -> None:
        """The log ends at `end` now: make it visible, or have it synced first."""
        self.log_end_offset = end
        if self._synchronous:
            if not self._flushing:
                self._start_flush(full=False)
        else:
            self.high_watermark = end
            self.last_stable_offset = end if not self.producers.has_transactions else self._stable_offset()
            if end - self.on_disk_offset >= self._flush_messages:
                self.flush()
        for callback in self._listeners:
            callback(self)

    def _stable_offset(self) -> int:
        first = self.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if first < 0 else min(first, self.high_watermark)

    def on_advance(self, callback: Callable[[PartitionLog], None]) -> None:
        """Have `callback(log)` called after each move of the log end or the high watermark, until `remove_listener`."""
        self._listeners = (*self._listeners, callback)

    def remove_listener(self, callback: Callable[[PartitionLog], None]) -> None:
        """Stop calling `callback`; nothing happens when it is not registered."""
        self._listeners = tuple(known for known in self._listeners if known != callback)

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

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        """Call back once the records below `offset` may be acknowledged: at once with page-cache durability, else once they are
        on disk, or with the error that took the directory offline."""
        if not self._synchronous or self.on_disk_offset >= offset:
            callback(None)
        elif self.dir.offline is not None:
            callback(self.dir.offline)
        else:
            if self._waiters and self._waiters[-1][0] > offset:
                offset = self._waiters[-1][0]
            self._waiters.append((offset, callback))
            if not self._flushing:
                self._start_flush(full=False)

    def flush(self) -> None:
        """Start to sync everything that has been appended, with its indexes; the recovery point moves when that is done."""
        if self._flushing:
            self._flush_again = True
        else:
            self._start_flush(full=True)

    def _start_flush(self, *, full: bool) -> None:
        """Submit one job that covers all appends up to now: log files, and for a full one all that recovery would rebuild."""
        if self.dir.offline is not None:
            self._fail_waiters(self.dir.offline)
            return
        target = self.log_end_offset
        try:
            handles = self._files_to_sync(full=full)
        except OSError as error:
            self._fail_waiters(self.dir.fail("preparing a flush", error.filename or self.path, error))
            return
        self._flushing = True
        self.dir.flusher.submit(handles, lambda error: self._flush_ended(target, full, error))

    def _files_to_sync(self, *, full: bool) -> list[FileHandle]:
        since = min(self.recovery_point, self.on_disk_offset) if full else self.on_disk_offset
        first = max(bisect_right(self._bases, since) - 1, 0)
        handles: list[FileHandle] = []
        new_names = not self._name_synced
        for segment in self.segments[first:]:
            handles.append(segment.log.handle())
            if not segment.name_synced:
                new_names = segment.name_synced = True
        if full:
            for segment in self.segments:  # a roll may have changed the indexes of a segment that was flushed before it
                for index in (segment.index, segment.time_index):
                    index.write_pending()
                    if index.unsynced:
                        index.unsynced = False
                        handles.append(FileHandle(self.files, index.path, READ))
        if full:
            handles.append(FileHandle(self.files, self.take_producer_snapshot(), READ))
            if self.epochs.unsynced:
                self.epochs.unsynced = False
                handles.append(FileHandle(self.files, self.epochs.path, READ))
                new_names = True
        if new_names:
            handles.append(FileHandle(self.files, self.path, READ))
        if not self._name_synced:
            self._name_synced = True
            handles.append(FileHandle(self.files, self.dir.path, READ))
        return handles

    def _flush_ended(self, target: int, full: bool, error: OSError | None) -> None:
        self._flushing = False
        if error is not None:
            self._fail_waiters(self.dir.fail("syncing", self.path, error))
            return
        target = min(target, self.log_end_offset)
        self.on_disk_offset = max(self.on_disk_offset, target)
        if full:
            self.recovery_point = max(self.recovery_point, target)
        if self._synchronous and target > self.high_watermark:
            self.high_watermark = target
            self.last_stable_offset = self._stable_offset()
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.on_disk_offset:
            waiters.popleft()[1](None)
        if self._synchronous:
            for callback in self._listeners:
                callback(self)
        if self._flushing:
            return
        if self._flush_again is not None or (self._synchronous and self.log_end_offset > self.on_disk_offset):
            again, self._flush_again = bool(self._flush_again), None
            self._start_flush(full=again)

    def _fail_waiters(self, error: KafkaError) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            callback(error)

    def take_producer_snapshot(self) -> str:
        """Write the state of the producers as of the log's end, and answer the file's path. Raises OSError."""
        path = os.path.join(self.path, offset_file_name(self.log_end_offset, SNAPSHOT_SUFFIX))
        self.files.write_file(path, self.producers.encode(), sync=False)
        previous, self._snapshot_offset = self._snapshot_offset, self.log_end_offset
        if previous not in (-1, self.log_end_offset) and previous not in self._bases:
            self.files.remove_if_exists(os.path.join(self.path, offset_file_name(previous, SNAPSHOT_SUFFIX)))
        return path

    # -- rolling

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin a new one at the log's end (or at `base_offset` above it); flushes the old one.

        Raises KafkaStorageError.
        """
        base = max(self.log_end_offset, base_offset or 0)
        old = self._active
        segment = self.make_segment(base, size=0, created_ms=now_ms)
        try:
            if base == old.base_offset:
                return old
            old.finish()
            self.take_producer_snapshot()
            segment.create_files(self._segment_bytes if self.config.preallocate else 0)
        except OSError as error:
            raise self.dir.fail("rolling a segment", error.filename or segment.log.path, error) from error
        self.segments.append(segment)
        self._bases.append(base)
        self._active = segment
        self._recent.clear()
        self.flush()
        return segment

    def drop_oldest(self, count: int) -> None:
        """Remove the files of the first `count` segments, which are not all; the log starts at the next one. Raises KafkaStorageError."""
        try:
            for segment in self.segments[:count]:
                self.remove_files(segment)
            del self.segments[:count], self._bases[:count]
            self._raise_start(max(self.log_start_offset, self._bases[0]))
        except OSError as error:
            raise self.dir.fail("deleting segments", error.filename or self.path, error) from error

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
            try:
                self._raise_start(offset)
            except OSError as error:
                raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
        return self.log_start_offset

    def _raise_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)

    # -- truncation and closing

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at and above `offset`; False when there are none. Raises KafkaStorageError."""
        if offset >= self.log_end_offset:
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            truncate_log(self, offset)
        except OSError as error:
            raise self.dir.fail("truncating", error.filename or self.path, error) from error
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the log is empty and begins at `offset`. Raises KafkaStorageError."""
        try:
            truncate_fully(self, offset)
        except OSError as error:
            raise self.dir.fail("truncating", error.filename or self.path, error) from error

    def flush_if_due(self, now_ms: int) -> None:
        """Start a flush when flush.ms has passed since the last one and there is something to flush."""
        if self.config.flush_ms == UNLIMITED or self._flushing or self.recovery_point >= self.log_end_offset:
            return
        if now_ms - self.last_flush_ms >= self.config.flush_ms:
            self.last_flush_ms = now_ms
            self.flush()

    def close(self) -> None:
        """Leave the files as Kafka's clean stop does, and submit their sync. Failures take the directory offline."""
        try:
            for segment in self.segments:
                if segment is self._active or segment.log.is_open():
                    segment.finish()
        except OSError as error:
            self.dir.fail("closing a log", error.filename or self.path, error)
            return
        self.flush()

    def abandon(self) -> None:
        """Let go of all files, as the log is deleted; whoever waits for it gets an error."""
        if self.loaded:
            for segment in self.segments:
                segment.release()
        self._fail_waiters(
            error_for_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "the partition was deleted",
                topic=self.topic,
                partition=self.partition,
            )
        )

    # -- reads

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
        try:
            if start < 0:
                start = segment.index.lookup(offset)
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
            raise self.dir.fail("reading", segment.log.path, error) from error
        return LogSlice(self.files, handle, position, size, offset)

    def _corrupt(self, error: CorruptSegment) -> KafkaError:
        logger.error("corrupt segment: %s", error)
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
        """Aborted transactions with records between the two offsets (the upper one excluded), for read_committed."""
        found: list[txn_index.AbortedTransaction] = []
        for segment in self.segments[max(bisect_right(self._bases, first_offset) - 1, 0) :]:
            for entry in txn_index.read_entries(self.files, segment.path_of(TXN_INDEX_SUFFIX)):
                if entry.last_offset >= first_offset and entry.first_offset < upper_offset:
                    found.append(entry)
                if entry.last_stable_offset >= upper_offset:
                    return found
        return found

    # -- times

    def timestamp_query(self, timestamp_ms: int) -> TimestampQuery:
        """A search for the first record at or after a time; its `run()` may wait for the disk, in any thread."""
        segments = [s for s in self.segments if s.size and s.largest_timestamp() >= timestamp_ms]
        starts = []
        for segment in segments:
            offset = max(segment.time_index.lookup(timestamp_ms), self.log_start_offset)
            starts.append((segment.log.handle(), segment.index.lookup(offset), segment.size))
        return TimestampQuery(self.files, timestamp_ms, self.log_start_offset, tuple(starts))

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record whose timestamp is at or after `timestamp_ms`, None when there is none; may wait for the disk."""
        try:
            return self.timestamp_query(timestamp_ms).run()
        except CorruptSegment as error:
            raise self._corrupt(error) from error

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp, None when no record has one; may wait for the disk."""
        filled = [segment for segment in self.segments if segment.size]
        if not filled:
            return None
        largest = max(segment.largest_timestamp() for segment in filled)
        return self.offset_for_timestamp(largest)

    # -- files

    def remove_files(self, segment: Segment) -> None:
        """Take the files of a segment out of the directory at once: rename them, unlink them after file.delete.delay.ms.

        Raises OSError. Slices that are still being sent keep the data.
        """
        segment.release()
        renamed = []
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        for suffix in suffixes:
            path = segment.path_of(suffix)
            try:
                self.files.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            renamed.append(path + DELETED_SUFFIX)
        self.dir.delete_later(renamed, self.clock() + self.config.file_delete_delay_ms)

    # -- size

    @property
    def size_bytes(self) -> int:
        """Bytes of the .log files."""
        return sum(segment.size for segment in self.segments)

    @property
    def active_segment(self) -> Segment:
        return self._active
