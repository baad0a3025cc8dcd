"""One partition as its leader, or a follower, sees it: who is in sync, what is committed, what may be acknowledged. Sans-I/O.

Rules
- Calls take what happened and the time, in ms of a monotonic clock, and answer the effects: what is to be done now, in that order.
- The metadata says who leads; an older partition epoch says nothing. The high watermark is this machine's while it leads, and never goes
  back within an epoch.
- It is the least end of all in the maximal in-sync set and of those that are about to join it, the leader's own included; below
  min.insync.replicas in sync it stands still (KIP-966). An end is what counts as kept: with durability "fsync" the leader's is what is on
  its disk, and a follower does not ask for more before what it has is on its own.
- A follower joins once it has what is committed and has reached the start of the leader's epoch (KAFKA-7128), and its broker is up: not
  fenced, not shutting down, and the one that the metadata knows (KIP-841, KIP-903).
- A follower's offset moves by its fetches alone.
Source: Partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from fastq.errors import ErrorCode
from fastq.values import NamedTuple

from .isr import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, Follower, Isr, IsrChange

if TYPE_CHECKING:
    from fastq_broker.controller.image import BrokerImage, PartitionImage

NOBODY: Final = -1
NO_EPOCH: Final = -1

REFUSED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""Answers to an AlterPartition by which it has not been carried out and never will be."""
SUPERSEDED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Answers after which only the metadata, which is on its way, says what holds. After any other the same is asked again."""


class Ends(NamedTuple):
    """A log as it is now."""

    log_end: int
    kept: int
    """What of it counts: the log's end, or what is on disk of it."""
    high_watermark: int


class EpochBegan(NamedTuple):
    """The leader's epoch is to be noted in the log, with where it starts."""

    leader_epoch: int
    start_offset: int


class Advanced(NamedTuple):
    """The high watermark has moved: readers see more, and who waits for acknowledgement is to be looked at."""

    high_watermark: int


class AskController(NamedTuple):
    """The controller is to be asked for another in-sync set."""

    change: IsrChange


class StoppedLeading(NamedTuple):
    """Who waits for anything here gets NOT_LEADER_OR_FOLLOWER."""


class Follow(NamedTuple):
    """A new leader epoch: fetch from that node from now on; from none when it is -1."""

    leader_id: int
    leader_epoch: int


class StartMoved(NamedTuple):
    """The log of a follower starts later than before: who waits for the low watermark is to be looked at."""


Effect: TypeAlias = "EpochBegan | Advanced | AskController | StoppedLeading | Follow | StartMoved"


class IsrAnswer(NamedTuple):
    """The controller's answer to one change; all but `error_code` counts with error 0 only."""

    error_code: int
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()


