"""Followers as their leader knows them, and the set of those in sync. Sans-I/O.

Rules
- What a follower has is what its latest fetch said. It is caught up as of that fetch if it asked for the log's end, and as of the fetch
  before if it asked for what was the end then: so a follower that is always one fetch behind stays in sync.
- One change of the in-sync set is under way at a time. Until the controller has answered, the larger set counts (KIP-497): a change that
  comes to nothing has then only cost a wait.
Sources: Replica, ReplicaState, PartitionState.
"""

from __future__ import annotations

from typing import Final

from fastq.values import NamedTuple
from fastq_broker.controller.image import UNASSIGNED_DIRECTORY

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
"""A fetch that tells no broker epoch has this, and nothing is checked then."""
NEVER: Final = -(1 << 62)
"""A time before all others."""


class Follower:
    """One follower. Invariant: `caught_up_ms` never goes back within a leader epoch."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "directory",
        "fetched_at_ms",
        "followed_at_ms",
        "leader_end",
        "log_end",
        "log_start",
        "node_id",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.log_end = UNKNOWN_OFFSET
        self.log_start = UNKNOWN_OFFSET
        self.directory = UNASSIGNED_DIRECTORY
        """Where the metadata has its replica."""
        self.broker_epoch: int | None = None
        """Of its latest fetch; None before the first."""
        self.caught_up_ms = NEVER
        self.fetched_at_ms = NEVER
        self.followed_at_ms = NEVER
        """When the fetch came after whose answer it has fetched again. The latest may have lain in the socket of a leader that stood still,
        and say nothing of whom its sender follows by now."""
        self.leader_end = UNKNOWN_OFFSET
        """The leader's log end at the latest fetch."""

    def begin_epoch(self, epoch_start: int, *, newly_led: bool, in_sync: bool, now_ms: int) -> None:
        """A leader epoch begins: who is in sync has a full lag time to show up. A new leader knows nobody's offsets."""
        self.caught_up_ms = now_ms if in_sync else NEVER
        if newly_led:
            self.log_end = self.log_start = self.leader_end = UNKNOWN_OFFSET
            self.fetched_at_ms = self.followed_at_ms = NEVER
            self.broker_epoch = None
        else:
            self.leader_end = epoch_start
            self.fetched_at_ms = self.followed_at_ms = self.caught_up_ms

    def fetched(self, offset: int, log_start: int, leader_end: int, broker_epoch: int, now_ms: int) -> None:
        """It asked for what comes from `offset` on: it has all below."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_at_ms)
        self.log_end = offset
        self.log_start = log_start
        self.leader_end = max(leader_end, self.leader_end)
        self.followed_at_ms, self.fetched_at_ms = self.fetched_at_ms, now_ms
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class IsrChange(NamedTuple):
    """What the controller is asked for (AlterPartition). The answer to another one, though alike, does not count."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """Node id and broker epoch of each; epoch -1 where no fetch has told it yet. Never empty: the leader is in it."""
    joining: int = -1
    """The node that is to come in, -1 when some are to go."""

    @property
    def nodes(self) -> list[int]:
        return [node for node, _ in self.isr]


class Isr:
    """The in-sync replicas of a partition that is led here. Invariant: `maximal` holds `committed`, and who is about to join."""

    __slots__ = ("committed", "maximal", "pending")

    def __init__(self) -> None:
        self.committed: frozenset[int] = frozenset()
        self.maximal: frozenset[int] = frozenset()
        self.pending: IsrChange | None = None

    def commit(self, nodes: frozenset[int]) -> None:
        """The controller has it so."""
        self.committed = self.maximal = nodes
        self.pending = None

    def propose(self, change: IsrChange) -> None:
        self.pending = change
        self.maximal = self.committed | {change.joining} if change.joining >= 0 else self.committed

    def roll_back(self) -> None:
        """The controller has refused the change for certain."""
        self.commit(self.committed)
