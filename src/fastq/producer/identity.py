"""Producer id, epoch and sequence numbers: what makes a retry idempotent (KIP-98, KIP-360).

Rules, after Kafka's TransactionManager:
- A batch gets its sequence when it is first drained, and keeps it through every retry.
- A definite failure of a batch leaves a gap in its partition's sequence. The epoch is raised, in this client, and the
  partition starts again at sequence 0; batches of it that still wait are numbered anew.
- A batch that expired after it was sent leaves its sequence unresolved: nothing new goes to the partition until what
  is in flight has been answered. If the gap is real then, the epoch is raised.
- The first batch of a partition and epoch goes alone: a broker that does not know the producer takes any sequence for the
  first one, so a second batch that overtook a failed first one would be accepted, and the first never again.
- A partition takes a new epoch up only when nothing of it is in flight or waiting with a sequence.
- Within transactions the coordinator alone raises the epoch: a gap ends the transaction, and the abort mends it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from fastq._native.producer_batch import Batch, PartitionState, advance_sequence
from fastq.errors import ErrorCode

EPOCH_MAX = 2**15 - 1


def comes_before(sequence: int, other: int) -> bool:
    """Sequence order across the wrap from 2147483647 to 0."""
    return sequence != other and (other - sequence) % 2**31 < 2**30


class ProducerIdentity:
    """Who this producer is to the brokers, and the sequence of each partition.

    Invariant: within one partition and epoch, sequences are handed out without gaps, in queue order.
    Thread rule: the sender's turn only.
    """

    transactional = False
    first_goes_alone = True
    """False where brokers take no other first sequence than 0 of a producer that they do not know."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.epoch_bumps = 0
        self._rewrites: dict[PartitionState, None] = {}
        self._unresolved: dict[PartitionState, None] = {}

    @property
    def is_known(self) -> bool:
        """False until a broker has given a producer id, and again after the last epoch was used up."""
        return self.producer_id >= 0

    def assume(self, producer_id: int, epoch: int) -> None:
        """Take over what InitProducerId answered."""
        self.producer_id, self.epoch = producer_id, epoch
        self._apply_rewrites()

    # -- drain ----------------------------------------------------------------------------------------------------

    def may_drain(self, partition: PartitionState) -> bool:
        """Whether the first batch of the partition's queue may be sent now."""
        if not self.is_known or partition in self._rewrites:
            return False
        head: Batch = partition.queue[0]
        if head.base_sequence >= 0:
            # A retry: it waits until nothing that comes before it is in flight.
            return not partition.in_flight or comes_before(head.base_sequence, partition.in_flight[0].base_sequence)
        if not partition.in_flight:
            return not partition.unresolved
        if partition.unresolved or not self._is_current(partition):
            return False
        return partition.last_acked_sequence >= 0 or not self.first_goes_alone

    def number(self, batch: Batch) -> None:
        """Give a batch that is being drained its sequence, or write the one it has into its header again."""
        partition = batch.partition
        if batch.base_sequence < 0:
            if not self._is_current(partition):
                self._start_at_zero(partition)
            batch.stamp(self.producer_id, self.epoch, partition.next_sequence, self.transactional)
            partition.next_sequence = advance_sequence(partition.next_sequence, len(batch))
        elif not batch.sealed:
            batch.stamp(batch.producer_id, batch.producer_epoch, batch.base_sequence, self.transactional)

    def _is_current(self, partition: PartitionState) -> bool:
        return partition.producer_id == self.producer_id and partition.producer_epoch == self.epoch

    def _start_at_zero(self, partition: PartitionState) -> None:
        partition.producer_id, partition.producer_epoch = self.producer_id, self.epoch
        partition.next_sequence = 0
        partition.last_acked_sequence = -1

    # -- outcomes -------------------------------------------------------------------------------------------------

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        """The broker has the batch."""
        partition = batch.partition
        if (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.producer_epoch):
            return
        last = advance_sequence(batch.base_sequence, len(batch) - 1)
        if partition.last_acked_sequence < 0 or comes_before(partition.last_acked_sequence, last):
            partition.last_acked_sequence = last
        if base_offset >= 0:
            partition.last_acked_offset = max(partition.last_acked_offset, base_offset + len(batch) - 1)

    def may_retry(self, batch: Batch, code: int, log_start_offset: int) -> bool:
        """Whether a batch that failed with `code` may be sent again; raises the epoch where that needs it."""
        partition = batch.partition
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == -1 or batch.sequence_reset:
                return True
            self.restart(partition)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if not partition.unresolved and (batch.sequence_reset or not self._is_next(batch)):
                return True  # an earlier batch failed first, and goes first
            self.restart(partition)
            return True
        return error_is_retriable(code)

    def _is_next(self, batch: Batch) -> bool:
        return batch.base_sequence == advance_sequence(batch.partition.last_acked_sequence, 1)

    def failed(self, batch: Batch, *, maybe_written: bool) -> None:
        """A batch is given up. `maybe_written`: it was sent, and no broker has said that it was refused."""
        if batch.base_sequence < 0:
            return
        if maybe_written:
            batch.partition.unresolved = True
            self._unresolved[batch.partition] = None
        else:
            self.restart(batch.partition)

    def restart(self, partition: PartitionState) -> None:
        """Have the partition start at sequence 0 of a new epoch, as soon as `step` runs."""
        self._rewrites[partition] = None

    def step(self) -> None:
        """Resolve what can be resolved and raise the epoch if somebody asked for it; once a turn."""
        for partition in list(self._unresolved):
            if partition.in_flight or (partition.queue and partition.queue[0].base_sequence >= 0):
                continue
            del self._unresolved[partition]
            if advance_sequence(partition.last_acked_sequence, 1) == partition.next_sequence:
                partition.unresolved = False
            else:
                self.restart(partition)
        if self._rewrites and self.is_known:
            if self.epoch >= EPOCH_MAX:
                self.producer_id = self.epoch = -1  # the sender asks for a new id; `assume` goes on
            else:
                self.epoch += 1
                self._apply_rewrites()

    def _apply_rewrites(self) -> None:
        for partition in self._rewrites:
            self.epoch_bumps += 1
            self._start_at_zero(partition)
            partition.unresolved = False
            self._unresolved.pop(partition, None)
            for batch in _numbered(partition):
                batch.renumber(self.producer_id, self.epoch, partition.next_sequence)
                partition.next_sequence = advance_sequence(partition.next_sequence, len(batch))
        self._rewrites.clear()


