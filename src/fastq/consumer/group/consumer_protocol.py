"""A member of a group under the consumer protocol (KIP-848): the coordinator assigns, heartbeats carry everything. Sans-I/O.

Rules
- One heartbeat is on its way at a time. It says only what changed since the last one that was answered; after an error, when joining,
  and when somebody else has sent one in its name (`overheard`), all of it: then all is told again, too. An assignment is told once.
- An assignment is reconciled in steps: what is to go is revoked (the application commits and lets go), what is new is assigned, and
  then the next heartbeat says what is owned. Steps are `Change`s, run by the application's thread, one at a time; partitions that
  stay are read on without a pause.
- A fenced member loses what it has and joins again under its id. Member ids are made here, once in a member's life. Who is refused for its
  epoch alone asks once more, and says what it owns: the coordinator lets the epoch before through then, as the answer that told a newer
  one may be lost, or had by who speaks for the member and not been heard of yet. An epoch only grows in a life.
- A pattern is the coordinator's to match where it can, and where it would not match internal topics; else the topics that match are
  named here.
- Who has joined and was given nothing yet asks sooner than it was told to, at growing intervals and not for ever: others have to let go
  first, or a pattern to be matched, and a coordinator says so in the answer to a heartbeat alone.
- The coordinator names topics by id: what the metadata does not know yet is assigned as soon as it does.
Source: KIP-848; Kafka's ConsumerMembershipManager and ConsumerHeartbeatRequestManager.
"""

from __future__ import annotations

import logging
import random
import re
from collections import deque
from collections.abc import Iterable, Iterator

from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.consumer_protocol_states import (
    MEMBER,
    PASSING,
    REACTIONS,
    SILENT,
    TRANSITIONS,
    Reaction,
    State,
)
from fastq.consumer.group.coordinator import JOINED, KEPT, Coordinator
from fastq.consumer.group.membership import (
    NO_GENERATION,
    CanSend,
    Change,
    ChangeKind,
    Subscription,
    group_error,
    ordered,
)
from fastq.errors import ErrorCode, FastqError, FencedInstanceId, UnknownMemberId, UnsupportedVersion
from fastq.metadata import ClusterMetadata, GroupMetadata, TopicPartition
from fastq.protocol.message import Message
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from fastq.protocol.uuid import random_uuid, uuid_to_str
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.consumer")

HEARTBEAT_API = 68
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
REGEX_FROM = 1
# How soon a member without an assignment asks again, and how long it does. In between it is half of what it has waited so far.
SOON_MIN_S, SOON_MAX_S, SOON_FOR_S = 0.1, 1.0, 15.0
# How long a request may lie with the coordinator whose sender has given up: one that is busy reads what a closed connection has left.
LATE_S = 15.0
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2

Parts = frozenset[tuple[bytes, int]]  # topic id and partition


class _Said(NamedTuple):
    """What heartbeats have told the coordinator."""

    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = -1
    parts: Parts | None = None


NOTHING_SAID = _Said()


