"""Partitions that other nodes have too: carries out, for one log each, what the partition's machine decides.

Rules
- What the metadata, followers, the log and the controller say goes to the machine; its effects are done at once, in order. What fails of
  those of the metadata, for want of memory, is done when it is applied again, as the machine has none twice.
- Who waits for all in sync is answered in the order of offsets, once the high watermark is there, or when this node stops leading.
- A callback that raises keeps no other waiting.
Sources: ReplicaManager, DelayedProduce.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.log import failures

from .alter_partition import AlterPartitions, PartitionKey
from .isr import IsrChange
from .partition import (
    NOBODY,
    Advanced,
    AskController,
    Effect,
    Ends,
    EpochBegan,
    Follow,
    IsrAnswer,
    Partition,
    StartMoved,
    StoppedLeading,
)

if TYPE_CHECKING:
    from fastq_broker.controller.image import BrokerImage, PartitionImage
    from fastq_broker.log import PartitionLog
    from fastq_broker.replicas import Replica

Waiter = Callable[["KafkaError | None"], None]

NOT_LOADED = Ends(0, 0, 0)
"""Of a log that is not looked at: only a leader's is."""


class Acknowledgement:
    """Somebody waits until all in sync have the records below `offset`. `callback` is None once it has been called, or given up."""

    __slots__ = ("callback", "number", "offset")

    def __init__(self, offset: int, number: int, callback: Waiter) -> None:
        self.offset = offset
        self.number = number
        self.callback: Waiter | None = callback

    def __lt__(self, other: Acknowledgement) -> bool:
        # No tuples: what there is no memory to compare is lost to the heap that takes it out.
        return self.offset < other.offset or (self.offset == other.offset and self.number < other.number)


class Replication:
    """What the shared partitions of a node have in common, and whom they tell. Loop thread only.

    `follow(replica, leader, epoch)`: fetch from that node from now on, from none when it is -1. `ask()`: `alter` has something to ask the
    controller; who sends it takes the place of what does nothing (AlterPartitionDriver).
    """

    def __init__(
        self,
        node_id: int,
        broker: Callable[[int], BrokerImage | None],
        monotonic_ms: Callable[[], int],
        *,
        lag_max_ms: int,
        follow: Callable[[Replica, int, int], None],
    ) -> None:
        self.node_id = node_id
        self.broker = broker
        self.monotonic_ms = monotonic_ms
        self.lag_max_ms = lag_max_ms
        self.follow = follow
        self.ask: Callable[[], None] = lambda: None
        self.alter = AlterPartitions()
        self.shrunk = self.expanded = self.refused = 0
        """Replicas that have left and joined those in sync, of partitions led here."""
        self.partitions: dict[PartitionKey, SharedPartition] = {}

    def check(self) -> None:
        """Let who has fallen behind go. To be called every half of `lag_max_ms`."""
        for partition in list(self.partitions.values()):
            failures.attempt(f"checking who is in sync in {partition.name}", partition.check)
        self.ask()

    def answered(self, key: PartitionKey, change: IsrChange, answer: IsrAnswer) -> None:
        """The controller has answered one change (see AlterPartitions.answered)."""
        self.refused += answer.error_code != 0
        partition = self.partitions.get(key)
        if partition is not None:
            partition.answered(change, answer)


