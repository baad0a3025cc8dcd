"""JoinGroup: a member of a classic group asks to be part of its next generation.

Rules: the answer comes when the rebalance is complete; the connection waits that long. Version 4 demands that a dynamic member comes
back with the id it is given (KIP-394), 5 knows static members (KIP-345), 9 lets a returning leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import JoinGroupRequest, JoinGroupResponse
from fastq_broker.groups.classic_member import JoinRequest, JoinResult

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 11
VERSIONS = (0, 9)

FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_NO_PROTOCOL = 7
FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9


def handle(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Join, or say why not."""
    groups = context.groups
    respond = partial(_respond, context.api_version)
    error = groups.join_error(request.group_id, request.session_timeout_ms)
    if error:
        return respond(JoinResult(error, request.member_id))
    try:
        shard = groups.shard(request.group_id)
    except KafkaError as unavailable:
        return respond(JoinResult(unavailable.code, request.member_id))
    joining = _join_request(context, request)
    return groups.answer(lambda answer: shard.join(request.group_id, joining, answer), respond)


def _join_request(context: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    session_ms = request.session_timeout_ms
    return JoinRequest(
        request.member_id,
        request.group_instance_id,
        context.client_id,
        f"/{context.peer[0]}",
        session_ms,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else session_ms,
        request.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        context.api_version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
        context.api_version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT,
    )


def _respond(version: int, result: JoinResult) -> JoinGroupResponse:
    name = result.protocol_name
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name="" if name is None and version < FIRST_VERSION_WITH_NO_PROTOCOL else name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in result.members
        ],
    )
