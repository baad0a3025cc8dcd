"""A consumer group of KIP-848: what its records say, and what follows from them.

Rules
- The group changes by its setters alone, one a record type; replaying a record and trying out a change on a copy are the
  same calls. Counts (topics, patterns, assignors, classic members) and owners of partitions follow in the setters.
- Three epochs: `group_epoch` grows when members, subscriptions or topics change; `target_epoch` is the group epoch for which the
  target assignment was worked out; each member has the epoch that it has been reconciled to.
- Deadlines and `metadata_stale` are not in the records: a coordinator that loads the group starts them anew.
Source: ConsumerGroup, ModernGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastq.errors import ErrorCode, FencedInstanceId, KafkaError, UnknownMemberId
from fastq.values import NamedTuple

from .consumer_member import NONE_ASSIGNED, Member, copied
from .group import UNKNOWN_MEMBER, Committer

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.coordinator.shard import CoordinatorRecord

    from .assignors import Assignment
    from .consumer_member import Epochs

FIRST_COMMIT_VERSION_WITH_EPOCH = 9
"""Members of the consumer protocol commit with this version of OffsetCommit or a later one."""


class ResolvedRegex(NamedTuple):
    """The topics that a pattern stood for when it was last looked at. `version` is that of the metadata then."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int

    def is_fresh(self, now_ms: int, interval_ms: int) -> bool:
        """Whether the look is younger than the interval. A record keeps wall-clock time, and one from the future tells that the clock was
        set back: that is no look to wait for."""
        return 0 <= now_ms - self.timestamp_ms < interval_ms


@dataclass
class MemberDeadlines:
    """When a member is given up, in ms of the broker's clock; 0 where nothing is due."""

    session_ms: int = 0
    session_timeout_ms: int = 0
    rebalance_ms: int = 0
    """It must have revoked by then. Classic members: joined or synced."""
    rebalance_epoch: int = -1

    def earliest(self) -> int:
        """The first of them; 0 when none is due."""
        return min((due for due in (self.session_ms, self.rebalance_ms) if due), default=0)


