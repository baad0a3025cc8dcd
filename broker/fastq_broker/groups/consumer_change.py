"""The changes that one request, or one time-out, makes to one consumer group.

Rules
- A change is worked out on a copy of the group, step by step, and leaves the records that make it so. The group itself changes
  when these records are written and replayed; when they cannot be written, nothing has happened.
- A step that changes nothing leaves no record.
- The group's epoch grows with members, subscriptions and topics; a target assignment is worked out for it at most once in
  `assignment_interval_ms`, but for the first.
Source: GroupMetadataManager (the steps of consumerGroupHeartbeat), TargetAssignmentBuilder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from fastq.errors import InvalidRegularExpression
from fastq.values import Value
from fastq_broker.log import failures

from . import consumer_records as records
from .assignors import ASSIGNORS, MemberSpec
from .consumer_group import ConsumerGroup, ResolvedRegex
from .consumer_member import Member, MemberState, copied
from .metadata_hash import hash_of_topics
from .reconciliation import Owned, Target, reconcile
from .regex import TopicPattern, compile_pattern

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.coordinator.shard import CoordinatorRecord


logger = logging.getLogger(__name__)


class ConsumerGroupSettings(Value):
    """The broker's `group.consumer.*` keys; Kafka's names, units and defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    classic_max_size: int = 2**31 - 1
    """group.max.size: a group does not become classic with more members."""

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group becomes a consumer group when a member of the consumer protocol joins."""
        return self.migration_policy in ("upgrade", "bidirectional")

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group becomes classic when its last member of the consumer protocol leaves."""
        return self.migration_policy in ("downgrade", "bidirectional")


@lru_cache(maxsize=1000)
def pattern_of(regex: str) -> TopicPattern:
    """The compiled pattern. Raises InvalidRegularExpression."""
    return compile_pattern(regex)


