"""The records of consumer groups in `__consumer_offsets`: types 3 to 8 and 16, made and taken in.

| type | key beside the group  | value                                   | tombstone means                  |
|------|-----------------------|-----------------------------------------|----------------------------------|
| 3    |                       | group epoch, hash of the topics         | the group is gone                |
| 4    |                       | topics (only before Kafka 4.1)          | it has been replaced by the hash |
| 5    | member                | what the member said                    | the member is gone               |
| 6    |                       | epoch and time of the target assignment |                                  |
| 7    | member                | its target assignment                   | it has none                      |
| 8    | member                | its epochs, state, partitions           | it has none                      |
| 16   | pattern               | the topics it stands for                | nobody subscribes with it        |

Rules: all values are of version 0. In a compacted log the records of a group may come in any order of types, and some may be
missing; taking one in never fails for that. Source: GroupCoordinatorRecordHelpers, GroupMetadataManager.replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fastq.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from fastq_broker.coordinator.records import decode_key, decode_value, encode_key, encode_value

from .consumer_group import ConsumerGroup, ResolvedRegex, without_assignment
from .consumer_member import LEAVE_EPOCH, ClassicMember, ClassicProtocol, Member, MemberState, copied

if TYPE_CHECKING:
    from fastq_broker.coordinator.shard import CoordinatorRecord

    from .assignors import Assignment
    from .consumer_member import Epochs

RECORD_TYPES: Final = frozenset({3, 4, 5, 6, 7, 8, 16})

_ClassicMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_CurrentPartitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
_TargetPartitions = ConsumerGroupTargetAssignmentMemberValue.TopicPartition

# --- making ---


def epoch_record(group: ConsumerGroup) -> CoordinatorRecord:
    """Type 3."""
    value = ConsumerGroupMetadataValue(epoch=group.group_epoch, metadata_hash=group.metadata_hash)
    return encode_key(ConsumerGroupMetadataKey(group_id=group.group_id)), encode_value(value, 0)


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Type 5."""
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if classic is None
        else _ClassicMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ConsumerGroupMemberMetadataValue.ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
                for protocol in classic.protocols
            ],
        ),
    )
    return _member_key(ConsumerGroupMemberMetadataKey, group_id, member.member_id), encode_value(value, 0)


def target_epoch_record(group: ConsumerGroup) -> CoordinatorRecord:
    """Type 6."""
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=group.target_epoch, assignment_timestamp=group.target_timestamp_ms
    )
    return encode_key(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id)), encode_value(value, 0)


def target_record(group_id: str, member_id: str, target: Assignment) -> CoordinatorRecord:
    """Type 7."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            _TargetPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(target.items())
        ]
    )
    return _member_key(ConsumerGroupTargetAssignmentMemberKey, group_id, member_id), encode_value(value, 0)


def current_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Type 8."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_partitions(member.assigned),
        partitions_pending_revocation=_partitions(member.revoking),
    )
    return _member_key(ConsumerGroupCurrentMemberAssignmentKey, group_id, member.member_id), encode_value(value, 0)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    """Type 16."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return _regex_key(group_id, regex), encode_value(value, 0)


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """Nobody subscribes with this pattern any more."""
    return _regex_key(group_id, regex), None


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """The topics that a broker before Kafka 4.1 wrote down are not needed."""
    return encode_key(ConsumerGroupPartitionMetadataKey(group_id=group_id)), None


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """A member is gone: its assignments first, then itself."""
    keys = (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
    return [(_member_key(key, group_id, member_id), None) for key in keys]


def group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """The group is gone, with all that it has; its own record is the last."""
    group_id = group.group_id
    records = [record for member_id in group.members for record in member_tombstones(group_id, member_id)]
    records += [regex_tombstone(group_id, regex) for regex in group.regexes]
    records.append((encode_key(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)), None))
    if group.has_partition_metadata:
        records.append(partition_metadata_tombstone(group_id))
    records.append((encode_key(ConsumerGroupMetadataKey(group_id=group_id)), None))
    return records


def group_records(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """All records that make up the group as it is."""
    group_id = group.group_id
    members = list(group.members.values())
    records = [member_record(group_id, member) for member in members]
    records.append(epoch_record(group))
    records += [target_record(group_id, member_id, target) for member_id, target in group.targets.items()]
    records.append(target_epoch_record(group))
    records += [current_record(group_id, member) for member in members]
    records += [regex_record(group_id, regex, resolved) for regex, resolved in group.regexes.items()]
    return records


def _member_key(key: Any, group_id: str, member_id: str) -> bytes:
    return encode_key(key(group_id=group_id, member_id=member_id))


def _regex_key(group_id: str, regex: str) -> bytes:
    return encode_key(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex))


def _partitions(epochs: Epochs) -> list[_CurrentPartitions]:
    return [
        _CurrentPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic_id, partitions in sorted(epochs.items())
    ]


# --- taking in ---


