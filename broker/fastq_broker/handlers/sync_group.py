"""SyncGroup: the leader hands the assignments in, everybody takes their own.

Rules: a follower's answer comes when the leader's assignments are stored; the connection waits that long.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import SyncGroupRequest, SyncGroupResponse
from fastq_broker.groups.classic_member import SyncResult
from fastq_broker.groups.group import Committer

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 14
VERSIONS = (0, 5)

FIRST_VERSION_WITH_PROTOCOL = 5


def handle(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Take assignments in and give them out."""
    groups = context.groups
    if not request.group_id:
        return _respond(SyncResult(ErrorCode.INVALID_GROUP_ID))
    unnamed = request.protocol_type is None or request.protocol_name is None
    if context.api_version >= FIRST_VERSION_WITH_PROTOCOL and unnamed:
        return _respond(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as unavailable:
        return _respond(SyncResult(unavailable.code))
    member = Committer(request.member_id, request.generation_id, request.group_instance_id)
    assignments = {given.member_id: given.assignment for given in request.assignments}
    return groups.answer(
        lambda answer: shard.sync(
            request.group_id, member, request.protocol_type, request.protocol_name, assignments, answer
        ),
        _respond,
    )


def _respond(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