class Partition:
    """One partition on node `node_id`. `broker` is what the metadata knows of a node. Thread rule: one thread.

    Invariants: there are followers and an in-sync set only where this node leads; `leader_epoch` and `partition_epoch` never go back.
    """

    __slots__ = (
        "_broker",
        "_followers",
        "_lag_max_ms",
        "_log",
        "_node_id",
        "_wanted_in_sync",
        "epoch_start",
        "isr",
        "leader_epoch",
        "leader_id",
        "partition_epoch",
    )

    def __init__(
        self,
        node_id: int,
        broker: Callable[[int], BrokerImage | None],
        *,
        lag_max_ms: int = 30_000,
        min_insync_replicas: int = 1,
    ) -> None:
        self._node_id = node_id
        self._broker = broker
        self._lag_max_ms = lag_max_ms
        self._wanted_in_sync = min_insync_replicas
        self._log = Ends(0, 0, 0)
        self._followers: dict[int, Follower] = {}
        self.isr = Isr()
        self.leader_id = NOBODY
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.epoch_start = UNKNOWN_OFFSET
        """Where the epoch of this leader starts; -1 where it does not lead."""

    @property
    def leads(self) -> bool:
        return self.leader_id == self._node_id

    @property
    def ends(self) -> Ends:
        """The leader's log, as this knows it."""
        return self._log

    @property
    def high_watermark(self) -> int:
        """Of a leader. A follower's is its log's alone."""
        return self._log.high_watermark

    @property
    def min_isr(self) -> int:
        """How many have to be in sync: never more than there are replicas."""
        return min(self._wanted_in_sync, len(self._followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return self.leads and len(self.isr.committed) < self.min_isr

    def follower(self, node_id: int) -> Follower | None:
        return self._followers.get(node_id)

    # -- what the metadata says

    def apply(self, image: PartitionImage, log: Ends, now_ms: int, effects: list[Effect] | None = None) -> list[Effect]:
        """Follow the metadata; `log` is what is here of the partition. Effects come to `effects`, each before that is so by which it would
        not come again: where memory fails on the way none is lost, and one may come twice."""
        effects = [] if effects is None else effects
        if image.partition_epoch < self.partition_epoch or image.leader_epoch < self.leader_epoch:
            return effects
        if image.leader == self._node_id:
            self._lead(image, log, now_ms, effects)
        else:
            self._follow(image, effects)
        return effects

    def _lead(self, image: PartitionImage, log: Ends, now_ms: int, effects: list[Effect]) -> None:
        newly_led, new_epoch = not self.leads, image.leader_epoch > self.leader_epoch
        others = [node for node in image.replicas if node != self._node_id]
        self._followers = {node: self._followers.get(node) or Follower(node) for node in others}
        for node, known in self._followers.items():
            known.directory = image.directory_of(node)
        pending = self.isr.pending
        if new_epoch or pending is None or image.partition_epoch > pending.partition_epoch:
            # An unclean leader has recovered by leading; the controller hears of it with the next change.
            self.isr.commit(frozenset(image.isr))
        if new_epoch or newly_led:
            self._log = log if newly_led else log._replace(high_watermark=self._log.high_watermark)
            self.epoch_start = log.log_end
            for follower in self._followers.values():
                in_sync = follower.node_id in self.isr.committed
                follower.begin_epoch(log.log_end, newly_led=newly_led, in_sync=in_sync, now_ms=now_ms)
            effects.append(EpochBegan(image.leader_epoch, log.log_end))
        self.leader_id = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        effects += self.count(now_ms)  # the in-sync set may be down to one

    def _follow(self, image: PartitionImage, effects: list[Effect]) -> None:
        if self.leads:
            effects.append(StoppedLeading())
        if image.leader_epoch > self.leader_epoch or image.leader != self.leader_id:
            effects.append(Follow(image.leader, image.leader_epoch))
        self.leader_id = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.epoch_start = UNKNOWN_OFFSET
        self._followers = {}
        self.isr.commit(frozenset())

    def configure(self, min_insync_replicas: int, now_ms: int) -> list[Effect]:
        """min.insync.replicas is another."""
        self._wanted_in_sync = min_insync_replicas
        return self.count(now_ms)

    # -- what happens to the log

    def appended(self, log_end: int, kept: int, now_ms: int) -> list[Effect]:
        """The log of the leader has grown, or more of it is kept."""
        if not self.leads:
            return []
        self._log = Ends(log_end, kept, self._log.high_watermark)
        return self.count(now_ms)

    def fetch_error(self, node_id: int, requested_epoch: int, broker_epoch: int) -> int:
        """Why a fetch of a replica is not served, or 0.

        Who names the leader's epoch and is no replica here may know of a reassignment before this node does: it shall try again.
        """
        if not self.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if requested_epoch not in (NO_EPOCH, self.leader_epoch):
            older = requested_epoch < self.leader_epoch
            return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        if node_id not in self._followers:
            return ErrorCode.UNKNOWN_LEADER_EPOCH if requested_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = self._broker(node_id)
        stale = broker_epoch != UNKNOWN_BROKER_EPOCH and known is not None and broker_epoch < known.epoch
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if stale else 0

    def fetched(self, node_id: int, offset: int, log_start: int, broker_epoch: int, now_ms: int) -> list[Effect]:
        """A follower asks for what comes from `offset` on, and is answered with records, or that there are none yet.

        `fetch_error` has let it pass; a fetch that is answered with an error or a diverging epoch says nothing of what the follower has.
        """
        follower = self._followers[node_id]
        start_before = follower.log_start
        follower.fetched(offset, log_start, self._log.log_end, broker_epoch, now_ms)
        effects: list[Effect] = []
        if self._may_join(follower):
            effects.append(self._propose(sorted({*self.isr.committed, node_id}), joining=node_id))
        if self._log.high_watermark < self._log.kept:
            effects += self.count(now_ms)
        if log_start > start_before:
            effects.append(StartMoved())
        return effects

    def is_settled(self, node_id: int) -> bool:
        """Whether this follower's next fetch would change nothing here while it asks for the log's end: it is in sync, as the controller
        has it, and no change is under way that may have to be asked for again."""
        follower = self._followers.get(node_id)
        return (
            follower is not None
            and follower.log_end == self._log.log_end
            and self.isr.pending is None
            and node_id in self.isr.committed
        )

    def slept(self, node_id: int, fetched_ms: int, before_ms: int) -> None:
        """A settled follower has asked for the log's end in all its fetches until then, of which this was not told. `before_ms`: when the
        last but one came."""
        follower = self._followers.get(node_id)
        if follower is not None:
            follower.fetched_at_ms = max(follower.fetched_at_ms, fetched_ms)
            follower.followed_at_ms = max(follower.followed_at_ms, before_ms)
            follower.caught_up_ms = max(follower.caught_up_ms, fetched_ms)

    def is_followed(self, now_ms: int, within_ms: int) -> bool:
        """Whether all others in sync have fetched again after an answer to what they fetched lately: nobody that could be elected leads,
        or follows another leader."""
        others = (self._followers.get(node) for node in self.isr.maximal - {self._node_id})
        return self.leads and all(
            follower is not None and now_ms - follower.followed_at_ms <= within_ms for follower in others
        )

    def count(self, now_ms: int) -> list[Effect]:
        """Move the high watermark to what everyone has who counts."""
        if not self.leads or len(self.isr.committed) < self.min_isr:
            return []
        log_end, watermark, high_watermark = self._log
        for follower in self._followers.values():
            if follower.log_end < watermark and (
                follower.node_id in self.isr.maximal
                or (follower.is_caught_up(log_end, now_ms, self._lag_max_ms) and self._is_eligible(follower))
            ):
                watermark = follower.log_end
        if watermark <= high_watermark:
            return []
        effects: list[Effect] = [Advanced(watermark)]  # first: it does not come again
        self._log = self._log._replace(high_watermark=watermark)
        return effects

    # -- who is in sync

    def check(self, now_ms: int) -> list[Effect]:
        """To be called now and then, half a lag time apart: who has not been caught up for too long goes."""
        if not self.leads:
            return []
        effects: list[Effect] = []
        if self.isr.pending is None:
            behind = {node for node in self.isr.committed - {self._node_id} if self._is_behind(node, now_ms)}
            if behind:
                effects.append(self._propose(sorted(self.isr.committed - behind)))
        effects += self.count(now_ms)  # who was waited for may have been fenced, or has fallen behind
        return effects

    def _is_behind(self, node_id: int, now_ms: int) -> bool:
        follower = self._followers.get(node_id)
        return follower is None or not follower.is_caught_up(self._log.log_end, now_ms, self._lag_max_ms)

    def _is_eligible(self, follower: Follower) -> bool:
        known = self._broker(follower.node_id)
        if known is None or known.fenced or known.in_controlled_shutdown or follower.broker_epoch is None:
            return False
        if not known.is_online(follower.directory):
            return False
        return follower.broker_epoch in (UNKNOWN_BROKER_EPOCH, known.epoch)

    def _may_join(self, follower: Follower) -> bool:
        return (
            self.isr.pending is None
            and follower.node_id not in self.isr.committed
            and follower.log_end >= max(self._log.high_watermark, self.epoch_start)
            and self._is_eligible(follower)
        )

    def _propose(self, nodes: list[int], joining: int = NOBODY) -> AskController:
        change = IsrChange(
            self.leader_epoch, self.partition_epoch, tuple((node, self._epoch_of(node)) for node in nodes), joining
        )
        self.isr.propose(change)
        return AskController(change)

    def _epoch_of(self, node_id: int) -> int:
        """The broker epoch that a member of the in-sync set is proposed with: the one it fetched with, so that the controller sees when
        it has been started anew since."""
        if node_id == self._node_id:
            known = self._broker(node_id)
            return UNKNOWN_BROKER_EPOCH if known is None else known.epoch
        follower = self._followers.get(node_id)
        return UNKNOWN_BROKER_EPOCH if follower is None or follower.broker_epoch is None else follower.broker_epoch

    def answered(self, change: IsrChange, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        """The controller has answered a change, for this partition: errors of the whole request are for who sends it to act upon."""
        if self.isr.pending is not change:
            return []  # the metadata has been faster
        if answer.error_code in REFUSED:
            self.isr.roll_back()
            return self.count(now_ms)
        if answer.error_code in SUPERSEDED:
            return []
        if answer.error_code != ErrorCode.NONE:
            return [AskController(change)]
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.partition_epoch:
            return []
        self.isr.commit(frozenset(answer.isr))
        self.partition_epoch = answer.partition_epoch
        return self.count(now_ms)

    # -- what clients may be told

    def acknowledgement(self, end_offset: int) -> int | None:
        """Whether records below `end_offset` may be acknowledged to who asks for all: 0, the error to answer, or None: not yet."""
        if not self.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._log.high_watermark < end_offset:
            return None
        return 0 if len(self.isr.maximal) >= self.min_isr else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    @property
    def knows_latest(self) -> bool:
        """Whether a client may be told the high watermark as the log's end: a new leader does not know all that was committed before
        until its own epoch is (KIP-207)."""
        return self._log.high_watermark >= self.epoch_start

    def low_watermark(self, log_start: int) -> int:
        """The least log start of all live replicas: records below it are gone everywhere."""
        starts = [f.log_start for node, f in self._followers.items() if self._is_alive(node)]
        return min(log_start, *starts) if starts else log_start

    def _is_alive(self, node_id: int) -> bool:
        known = self._broker(node_id)
        return known is not None and not known.fenced

    def preferred_replica(self, rack: str | None, offset: int, listener: str) -> int:
        """The node that a consumer in `rack` should read `offset` from; -1: the leader (KIP-392)."""
        own = self._broker(self._node_id)
        if not rack or not self.leads or (own is not None and own.rack == rack):
            return NOBODY
        found = [
            (follower.log_end, follower.caught_up_ms, node)
            for node, follower in self._followers.items()
            if node in self.isr.committed and follower.log_start <= offset <= follower.log_end
            if (known := self._broker(node)) is not None and not known.fenced
            if known.rack == rack and known.endpoint(listener) is not None
        ]
        return max(found)[2] if found else NOBODY