class SharedPartition:
    """One partition that other nodes have too. Loop thread only.

    Invariants: while it is not ended its log is `shared`, and it is in `Replication.partitions`; only a leader has anybody waiting.
    """

    __slots__ = ("_acks", "_deletions", "_key", "_left", "_log", "_number", "_replica", "_replication", "machine")

    def __init__(self, replica: Replica, replication: Replication) -> None:
        self._replica = replica
        self._replication = replication
        self._log: PartitionLog = replica.log
        self._key = replica.topic_id, replica.partition
        self._acks: list[Acknowledgement] = []
        self._deletions: list[tuple[int, Waiter]] = []
        self._number = 0
        self._left: list[Effect] = []  # of the metadata, not done yet
        self.machine = Partition(
            replication.node_id,
            replication.broker,
            lag_max_ms=replication.lag_max_ms,
            min_insync_replicas=replica.min_insync_replicas,
        )
        self._log.share(True)
        self._log.on_advance(self._log_moved)
        replication.partitions[self._key] = self

    @property
    def name(self) -> str:
        return f"{self._replica.topic}-{self._replica.partition}"

    @property
    def is_whole(self) -> bool:
        """Whether it is not ended, nor half ended."""
        return self._replication.partitions.get(self._key) is self

    def end(self, *, shared: bool) -> None:
        """No other node has the partition any more; or, `shared`, this one has not."""
        self._replication.partitions.pop(self._key, None)
        self._log.remove_listener(self._log_moved)
        self._replication.alter.forget(self._key)
        self._send_away()
        if not self.machine.leads:
            self._replication.follow(self._replica, NOBODY, self.machine.leader_epoch)
        if not shared:
            self._log.share(False)

    # -- what happens

    def apply(self, image: PartitionImage) -> None:
        """Follow the metadata. Raises KafkaStorageError when this node is to lead and the log cannot be read."""
        leads = image.leader == self._replication.node_id
        ends = self._ends() if leads else NOT_LOADED
        before = self.machine.isr.committed
        if self._left and image.leader_epoch > self.machine.leader_epoch:
            # It is of the past, but for who is to be sent away.
            self._left = [effect for effect in self._left if isinstance(effect, StoppedLeading)]
        self.machine.apply(image, ends, self._replication.monotonic_ms(), self._left)
        self._count_moves(before)
        if self.machine.isr.pending is None:
            self._replication.alter.forget(self._key)  # the metadata was faster than the question
        try:
            self._do(self._to_do())
        except MemoryError:
            raise
        except BaseException:
            self._left = []
            raise

    def _to_do(self) -> Iterator[Effect]:
        """What is left, each of which is there until it is done."""
        while self._left:
            yield self._left[0]
            del self._left[0]

    def configure(self, min_insync_replicas: int) -> None:
        self._do(self.machine.configure(min_insync_replicas, self._replication.monotonic_ms()))

    def fetched(self, node_id: int, offset: int, log_start: int, broker_epoch: int) -> None:
        """A follower has asked for what comes from `offset` on: see Partition.fetched."""
        now_ms = self._replication.monotonic_ms()
        self._do(self.machine.fetched(node_id, offset, log_start, broker_epoch, now_ms))

    def slept(self, node_id: int, fetched_ms: int, before_ms: int) -> None:
        """A follower that had all there was has fetched since, lastly then: see Partition.slept."""
        self.machine.slept(node_id, fetched_ms, before_ms)

    def is_followed(self, within_ms: int) -> bool:
        """Whether nobody else can have been elected before that time: see Partition.is_followed."""
        return self.machine.is_followed(self._replication.monotonic_ms(), within_ms)

    def check(self) -> None:
        if self._replica.unwoken:  # who sleeps on fetches all the same, and is not to be taken for one who does not
            failures.attempt(f"waking who sleeps on {self.name}", self._replica.wake)
        pending = self.machine.isr.pending
        if pending is not None and not self._replication.alter.has(self._key):
            # There was no memory to ask, or the metadata that its answer spoke of has not come: all it takes is to ask once more.
            self._replication.alter.submit(self._key, pending)
        self._do([*self.machine.check(self._replication.monotonic_ms()), StartMoved()])  # who was fenced counts no more
        if self._log.loaded:  # there may have been no memory to note that it has moved, or to show what is committed
            self._log_moved(self._log)

    def answered(self, change: IsrChange, answer: IsrAnswer) -> None:
        before = self.machine.isr.committed
        effects = self.machine.answered(change, answer, self._replication.monotonic_ms())
        self._count_moves(before)
        self._do(effects)

    def _count_moves(self, before: frozenset[int]) -> None:
        """Count who has left and joined those in sync. A leader that begins has nobody before it."""
        if before and self.machine.leads:
            now = self.machine.isr.committed
            self._replication.shrunk += len(before - now)
            self._replication.expanded += len(now - before)

    def _log_moved(self, log: PartitionLog) -> None:
        machine = self.machine
        if machine.leads and (machine.ends.log_end, machine.ends.kept) != (log.log_end_offset, log.durable_end):
            self._do(machine.appended(log.log_end_offset, log.durable_end, self._replication.monotonic_ms()))
        if machine.leads and log.high_watermark < machine.high_watermark:  # it was not loaded when that moved
            log.advance_high_watermark(machine.high_watermark)

    def _ends(self) -> Ends:
        log = self._log
        return Ends(log.log_end_offset, log.durable_end, log.high_watermark)

    # -- what is to be done

    def _do(self, effects: Iterable[Effect]) -> None:
        replica, replication = self._replica, self._replication
        replica.under_min_isr = self.machine.is_under_min_isr
        for effect in effects:
            if isinstance(effect, Advanced):
                self._advance(effect.high_watermark)
            elif isinstance(effect, AskController):
                replication.alter.submit(self._key, effect.change)
                replication.ask()
            elif isinstance(effect, EpochBegan):
                replication.follow(replica, NOBODY, effect.leader_epoch)
                self._log.assign_leader_epoch(effect.leader_epoch)
            elif isinstance(effect, Follow):
                replication.follow(replica, effect.leader_id, effect.leader_epoch)
            elif isinstance(effect, StoppedLeading):
                self._send_away()
            elif isinstance(effect, StartMoved):
                self._tell_deletions()
        if self._acks:
            self._acknowledge()

    def _advance(self, high_watermark: int) -> None:
        """Have the log show what is committed: one that a shortage has left half done does once it is loaded (see `_log_moved`)."""
        try:
            self._log.advance_high_watermark(high_watermark)
        except KafkaError:
            if self._log.failure is not None or self._log.dir.offline is not None:
                raise

    # -- who waits

    def wait(self, offset: int, callback: Waiter) -> Acknowledgement:
        """Call back once the records below `offset` may be acknowledged to who asks for all in sync, or with the error."""
        self._number += 1
        waiting = Acknowledgement(offset, self._number, callback)
        heapq.heappush(self._acks, waiting)
        self._acknowledge()
        return waiting

    def give_up(self, waiting: Acknowledgement) -> None:
        """The time to wait is over: answer with REQUEST_TIMED_OUT, unless it has been answered."""
        error = self._error(
            ErrorCode.REQUEST_TIMED_OUT, f"not all in sync had the records below {waiting.offset} in time"
        )
        self._tell(waiting, error)

    def _acknowledge(self) -> None:
        acks, machine = self._acks, self.machine
        while acks and (acks[0].callback is None or machine.acknowledgement(acks[0].offset) is not None):
            code = machine.acknowledgement(acks[0].offset)
            detail = f"the records below {acks[0].offset} were written, and are not acknowledged" if code else ""
            error = self._error(code, detail) if code else None
            # Nothing fails from here on that would keep who is not among them any more from its answer.
            self._tell(heapq.heappop(acks), error)

    def _send_away(self) -> None:
        acks, self._acks = self._acks, []
        try:
            while acks:
                detail = f"this node stopped leading before all in sync had the records below {acks[0].offset}"
                error = self._error(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
                self._tell(heapq.heappop(acks), error)
        finally:  # there was no memory to tell who is left: they are sent away when this is done again
            if not self._acks:
                self._acks = acks
            while acks is not self._acks and acks:
                heapq.heappush(self._acks, acks[-1])
                acks.pop()
        deletions, self._deletions = self._deletions, []
        try:
            while deletions:
                offset, callback = deletions[0]
                detail = f"this node stopped leading before all replicas had deleted what is below {offset}"
                error = self._error(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
                del deletions[0]
                self._call(callback, error)
        finally:
            if self._deletions:
                self._deletions += deletions
            else:  # which takes no memory
                self._deletions = deletions

    def is_settled(self, node_id: int) -> bool:
        """Whether a fetch of this follower says nothing new while it has all there is: see Partition.is_settled."""
        return self.machine.is_settled(node_id)

    @property
    def low_watermark(self) -> int:
        """Below it all live replicas have deleted."""
        return self.machine.low_watermark(self._log.log_start_offset)

    def wait_deleted(self, offset: int, callback: Waiter) -> None:
        """Call back once the low watermark is `offset`, or with the error, unless `forget_deletion` comes first."""
        self._deletions.append((offset, callback))
        self._tell_deletions()

    def forget_deletion(self, callback: Waiter) -> None:
        """Do not call back any more; nothing happens when that has been done."""
        self._deletions = [waiting for waiting in self._deletions if waiting[1] is not callback]

    def _tell_deletions(self) -> None:
        if self._deletions:
            start = self.low_watermark
            reached = [callback for offset, callback in self._deletions if offset <= start]
            self._deletions = [waiting for waiting in self._deletions if waiting[0] > start]
            for callback in reached:
                self._call(callback, None)

    def _error(self, code: int, detail: str) -> KafkaError:
        return error_for_code(code, detail, topic=self._replica.topic, partition=self._replica.partition)

    def _tell(self, waiting: Acknowledgement, error: KafkaError | None) -> None:
        callback, waiting.callback = waiting.callback, None
        if callback is not None:
            self._call(callback, error)

    def _call(self, callback: Waiter, error: KafkaError | None) -> None:
        try:
            callback(error)
        except Exception as failure:
            failures.report(f"answering who waited for the replicas of {self.name}", failure)