class ConsumerGroup:
    """One group. Loop thread only.

    Invariants: `owners` names for each partition the one member that has it assigned or is revoking it; the counts are those
    over `members`; `instances` names the member of each static instance. `target_epoch` <= `group_epoch`.
    """

    __slots__ = (
        "assignment_due_ms",
        "assignors",
        "classic_count",
        "classic_protocols",
        "deadlines",
        "group_epoch",
        "group_id",
        "has_partition_metadata",
        "image",
        "instances",
        "members",
        "metadata_hash",
        "metadata_stale",
        "owners",
        "regex_counts",
        "regexes",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
        "timer",
        "timer_at_ms",
        "topic_counts",
    )

    kind = "consumer"
    listed_protocol_type = "consumer"

    def __init__(self, group_id: str, image: Callable[[], MetadataImage]) -> None:
        self.group_id = group_id
        self.image = image
        self.group_epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.target_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.instances: dict[str, str] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.topic_counts: Counter[str] = Counter()
        self.regex_counts: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        self.classic_count = 0
        self.has_partition_metadata = False
        """A broker before Kafka 4.1 wrote a record of type 4; the next change removes it."""
        self.metadata_stale = True
        self.deadlines: dict[str, MemberDeadlines] = {}
        self.assignment_due_ms = 0
        self.timer: Any = None
        self.timer_at_ms = 0

    def copy(self) -> ConsumerGroup:
        """A copy to try changes on; deadlines are left out."""
        made = ConsumerGroup(self.group_id, self.image)
        made.group_epoch = self.group_epoch
        made.metadata_hash = self.metadata_hash
        made.target_epoch = self.target_epoch
        made.target_timestamp_ms = self.target_timestamp_ms
        made.members = dict(self.members)
        made.targets = dict(self.targets)
        made.instances = dict(self.instances)
        made.owners = {topic_id: dict(owners) for topic_id, owners in self.owners.items()}
        made.regexes = dict(self.regexes)
        made.topic_counts = self.topic_counts.copy()
        made.regex_counts = self.regex_counts.copy()
        made.assignors = self.assignors.copy()
        made.classic_protocols = self.classic_protocols.copy()
        made.classic_count = self.classic_count
        made.has_partition_metadata = self.has_partition_metadata
        made.metadata_stale = self.metadata_stale
        return made

    # --- setters: one a record type ---

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Record type 3."""
        self.group_epoch = epoch
        self.metadata_hash = metadata_hash

    def set_target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """Record type 6."""
        self.target_epoch = epoch
        self.target_timestamp_ms = timestamp_ms

    def set_target(self, member_id: str, target: Assignment | None) -> None:
        """Record type 7; None is its tombstone."""
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target

    def set_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Record type 16; None is its tombstone."""
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved

    def put_member(self, member: Member) -> None:
        """Record types 5 and 8: a member as it is now."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._count(old, -1)
            self._disown(old)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        for epochs in (member.assigned, member.revoking):
            for topic_id, partitions in epochs.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.member_id))

    def remove_member(self, member_id: str) -> None:
        """The tombstone of record type 5."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        self._disown(member)
        self.deadlines.pop(member_id, None)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]

    def _count(self, member: Member, step: int) -> None:
        _add(self.topic_counts, member.topic_names, step)
        if member.topic_regex:
            _add(self.regex_counts, (member.topic_regex,), step)
        if member.server_assignor is not None:
            _add(self.assignors, (member.server_assignor,), step)
        if member.classic is not None:
            self.classic_count += step
            _add(self.classic_protocols, (protocol.name for protocol in member.classic.protocols), step)

    def _disown(self, member: Member) -> None:
        """Only what is noted as this member's: in a compacted log another one may have been named before this one let go."""
        for epochs in (member.assigned, member.revoking):
            for topic_id, partitions in epochs.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]

    # --- what follows ---

    @property
    def state_name(self) -> str:
        """Empty, Assigning, Reconciling or Stable."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        """The member that a partition is assigned to, or that is revoking it."""
        owners = self.owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def target_of(self, member_id: str) -> Assignment:
        """What the target assignment gives a member."""
        return self.targets.get(member_id, {})

    def subscribed_names(self, member: Member) -> frozenset[str]:
        """The topics that a member subscribes to, by name and by pattern, whether they exist or not."""
        if member.topic_regex:
            resolved = self.regexes.get(member.topic_regex)
            if resolved is not None:
                return member.topic_names | resolved.topics
        return member.topic_names

    def topics(self) -> set[str]:
        """The topics that any member subscribes to."""
        found = set(self.topic_counts)
        for regex in self.regex_counts:
            if regex in self.regexes:
                found |= self.regexes[regex].topics
        return found

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether any member subscribes to a topic."""
        return topic in self.topic_counts or any(
            topic in self.regexes[regex].topics for regex in self.regex_counts if regex in self.regexes
        )

    def preferred_assignor(self, names: Iterable[str]) -> str:
        """The assignor that most members ask for; the first of `names` (the broker's) where nobody asks."""
        offered = list(names)
        return max(offered, key=lambda name: (self.assignors[name], -offered.index(name)))

    def static_member(self, instance_id: str) -> Member | None:
        """The member of a static instance."""
        member_id = self.instances.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def member(self, member_id: str, instance_id: str | None = None) -> Member:
        """A member by its id and, if it is static, its instance. Raises UnknownMemberId, FencedInstanceId."""
        if instance_id is not None:
            member = self.static_member(instance_id)
            if member is None:
                raise self.error(UnknownMemberId, f"static member {instance_id!r} is not in the group")
            if member.member_id != member_id:
                raise self.error(
                    FencedInstanceId, f"instance {instance_id!r} belongs to member {member.member_id}, not {member_id}"
                )
            return member
        found = self.members.get(member_id)
        if found is None:
            raise self.error(UnknownMemberId, f"member {member_id!r} is not in the group; it has to join again")
        return found

    def error(self, kind: type[KafkaError], words: str) -> KafkaError:
        """An error about this group."""
        return kind(f"consumer group {self.group_id!r}: {words}")

    # --- what offsets ask (see group.Group) ---

    def check_commit(
        self, committer: Committer, topic_partitions: Iterable[tuple[str, int]], *, transactional: bool, version: int
    ) -> int:
        """Why a member may not commit offsets of these partitions; 0 when it may.

        The member's own epoch may commit everything. An older one (the member has not heard of its new one yet) may commit what
        was assigned to the member in it or before, and still is (KIP-1251). Source: ConsumerGroup.validateOffsetCommit.
        """
        member_id, epoch, instance_id = committer
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if transactional and epoch < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and member.classic is None and version < FIRST_COMMIT_VERSION_WITH_EPOCH:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.member_epoch:
            return ErrorCode.NONE
        # TxnOffsetCommit has no STALE_MEMBER_EPOCH: a Java producer that is told it is of no more use.
        known = member.classic is None and not transactional
        stale = ErrorCode.STALE_MEMBER_EPOCH if known else ErrorCode.ILLEGAL_GENERATION
        if epoch > member.member_epoch or epoch < 0:
            return stale
        image = self.image()
        for name, partition in topic_partitions:
            topic = image.topic(name)
            assigned_at = None if topic is None else member.holds(topic.topic_id, partition)
            if assigned_at is None or assigned_at > epoch:
                return stale
        return ErrorCode.NONE

    def note_commit(self, committer: Committer, now_ms: int) -> None:
        """Nothing: only heartbeats keep a session alive."""

    def check_fetch(self, committer: Committer) -> int:
        """Why committed offsets may not be read in the name of a member; 0 when they may."""
        if committer.generation < 0 and committer.member_id == UNKNOWN_MEMBER:
            return ErrorCode.NONE
        member = self.members.get(committer.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if committer.generation == member.member_epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def check_delete(self) -> int:
        """Only an empty group may be deleted."""
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def check_offset_delete(self) -> int:
        """Always: those of subscribed topics are refused one by one."""
        return ErrorCode.NONE

    def offsets_expire_after(self, commit_timestamp_ms: int) -> int | None:
        """Retention counts from the commit; offsets of topics that are subscribed to do not expire."""
        return commit_timestamp_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group."""
        from .consumer_records import (
            group_tombstones,  # that module takes records into groups, so it comes after this one
        )

        return group_tombstones(self)


def _add(counts: Counter[str], names: Iterable[str], step: int) -> None:
    """Change counts; what comes to nothing is removed."""
    for name in names:
        counts[name] += step
        if counts[name] <= 0:
            del counts[name]


def without_assignment(member: Member, epoch: int) -> Member:
    """A member whose current assignment record is gone."""
    return copied(member, member_epoch=epoch, previous_epoch=epoch, assigned=NONE_ASSIGNED, revoking=NONE_ASSIGNED)


def as_plain(epochs: Epochs) -> Mapping[bytes, frozenset[int]]:
    """Current assignment without the epochs."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in epochs.items()}
