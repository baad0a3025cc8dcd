"""CreatePartitions: gives topics more partitions, never fewer; answered once that is on disk.

A topic that a mirror writes takes it from that mirror alone, whose client id is then what the topic's `mirror.source` says.
Source: ControllerApis.createPartitions, ReplicationControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse
from fastq_broker.controller.topics import NewPartitions

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 37
VERSIONS = (0, 3)


async def handle(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """One result a topic, in the order asked for."""
    controller = context.controller
    wanted = [_wanted(topic, context.client_id) for topic in request.topics]
    results = controller.create_partitions(wanted, validate_only=request.validate_only)
    if not request.validate_only:
        results = await controller.durable(results)
    by_name = {item.name: result for item, result in zip(wanted, results, strict=True)}
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=name, error_code=result.error, error_message=result.message
            )
            for name, result in by_name.items()
        ]
    )


def _wanted(topic: CreatePartitionsRequest.CreatePartitionsTopic, client_id: str) -> NewPartitions:
    assignments = None if topic.assignments is None else [item.broker_ids for item in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments, client_id)