class ConsumerProtocolMembership:
    """One member; `Membership` has the contract.

    Invariants: `_owned` is what the application reads, `owned` the same by name; they change only by a change that was carried
    out. `epoch` is the last that was told, 0 when it is to join, `joined_epoch` the first of this life; `lost` has the one before then.
    `state` moves along TRANSITIONS. Thread rule: under the driver's lock, or in its loop. `assignor`: the server-side assignor it wants
    ("uniform", "range"); None: the group's own.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: Coordinator,
        metadata: ClusterMetadata,
        *,
        assignor: str | None = None,
        rng: random.Random | None = None,
    ) -> None:
        assert config.group_id is not None
        self.group_id: str = config.group_id
        self.config = config
        self.coordinator = coordinator
        self.metadata = metadata
        self.assignor = assignor
        self.member_id = uuid_to_str(random_uuid(rng))
        self.lost: GroupMetadata | None = None
        self.group_topics = ()  # the coordinator divides them
        self.epoch = self.joined_epoch = JOIN_EPOCH
        self.state = State.UNSUBSCRIBED
        self.interval_s = 5.0
        self.wants_metadata: str | None = None
        self.wants_all_topics = False  # the coordinator may assign what nobody here has heard of
        self.too_slow = False  # it left because it was not polled, and the application has not been told
        self.unsupported: UnsupportedVersion | None = None  # the broker does not speak this protocol
        self._subscription = Subscription()
        self._told_regex = False  # the coordinator may have one
        self._matches_here = False  # the coordinator could not read the pattern: its topics are named instead
        self._names: dict[bytes, str] = {}  # of the topics owned: they may be deleted
        self._owned: Parts = frozenset()
        self._target: Parts | None = None
        self._change: Change | None = None
        self._changing: Parts = frozenset()
        self._said = NOTHING_SAID
        self._says_all_until: float | None = None  # and in the first heartbeat from then on
        self._refused_epoch = JOIN_EPOCH  # by the last answer
        self._in_flight = 0  # the number of the heartbeat on its way, or 0
        self._may_be_in = False  # it has asked to join, and has not heard since that the coordinator does not have it
        self._numbers = 0
        self._due = 0.0
        self._attempts = 0
        self._waits_since: float | None = None  # for its first assignment
        self._polled_at: float | None = None
        self._errors: deque[FastqError] = deque()

    # -- what the consumer asks

    @property
    def generation(self) -> int:
        """The member epoch, which commits carry; -1 while it is no member."""
        return self.epoch if self.epoch > 0 else NO_GENERATION

    @property
    def who(self) -> GroupMetadata:
        """What errors say of the member."""
        return GroupMetadata(self.group_id, self.generation, self.member_id, self.config.group_instance_id)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the application reads."""
        return frozenset(TopicPartition(self._names[topic], index) for topic, index in self._owned)

    @property
    def is_stable(self) -> bool:
        """Whether the assignment is carried out, and none under way."""
        return self.state is State.STABLE or self.state is State.ACKNOWLEDGING

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator knows it, also while it reconciles."""
        return self.state in MEMBER and self.epoch > 0

    def subscribe(self, subscription: Subscription) -> None:
        """Read these topics, or those that match the pattern, which the coordinator finds by itself where it can (RE2)."""
        if subscription == self._subscription and self.state is not State.FATAL:
            return
        if subscription[1:] != self._subscription[1:]:
            self._matches_here = subscription.is_ours or self._would_match_internal(subscription.pattern)
        self._subscription = subscription
        if not subscription.topics and subscription.pattern is None:
            self._begin_leave()
            return
        if self.state in (State.UNSUBSCRIBED, State.FATAL):
            self.state, self.unsupported = State.UNSUBSCRIBED, None
            self._errors.clear()
            self._go(State.JOINING if self._change is None else State.FENCED)
        self._due = 0.0

    def _would_match_internal(self, pattern: str | None) -> bool:
        """Whether the coordinator would take topics along that patterns pass over: it knows no such exception."""
        if pattern is None or not self.config.exclude_internal_topics:
            return False
        return any(re.match(pattern, topic) for topic in INTERNAL_TOPICS)

    def take_error(self) -> FastqError | None:
        """What the application has to know: once, or again and again when this member is of no more use."""
        if not self._errors:
            return None
        return self._errors[0] if self.state is State.FATAL and len(self._errors) == 1 else self._errors.popleft()

    @property
    def due(self) -> bool:
        """Whether there is a step to carry out, or would be if the application asked."""
        aims = self.state is State.RECONCILING and self._target is not None and self._target != self._owned
        return aims or self._change is not None

    def changes(self) -> Change | None:
        """The step to carry out now."""
        if self._change is None:
            self._reconcile(begin=True)
        return self._change

    def carried_out(self, change: Change) -> None:
        """The step is done. One that was overtaken, as all is lost by now, is part of what is lost."""
        if change is not self._change:
            return
        changing, self._change, self._changing = self._changing, None, frozenset()
        self._owned = self._owned | changing if change.kind is ChangeKind.ASSIGN else self._owned - changing
        self._names = {topic: self._names[topic] for topic, _ in self._owned}
        if self.state is State.FENCED:
            self._go(State.JOINING)
        elif self.state is State.RECONCILING:
            self._reconcile()

    def poll(self, now: float) -> None:
        """The application is alive: after a farewell for not polling, it loses what it had, and joins again."""
        self._polled_at = now
        if self.state is State.LEFT:
            self._lose_all()
            self._go(State.FENCED if self._change is not None else State.JOINING)
            self._due = now

    def overdue(self) -> None:
        """The application did not poll in time, and the farewell is said or on its way."""
        if self.state in MEMBER:
            self._drop_change()
            self._forget(gone=True)
            self._go(State.LEFT)

    def rejoin(self, reason: str) -> None:
        """The coordinator alone decides about rebalances (KIP-848): nothing to do but to hear from it soon."""
        logger.debug("group %s: %s: the coordinator assigns by itself", self.group_id, reason)
        self._due = 0.0

    def lost_generation(self, code: int) -> None:
        """A commit found the member unknown or fenced, or its epoch stale."""
        if self.state not in MEMBER:
            return
        self._due = 0.0
        if REACTIONS.get(code) is Reaction.FENCED:
            self._fenced(group_error(code, "told by a commit", self.who))
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            self._say_all(0.0)

    def leave(self, reason: str) -> list[Outgoing]:
        """The farewell, where there is somebody to say it to."""
        logger.debug("group %s: member %s leaves: %s", self.group_id, self.member_id, reason)
        self._subscription = Subscription()
        self._begin_leave()
        return self._heartbeat(0.0) if self.state is State.LEAVING and self.coordinator.known else []

    def _begin_leave(self) -> None:
        if self.state is State.FATAL:
            self._errors.clear()
        self._change, self._changing = None, frozenset()
        self._owned = frozenset()
        if self._may_be_in:  # though the answer to its join may be lost: its id is known all the same
            self._in_flight = 0
            self._go(State.LEAVING)
            self._due = 0.0
        elif self.state is not State.LEAVING:
            self._forget()
            self.state = State.UNSUBSCRIBED

    # -- heartbeats

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until a heartbeat is due; None while there is nothing to send, or one is on its way."""
        if self._in_flight or self.state in SILENT:
            return None
        return max(0.0, self._due - now)

    def next_heartbeat(self, now: float) -> float | None:
        """Seconds until the next one of a member in the group, or until its application has been silent for too long."""
        if self.state not in MEMBER:
            return None
        wakeup = self.next_wakeup(now)
        if self._polled_at is None:
            return wakeup
        overdue = max(0.0, self._polled_at + self.config.max_poll_interval_ms / 1000 - now)
        return overdue if wakeup is None else min(overdue, wakeup)

    def requests(self, now: float, can_send: CanSend) -> Iterator[Outgoing]:
        """The heartbeat that is due, if one is."""
        out: list[Outgoing] = []
        if self.state in MEMBER:
            self._reconcile()
            out = self.heartbeats(now, can_send)
        elif self.next_wakeup(now) == 0 and self.coordinator.known and can_send(self.coordinator.node_id):
            out = self._heartbeat(now)
        while out:  # which takes no memory
            yield out.pop()

    def heartbeats(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """The heartbeat that is due for a member in the group, or its farewell when the application is gone."""
        if self.next_heartbeat(now) != 0:
            return []
        node, sendable = self.coordinator.node_id, self.coordinator.known and can_send(self.coordinator.node_id)
        if self._polled_at is not None and now >= self._polled_at + self.config.max_poll_interval_ms / 1000:
            logger.warning(
                "group %s: member %s was not polled within max_poll_interval_ms=%d and leaves; it joins again when it is polled",
                self.group_id,
                self.member_id,
                self.config.max_poll_interval_ms,
            )
            farewell = self.farewell()
            out = [Outgoing(node, HEARTBEAT_API, lambda v: farewell, None, lambda r, e, t: None)] if sendable else []
            self.overdue()
            self.too_slow, self._may_be_in = True, not sendable
            return out
        return self._heartbeat(now) if sendable and not self._in_flight else []

    def minimal(self) -> ConsumerGroupHeartbeatRequest:
        """The periodic heartbeat, which says nothing but that the member lives."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.config.group_instance_id,
        )

    def farewell(self) -> ConsumerGroupHeartbeatRequest:
        """The heartbeat that leaves. A static member keeps its partitions until its session ends (KIP-345)."""
        request = self.minimal()
        request.member_epoch = LEAVE_EPOCH if self.config.group_instance_id is None else STATIC_LEAVE_EPOCH
        return request

    def _heartbeat(self, now: float) -> list[Outgoing]:
        """The heartbeat. It counts as sent once it is made: there may be no memory for it."""
        until = self._says_all_until
        leaving, owned, before = self.state is State.LEAVING, self._owned, self._said if until is None else NOTHING_SAID
        if self._change is not None and self._change.kind is ChangeKind.ASSIGN:
            owned |= self._changing  # the application may be reading them any moment
        number, due, said, epoch = self._numbers + 1, now + self.interval_s, before, self.epoch

        def build(version: int) -> ConsumerGroupHeartbeatRequest:
            nonlocal said
            if leaving:
                return self.farewell()
            said = self._say(version, owned)
            return self._request(before, said)

        def done(response: ConsumerGroupHeartbeatResponse | None, error: FastqError | None, now: float) -> None:
            if self._in_flight != number:  # of an earlier life, which the coordinator may take for this one
                if response is None:
                    self._say_all(now + LATE_S)
                return
            self._in_flight = 0
            if leaving:
                self._left(now)
            elif response is None:
                self._unanswered(error, now)
            else:
                if response.error_code == 0:
                    self._said = said
                try:
                    self._answered(response, now, epoch if said.parts != before.parts else -1)
                except Exception:
                    self._said = NOTHING_SAID  # an assignment may be lost: who says all hears all
                    raise

        out = [Outgoing(self.coordinator.node_id, HEARTBEAT_API, build, None, done)]
        if self.state is State.ACKNOWLEDGING:
            self._go(State.STABLE if self._target is None or self._target == owned else State.RECONCILING)
        self._numbers = self._in_flight = number
        self._due, self._may_be_in = due, not leaving
        if until is not None and now >= until:
            self._says_all_until = None
        return out

    def _say(self, version: int, owned: Parts) -> _Said:
        subscription, regex = self._subscription, None
        if version >= REGEX_FROM:
            regex = "" if self._told_regex else None  # what is left out stays as it was
            if subscription.pattern is not None and not self._matches_here:
                # A pattern here matches the beginning of a name; the coordinator matches whole names.
                regex, self._told_regex = f"(?:{subscription.pattern})(?s:.*)", True
        self.wants_all_topics = bool(regex)
        topics = () if regex else subscription.topics
        return _Said(tuple(sorted(topics)), regex, self.assignor, self.config.max_poll_interval_ms, owned)

    def _request(self, before: _Said, said: _Said) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat that says what of `said` is news after `before`."""
        request, joining = self.minimal(), self.epoch == JOIN_EPOCH
        if joining or said.rebalance_timeout_ms != before.rebalance_timeout_ms:
            request.rebalance_timeout_ms = said.rebalance_timeout_ms
        if joining or said.topics != before.topics:
            request.subscribed_topic_names = list(said.topics or ())
        if said.regex != before.regex or (joining and said.regex is not None):
            request.subscribed_topic_regex = said.regex or ""
        if said.assignor is not None and (joining or said.assignor != before.assignor):
            request.server_assignor = said.assignor
        if joining:
            request.rack_id = self.config.client_rack or None
        if joining or said.parts != before.parts:
            request.topic_partitions = _by_topic(said.parts or ())
        return request

    def overheard(self, response: Message | None, now: float) -> None:
        """A heartbeat thread has had this answer. Whatever is new, the next heartbeat asks for all of it again, and not the one that is on
        its way, which may be answered already. What was lost (None) may even be asked by the coordinator only now: until it can no more,
        all heartbeats ask for all."""
        if response is None:
            self._say_all(now + LATE_S)
        elif self.state in MEMBER and isinstance(response, ConsumerGroupHeartbeatResponse):
            if response.error_code == 0 and response.member_epoch == self.epoch and response.assignment is None:
                return
            if response.error_code == 0:
                self.epoch = max(self.epoch, response.member_epoch)
            self._due = 0.0
            self._say_all(now)

    def _say_all(self, until: float) -> None:
        self._says_all_until = until if self._says_all_until is None else max(self._says_all_until, until)

    def _answered(self, response: ConsumerGroupHeartbeatResponse, now: float, owned_in: int) -> None:
        """`owned_in`: the epoch of the heartbeat, if it said what is owned."""
        if self.state not in MEMBER and self.state is not State.JOINING:
            return
        if response.error_code != 0:
            self._failed(response, now, owned_in)
            return
        self._attempts, self._refused_epoch = 0, JOIN_EPOCH
        self.coordinator.worked()
        self.coordinator.came_through(KEPT if self.epoch else JOINED, now)
        if response.member_id:
            self.member_id = response.member_id
        self.epoch, self.lost = max(self.epoch, response.member_epoch), None
        self.interval_s = max(0.01, response.heartbeat_interval_ms / 1000)
        if self.state is State.JOINING:
            self.joined_epoch = self.epoch
            self._due = now + self.interval_s
            self._waits_since = now
        if response.assignment is not None:
            parts = response.assignment.topic_partitions
            self._aim(frozenset((topic.topic_id, index) for topic in parts for index in topic.partitions))
        elif self.state is State.JOINING:
            self._aim(frozenset())
        if self._target or self._owned:
            self._waits_since = None
        elif self._waits_since is not None and now < self._waits_since + SOON_FOR_S:
            self._due = min(self._due, now + min(max(SOON_MIN_S, (now - self._waits_since) / 2), SOON_MAX_S))

    # -- reconciliation

    def _aim(self, target: Parts) -> None:
        """The coordinator's will. A change of it is answered with what is owned, even when that stays: what it gave before, and
        takes back now, it keeps from others until it hears that nobody reads it here."""
        if target != self._target and (self._target is not None or target != self._owned):
            self._said = self._said._replace(parts=None)
        self._target = target
        self._go(State.RECONCILING)
        self._reconcile()

    def _reconcile(self, begin: bool = False) -> None:
        """The next step towards the target: revoke, assign what the metadata knows, and say so. A change begins when the application
        asks for it: until then a newer target may still replace it."""
        target = self._target
        if self.state is not State.RECONCILING or self._change is not None or target is None:
            return
        surplus = self._owned - target
        if surplus:
            if begin:
                self._begin(ChangeKind.REVOKE, surplus)
            return
        missing = target - self._owned
        fresh = set()
        for topic, index in missing:
            name = self._names.get(topic) or self.metadata.topic_name(topic)
            if name is not None:
                self._names[topic] = name
                fresh.add((topic, index))
        if len(fresh) < len(missing):
            self.wants_metadata = "a topic that the group's coordinator assigned is not known"
        if fresh and begin:
            self._begin(ChangeKind.ASSIGN, frozenset(fresh))
        elif not fresh and self._owned != self._said.parts:
            if not self._in_flight:
                self._go(State.ACKNOWLEDGING)
                self._due = self._due if self._attempts else 0.0
        elif not missing:
            self._go(State.STABLE)

    def _begin(self, kind: ChangeKind, what: Parts) -> None:
        self._changing = what
        self._change = Change(kind, ordered(TopicPartition(self._names[topic], index) for topic, index in what))

    # -- trouble

    def _failed(self, response: ConsumerGroupHeartbeatResponse, now: float, owned_in: int) -> None:
        code, what = response.error_code, response.error_message or "the heartbeat was refused"
        if code == ErrorCode.FENCED_MEMBER_EPOCH and self._refused_epoch != owned_in:
            logger.debug("group %s, member %s: %s; it says what it owns", self.group_id, self.member_id, what)
            self._refused_epoch, self._said, self._due = self.epoch, NOTHING_SAID, now
            return
        error = group_error(code, what, self.who, broker=self.coordinator.label)
        reaction = REACTIONS.get(code, Reaction.AGAIN if error.retriable else Reaction.FATAL)
        logger.debug("group %s, member %s: %s, so it %s", self.group_id, self.member_id, error, reaction.value)
        self._pause(now)
        if reaction in PASSING:
            self.coordinator.refused(KEPT if self.epoch else JOINED, error, now)
        if reaction is Reaction.FENCED:
            self._fenced(error)
        elif reaction is Reaction.COORDINATOR:
            self.coordinator.lost(now, str(error))
        elif reaction is Reaction.REPORT:
            self._errors.append(error)
        elif reaction is Reaction.AGAIN:
            pass
        elif reaction is Reaction.MATCH_HERE and not self._matches_here:
            logger.warning("group %s: %s; the topics are matched here instead", self.group_id, error)
            self._matches_here = True
        elif reaction is Reaction.CLASSIC:
            self.unsupported = UnsupportedVersion(
                "the coordinator does not take members of the consumer protocol (KIP-848)",
                broker=self.coordinator.label,
                group=self.group_id,
                hint="Use group_protocol='auto' or 'classic'",
            )
            self._give_up(self.unsupported)
        else:
            self._give_up(error)

    def _unanswered(self, error: FastqError | None, now: float) -> None:
        if isinstance(error, UnsupportedVersion):
            self.unsupported = error
            self._give_up(error)
            return
        self._pause(now)
        self._say_all(now + LATE_S)
        self.coordinator.lost(now, str(error))
        if error is not None and not error.retriable:
            self._errors.append(error)

    def _pause(self, now: float) -> None:
        """The next heartbeat says all again, after a while."""
        self._attempts += 1
        self._due = now + self.coordinator.pause_s(self._attempts)
        self._said = NOTHING_SAID

    def _fenced(self, error: FastqError) -> None:
        logger.info("group %s: member %s is fenced and joins again: %s", self.group_id, self.member_id, error)
        due = self._due
        self._lose_all()
        self._forget(gone=isinstance(error, UnknownMemberId))
        self._go(State.FENCED)
        if self._change is None:
            self._go(State.JOINING)
        self._due = due

    def _give_up(self, error: FastqError) -> None:
        self._errors.append(error)
        self._lose_all()
        self._forget(gone=self.epoch == JOIN_EPOCH or isinstance(error, FencedInstanceId | UnsupportedVersion))
        self._go(State.FATAL)

    def _lose_all(self) -> None:
        """Everything owned is gone, whatever was being done about it."""
        self._drop_change()
        if self._owned:
            self._begin(ChangeKind.LOSE, self._owned)

    def _drop_change(self) -> None:
        """A step is overtaken. What it was to assign may be read already."""
        if self._change is not None and self._change.kind is ChangeKind.ASSIGN:
            self._owned |= self._changing
        self._change, self._changing = None, frozenset()

    def _forget(self, gone: bool = False) -> None:
        if self.epoch > 0:
            self.lost = self.who
        self.epoch = self._refused_epoch = JOIN_EPOCH
        self._said = NOTHING_SAID
        self._target = None
        self._in_flight = 0
        self._may_be_in = self._may_be_in and not gone

    def _left(self, now: float) -> None:
        self._forget()
        self._go(State.UNSUBSCRIBED)
        if self._subscription.topics or self._subscription.pattern is not None:
            self._go(State.JOINING)  # subscribed again meanwhile
            self._due = now

    def _go(self, state: State) -> None:
        if state is not self.state:
            assert state in TRANSITIONS[self.state], f"{self.state} does not lead to {state}"
            logger.debug("group %s, member %s: %s -> %s", self.group_id, self.member_id, self.state.value, state.value)
            self.state = state


def _by_topic(owned: Iterable[tuple[bytes, int]]) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic, index in sorted(owned):
        topics.setdefault(topic, []).append(index)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic, partitions=parts)
        for topic, parts in topics.items()
    ]