class TransactionalIdentity(ProducerIdentity):
    """The identity of a transactional producer: `may_send(partition)` says whether the transaction lets batches out.

    Invariant: `gap` is True from the first sequence that no broker has until the coordinator has given a new epoch.
    """

    transactional = True

    def __init__(self, may_send: Callable[[PartitionState], bool]) -> None:
        super().__init__()
        self._may_send = may_send
        self.gap = False

    def assume(self, producer_id: int, epoch: int) -> None:
        self.epoch_bumps += self.is_known
        self.gap = False
        super().assume(producer_id, epoch)

    def may_drain(self, partition: PartitionState) -> bool:
        return self._may_send(partition) and super().may_drain(partition)

    def may_retry(self, batch: Batch, code: int, log_start_offset: int) -> bool:
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            return log_start_offset == -1
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return not self.gap and not self._is_next(batch)  # an earlier batch failed first, and goes first
        return error_is_retriable(code)

    def failed(self, batch: Batch, *, maybe_written: bool) -> None:
        if batch.base_sequence >= 0:
            self.gap = True

    def step(self) -> None:
        """Nothing is resolved here: see `gap`."""


def _numbered(partition: PartitionState) -> list[Batch]:
    """The batches of a partition that have a sequence, in its order."""

    def compare(one: Batch, other: Batch) -> int:
        return -1 if comes_before(one.base_sequence, other.base_sequence) else 1

    batches = [batch for batch in (*partition.in_flight, *partition.queue) if batch.base_sequence >= 0]
    return sorted(batches, key=functools.cmp_to_key(compare))


def error_is_retriable(code: int) -> bool:
    """Kafka's RetriableException, for a code that may be newer than this client."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False
