"""What a consumer asks of its membership in a group, whichever protocol the group speaks.

Rules: sans-I/O, as the fetcher: events and `now` in, requests out, answers through the `done` of a request. A membership decides
which partitions the member has; the consumer carries changes of them out, one at a time and in order, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import Protocol

from fastq.consumer.effects import Outgoing
from fastq.errors import FastqError, KafkaError, error_for_code
from fastq.metadata import GroupMetadata, TopicPartition
from fastq.protocol.message import Message
from fastq.values import NamedTuple

NO_GENERATION = -1
CanSend = Callable[[int], bool]


class Subscription(NamedTuple):
    """What a member wants to read. `topics` are names, those that match the pattern too; `pattern` is None without one; `is_ours`: it has
    flags that only Python knows."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    is_ours: bool = False


FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s", re.MULTILINE: "m"}
"""Of patterns, as both Python and the brokers' RE2 write them."""


def subscription_of(topics: tuple[str, ...], pattern: re.Pattern[str] | None) -> Subscription:
    """These topics, or those that match; the flags that the pattern was compiled with stand in its text."""
    if pattern is None:
        return Subscription(topics)
    text = pattern.pattern
    try:
        added = pattern.flags & ~re.compile(text).flags & ~re.DEBUG
        letters = "".join(letter for flag, letter in FLAGS.items() if added & flag)
        if letters:
            text = f"(?{letters}){text}"
            re.compile(text)
    except re.error:  # it is a pattern with its flags alone, or has some of its own, which are to stand first
        return Subscription(topics, pattern.pattern, True)
    return Subscription(topics, text, bool(added & ~sum(FLAGS)))


class ChangeKind(Enum):
    """What a member is to do with partitions."""

    REVOKE = "revoke"  # give them up, with the commits that are due: nobody else has them yet
    ASSIGN = "assign"  # read them
    LOSE = "lose"  # they belong to somebody else already: nothing of them can be committed


class Change(NamedTuple):
    """One step of a rebalance. A REVOKE of nothing is the moment before a rebalance: what is finished is committed."""

    kind: ChangeKind
    partitions: tuple[TopicPartition, ...]


class Membership(Protocol):
    """One member of a group. Thread rule: under the driver's lock, or in its loop.

    `changes()` is the next step for the consumer, the same one until `carried_out(step)`. Until then nothing is said to the
    coordinator that would give away what the step is about. `heartbeats` may be called by another thread while the application
    is busy; it never does more than keep the membership alive. `generation` is the member epoch under KIP-848.
    """

    @property
    def member_id(self) -> str:
        """Its id in the group; empty before it has one."""

    @property
    def generation(self) -> int:
        """The generation of the group that it is in, or its member epoch; -1 (0) when in none."""

    lost: GroupMetadata | None
    """What it was in the generation that it has lost, until it is in another."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the application reads, as far as steps were carried out."""

    @property
    def group_topics(self) -> Collection[str]:
        """What all members of its group subscribe to, where it is the one that divides them."""

    too_slow: bool
    """It left because the application did not poll; whoever tells the application sets it back."""

    @property
    def is_stable(self) -> bool:
        """Whether the member has an assignment, carried out, and no rebalance under way."""

    @property
    def may_commit(self) -> bool:
        """Whether a commit of this moment has a generation to be made in."""

    def subscribe(self, subscription: Subscription) -> None:
        """Want other topics; rejoins when they differ. An empty subscription has the member leave."""

    def requests(self, now: float, can_send: CanSend) -> Iterator[Outgoing]:
        """What to send now: joining, and what `heartbeats` answers."""

    def heartbeats(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """What to send now to stay a member."""

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until `requests` has something to send without anything happening before; None for never."""

    def next_heartbeat(self, now: float) -> float | None:
        """Seconds until `heartbeats` has something to send; None while no heartbeats are due at all."""

    def poll(self, now: float) -> None:
        """The application asks for records: it is alive (max.poll.interval.ms)."""

    def overdue(self) -> None:
        """The application did not ask in time, and its place was given up, or is to be: everything is lost. Nothing is sent."""

    @property
    def due(self) -> bool:
        """Whether there is a step to carry out, as soon as the application asks for records."""

    def changes(self) -> Change | None:
        """The step to carry out now."""

    def carried_out(self, change: Change) -> None:
        """The step is done: the partitions revoked are not read any more, those assigned are. Another step may have taken its
        place meanwhile, as when the membership was lost."""

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance."""

    def lost_generation(self, code: int) -> None:
        """A commit was told (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, ...) that this member is not, or not as it was, in the
        group."""

    def overheard(self, response: Message | None, now: float) -> None:
        """A heartbeat thread has had this answer, or (None) has sent a heartbeat whose answer nobody will read: it is a reason to send
        another, or to say more in it, no more."""

    def take_error(self) -> FastqError | None:
        """What the application has to know: once, or as often as it asks when it stays so."""

    def leave(self, reason: str) -> list[Outgoing]:
        """Leave the group for good: what to send, if anything."""


# What to do about an error of a group, for those whose meaning does not say.
HINTS = {
    12: "Commit less metadata, or raise offset.metadata.max.bytes of the broker",
    22: "Another rebalance has happened since: the partitions may belong to another member, which reads on from the last commit",
    23: "Every member of a group must offer one partition_assignment_strategy in common, and none of another protocol",
    24: "A group id is a non-empty name",
    25: "The member was removed, as after a pause above session_timeout_ms or max_poll_interval_ms: it joins again by itself",
    26: "Choose session_timeout_ms within group.min.session.timeout.ms and group.max.session.timeout.ms of the broker",
    27: "Call poll() or go on iterating, so that this member takes part in the rebalance, and commit again afterwards",
    30: "Allow the principal READ on the group",
    81: "Raise group.max.size of the broker, or use fewer members",
    82: "Give each consumer of the group its own group_instance_id, or end the other one",
    110: "The member gives up its partitions and joins again by itself",
    111: "End the other consumer with this group_instance_id, or wait until its session ends",
    113: "Call poll() or go on iterating, and commit again afterwards",
}


def group_error(
    code: int,
    what: str,
    who: GroupMetadata,
    *,
    broker: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> KafkaError:
    """The exception for an error code that a coordinator answered: it names the group, the member and what to do."""
    return error_for_code(
        code,
        what,
        broker=broker,
        group=who.group_id,
        member=who.member_id or None,
        generation=who.generation_id if who.generation_id >= 0 else None,
        group_instance_id=who.group_instance_id,
        topic=topic,
        partition=partition,
        hint=HINTS.get(code),
    )


def ordered(partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Partitions in their order, each once."""
    return tuple(sorted(set(partitions)))