class GroupChange:
    """One change in the making: `draft` is the group as it will be, `records` what has to be written for it.

    Used once, within one turn of the loop.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        image: MetadataImage,
        now_ms: int,
        settings: ConsumerGroupSettings,
        written: Iterable[CoordinatorRecord] = (),
        record_bytes_max: int = 1 << 20,
    ) -> None:
        self.draft = group.copy()
        self.records: list[CoordinatorRecord] = list(written)
        self.assignment_due_ms = 0
        """When the target assignment has to be worked out after all; 0 when it is that of the group's epoch."""
        self._image = image
        self._now_ms = now_ms
        self._settings = settings
        self._record_bytes_max = record_bytes_max

    # --- members ---

    def put_member(self, member: Member) -> bool:
        """Write a member's metadata, if it is new or has changed; whether its subscription by name has."""
        old = self.draft.members.get(member.member_id)
        if old is not None and member.same_metadata(old):
            return False
        self.records.append(records.member_record(self.draft.group_id, member))
        self.draft.put_member(member)
        return old is None or old.topic_names != member.topic_names

    def put_regex(self, old: str | None, new: str | None) -> bool:
        """Follow a member's change of its pattern; whether there was one. Raises InvalidRegularExpression."""
        if (old or None) == (new or None):
            return False
        if new and new not in self.draft.regexes:
            self._put_resolved(new, self._resolve(new))
        self._drop_unused_regexes()
        return True

    def replace_static(self, old: Member, member_id: str, epoch: int) -> Member:
        """Give a static instance's place, target and partitions to another member id."""
        group_id = self.draft.group_id
        target = self.draft.target_of(old.member_id)
        new = copied(old, member_id=member_id, member_epoch=epoch, previous_epoch=epoch)
        self.records += records.member_tombstones(group_id, old.member_id)
        self.draft.set_target(old.member_id, None)
        self.draft.remove_member(old.member_id)
        self.records.append(records.member_record(group_id, new))
        self.records.append(records.target_record(group_id, member_id, target))
        self.records.append(records.current_record(group_id, new))
        self.draft.put_member(new)
        self.draft.set_target(member_id, target)
        return new

    def remove(self, member_ids: Iterable[str]) -> None:
        """Members are gone."""
        for member_id in member_ids:
            self.records += records.member_tombstones(self.draft.group_id, member_id)
            self.draft.set_target(member_id, None)
            self.draft.remove_member(member_id)
        self._drop_unused_regexes()

    def put_current(self, member: Member) -> None:
        """Write a member's current assignment."""
        self.records.append(records.current_record(self.draft.group_id, member))
        self.draft.put_member(member)

    # --- patterns ---

    def _resolve(self, regex: str) -> ResolvedRegex:
        topics = pattern_of(regex).select(self._image.topics_by_name)
        return ResolvedRegex(topics, max(self._image.offset, 0), self._now_ms)

    def _resolved_anew(self, regex: str, known: ResolvedRegex | None) -> ResolvedRegex | None:
        """What a member's pattern stands for now. One that another broker has taken and this one does not know is no reason to stop its
        group: it goes on standing for what it did there; None when that is not known."""
        try:
            return self._resolve(regex)
        except InvalidRegularExpression as error:
            failures.say(
                logger.warning,
                f"pattern {regex!r} of group {self.draft.group_id}",
                "group %s has a pattern from another broker that is not known here, its members go on with the %d topics that it stood "
                "for there; have them subscribe by another one: %s",
                *(self.draft.group_id, 0 if known is None else len(known.topics), error),
            )
            return None if known is None else known._replace(timestamp_ms=self._now_ms)

    def _put_resolved(self, regex: str, resolved: ResolvedRegex) -> None:
        self.records.append(records.regex_record(self.draft.group_id, regex, resolved))
        self.draft.set_regex(regex, resolved)

    def _drop_unused_regexes(self) -> None:
        for regex in [regex for regex in self.draft.regexes if regex not in self.draft.regex_counts]:
            self.records.append(records.regex_tombstone(self.draft.group_id, regex))
            self.draft.set_regex(regex, None)

    def refresh_regexes(self) -> None:
        """Look again at what the patterns stand for, as the metadata may be other ones; `bump_epoch` follows."""
        for regex in self.draft.regex_counts:
            known = self.draft.regexes.get(regex)
            resolved = self._resolved_anew(regex, known)
            if resolved is None or (
                known is not None
                and known.topics == resolved.topics
                and known.is_fresh(self._now_ms, self._settings.regex_refresh_interval_ms)
            ):
                continue
            record = records.regex_record(self.draft.group_id, regex, resolved)
            size = len(record[0]) + len(record[1] or b"")
            if known is not None and size > self._record_bytes_max:
                # Its members did not ask for more topics: they go on with those they have, and are not refused for ever.
                logger.warning(
                    "group %s: the pattern %r stands for %d topics by now, whose record of %d bytes is above the max.message.bytes of the "
                    "coordinator's topic; its members go on with the %d that they had. Raise it, or have narrower patterns",
                    *(self.draft.group_id, regex, len(resolved.topics), size, len(known.topics)),
                )
                resolved = ResolvedRegex(known.topics, known.version, self._now_ms)
            self._put_resolved(regex, resolved)
        self.draft.metadata_stale = False

    # --- epochs ---

    def bump_epoch(self, changed: bool) -> None:
        """Go to the next group epoch when members or subscriptions changed, the group is new, or its topics are other ones.

        It takes the patterns for what they stood for at the last look: who has not looked again leaves new metadata to the next heartbeat.
        """
        draft = self.draft
        metadata_hash = hash_of_topics(draft.topics(), self._image)
        if draft.has_partition_metadata:
            self.records.append(records.partition_metadata_tombstone(draft.group_id))
            draft.has_partition_metadata = False
        if changed or draft.group_epoch == 0 or metadata_hash != draft.metadata_hash:
            draft.set_epoch(draft.group_epoch + 1, metadata_hash)
            self.records.append(records.epoch_record(draft))

    def refresh_target(self) -> None:
        """Work out the target assignment of the group's epoch, unless there is one or the last one is too fresh."""
        draft = self.draft
        if draft.group_epoch <= draft.target_epoch:
            return
        due_ms = draft.target_timestamp_ms + self._settings.assignment_interval_ms
        if draft.target_epoch > 0 and self._now_ms < due_ms <= self._now_ms + self._settings.assignment_interval_ms:
            self.assignment_due_ms = due_ms
            return
        assign = ASSIGNORS[draft.preferred_assignor(self._settings.assignors)]
        specs = {
            member_id: MemberSpec(self.subscribed_ids(member), draft.target_of(member_id))
            for member_id, member in draft.members.items()
        }
        for member_id, target in assign(specs, self._partition_counts(specs)).items():
            if target != draft.target_of(member_id) or member_id not in draft.targets:
                self.records.append(records.target_record(draft.group_id, member_id, target))
                draft.set_target(member_id, target)
        draft.set_target_epoch(draft.group_epoch, self._now_ms)
        self.records.append(records.target_epoch_record(draft))

    def _partition_counts(self, specs: Mapping[str, MemberSpec]) -> dict[bytes, int]:
        wanted = frozenset[bytes]().union(*(spec.topics for spec in specs.values()))
        found = {topic_id: self._image.topic_of_id(topic_id) for topic_id in wanted}
        return {topic_id: len(topic.partitions) for topic_id, topic in found.items() if topic is not None}

    def subscribed_ids(self, member: Member) -> frozenset[bytes]:
        """The ids of the existing topics that a member subscribes to."""
        names = self.draft.subscribed_names(member)
        return frozenset(topic.topic_id for name in names if (topic := self._image.topic(name)) is not None)

    def reconcile(self, member_id: str, owned: Owned | None, subscription_changed: bool) -> Member:
        """Bring a member closer to its target. Raises FencedMemberEpoch."""
        draft = self.draft
        before = draft.members[member_id]
        after = reconcile(
            before,
            Target(draft.target_epoch, draft.target_of(member_id)),
            subscribed=self.subscribed_ids(before),
            owner_of=draft.owner_of,
            owned=owned,
            subscription_changed=subscription_changed,
        )
        if not after.same_assignment(before):
            self.put_current(after)
        return after


def is_waiting(group: ConsumerGroup, member: Member) -> bool:
    """Whether others still have partitions of a member's target."""
    return any(
        group.owner_of(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.target_of(member.member_id).items()
        for partition in partitions
    )


def needs_rebalance_deadline(member: Member) -> bool:
    """Whether a member of the consumer protocol has to revoke, within its rebalance time-out."""
    return member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS
