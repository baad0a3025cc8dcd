"""What is appended to a partition's log: a client's batch, the broker's own, a leader's as a follower takes them.

Rules
- Every append is judged, stamped in place and written with one system call; nothing is acknowledged that is not written.
- What cannot be written wholly is cut off again. A shortage refuses the append and no more; any other error takes the log directory
  offline (see log_dir).
- What is written and then cannot be noted, for want of memory or by a mistake, is taken back too: the next batch would lie behind one
  that the log does not know of.
- Before the first append behind a load or a cut the checkpoints on disk say no more of the log than holds: see dir_checkpoints.
- Epochs of leaders are noted before the first batch of theirs is written.
Source: UnifiedLog, LocalLog.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import Final

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
from fastq.errors import KafkaError
from fastq.values import NamedTuple

from .admission import Admission
from .files import is_shortage
from .log_file import RESERVE_FROM_BYTES
from .log_segments import LogSegments
from .producer_state import BatchMetadata
from .segment import INT32_MAX, TXN_INDEX_SUFFIX, Segment

logger = logging.getLogger(__name__)

CODEC_MAX: Final = max(Codec)


class AppendResult(NamedTuple):
    """Where a batch went. For a duplicate, where it had gone the first time."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with create time."""
    log_start_offset: int
    duplicate: bool


class LogAppends(LogSegments):
    """Appends to a partition's log; see PartitionLog for what the attributes are. Event-loop thread only."""

    __slots__ = ("_admission", "_overstated", "leader_epoch", "pending_leader_epoch")

    _admission: Admission
    _loading: bool
    _overstated: bool
    _recent: deque[tuple[int, int]]
    leader_epoch: int
    pending_leader_epoch: int

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
        if self._overstated:
            self._restate()
        batch, max_timestamp = admission.prepare(batches, header, now_ms, from_client)
        size = len(batch)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        end_offset = last_offset + 1
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
            if size >= RESERVE_FROM_BYTES:
                self._reserve(active, position + size)
            active.append(batch, size, last_offset, max_timestamp)
            self._recent.append((base_offset, position))
            if producer_id >= 0:
                self._note_producer(header, base_offset, last_offset, max_timestamp, now_ms, batch)
            self._advance_end(end_offset)
        except OSError as error:
            if self.log_end_offset > base_offset:
                raise
            raise self._append_failed(active, position, error) from error
        except BaseException:
            self._take_back(base_offset, position)
            raise
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
        """The error of an append that could not read when its segment begins, or how many entries its indexes have."""
        return self.dir.refuse("looking whether a segment is full", error.filename or segment.log.path, error)

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int, gently: bool = False) -> int:
        """Append batches that carry their offsets and epochs already, byte for byte; answers the new log end offset.

        All are checked before the first is written, and those that go to one segment are one write; `gently`, pieces of one. Raises
        CorruptMessage for a bad size, magic or checksum, InvalidRecord for offsets that do not follow the log's end or each other,
        KafkaStorageError.
        """
        if not self.loaded:
            self.load()
        if self.dir.offline is not None:
            raise self.dir.offline.with_traceback(None)
        view = memoryview(batches)
        headers = self._judge_replicated(view)
        if self._overstated:
            self._restate()
        position = done = 0
        while done < len(headers):
            active, count_max = self._active_for_replicated(headers[done], now_ms)
            room = self._segment_bytes - active.log.size
            size, count = headers[done].size_bytes, 1
            for header in headers[done + 1 : done + count_max]:
                if size + header.size_bytes > room or header.last_offset - active.base_offset > INT32_MAX:
                    break
                size += header.size_bytes
                count += 1
            run = view[position : position + size]
            self._append_replicated(active, run, headers[done : done + count], now_ms, gently)
            position += size
            done += count
        return self.log_end_offset

    def _restate(self) -> None:
        """Have nothing on disk that says more of the log than holds. Raises KafkaStorageError."""
        restate = self.dir.restate
        if restate is not None:
            restate(self)  # type: ignore[arg-type]
        self._overstated = False

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

    def _active_for_replicated(self, header: BatchHeader, now_ms: int) -> tuple[Segment, int]:
        """The segment that a leader's batch goes to, and how many may: a new one where that is due. It begins at the log's end, unless the
        batch is too far above for its indexes: offsets that a leader has not must not look like those of a file that is gone."""
        active = self._active
        try:
            if (
                active.log.size + header.size_bytes > self._segment_bytes
                or active.indexes_full
                or header.last_offset - active.base_offset > INT32_MAX
                or active.time_to_roll(now_ms, header.max_timestamp)
            ):
                too_far = header.last_offset - self.log_end_offset > INT32_MAX
                active = self.roll(now_ms, header.base_offset if too_far else None)
            return active, active.index_room
        except OSError as error:
            raise self._not_read(active, error) from error

    def _append_replicated(
        self, active: Segment, data: memoryview, headers: list[BatchHeader], now_ms: int, gently: bool
    ) -> None:
        """Append batches to the active segment, which has room for them. Their leader epochs count once they are written: one that had none
        of its epoch's records would have this log pass for more up to date than it is (a vote goes by its last epoch)."""
        start, end = active.log.size, self.log_end_offset
        try:
            if len(data) >= RESERVE_FROM_BYTES:
                self._reserve(active, start + len(data))
            active.append_run(data, headers, gently=gently)
            self._note_replicated(active, start, data, headers, now_ms)
            self._advance_end(headers[-1].next_offset)
        except OSError as error:
            if self.log_end_offset > end:
                raise
            raise self._append_failed(active, start, error) from error
        except BaseException:
            self._take_back(end, start)
            raise

    def _note_replicated(
        self, active: Segment, start: int, data: memoryview, headers: list[BatchHeader], now_ms: int
    ) -> None:
        for header in headers:
            if header.partition_leader_epoch > self.leader_epoch:
                try:
                    self.epochs.assign(header.partition_leader_epoch, header.base_offset)
                except OSError as error:
                    raise self.dir.fail("writing leader epochs", self.epochs.path, error) from error
                self.leader_epoch = header.partition_leader_epoch
        active.begin_write_back(self.dir.flusher)
        at, end = 0, self.log_end_offset
        for header in headers:
            base_offset, size = header.base_offset, header.size_bytes
            if base_offset != end:
                self._recent.clear()  # a read in the gap would begin with the batch before it
            end = header.next_offset
            self._recent.append((base_offset, start + at))
            if header.producer_id >= 0:
                batch = data[at : at + size]
                self._note_producer(header, base_offset, header.last_offset, header.max_timestamp, now_ms, batch)
            at += size

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

    def _reserve(self, segment: Segment, end: int) -> None:
        """Have room on the disk for a large append that ends there, and for some more, where there is room to spare. Raises OSError."""
        if end > segment.log.reserved and self.dir.reserves:
            segment.log.reserve(end)

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

    def _take_back(self, end_offset: int, position: int) -> None:
        raise NotImplementedError

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


def _marker_of(batch: bytearray | memoryview) -> ControlRecord | None:
    """What a control batch says; None where compaction has taken its record, as its transaction is gone. Raises DecodeError."""
    records = decode_records(batch)
    return decode_control_record(records[0].key, records[0].value) if records else None
