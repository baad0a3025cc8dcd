"""Producer id, epoch and sequence numbers: what makes a retry idempotent (KIP-98, KIP-360).

Rules, after Kafka's TransactionManager:
- A batch gets its sequence when it is first drained, and keeps it through every retry.
- What a broker has refused for certain leaves a gap: nothing behind it can be written under this epoch. What comes before the gap
  gets its fate first, under the numbers that it has, because it may have been written. Then, with nothing of the partition in flight,
  the epoch is raised in this client, and what is behind the gap starts again at sequence 0.
- What is given up in doubt (outcomes.py says when) leaves the partition unresolved: nothing new is numbered until what is on its way
  has its fate. If that does not tell that it was written, the epoch is raised, so that it cannot come any more.
- A broker remembers the last WINDOW batches of a producer. So a new one is numbered only while the oldest without a fate will stay
  among them: one that was written, and whose answer was lost, would be taken for a gap otherwise, and written again.
- The first batch of a partition and epoch goes alone: a broker that does not know the producer takes any sequence for the
  first one, so a second batch that overtook a failed first one would be accepted, and the first never again.
- A partition takes a new epoch up only when nothing of it is in flight or waiting with a sequence.
- A topic that is made anew knows nothing of this producer: any sequence would be taken for the first one there. So what has no fate,
  which was sent to the topic before by its id, begins anew at sequence 0 of a new epoch. What was sent by its name may be in either,
  and keeps its numbers; nothing new is sent behind it until something is in. What was on its way together may change its order there.
- Within transactions the coordinator alone raises the epoch: a gap ends the transaction, and the abort mends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fastq._native.producer_batch import Batch, PartitionState, TopicState, advance_sequence
from fastq.errors import ErrorCode

EPOCH_MAX = 2**15 - 1
WINDOW = 5
"""Batches of a producer that a broker recognises when they come again (Kafka's ProducerStateEntry)."""


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
        # Whether batches were sent to topics by their names, so that it is not sure to which of that name.
        self.by_name = False
        self._topic_ids: dict[str, set[bytes]] = {}  # all that topics have had which were made anew
        self._anew: set[PartitionState] = set()  # of such topics: what is in doubt may be in the log of before
        self._begun_by_name: dict[PartitionState, list[Batch]] = {}
        """Of such topics: nothing is known to be in the log of now; with what was on its way, to which of them is not sure."""
        self._unsettled: dict[PartitionState, None] = {}
        # The oldest batch without a fate, and all numbered after it.
        self._windows: dict[PartitionState, deque[Batch]] = {}

    @property
    def is_known(self) -> bool:
        """False until a broker has given a producer id, and again after the last epoch was used up."""
        return self.producer_id >= 0

    def assume(self, producer_id: int, epoch: int) -> None:
        """Take over what InitProducerId answered."""
        self.producer_id, self.epoch = producer_id, epoch

    # -- drain ----------------------------------------------------------------------------------------------------

    def may_drain(self, partition: PartitionState) -> bool:
        """Whether the first batch of the partition's queue may be sent now."""
        if not self.is_known:
            return False
        head: Batch = partition.queue[0]
        if head.base_sequence >= 0:
            # A retry: it waits until nothing that comes before it is in flight.
            return not _is_behind_gap(head) and (
                not partition.in_flight or comes_before(head.base_sequence, partition.in_flight[0].base_sequence)
            )
        if partition.unresolved or partition.gap_sequence >= 0 or len(self._window(partition)) >= WINDOW:
            return False
        if not partition.in_flight:
            return True
        if not self._is_current(partition):
            return False
        has_begun = partition.last_acked_sequence >= 0 and partition not in self._begun_by_name
        return has_begun or not self.first_goes_alone

    def _window(self, partition: PartitionState) -> deque[Batch]:
        window = self._windows.get(partition)
        if window is None:
            window = self._windows[partition] = deque()
        while window and window[0].done:
            window.popleft()
        return window

    def was_split(self, batch: Batch, halves: list[Batch]) -> None:
        """A batch was refused for its size, and its halves carry its sequence on."""
        window = self._windows.get(batch.partition)
        if window is not None and batch in window:
            self._windows[batch.partition] = deque(
                part for known in window for part in (halves if known is batch else [known])
            )

    def number(self, batch: Batch) -> None:
        """Give a batch that is being drained its sequence, or write the one it has into its header again."""
        partition = batch.partition
        if batch.base_sequence < 0:
            if not self._is_current(partition):
                self._start_at_zero(partition)
            following = advance_sequence(partition.next_sequence, len(batch))
            self._window(partition).append(batch)  # what may want memory, before there is a number that is not counted
            batch.stamp(self.producer_id, self.epoch, partition.next_sequence, self.transactional)
            partition.next_sequence = following
        elif not batch.sealed:
            batch.stamp(batch.producer_id, batch.producer_epoch, batch.base_sequence, self.transactional)

    def _is_current(self, partition: PartitionState) -> bool:
        return partition.producer_id == self.producer_id and partition.producer_epoch == self.epoch

    def _start_at_zero(self, partition: PartitionState) -> None:
        partition.producer_id, partition.producer_epoch = self.producer_id, self.epoch
        partition.next_sequence = 0
        partition.last_acked_sequence = -1
        self._begun_by_name.pop(partition, None)  # the first one of an epoch goes alone anyway

    # -- outcomes -------------------------------------------------------------------------------------------------

    def acknowledged(self, batch: Batch) -> None:
        """The broker has the batch."""
        partition = batch.partition
        if (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.producer_epoch):
            return
        if batch not in self._begun_by_name.get(partition, (batch,)):
            del self._begun_by_name[partition]
        last = advance_sequence(batch.base_sequence, len(batch) - 1)
        if partition.last_acked_sequence < 0 or comes_before(partition.last_acked_sequence, last):
            partition.last_acked_sequence = last

    def may_retry(self, batch: Batch, code: int, log_start_offset: int) -> bool:
        """Whether a batch that failed with `code` may be sent again; notes the gap where that needs a new epoch."""
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset != -1:
                self._note_gap(batch)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if _is_first(batch):  # what the broker misses will not come any more
                self._note_gap(batch)
            return True
        return error_is_retriable(code)

    def _is_next(self, batch: Batch) -> bool:
        return batch.base_sequence == advance_sequence(batch.partition.last_acked_sequence, 1)

    def failed(self, batch: Batch, *, maybe_written: bool) -> None:
        """A batch is given up."""
        if batch.base_sequence < 0:
            return
        if maybe_written:
            batch.partition.unresolved = True
            self._unsettled[batch.partition] = None
        else:
            self._note_gap(batch)

    def made_anew(self, topic: TopicState, topic_id: bytes) -> None:
        """The topic has another id by now, which its state is about to get."""
        seen = self._topic_ids.setdefault(topic.name, {topic.topic_id})
        if self.by_name:
            self._begin_by_name(topic)
            return
        if topic_id in seen:  # an answer of a broker that lags behind, and the one after it
            return
        seen.add(topic_id)
        for partition in topic.partitions:
            numbered = [batch for batch in (*partition.in_flight, *partition.queue) if batch.base_sequence >= 0]
            for batch in numbered:
                self._note_gap(batch)
            if numbered:
                self._anew.add(partition)
            else:
                partition.producer_epoch = -1  # the next one is the first

    def _begin_by_name(self, topic: TopicState) -> None:
        for partition in topic.partitions:
            self._begun_by_name[partition] = list(partition.in_flight)

    def _note_gap(self, batch: Batch) -> None:
        partition = batch.partition
        if not self._is_current_of(batch):
            return  # numbers of an epoch that the partition has left: nobody will ask for them
        if partition.gap_sequence < 0 or comes_before(batch.base_sequence, partition.gap_sequence):
            partition.gap_sequence = batch.base_sequence
        self._unsettled[partition] = None

    @staticmethod
    def _is_current_of(batch: Batch) -> bool:
        partition = batch.partition
        return (batch.producer_id, batch.producer_epoch) == (partition.producer_id, partition.producer_epoch)

    def step(self) -> None:
        """Settle what can be settled, and raise the epoch where that needs it; once a turn."""
        restarted: list[PartitionState] = []
        for partition in list(self._unsettled):
            head: Batch | None = partition.queue[0] if partition.queue else None
            if partition.in_flight or (head is not None and head.base_sequence >= 0 and not _is_behind_gap(head)):
                continue
            was_written = advance_sequence(partition.last_acked_sequence, 1) == partition.next_sequence
            if partition.gap_sequence < 0 and was_written:
                del self._unsettled[partition]
                partition.unresolved = False
            else:
                restarted.append(partition)
        if not restarted or not self.is_known:
            return
        if self.epoch >= EPOCH_MAX:
            self.producer_id = self.epoch = -1  # the sender asks for a new id, and the next step goes on with it
            return
        self.epoch += 1
        for partition in restarted:
            self._restart(partition)

    def _restart(self, partition: PartitionState) -> None:
        """Have the partition start at sequence 0 of the epoch, with what is behind its gap."""
        self.epoch_bumps += 1
        del self._unsettled[partition]
        partition.unresolved, partition.gap_sequence = False, -1
        self._start_at_zero(partition)
        anew = partition in self._anew
        self._anew.discard(partition)
        for batch in partition.queue:
            if batch.base_sequence < 0:
                break
            in_doubt = batch.in_doubt
            batch.renumber(self.producer_id, self.epoch, partition.next_sequence)
            batch.in_doubt = in_doubt and anew
            partition.next_sequence = advance_sequence(partition.next_sequence, len(batch))


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

    def made_anew(self, topic: TopicState, topic_id: bytes) -> None:
        """Brokers of transaction version 2 see to it: they take no other first sequence than 0. Before, topics go by their names."""
        if self.first_goes_alone:
            self._begin_by_name(topic)

    def step(self) -> None:
        """Nothing is resolved here: see `gap`."""


def _is_behind_gap(batch: Batch) -> bool:
    gap = batch.partition.gap_sequence
    return gap >= 0 and not comes_before(batch.base_sequence, gap)


def _is_first(batch: Batch) -> bool:
    """Whether no batch with an earlier sequence is on its way or will be sent again. The batch is in flight."""
    partition = batch.partition
    if partition.in_flight[0] is not batch:
        return False
    head: Batch | None = partition.queue[0] if partition.queue else None
    return head is None or head.base_sequence < 0 or comes_before(batch.base_sequence, head.base_sequence)


def error_is_retriable(code: int) -> bool:
    """Kafka's RetriableException, for a code that may be newer than this client."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False
