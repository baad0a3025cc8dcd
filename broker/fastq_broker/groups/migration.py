"""A group's way from the classic protocol to the consumer protocol and back, while its members go on (KIP-848).

Rules
- Both ways are records: tombstones of the one kind, then the records of the other; replaying them makes the change.
- Up, when a member of the consumer protocol joins a classic group of consumers: its members stay in it with what they have, as members
  that speak the classic protocol. They hear of the rebalance with their next heartbeat.
- Down, when the last member of the consumer protocol leaves, or is replaced by a classic one of the same instance.
- A group that cannot go up (policy, size, another protocol type, data that an assignor of its own needs) stays as it is, and the
  newcomer is told GROUP_ID_NOT_FOUND, as by Kafka.
Source: GroupMetadataManager.convertToConsumerGroup, convertToClassicGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from fastq._native.wire import DecodeError, Reader, Writer
from fastq.errors import GroupIdNotFound
from fastq.protocol.messages import ConsumerProtocolAssignment

from . import classic_member
from .classic_group import ClassicGroup
from .classic_records import group_record
from .consumer_group import ConsumerGroup
from .consumer_member import ClassicMember, ClassicProtocol, Member
from .consumer_records import group_tombstones
from .subscriptions import CONSUMER_PROTOCOL_TYPE, decode_subscription

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.coordinator.shard import CoordinatorRecord, ShardContext

    from .consumer_change import ConsumerGroupSettings
    from .consumer_member import Epochs


KNOWN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors whose data in assignments is no more than a memory of the last one: librdkafka's sticky ones have it. Kafka goes by the
data alone, and refuses such groups."""

# --- what classic members say and hear ---


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """A consumer's assignment; none is an empty one. Raises DecodeError."""
    if not data:
        return ConsumerProtocolAssignment()
    reader = Reader(data)
    version = reader.read_int16()
    if version < 0:
        raise DecodeError("a version of 0 or more", 0, f"got {version}", "ConsumerProtocolAssignment")
    return ConsumerProtocolAssignment.decode(reader, min(version, ConsumerProtocolAssignment.MAX_VERSION))


def encode_assignment(assigned: Epochs, image: MetadataImage, version: int) -> bytes:
    """What is assigned to a classic member, in the version of its subscription; topics that are gone are left out."""
    topics = {
        topic.name: sorted(partitions)
        for topic_id, partitions in assigned.items()
        if (topic := image.topic_of_id(topic_id)) is not None
    }
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=topics[name]) for name in sorted(topics)
        ]
    )
    version = max(0, min(version, ConsumerProtocolAssignment.MAX_VERSION))
    writer = Writer(128)
    writer.write_int16(version)
    value.encode(writer, version)
    return bytes(writer.getvalue())


def assignment_of(member: Member, image: MetadataImage) -> bytes:
    """What a member of the classic protocol is told in its SyncGroup."""
    assert member.classic is not None
    metadata = member.classic.protocols[0].metadata
    return encode_assignment(member.assigned, image, int.from_bytes(metadata[:2], "big", signed=True))


# --- up ---


def upgrade(group: ClassicGroup, settings: ConsumerGroupSettings, image: Callable[[], MetadataImage]) -> ConsumerGroup:
    """The consumer group that a classic one becomes. Raises GroupIdNotFound for one that cannot."""
    why_not = ""
    if not settings.may_upgrade:
        why_not = "group.consumer.migration.policy does not allow it"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why_not = f"its members are not consumers but of protocol type {group.protocol_type!r}"
    elif len(group.members) > settings.max_size:
        why_not = f"it has {len(group.members)} members, group.consumer.max.size is {settings.max_size}"
    made = ConsumerGroup(group.group_id, image)
    made.set_epoch(group.generation, 0)
    made.set_target_epoch(group.generation, 0)
    try:
        for member in [] if why_not else group.members.values():
            upgraded = _upgraded(member, group, image())
            made.put_member(upgraded)
            made.set_target(
                upgraded.member_id, {topic: frozenset(numbers) for topic, numbers in upgraded.assigned.items()}
            )
    except DecodeError as error:
        why_not = f"a member's subscription or assignment cannot be read: {error}"
    except ValueError as error:
        why_not = str(error)
    if why_not:
        raise GroupIdNotFound(
            f"classic group {group.group_id!r} cannot become a consumer group: {why_not}; use group.protocol=classic, "
            "or a new group id"
        )
    return made


def _upgraded(member: classic_member.Member, group: ClassicGroup, image: MetadataImage) -> Member:
    subscription = decode_subscription(member.metadata(group.protocol_name or "") or member.protocols[0][1])
    assignment = decode_assignment(member.assignment)
    if assignment.user_data and group.protocol_name not in KNOWN_ASSIGNORS:
        raise ValueError("the assignor in use keeps data of its own in assignments, which would be lost")
    assigned = {
        topic.topic_id: dict.fromkeys(item.partitions, group.generation)
        for item in assignment.assigned_partitions
        if item.partitions and (topic := image.topic(item.topic)) is not None
    }
    return Member(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(
            member.session_timeout_ms,
            tuple([ClassicProtocol(name, bytes(metadata)) for name, metadata in member.protocols]),
        ),
        member_epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
    )


# --- down ---


def can_downgrade(draft: ConsumerGroup, settings: ConsumerGroupSettings) -> bool:
    """Whether a group is left with members of the classic protocol only, and may become a classic one."""
    return (
        settings.may_downgrade
        and 0 < len(draft.members) == draft.classic_count
        and len(draft.members) <= settings.classic_max_size
    )


def downgrade(
    group: ConsumerGroup, draft: ConsumerGroup, image: MetadataImage, context: ShardContext
) -> list[CoordinatorRecord]:
    """The records that make a consumer group the classic one that `draft` describes."""
    classic = ClassicGroup(group.group_id, wall_clock=context.now_ms, new_name=context.new_name)
    assignments: dict[str, bytes] = {}
    for member in draft.members.values():
        assert member.classic is not None
        protocols = tuple([(protocol.name, protocol.metadata) for protocol in member.classic.protocols])
        assignments[member.member_id] = assignment_of(member, image)
        classic.add(
            classic_member.Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                protocols,
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    classic.generation = draft.group_epoch
    classic.protocol_name = _common_protocol(classic.members, draft.classic_protocols)
    return [*group_tombstones(group), group_record(classic, assignments)]


def _common_protocol(members: Mapping[str, classic_member.Member], offered: Counter[str]) -> str:
    """The protocol that most members prefer of those that all offer."""
    candidates = {name for name, count in offered.items() if count == len(members)}
    votes = Counter(member.vote(candidates) for member in members.values())
    return votes.most_common(1)[0][0]
