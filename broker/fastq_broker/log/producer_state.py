"""What a log remembers of its producers: sequences for idempotence, open transactions for the last stable offset.

A snapshot (`<offset>.snapshot`) holds the state after all records below that offset, big-endian:
    0  version 2 (1)    2  crc32c 4 (of all that follows it)    6  count 4    then per producer 46 bytes:
    0  producer id 8    8  epoch 2    10  last sequence 4    14  last offset 8    22  offset delta 4 (of the last batch)
    26  timestamp 8    34  coordinator epoch 4    38  first offset of the open transaction 8 (-1: none)
Only the last batch of each producer is in it; the window of five is filled from the log's tail. Source: ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

from fastq._native.crc32c import crc32c
from fastq._native.records import BatchHeader
from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq.values import NamedTuple

INT32_MAX: Final = (1 << 31) - 1
NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
WINDOW: Final = 5
"""Batches remembered per producer: as many as a producer has in flight."""

EPOCH_PER_TRANSACTION: Final = 2
"""From this transaction version on each transaction has an epoch of its own (KIP-890)."""

BORDER_PRODUCER_ID: Final = (1 << 63) - 1
"""Nobody is given it. A commit of it says that the producers of what lies before are another cluster's, and count no more: see mirrored."""


_PREFIX = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1


class CorruptSnapshot(ValueError):
    """A producer snapshot that does not hold what its format says."""


class BatchMetadata(NamedTuple):
    """A batch in a producer's window."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 or self.last_sequence < 0 else first + INT32_MAX + 1


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    aborted: bool
    last_stable_offset: int
    """The LSO that the log has once this transaction has ended."""


class ProducerEntry:
    """State of one producer. `next_sequence` is what its next batch must start with while its epoch lasts."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms", "next_sequence", "txn_first_offset")

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=WINDOW)
        self.next_sequence = 0
        self.coordinator_epoch = -1
        self.txn_first_offset = -1
        self.last_seen_ms = -1

    def add(self, batch: BatchMetadata) -> None:
        self.batches.append(batch)
        last = batch.last_sequence
        self.next_sequence = 0 if last == INT32_MAX else last + 1