def group_of_record(record_type: int, key: bytes) -> str:
    """The group that a record of these types belongs to."""
    return _TAKERS[record_type][0](key).group_id  # type: ignore[no-any-return]


def take_record(group: ConsumerGroup, record_type: int, key: bytes, value: bytes | None) -> None:
    """Take a record into its group. The tombstone of type 3 is left to who keeps the groups."""
    decode, take = _TAKERS[record_type]
    take(group, decode(key), value)


def _take_epoch(group: ConsumerGroup, _: ConsumerGroupMetadataKey, value: bytes | None) -> None:
    if value is not None:
        record = decode_value(ConsumerGroupMetadataValue, value)
        group.set_epoch(record.epoch, record.metadata_hash)


def _take_partition_metadata(group: ConsumerGroup, _: object, value: bytes | None) -> None:
    group.has_partition_metadata = value is not None


def _take_member(group: ConsumerGroup, key: ConsumerGroupMemberMetadataKey, value: bytes | None) -> None:
    if value is None:
        group.remove_member(key.member_id)
        return
    record = decode_value(ConsumerGroupMemberMetadataValue, value)
    classic = record.classic_member_metadata
    group.put_member(
        copied(
            group.members.get(key.member_id) or Member(key.member_id),
            instance_id=record.instance_id,
            rack_id=record.rack_id,
            client_id=record.client_id,
            client_host=record.client_host,
            topic_names=frozenset(record.subscribed_topic_names),
            topic_regex=record.subscribed_topic_regex,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            server_assignor=record.server_assignor,
            classic=None
            if classic is None
            else ClassicMember(
                classic.session_timeout_ms,
                tuple([ClassicProtocol(item.name, item.metadata) for item in classic.supported_protocols]),
            ),
        )
    )


def _take_target_epoch(group: ConsumerGroup, _: object, value: bytes | None) -> None:
    if value is None:
        group.set_target_epoch(-1, 0)
    else:
        record = decode_value(ConsumerGroupTargetAssignmentMetadataValue, value)
        group.set_target_epoch(record.assignment_epoch, record.assignment_timestamp)


def _take_target(group: ConsumerGroup, key: ConsumerGroupTargetAssignmentMemberKey, value: bytes | None) -> None:
    if value is None:
        group.set_target(key.member_id, None)
        return
    record = decode_value(ConsumerGroupTargetAssignmentMemberValue, value)
    group.set_target(key.member_id, {item.topic_id: frozenset(item.partitions) for item in record.topic_partitions})


def _take_current(group: ConsumerGroup, key: ConsumerGroupCurrentMemberAssignmentKey, value: bytes | None) -> None:
    member = group.members.get(key.member_id)
    if value is None:
        if member is not None:
            group.put_member(without_assignment(member, LEAVE_EPOCH))
        return
    record = decode_value(ConsumerGroupCurrentMemberAssignmentValue, value)
    group.put_member(
        copied(
            member or Member(key.member_id),
            member_epoch=record.member_epoch,
            previous_epoch=record.previous_member_epoch,
            state=MemberState(record.state),
            assigned=_epochs(record.assigned_partitions, record.member_epoch),
            revoking=_epochs(record.partitions_pending_revocation, record.member_epoch),
        )
    )


def _epochs(items: list[_CurrentPartitions], member_epoch: int) -> Epochs:
    """Partitions with their epochs; before Kafka 4.3 there were none, and the member's stands for them."""
    found: dict[bytes, dict[int, int]] = {}
    for item in items:
        epochs = item.assignment_epochs or []
        if len(epochs) != len(item.partitions):
            epochs = [member_epoch] * len(item.partitions)
        found[item.topic_id] = dict(zip(item.partitions, epochs, strict=True))
    return found


def _take_regex(group: ConsumerGroup, key: ConsumerGroupRegularExpressionKey, value: bytes | None) -> None:
    if value is None:
        group.set_regex(key.regular_expression, None)
        return
    record = decode_value(ConsumerGroupRegularExpressionValue, value)
    group.set_regex(key.regular_expression, ResolvedRegex(frozenset(record.topics), record.version, record.timestamp))


_Take = Callable[[ConsumerGroup, Any, "bytes | None"], None]


def _decoder(message: Any) -> Callable[[bytes], Any]:
    return lambda key: decode_key(message, key)


_TAKERS: Final[Mapping[int, tuple[Callable[[bytes], Any], _Take]]] = {
    3: (_decoder(ConsumerGroupMetadataKey), _take_epoch),
    4: (_decoder(ConsumerGroupPartitionMetadataKey), _take_partition_metadata),
    5: (_decoder(ConsumerGroupMemberMetadataKey), _take_member),
    6: (_decoder(ConsumerGroupTargetAssignmentMetadataKey), _take_target_epoch),
    7: (_decoder(ConsumerGroupTargetAssignmentMemberKey), _take_target),
    8: (_decoder(ConsumerGroupCurrentMemberAssignmentKey), _take_current),
    16: (_decoder(ConsumerGroupRegularExpressionKey), _take_regex),
}
