"""A member of a group that speaks the classic protocol: join, sync, heartbeat, leave. Sans-I/O.

Rules
- One JoinGroup or SyncGroup at a time; heartbeats in between and while the application carries out a step.
- Nothing is joined while a step waits to be carried out, or is: what is revoked is given up before anybody else may get it.
- Eager (range, roundrobin, sticky): all partitions are given up before every JoinGroup. Cooperative: only those that the new
  assignment takes away, and then the group is joined once more. The lowest protocol that all strategies share is spoken.
- An answer to a request of an older attempt (`_attempt`) is dropped.
- A dynamic member leaves when the application does not poll within max_poll_interval_ms; a static one falls silent.
Sources: Kafka's AbstractCoordinator and ConsumerCoordinator; KIP-345, KIP-394, KIP-429, KIP-792, KIP-800, KIP-814.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from fastq._native.wire import DecodeError
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.assignors import Assignor, GroupTopics, check_assignment
from fastq.consumer.group.coordinator import JOINED, KEPT, RETRY_ELSEWHERE, RETRY_HERE, Coordinator, Doing
from fastq.consumer.group.membership import (
    NO_GENERATION,
    CanSend,
    Change,
    ChangeKind,
    Subscription,
    group_error,
    ordered,
)
from fastq.consumer.group.subscription import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fastq.errors import ErrorCode, FastqError, InconsistentGroupProtocol
from fastq.metadata import ClusterMetadata, GroupMetadata, TopicPartition
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

logger = logging.getLogger("fastq.consumer")

HEARTBEAT_API, LEAVE_GROUP_API, JOIN_GROUP_API, SYNC_GROUP_API = 12, 13, 11, 14
PROTOCOL_TYPE = "consumer"
# A join is answered when the rebalance is over; a broker may take a little longer than the rebalance time-out.
JOIN_GRACE_S = 5.0
# How long the leader waits for metadata of topics that nobody has heard of.
UNKNOWN_TOPICS_S = 5.0
# The member is not in the group any more, with the id, or the generation, that it gave.
LOST_ID, LOST_GENERATION = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
# A join that is answered so is made again.
PASSING = (
    RETRY_ELSEWHERE
    | RETRY_HERE
    | {LOST_ID, LOST_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED}
)


class State(Enum):
    """Where the member stands."""

    IDLE = "idle"  # not in the group, and wants nothing of it
    UNJOINED = "unjoined"  # a join is due
    PREPARING = "preparing"  # a join is due after what has to be carried out before
    JOINING = "joining"  # JoinGroup is on its way
    ASSIGNING = "assigning"  # as the leader, waits for metadata
    SYNCING = "syncing"  # SyncGroup is on its way
    STABLE = "stable"
    FAILED = "failed"  # for good


# A heartbeat counts in these; while joining and syncing the request itself keeps the member alive.
BEATING = frozenset({State.UNJOINED, State.PREPARING, State.ASSIGNING, State.STABLE})


class ClassicMember:
    """Invariants: `generation` is -1 exactly while there is no membership; `owned` is what the consumer was told to read and
    not told to give up, with the steps in `_changes` still to come. Thread rule: under the driver's lock, or in its loop.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: Coordinator,
        metadata: ClusterMetadata,
        assignors: Iterable[Assignor],
        watch_topics: Callable[[Iterable[str]], None],
    ) -> None:
        assert config.group_id is not None
        self.group_id: str = config.group_id
        self.member_id = ""
        self.generation = NO_GENERATION
        self.lost: GroupMetadata | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self.state = State.IDLE
        self.config = config
        self.coordinator = coordinator
        self.metadata = metadata
        self.assignors = {assignor.name: assignor for assignor in assignors}
        self.cooperative = all(assignor.cooperative for assignor in self.assignors.values())
        self._watch_topics = watch_topics
        self.too_slow = False
        self._subscription = Subscription()
        self._protocol = ""
        self._changes: deque[Change] = deque()
        self._begun: Change | None = None  # the step that the application was told of, and is at perhaps
        self._target: frozenset[TopicPartition] = frozenset()  # what this generation gave
        self._again: str | None = None  # why to join once more when the steps are carried out
        self._reason = "the member starts"
        self._attempt = 0
        self._failures = 0
        self._retry_at = 0.0
        self._beat_at = 0.0
        self._beat_answered_at = 0.0
        self._beating = False
        self._polled_at: float | None = None
        self._error: FastqError | None = None
        self._leading: tuple[str, dict[str, MemberSubscription]] | None = None  # protocol and members, while ASSIGNING
        self._assign_by = 0.0
        self.group_topics: list[str] = []  # of all members, also those that are not there (yet)
        self._group_counts: dict[str, int] | None = None  # of the assignment that this member made as the leader
        self._generation_seen = -1  # of the metadata

    @property
    def who(self) -> GroupMetadata:
        """This member, as commits and error messages name it."""
        return GroupMetadata(self.group_id, self.generation, self.member_id, self.config.group_instance_id)

    @property
    def is_stable(self) -> bool:
        """Whether the assignment is carried out and no rebalance is under way."""
        return self.state is State.STABLE and not self._changes and self._again is None

    @property
    def may_commit(self) -> bool:
        """Whether a commit would be made in a generation: not between JoinGroup and the end of the rebalance."""
        return self.generation >= 0 and self.state in (State.STABLE, State.PREPARING, State.UNJOINED)

    # -- from the consumer

    def subscribe(self, subscription: Subscription) -> None:
        """Want other topics; the group is joined again when they differ."""
        before, self._subscription = self._subscription, subscription
        if self.state is State.FAILED:
            return
        if self.state is State.IDLE:
            if subscription.topics or subscription.pattern:
                self.state = State.UNJOINED
        elif set(before.topics) != set(subscription.topics):
            self.rejoin("the subscription changed")

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance: at once, or when the rebalance under way is over."""
        if self.state in (State.JOINING, State.ASSIGNING, State.SYNCING) or (
            self.state is State.STABLE and self._changes
        ):
            self._again = reason
        elif self.state is State.STABLE:
            self._rejoin(reason)

    def poll(self, now: float) -> None:
        """The application asks for records."""
        self._polled_at = now
        if self.metadata.generation != self._generation_seen and self.state is State.STABLE and self._again is None:
            self._generation_seen = self.metadata.generation
            self._check_topics()

    @property
    def due(self) -> bool:
        """Whether there is a step to carry out."""
        return bool(self._changes)

    def changes(self) -> Change | None:
        """The step to carry out now."""
        self._begun = self._changes[0] if self._changes else None
        return self._begun

    def carried_out(self, change: Change) -> None:
        """The step is done, though meanwhile the member may have lost its place and have another one to take."""
        self._begun = None
        if change.kind is ChangeKind.ASSIGN:
            self.owned |= frozenset(change.partitions)
        else:
            self.owned -= frozenset(change.partitions)
        if not self._changes or self._changes[0] is not change:
            self._lose_again()
            return
        self._changes.popleft()
        if self.state is State.PREPARING and not self._changes:
            self.state = State.UNJOINED
        elif self.state is State.STABLE and not self._changes and self._again is not None:
            self._rejoin(self._again)

    def take_error(self) -> FastqError | None:
        """What the application has to know: once, or again and again when this member is of no more use."""
        error = self._error
        if self.state is not State.FAILED:
            self._error = None
        return error

    def lost_generation(self, code: int) -> None:
        """A commit was told that the group has gone on without this member."""
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(group_error(code, "another consumer uses the same group_instance_id", self.who))
        elif self.state is State.STABLE:
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.rejoin("a commit was told of a rebalance")
            else:
                self._reset(code)

    def overheard(self, response: Message | None, now: float) -> None:
        """A heartbeat thread has had this answer: what is not peace is asked for again, and then believed. One that is lost has lost
        nothing, as a coordinator says it again."""
        if isinstance(response, HeartbeatResponse) and response.error_code != 0:
            self._beat_at = 0.0

    def leave(self, reason: str) -> list[Outgoing]:
        """Leave for good. A static member stays in the group, for its successor, until its session ends (KIP-345)."""
        out: list[Outgoing] = []
        if self.config.group_instance_id is None and self.member_id and self.coordinator.known:
            # A broker answers one request of a connection after the other: behind a JoinGroup the farewell would wait for the others.
            node = self.coordinator.node if self.state in (State.JOINING, State.SYNCING) else None
            out.append(self._leave_request(reason, None if node is None else node.node_id))
        self._attempt += 1
        self.state = State.IDLE
        self.generation, self.member_id, self.lost = NO_GENERATION, "", None
        self._changes.clear()
        self.owned = frozenset()
        return out

    # -- what to send

    def requests(self, now: float, can_send: CanSend) -> Iterator[Outgoing]:
        """What to send now. A request counts as sent once it is made: there may be no memory for it, nor for the one after it."""
        out = self.heartbeats(now, can_send)
        while out:  # which takes no memory
            yield out.pop()
        if not self.coordinator.known or now < self._retry_at:
            return
        if self.state is State.UNJOINED and not self._changes and self._begun is None:
            if can_send(self.coordinator.node_id):
                yield self._join()
        elif self.state is State.ASSIGNING and self._topics_known(now) and can_send(self.coordinator.node_id):
            yield self._assign_and_sync()

    def heartbeats(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """The heartbeat that is due, or the farewell of a member whose application is gone."""
        if self.generation < 0 or self.state not in BEATING:
            return []
        if self._polled_at is not None and now > self._polled_at + self.config.max_poll_interval_ms / 1000:
            return self._too_slow(can_send)
        if now > self._beat_answered_at + self.config.session_timeout_ms / 1000 and self.coordinator.known:
            self._beat_answered_at = now
            if self._beating or not can_send(self.coordinator.node_id):  # else nobody has asked it
                self.coordinator.lost(now, "no heartbeat was answered within session_timeout_ms")
        if self._beating or now < self._beat_at or not self.coordinator.known or not can_send(self.coordinator.node_id):
            return []
        beat_at = now + self.config.heartbeat_interval_ms / 1000
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.group_instance_id,
        )
        attempt = self._attempt
        out = [self._outgoing(HEARTBEAT_API, request, lambda r, e, t: self._beaten(attempt, r, e, t))]
        self._beating, self._beat_at = True, beat_at
        return out

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until something is due."""
        due: list[float] = []
        beat = self.next_heartbeat(now)
        if beat is not None:
            due.append(beat)
        if self._retry_at > now:
            due.append(self._retry_at - now)
        if self.state is State.ASSIGNING:
            due.append(max(0.0, self._assign_by - now))
        return min(due) if due else None

    def next_heartbeat(self, now: float) -> float | None:
        """Seconds until the next heartbeat, or until the application has been silent for too long."""
        if self.generation < 0 or self.state not in BEATING:
            return None
        at = self._beat_at if not self._beating else self._beat_answered_at + self.config.session_timeout_ms / 1000
        if self._polled_at is not None:
            at = min(at, self._polled_at + self.config.max_poll_interval_ms / 1000)
        return max(0.0, at - now)

    def _outgoing(self, api_key: int, request: Any, done: Callable[[Any, Any, float], None], **more: Any) -> Outgoing:
        return Outgoing(self.coordinator.node_id, api_key, lambda version: request, None, done, **more)

    def _leave_request(self, reason: str, node_id: int | None = None) -> Outgoing:
        """The farewell; `node_id`: to the coordinator over the connection that others use."""
        member_id, group_id, instance = self.member_id, self.group_id, self.config.group_instance_id

        def build(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=group_id, member_id=member_id)
            member = LeaveGroupRequest.MemberIdentity(
                member_id=member_id, group_instance_id=instance, reason=reason[:255]
            )
            return LeaveGroupRequest(group_id=group_id, members=[member])

        to = self.coordinator.node_id if node_id is None else node_id
        return Outgoing(to, LEAVE_GROUP_API, build, None, lambda r, e, t: None)

    # -- joining

    def _rejoin(self, reason: str) -> None:
        """A rebalance begins: first what has to be given up."""
        logger.info("group %s: member %s rejoins: %s", self.group_id, self.member_id or "(new)", reason)
        self._reason, self._again = reason, None
        self._attempt += 1
        self.state = State.PREPARING
        wanted = set(self._subscription.topics)
        gone = [tp for tp in self.owned if not self.cooperative or tp.topic not in wanted]
        self._changes.append(Change(ChangeKind.REVOKE, ordered(gone)))

    def _reset(self, code: int) -> None:
        """The group has gone on without this member: whatever it had may be somebody else's by now."""
        logger.warning("group %s: member %s lost its place (%s)", self.group_id, self.member_id, ErrorCode(code).name)
        self._attempt += 1
        self.lost, self.generation = self.lost if self.generation < 0 else self.who, NO_GENERATION
        if code == LOST_ID:
            self.member_id = ""
        self._reason, self._again = f"lost its place: {ErrorCode(code).name}", None
        self._lose()

    def _lose(self) -> None:
        self.state = State.UNJOINED
        self._lose_again()

    def _lose_again(self) -> None:
        self._changes.clear()
        if self.owned:
            self._changes.append(Change(ChangeKind.LOSE, ordered(self.owned)))

    def _fail(self, error: FastqError) -> None:
        """This member is of no more use."""
        self._attempt += 1
        self.lost, self.generation = self.lost if self.generation < 0 else self.who, NO_GENERATION
        self._lose()
        self.state, self._error = State.FAILED, error

    def _pause(self, now: float, why: str) -> None:
        self._failures += 1
        self._retry_at = now + self.coordinator.pause_s(self._failures)
        logger.debug("group %s: joining again in %.3f s: %s", self.group_id, self._retry_at - now, why)

    def _too_slow(self, can_send: CanSend) -> list[Outgoing]:
        """The application has not polled for too long: give its place to others, unless it is a static one."""
        logger.warning(
            "group %s: member %s was not polled within max_poll_interval_ms=%d and leaves; it joins again when it is polled",
            self.group_id,
            self.member_id,
            self.config.max_poll_interval_ms,
        )
        out: list[Outgoing] = []
        dynamic = self.config.group_instance_id is None
        if dynamic and self.coordinator.known and can_send(self.coordinator.node_id):
            out.append(self._leave_request("max_poll_interval_ms passed without a poll"))
        self.too_slow = True
        self._reset(LOST_ID if out else LOST_GENERATION)  # its id is of use as long as nobody has said farewell
        return out

    def overdue(self) -> None:
        """The application did not ask in time: the next poll joins again, a static member under its id."""
        if self.generation >= 0:
            self._reset(LOST_GENERATION if self.config.group_instance_id is not None else LOST_ID)

    def _join(self) -> Outgoing:
        attempt, config = self._attempt + 1, self.config
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self._metadata_for(assignor))
                for name, assignor in self.assignors.items()
            ],
            reason=self._reason[:255],
        )
        timeout_s = max(config.request_timeout_ms, config.max_poll_interval_ms) / 1000 + JOIN_GRACE_S
        out = self._outgoing(
            JOIN_GROUP_API, request, lambda r, e, t: self._joined(attempt, r, e, t), timeout_s=timeout_s
        )
        self.state, self._attempt = State.JOINING, attempt
        return out

    def _metadata_for(self, assignor: Assignor) -> bytes:
        topics = self._subscription.topics
        user_data = assignor.user_data(frozenset(topics))
        return encode_subscription(topics, user_data, self.owned, self.generation, self.config.client_rack or None)

    def _joined(self, attempt: int, response: JoinGroupResponse | None, error: FastqError | None, now: float) -> None:
        if attempt != self._attempt:
            return
        if response is None or response.error_code != 0:
            self._join_failed("JoinGroup", 0 if response is None else response.error_code, response, error, now)
            return
        self.coordinator.worked()
        self.member_id, self.generation, self.lost = response.member_id, response.generation_id, None
        self._protocol = response.protocol_name or ""
        self._beat_at, self._beat_answered_at = now + self.config.heartbeat_interval_ms / 1000, now
        self._beating = False
        if self._protocol not in self.assignors:
            what = f"the coordinator chose the strategy {self._protocol!r}, which this member does not offer"
            self._fail(InconsistentGroupProtocol(what, group=self.group_id, member=self.member_id))
            return
        self._group_counts = None
        if response.leader != response.member_id:
            self._leading, self.group_topics = None, []
        elif not self._lead(response, now):
            return
        self.state, self._assign_by = State.ASSIGNING, now + UNKNOWN_TOPICS_S

    def _lead(self, response: JoinGroupResponse, now: float) -> bool:
        """This member is the leader: it learns of the topics of all members. False when it cannot."""
        members: dict[str, MemberSubscription] = {}
        for member in response.members:
            try:
                members[member.member_id] = decode_subscription(member.metadata, member.group_instance_id)
            except DecodeError as problem:
                what = f"the subscription of member {member.member_id} is malformed: {problem}; see which client it is"
                self._fail(InconsistentGroupProtocol(what, group=self.group_id, member=self.member_id))
                return False
        if self.member_id not in members:
            what = f"the coordinator made {self.member_id} the leader and leaves it out of the members: {sorted(members)[:5]}"
            self._error = InconsistentGroupProtocol(what, group=self.group_id, broker=self.coordinator.label)
            self.state = State.UNJOINED
            self._pause(now, "a malformed list of members")
            return False
        self.group_topics = sorted({topic for member in members.values() for topic in member.topics})
        self._watch_topics(self.group_topics)
        self._leading = ("" if response.skip_assignment else self._protocol, members)
        return True

    def _join_failed(self, api: str, code: int, response: Any, error: FastqError | None, now: float) -> None:
        """Neither JoinGroup nor SyncGroup made this a member of the generation."""
        self.state = State.UNJOINED
        if code in PASSING:
            self._passing(JOINED, code, f"{api} was refused", now)
        if response is None:
            if error is not None and not error.retriable:
                self._error = error
            self.coordinator.lost(now, f"{api} failed: {error}")
            self._pause(now, f"{api} failed")
        elif code == ErrorCode.MEMBER_ID_REQUIRED and isinstance(response, JoinGroupResponse):
            if self.member_id or not response.member_id:  # it is required once, and then had
                self._pause(now, "a member id was required again")
            self.member_id = response.member_id
        elif code in RETRY_ELSEWHERE:
            self.coordinator.lost(now, ErrorCode(code).name)
            self._pause(now, ErrorCode(code).name)  # its own: a join that works does not make look-ups after it fewer
        elif code in RETRY_HERE:
            self._pause(now, ErrorCode(code).name)
        elif code in (LOST_ID, LOST_GENERATION):
            self._reset(code)
            self._pause(now, ErrorCode(code).name)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._pause(now, "another rebalance has begun")
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(group_error(code, "another consumer uses the same group_instance_id", self.who))
        else:
            self._error = group_error(code, f"{api} was refused", self.who, broker=self.coordinator.label)
            self._pause(now, f"{api} was refused")

    def _passing(self, doing: Doing, code: int, what: str, now: float) -> None:
        self.coordinator.refused(doing, group_error(code, what, self.who, broker=self.coordinator.label), now)

    # -- assigning

    def _topics_known(self, now: float) -> bool:
        """Whether the leader knows the partitions of all topics, or has waited for long enough."""
        if self._leading is None or now >= self._assign_by:
            return True
        return all(self.metadata.topic(topic) is not None for topic in self.group_topics)

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of those topics that are there."""
        found = {topic: self.metadata.topic(topic) for topic in topics}
        return {
            topic: len(entry.partitions) for topic, entry in found.items() if entry is not None and entry.partitions
        }

    def _assign_and_sync(self) -> Outgoing:
        assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = []
        if self._leading is not None:
            protocol, members = self._leading
            self._group_counts = self._counts(self.group_topics)
            if protocol:
                assignments = self._assignments(self.assignors[protocol], members)
        attempt = self._attempt
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=assignments,
        )
        timeout_s = max(self.config.request_timeout_ms, self.config.max_poll_interval_ms) / 1000 + JOIN_GRACE_S
        out = self._outgoing(
            SYNC_GROUP_API, request, lambda r, e, t: self._synced(attempt, r, e, t), timeout_s=timeout_s
        )
        self.state, self._leading = State.SYNCING, None
        return out

    def _assignments(
        self, assignor: Assignor, members: Mapping[str, MemberSubscription]
    ) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        topics = GroupTopics.of(self.metadata, self._group_counts or {})
        try:
            found = check_assignment(assignor, topics, members, assignor.assign(topics, members))
        except FastqError as problem:
            self._error, found = problem, {}
        except MemoryError:
            raise  # the next turn assigns: what nobody is given nobody reads, until the group rebalances again
        except Exception as problem:
            self._error = InconsistentGroupProtocol(
                f"the assignor {assignor.name!r} failed: {problem!r}; no partition was assigned", group=self.group_id
            )
            found = {}
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=encode_assignment(found.get(member_id, ()))
            )
            for member_id in members
        ]

    def _synced(self, attempt: int, response: SyncGroupResponse | None, error: FastqError | None, now: float) -> None:
        if attempt != self._attempt:
            return
        if response is None or response.error_code != 0:
            self._join_failed("SyncGroup", 0 if response is None else response.error_code, response, error, now)
            return
        try:
            partitions, _ = decode_assignment(response.assignment)
        except DecodeError as problem:
            what = f"the leader's assignment is malformed: {problem}; see which client leads the group"
            self._error = InconsistentGroupProtocol(what, group=self.group_id, member=self.member_id)
            self.state = State.UNJOINED
            self._pause(now, "a malformed assignment")
            return
        target = frozenset(partitions)
        taken = self.owned - target
        steps = [Change(ChangeKind.ASSIGN, ordered(target - self.owned))]
        if taken:
            steps.insert(0, Change(ChangeKind.REVOKE, ordered(taken)))
        self.assignors[self._protocol].on_assignment(partitions, self.generation)
        self._failures = 0
        self.coordinator.came_through(JOINED, now)
        self._beat_at, self._beat_answered_at = now + self.config.heartbeat_interval_ms / 1000, now
        # What fails from here on does not make it an attempt that has failed: it would join again with what it begins to read.
        steps = [*self._changes, *steps]
        self.state, self._target, self._attempt, self._changes = State.STABLE, target, attempt + 1, deque(steps)
        if taken and self.cooperative:
            self._again = self._again or "it gave up partitions for others"
        given = "group %s: member %s has %d partitions in generation %d (%s)"
        logger.info(given, self.group_id, self.member_id, len(target), self.generation, self._protocol)

    def _check_topics(self) -> None:
        """The metadata changed: the leader has the group rebalance when there are other partitions to assign."""
        if self._group_counts is not None and self._counts(self.group_topics) != self._group_counts:
            self.rejoin("the partitions of the topics changed")

    # -- heartbeats

    def _beaten(self, attempt: int, response: HeartbeatResponse | None, error: FastqError | None, now: float) -> None:
        self._beating = False
        if attempt != self._attempt:
            return
        if response is None:
            self.coordinator.lost(now, f"a heartbeat failed: {error}")
            return
        code = response.error_code
        if code in RETRY_ELSEWHERE or code in RETRY_HERE:
            self._passing(KEPT, code, "the heartbeat was refused", now)
        else:
            self.coordinator.came_through(KEPT, now)
        if code == 0:
            self._beat_answered_at = now
            self.coordinator.worked()
        elif code in RETRY_ELSEWHERE:
            self.coordinator.lost(now, ErrorCode(code).name)
        elif code in RETRY_HERE:
            self._beat_at = now + self.coordinator.pause_s(1)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._beat_answered_at = now
            if self.state is State.STABLE:
                self.rejoin("the group rebalances")
        elif code in (LOST_ID, LOST_GENERATION):
            self._reset(code)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(group_error(code, "another consumer uses the same group_instance_id", self.who))
        else:
            self._error = group_error(code, "the heartbeat was refused", self.who, broker=self.coordinator.label)
            self._beat_at = now + self.coordinator.pause_s(2)
