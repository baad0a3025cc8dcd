"""A classic group as a record of `__consumer_offsets`, and back: key type 2, value version 3 (readable from Kafka 2.3 on).

A stored group is empty or stable: what lies between the two is not stored. Source: GroupCoordinatorRecordHelpers,
GroupMetadataManager.replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fastq.protocol.messages import GroupMetadataValue
from fastq_broker.coordinator.records import decode_value, encode_value

from .classic_group import ClassicGroup
from .classic_member import Member
from .classic_state import Settings, State, group_key
from .subscriptions import subscribed_topics

if TYPE_CHECKING:
    from fastq_broker.coordinator.shard import CoordinatorRecord

VALUE_VERSION = 3


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """The record of a group with these assignments."""
    protocol = group.protocol_name
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=b"" if protocol is None else member.metadata(protocol),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ],
    )
    return group_key(group.group_id), encode_value(value, VALUE_VERSION)


def read_group(
    group_id: str, value: bytes, settings: Settings, wall_clock: Callable[[], int], new_name: Callable[[], str]
) -> ClassicGroup:
    """The group that a record's value says. Raises DecodeError."""
    parsed = decode_value(GroupMetadataValue, value)
    group = ClassicGroup(group_id, settings, wall_clock=wall_clock, new_name=new_name)
    for stored in parsed.members:
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout,
            stored.session_timeout,
            ((parsed.protocol or "", bytes(stored.subscription)),),
            bytes(stored.assignment),
        )
        group.add(member, parsed.protocol_type)
    group.state = group.previous_state = State.STABLE if group.members else State.EMPTY
    group.state_since_ms = None if parsed.current_state_timestamp < 0 else parsed.current_state_timestamp
    group.generation = parsed.generation
    group.protocol_type = parsed.protocol_type or None
    group.protocol_name = parsed.protocol
    if parsed.leader in group.members:
        group.leader_id = parsed.leader
    group.subscribed = subscribed_topics(group.protocol_type, group.protocol_name, group.members.values())
    return group
