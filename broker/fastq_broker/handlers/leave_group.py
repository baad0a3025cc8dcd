"""LeaveGroup: members of a classic group go, or are removed by their instance ids (from version 3 many at once, KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 13
VERSIONS = (0, 5)

FIRST_VERSION_WITH_MEMBERS = 3


def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove the members; each has its own error."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, members=[])
    if context.api_version < FIRST_VERSION_WITH_MEMBERS:
        leaving: list[tuple[str, str | None]] = [(request.member_id, None)]
    else:
        leaving = [(member.member_id, member.group_instance_id) for member in request.members]
    try:
        errors = context.groups.shard(request.group_id).leave(request.group_id, leaving)
    except KafkaError as unavailable:
        errors = unavailable.code
    if isinstance(errors, int):
        return LeaveGroupResponse(error_code=errors, members=[])
    if context.api_version < FIRST_VERSION_WITH_MEMBERS:
        return LeaveGroupResponse(error_code=errors[0], members=[])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id), error in zip(leaving, errors, strict=True)
        ]
    )
