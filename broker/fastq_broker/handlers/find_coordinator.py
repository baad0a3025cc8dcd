"""FindCoordinator: which node coordinates a group or a transactional id (KIP-699 for many at once).

Rules: who leads the key's partition of the internal topic. The first question creates that topic; the answer meanwhile is
COORDINATOR_NOT_AVAILABLE, and the client asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from fastq_broker.controller.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from fastq_broker.leaders import current_leader, endpoints

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 10
VERSIONS = (0, 6)

FIRST_BATCHED_VERSION = 4
TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
"""By the request's key type: groups, transactions."""


async def handle(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Find one coordinator, or from version 4 on one for each key."""
    batched = context.api_version >= FIRST_BATCHED_VERSION
    keys = request.coordinator_keys if batched else [request.key]
    found = [await _find(context, request.key_type, key) for key in keys]
    if batched:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find(context: RequestContext, key_type: int, key: str) -> FindCoordinatorResponse.Coordinator:
    broker = context.broker
    topic = TOPICS.get(key_type)
    if topic is None:
        return _refusal(key, ErrorCode.INVALID_REQUEST, f"nothing is coordinated by key type {key_type}")
    runtime = next((each.runtime for each in broker.coordinators if each.runtime.topic == topic), None)
    if runtime is None:
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no coordinator of {topic} runs here")
    image = broker.controller.image
    if image.topic(runtime.topic) is None:
        runtime.create_topic()
        await broker.controller.flushed()
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{runtime.topic} is being created: ask again")
    leader = current_leader(image, runtime.topic.encode(), False, runtime.partition_for(key))
    for node, host, port, _ in endpoints(image, [] if leader is None else [leader[0]], context.listener):
        return FindCoordinatorResponse.Coordinator(key=key, node_id=node, host=host, port=port)
    return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads the partition that coordinates it")


def _refusal(key: str, code: ErrorCode, message: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=int(code), error_message=message
    )
