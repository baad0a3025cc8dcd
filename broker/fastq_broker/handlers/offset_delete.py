"""OffsetDelete: single offsets of a group whose members do not read their topics (KIP-496).

Rules: a partition has to exist, as in Kafka. Offsets of one that does not go with their topic, or when their time is over.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse
from fastq_broker.groups.offsets import TopicPartition

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 47
VERSIONS = (0, 0)


Outcome = tuple[int, dict[TopicPartition, int]]


def handle(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Delete the offsets; partitions that do not exist and topics that are read are refused one by one."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID, topics=[])
    try:
        shard = context.groups.shard(request.group_id)
    except KafkaError as unavailable:
        return OffsetDeleteResponse(error_code=unavailable.code, topics=[])
    image = context.image
    named = [(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]
    known = [item for item in named if image.partition(*item) is not None]
    return context.groups.answer(
        lambda answer: shard.delete_offsets(request.group_id, known, lambda *outcome: answer(outcome)),
        partial(_respond, request),
    )


def _respond(request: OffsetDeleteRequest, outcome: Outcome) -> OffsetDeleteResponse:
    error, codes = outcome
    if error:
        return OffsetDeleteResponse(error_code=error, topics=[])
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=item.partition_index,
                        error_code=codes.get((topic.name, item.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
