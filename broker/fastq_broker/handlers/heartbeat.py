"""Heartbeat: a member of a classic group is alive, and learns of rebalances.

Rules: while the coordinator is loading, heartbeats are taken for good: the members have done nothing wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError
from fastq.protocol.messages import HeartbeatRequest, HeartbeatResponse
from fastq_broker.groups.group import Committer

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 12
VERSIONS = (0, 4)


def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep a member's session alive."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    member = Committer(request.member_id, request.generation_id, request.group_instance_id)
    try:
        error = context.groups.shard(request.group_id).heartbeat(request.group_id, member)
    except CoordinatorLoadInProgress:
        error = ErrorCode.NONE
    except KafkaError as unavailable:
        error = unavailable.code
    return HeartbeatResponse(error_code=error)
