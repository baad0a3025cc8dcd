"""What a classic group is at one moment: its state, its members, and the questions that can be answered from them.

Rules: `PREVIOUS` is the one table of transitions; every change of state goes through `_go`. What happens to a group is in `classic_group`.
Source: ClassicGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import GroupMetadataKey
from fastq.values import NamedTuple
from fastq_broker.coordinator.records import encode_key

from .classic_member import JoinRequest, JoinResult, Member, SyncResult, Waiter
from .group import UNKNOWN_MEMBER, Committer
from .subscriptions import CONSUMER_PROTOCOL_TYPE

if TYPE_CHECKING:
    from fastq_broker.coordinator.shard import CoordinatorRecord


class State(Enum):
    """The states, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    """No members; there may be offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are to join (again)."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All that have joined know the generation; the leader's assignment is awaited."""
    STABLE = "Stable"
    """Members have their assignments."""
    DEAD = "Dead"
    """The group is gone; who still holds it is turned away."""


PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.EMPTY, State.COMPLETING_REBALANCE, State.STABLE}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}
"""From which states each state is reached."""

CAN_REBALANCE = PREVIOUS[State.PREPARING_REBALANCE]


class Answer(NamedTuple):
    """Tell somebody who waits."""

    waiter: Waiter
    result: JoinResult | SyncResult


class Store(NamedTuple):
    """Write the group's metadata with these assignments, then call `then(error, now_ms)`, with 0 once it is written."""

    assignments: dict[str, bytes]
    then: Callable[[int, int], None]


class Wake(NamedTuple):
    """Call `wake(key, now_ms)` at this time."""

    at_ms: int
    key: str


class Settings(NamedTuple):
    """What the broker's configuration says about classic groups."""

    initial_rebalance_delay_ms: int = 3000
    size_max: int = 2**31 - 1


DEFAULTS = Settings()


def group_key(group_id: str) -> bytes:
    """The key of a group's record."""
    return encode_key(GroupMetadataKey(group=group_id))


class GroupState:
    """One group. Loop thread only.

    Invariants: `leader_id` is a member, or None where there are none; `instances` maps each static member's instance id to its
    member id; `awaiting_join` counts members with a `join_waiter`; `support` counts by protocol the members that offer it;
    `generation` grows by one with each rebalance that completes.
    """

    kind = "classic"

    def __init__(
        self,
        group_id: str,
        settings: Settings = DEFAULTS,
        *,
        wall_clock: Callable[[], int],
        new_name: Callable[[], str],
    ) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = State.EMPTY
        self.previous_state = State.EMPTY
        self.state_since_ms: int | None = wall_clock()
        """When the state was reached, in ms since 1970; None for a group stored by a broker that did not note it."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.pending_joins: dict[str, int] = {}
        """Ids given out but not used yet, and until when they are good."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self.subscribed: frozenset[str] | None = None
        self.support: Counter[str] = Counter()
        self.awaiting_join = 0
        self.effects: MutableSequence[Answer | Store | Wake] = []
        self._wall_clock = wall_clock
        self._new_name = new_name
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial_remaining_ms: int | None = None
        """What is left of the first rebalance's time; None when that is not going on."""
        self._new_member_added = False
        self._unfollowed = False
        """Whether somebody was taken out, and what follows on that has failed inside."""
        self._unwritten = False
        """Whether nobody is in the group, and that could not be stored."""

    def __repr__(self) -> str:
        return (
            f"ClassicGroup({self.group_id!r}, {self.state.value}, generation {self.generation}, "
            f"{len(self.members)} members)"
        )

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def listed_protocol_type(self) -> str:
        return self.protocol_type or ""

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member wants for joining."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member_error(self, member_id: str, instance_id: str | None) -> int:
        """Why this is not a member of the group: first the instance, then the id."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_commit(
        self, committer: Committer, topic_partitions: Iterable[tuple[str, int]], *, transactional: bool, version: int
    ) -> int:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id, generation, instance_id = committer
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id != UNKNOWN_MEMBER or instance_id is not None:
            error = self.member_error(member_id, instance_id)
            if error:
                return error
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not transactional and self.state is not State.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_fetch(self, committer: Committer) -> int:
        return ErrorCode.GROUP_ID_NOT_FOUND if self.state is State.DEAD else ErrorCode.NONE

    def check_delete(self) -> int:
        if self.state is State.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.state is State.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def check_offset_delete(self) -> int:
        if self.state is State.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is State.EMPTY or self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed

    def tombstones(self) -> list[CoordinatorRecord]:
        return [(group_key(self.group_id), None)]

    def offsets_expire_after(self, commit_timestamp_ms: int) -> int | None:
        if self.protocol_type is None:  # offsets of consumers without group management
            return commit_timestamp_ms
        if self.state is State.EMPTY:
            return commit_timestamp_ms if self.state_since_ms is None else self.state_since_ms
        knows_topics = self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.subscribed is not None
        return commit_timestamp_ms if knows_topics and self.state is State.STABLE else None

    def _accepts(self, member_id: str) -> bool:
        """Whether there is room. While members join, those count that have done so: a group too large sheds the last ones."""
        member = self.members.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            waiting = member is not None and member.join_waiter is not None
            return waiting or self.awaiting_join < self.settings.size_max
        if self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            return member is not None or len(self.members) < self.settings.size_max
        return True

    def _shares_protocol(self, request: JoinRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        if self.protocol_type != request.protocol_type:
            return False
        return any(self.support[name] == len(self.members) for name, _ in request.protocols)

    def _all_here(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_joins

    def _elect_leader(self) -> bool:
        """Have a leader that has joined; False when nobody has."""
        leader = self.members[self.leader_id] if self.leader_id is not None else None
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader_id = member.member_id
                return True
        return False

    def _select_protocol(self) -> str:
        """The protocol that most members prefer of those that all offer; of equals the first one offered."""
        count = len(self.members)
        candidates = {name for name, offered in self.support.items() if offered == count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def assignments(self) -> dict[str, bytes]:
        """Assignments by member id, as they are."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in; the first one determines the protocol type and leads."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._support(member, 1)
        self.pending_joins.pop(member.member_id, None)

    def _support(self, member: Member, change: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self.support[name] += change

    def _joined(self, member: Member, members: Sequence[tuple[str, str | None, bytes]] = ()) -> JoinResult:
        """The answer that lets a member into the generation."""
        name, leader = self.protocol_name, self.leader_id or ""
        return JoinResult(
            ErrorCode.NONE, member.member_id, self.generation, self.protocol_type, name, leader, members=members
        )

    def _metadata_of_all(self) -> list[tuple[str, str | None, bytes]]:
        name = self.protocol_name or ""
        return [(m.member_id, m.instance_id, m.metadata(name)) for m in self.members.values()]

    def _go(self, state: State) -> None:
        if self.state not in PREVIOUS[state]:
            raise ValueError(f"group {self.group_id}: {state.value} cannot follow {self.state.value}")
        since_ms = self._wall_clock()
        self.previous_state, self.state, self.state_since_ms = self.state, state, since_ms