class ProducerState:
    """All producers of one log.

    Invariant: it reflects exactly the records below `end_offset`. Event-loop thread only.
    `where` names the partition in errors. `damaged_at` is where the last batch lies, or the one before has ended, that was passed over as
    damaged, and may have been a marker; -1: none was.
    """

    __slots__ = ("_completed", "_ongoing", "_producers", "damaged_at", "end_offset", "expiration_ms", "where")

    def __init__(self, where: str, *, expiration_ms: int = 86_400_000) -> None:
        self.where = where
        self.expiration_ms = expiration_ms
        self.end_offset = 0
        self.damaged_at = -1
        self._producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # producer id -> first offset, in the order of first offsets
        # (first offset, marker offset) at or above the high watermark.
        self._completed: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        return self._producers.items()

    def clear(self, end_offset: int) -> None:
        self._producers.clear()
        self._ongoing.clear()
        self._completed.clear()
        self.end_offset = end_offset
        self.damaged_at = -1

    # -- appends of clients

    def check(self, header: BatchHeader, transaction_version: int = -1) -> BatchMetadata | None:
        """Judge a client's batch before it is appended: None to append it, or the earlier batch that it repeats.

        Raises OutOfOrderSequenceNumber for a gap, InvalidProducerEpoch for a fenced producer, InvalidTxnState for a batch outside
        the producer's open transaction. A producer that is not known may start at any sequence, but not in a transaction of
        version 2: there its epoch is new, so that something before this batch is missing. Source: ProducerAppendInfo.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            if transaction_version >= EPOCH_PER_TRANSACTION and header.base_sequence:
                raise self._out_of_order(header, "expected sequence 0, as the producer is not known here")
            return None
        epoch = header.producer_epoch
        first = header.base_sequence
        if epoch == entry.epoch:
            if first != entry.next_sequence:
                last = header.last_sequence
                for batch in entry.batches:
                    if batch.last_sequence == last and batch.first_sequence == first:
                        return batch
                raise self._out_of_order(header, f"expected sequence {entry.next_sequence}")
        elif epoch < entry.epoch:
            raise self._error(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} came with epoch {epoch}, but epoch {entry.epoch} has been seen: "
                "a newer producer with the same transactional id has taken over",
            )
        elif first and entry.epoch != NO_EPOCH:
            raise self._out_of_order(header, f"expected sequence 0, as epoch {epoch} is new")
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise self._error(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} sent a batch outside of its transaction that is open since offset "
                f"{entry.txn_first_offset}",
            )
        return None

    def _out_of_order(self, header: BatchHeader, expectation: str) -> KafkaError:
        return self._error(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} epoch {header.producer_epoch}: {expectation}, got {header.base_sequence}",
        )

    def _error(self, code: int, message: str) -> KafkaError:
        return error_for_code(code, f"{self.where}: {message}")

    def update(
        self, header: BatchHeader, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> CompletedTransaction | None:
        """Take in a data batch that has been appended at `base_offset`; answers the transaction that has ended at some offset before it,
        at a marker that is lost: whether that was an abort is for its segment's `.txnindex` to tell."""
        producer_id = header.producer_id
        entry = self._producers.get(producer_id)
        lost = None
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            lost = self._end_by_epoch(header, entry, base_offset)
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.add(BatchMetadata(header.last_sequence, last_offset, last_offset - base_offset, max_timestamp))
        entry.last_seen_ms = now_ms
        if entry.txn_first_offset < 0 and header.is_transactional:
            entry.txn_first_offset = base_offset
            self._ongoing[producer_id] = base_offset
        return lost

    # -- transactions

    def _end_by_epoch(self, header: BatchHeader, entry: ProducerEntry, base_offset: int) -> CompletedTransaction | None:
        """Take a transaction for ended that was open at `damaged_at`, if this data batch behind it is of a later epoch: the coordinator
        gives none out before the marker is written, which is lost then."""
        first = entry.txn_first_offset
        if entry.epoch >= header.producer_epoch or not 0 <= first < self.damaged_at:
            return None
        entry.txn_first_offset = -1
        self._ongoing.pop(header.producer_id, None)
        self._completed.append((first, base_offset - 1))
        return CompletedTransaction(header.producer_id, first, base_offset - 1, False, first)

    @property
    def is_open_over_damage(self) -> bool:
        """Whether a transaction is open that may have ended at the damage. A snapshot would have forgotten that it may."""
        return next(iter(self._ongoing.values()), self.damaged_at) < self.damaged_at

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int = 0) -> None:
        """Judge a transaction marker before it is appended.

        Under transaction version 2 it comes with an epoch above that of the records, so that it cannot end the transaction after.
        The same epoch is right where it has been written before.
        Raises InvalidProducerEpoch, TransactionCoordinatorFenced for a marker of the past, and for one of nobody.
        """
        if producer_id == BORDER_PRODUCER_ID:
            raise self._error(ErrorCode.INVALID_PRODUCER_EPOCH, f"nobody has the producer id {producer_id}")
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        late = entry.txn_first_offset >= 0 and transaction_version >= EPOCH_PER_TRANSACTION and epoch == entry.epoch
        if epoch < entry.epoch or late:
            raise self._error(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, but epoch {entry.epoch} has been seen"
                + (" in the transaction that is open now" if late else ""),
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise self._error(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {producer_id} comes from coordinator epoch {coordinator_epoch}, "
                f"but {entry.coordinator_epoch} has been seen",
            )

    def complete(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, aborted: bool, offset: int, now_ms: int
    ) -> CompletedTransaction | None:
        """Take in a marker that lies at `offset`; None when no transaction of the producer was open."""
        if producer_id == BORDER_PRODUCER_ID:
            self._producers.clear()  # all transactions have ended before it: what they hold back goes by the high watermark
            self._ongoing.clear()
            return None
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.next_sequence = 0
        entry.coordinator_epoch = max(coordinator_epoch, entry.coordinator_epoch)
        entry.last_seen_ms = now_ms
        first_offset = entry.txn_first_offset
        if first_offset < 0:
            return None
        entry.txn_first_offset = -1
        self._ongoing.pop(producer_id, None)
        self._completed.append((first_offset, offset))
        stable = next(iter(self._ongoing.values()), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, aborted, stable)

    def first_unstable_offset(self, high_watermark: int) -> int:
        """First offset of a transaction that is open, or whose end is not below the high watermark; -1 when there is none."""
        completed = self._completed
        while completed and completed[0][1] < high_watermark:
            completed.popleft()
        first = next(iter(self._ongoing.values()), -1)
        if completed:
            ended = min(completed)[0]
            return ended if first < 0 else min(first, ended)
        return first

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """Producer id, epoch and coordinator epoch of each producer that has one, in the order in which they began."""
        found = [(producer_id, self._producers[producer_id]) for producer_id in self._ongoing]
        return [(producer_id, entry.epoch, entry.coordinator_epoch) for producer_id, entry in found]

    def open_since(self) -> dict[int, int]:
        """The first offset of each transaction that is open, by its producer."""
        return dict(self._ongoing)

    def leave_below(self, start: int) -> None:
        """Take transactions of which all records lie below `start` for ended: of one that goes on, what comes next is the first."""
        for producer_id in list(self._ongoing):
            entry = self._producers[producer_id]
            if max(entry.txn_first_offset, entry.batches[-1].last_offset if entry.batches else -1) < start:
                entry.txn_first_offset = -1
                del self._ongoing[producer_id]

    @property
    def has_transactions(self) -> bool:
        """Whether anything may hold the last stable offset below the high watermark."""
        return bool(self._ongoing or self._completed)

    # -- expiry and snapshots

    def shift_times(self, jump_ms: int) -> None:
        """The system's clock was set by `jump_ms`: count the silence of producers from where it would have been."""
        for entry in self._producers.values():
            entry.last_seen_ms += jump_ms

    def expire(self, now_ms: int) -> int:
        """Forget producers that have been silent for `expiration_ms` and have no open transaction; answers how many."""
        limit = now_ms - self.expiration_ms
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.last_seen_ms <= limit and entry.txn_first_offset < 0
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def encode(self) -> bytes:
        """The bytes of a snapshot."""
        entries = bytearray(struct.pack(">i", len(self._producers)))
        for producer_id, entry in self._producers.items():
            last = entry.batches[-1] if entry.batches else BatchMetadata(NO_SEQUENCE, -1, 0, entry.last_seen_ms)
            entries += _ENTRY.pack(
                producer_id,
                entry.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                max(last.timestamp, entry.last_seen_ms),
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
        return struct.pack(">hI", _VERSION, crc32c(entries)) + bytes(entries)

    def decode(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Replace the state by a snapshot's, leaving out what has expired. Raises CorruptSnapshot and changes nothing then."""
        if len(data) < _PREFIX.size:
            raise CorruptSnapshot(f"{len(data)} bytes are too few")
        version, crc, count = _PREFIX.unpack_from(data)
        if version != _VERSION:
            raise CorruptSnapshot(f"version {version}, expected {_VERSION}")
        if crc != crc32c(memoryview(data)[6:]):
            raise CorruptSnapshot("the checksum does not match")
        if count < 0 or _PREFIX.size + count * _ENTRY.size != len(data):
            raise CorruptSnapshot(f"{count} producers do not fit {len(data)} bytes")
        self.clear(end_offset)
        for fields in _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
            if timestamp <= now_ms - self.expiration_ms and txn_first_offset < 0:
                continue
            entry = self._producers[producer_id] = ProducerEntry(epoch)
            if sequence != NO_SEQUENCE:
                entry.add(BatchMetadata(sequence, offset, delta, timestamp))
            entry.last_seen_ms = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.txn_first_offset = txn_first_offset
        open_transactions = [(e.txn_first_offset, p) for p, e in self._producers.items() if e.txn_first_offset >= 0]
        self._ongoing = {producer_id: first for first, producer_id in sorted(open_transactions)}

    def fill_window(self, producer_id: int, epoch: int, batches: list[BatchMetadata]) -> None:
        """Put batches that precede the remembered ones into a producer's window: what a snapshot leaves out.

        `batches` are in log order; those that do not lead up to the last remembered batch are ignored.
        """
        entry = self._producers.get(producer_id)
        if entry is None or entry.epoch != epoch or not entry.batches:
            return
        earliest = entry.batches[0].last_offset
        earlier = [batch for batch in batches if batch.last_offset < earliest]
        kept = [*earlier, *entry.batches][-WINDOW:]
        entry.batches = deque(kept, maxlen=WINDOW)
