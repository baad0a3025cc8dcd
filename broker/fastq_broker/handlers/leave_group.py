"""LeaveGroup: members of a classic group go, or are removed by their instance ids (from version 3 many at once, KIP-345).

Rules: the answer comes once what the group is without them is durable, also to a request that is sent again; where that is refused, with
the reason for all. From version 3 on a group that does not exist is one that has none of the members, not an error of the whole request,
as in GroupCoordinatorService.leaveGroup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from fastq_broker.coordinator.errors import store_error

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 13
VERSIONS = (0, 5)

FIRST_VERSION_WITH_MEMBERS = 3


def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
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
    if errors == ErrorCode.UNKNOWN_MEMBER_ID and context.api_version >= FIRST_VERSION_WITH_MEMBERS:
        errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
    if isinstance(errors, int):
        return LeaveGroupResponse(error_code=errors, members=[])
    return context.groups.once_durable(
        [request.group_id],
        lambda refused: (
            _response(context, leaving, errors)
            if not refused
            else LeaveGroupResponse(error_code=store_error(refused[request.group_id]), members=[])
        ),
    )


def _response(
    context: RequestContext, leaving: Sequence[tuple[str, str | None]], errors: Sequence[int]
) -> LeaveGroupResponse:
    if context.api_version < FIRST_VERSION_WITH_MEMBERS:
        return LeaveGroupResponse(error_code=errors[0], members=[])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id), error in zip(leaving, errors, strict=True)
        ]
    )
