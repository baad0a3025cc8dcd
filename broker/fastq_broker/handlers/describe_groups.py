"""DescribeGroups: members and state of classic groups.

Rules: a group that does not exist, or speaks another protocol, is `Dead`; from version 6 on it is GROUP_ID_NOT_FOUND, too (KIP-1043). What
members say and were given is told of a stable group only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_state import State
from fastq_broker.handlers import operations

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 15
VERSIONS = (0, 6)

FIRST_VERSION_WITH_NOT_FOUND = 6


def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe each group."""
    groups = [_describe(context, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = operations.GROUP
    return DescribeGroupsResponse(groups=groups)


def _describe(context: RequestContext, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
    try:
        group = context.groups.shard(group_id).groups.get(group_id)
    except KafkaError as unavailable:
        return DescribeGroupsResponse.DescribedGroup(error_code=unavailable.code, group_id=group_id, members=[])
    if isinstance(group, ClassicGroup):
        return _described(group)
    described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=State.DEAD.value, members=[])
    if context.api_version >= FIRST_VERSION_WITH_NOT_FOUND:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        kind = "not found" if group is None else f"a {group.kind} group, not a classic one"
        described.error_message = f"Group {group_id} is {kind}."
    return described


def _described(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    stable = group.state is State.STABLE
    protocol = (group.protocol_name or "") if stable else ""
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )
