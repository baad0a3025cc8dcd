"""ConsumerGroupDescribe: members, epochs and assignments of groups of the consumer protocol (KIP-848).

Rules: a group that is not there, or of the classic protocol, is GROUP_ID_NOT_FOUND. Topics that are gone are left out of assignments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from fastq_broker.groups.consumer_group import ConsumerGroup
from fastq_broker.handlers import operations

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.groups.consumer_member import Member
    from fastq_broker.router import RequestContext

API_KEY = 69
VERSIONS = (0, 1)

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1

_Group = ConsumerGroupDescribeResponse.DescribedGroup
_Assignment = ConsumerGroupDescribeResponse.Assignment


def handle(context: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Describe each group."""
    described = [_describe(context, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in described:
            if not group.error_code:
                group.authorized_operations = operations.GROUP
    return ConsumerGroupDescribeResponse(groups=described)


def _describe(context: RequestContext, group_id: str) -> _Group:
    groups = context.groups
    if not groups.serves_consumer_protocol:
        return _Group(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not group_id:
        return _Group(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        shard = groups.shard(group_id)
    except KafkaError as unavailable:
        return _Group(group_id=group_id, error_code=unavailable.code, error_message=str(unavailable))
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        kind = "not found" if group is None else f"a {group.kind} group, not a consumer group"
        return _Group(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} is {kind}.",
            group_state="Dead",
        )
    image = context.image
    return _Group(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(shard.settings.consumer.assignors),
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Member, image: MetadataImage) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex or "",
        assignment=_assignment(member.assigned, image),
        target_assignment=_assignment(group.target_of(member.member_id), image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assigned: Mapping[bytes, Collection[int]], image: MetadataImage) -> _Assignment:
    return _Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
            )
            for topic_id, partitions in sorted(assigned.items())
            if (topic := image.topic_of_id(topic_id)) is not None
        ]
    )
