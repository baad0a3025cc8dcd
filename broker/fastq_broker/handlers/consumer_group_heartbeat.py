"""ConsumerGroupHeartbeat: members of the consumer protocol (KIP-848) join, stay, and leave.

Rules: served while the feature group.version is at 1 and group.coordinator.rebalance.protocols has `consumer`; else
UNSUPPORTED_VERSION, as by Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from fastq_broker.coordinator.errors import store_error
from fastq_broker.groups.consumer_groups import Client

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 68
VERSIONS = (0, 1)

Outcome: TypeAlias = "tuple[ConsumerGroupHeartbeatResponse | None, KafkaError | None]"


def handle(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Take a heartbeat; a change that it makes is answered once it is durable."""
    groups = context.groups
    if not groups.serves_consumer_protocol:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    client = Client(context.client_id, f"/{context.peer[0]}")

    def ask(take: Callable[[Outcome], None]) -> None:
        shard = groups.shard(request.group_id)
        shard.consumer_heartbeat(request, client, context.api_version, lambda *outcome: take(outcome))

    try:
        return groups.answer(ask, _respond)
    except KafkaError as refused:
        return ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=str(refused))


def _respond(outcome: Outcome) -> ConsumerGroupHeartbeatResponse:
    response, error = outcome
    if response is not None:
        return response
    assert error is not None
    return ConsumerGroupHeartbeatResponse(error_code=store_error(error), error_message=str(error))
