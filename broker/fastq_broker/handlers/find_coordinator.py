"""FindCoordinator: the broker that coordinates a group or a transactional id (KIP-699: many at once from version 4).

Rules: the coordinator is who leads the key's partition of the internal topic, which is created with the first key that is asked for;
the answer waits until its creation is on disk. Share coordinators (key type 2, version 6) are not served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaStorageError
from fastq.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from fastq.values import NamedTuple
from fastq_broker.controller.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from fastq_broker.coordinator.hashing import partition_of
from fastq_broker.coordinator.runtime import create_topic

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 10
VERSIONS = (0, 6)

FIRST_VERSION_WITH_BATCHES = 4
TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
"""The internal topic of each key type."""


class Found(NamedTuple):
    """Where a key is coordinated, or why that cannot be said."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def handle(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Look the keys up, having the topic created first where it is not there."""
    topic = TOPICS.get(request.key_type)
    if topic is None or context.image.topic(topic) is not None:
        return _respond(context, request, topic)
    made = create_topic(context, topic)
    return _respond(context, request, topic) if made is None else _when_made(context, request, topic, made)


async def _when_made(
    context: RequestContext, request: FindCoordinatorRequest, topic: str, made: Awaitable[object]
) -> FindCoordinatorResponse:
    with contextlib.suppress(KafkaStorageError):  # which the coordinator says of whatever it is asked next
        await made
    return _respond(context, request, topic)


def _respond(context: RequestContext, request: FindCoordinatorRequest, topic: str | None) -> FindCoordinatorResponse:
    if context.api_version < FIRST_VERSION_WITH_BATCHES:
        found = _find(context, topic, request.key)
        return FindCoordinatorResponse(
            error_code=found.error,
            error_message=found.message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
            coordinators=[],
        )
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=found.key,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
                error_code=found.error,
                error_message=found.message,
            )
            for found in (_find(context, topic, key) for key in request.coordinator_keys)
        ]
    )


def _find(context: RequestContext, name: str | None, key: str) -> Found:
    if name is None:
        return Found(key, error=ErrorCode.INVALID_REQUEST, message="nothing is coordinated by this key type")
    image = context.image
    topic = image.topic(name)
    if topic is None:
        message = f"{name} cannot be created, the broker's log says why: ask again"
        return Found(key, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=message)
    leader = image.brokers.get(topic.partitions[partition_of(key, len(topic.partitions))].leader)
    endpoint = leader.endpoint(context.listener) if leader is not None and not leader.fenced else None
    if leader is None or endpoint is None:
        message = "nobody that this listener reaches leads the partition that coordinates it"
        return Found(key, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=message)
    return Found(key, leader.broker_id, endpoint.host, endpoint.port)
