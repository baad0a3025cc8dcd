"""AlterPartitionReassignments (KIP-455): on one node each partition is where it can be, so only that can be asked for.

Rules: codes and their order are ReplicationControlManager.alterPartitionReassignments'. Whatever would have to move is refused: nothing
moves here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from fastq_broker.controller.image import MetadataImage, PartitionImage
from fastq_broker.controller.topics import Refused, check_replicas

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 45
VERSIONS = (0, 1)

PartitionResponse = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


def handle(context: RequestContext, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    """One result a partition, in the order asked for."""
    image = context.image
    may_change = request.allow_replication_factor_change
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change,
        error_message=None,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _result(image, topic.name, item.partition_index, item.replicas, may_change)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _result(
    image: MetadataImage, topic: str, number: int, replicas: Sequence[int] | None, may_change: bool
) -> PartitionResponse:
    try:
        _check(_partition(image, topic, number), image, replicas, may_change)
    except Refused as refused:
        return PartitionResponse(partition_index=number, error_code=refused.error, error_message=refused.message)
    return PartitionResponse(partition_index=number, error_message=None)


def _partition(image: MetadataImage, topic: str, number: int) -> PartitionImage:
    if image.topic(topic) is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    partition = image.partition(topic, number)
    if partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{number}.")
    return partition


def _check(partition: PartitionImage, image: MetadataImage, replicas: Sequence[int] | None, may_change: bool) -> None:
    """Raises Refused unless the partition has these replicas already."""
    moving = partition.adding_replicas or partition.removing_replicas
    if replicas is None and not moving:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.meaning)
    if replicas is not None:
        check_replicas(image, replicas, len(replicas))
        if len(replicas) != len(partition.replicas) and not may_change:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(partition.replicas)} to {len(replicas)}",
            )
    if moving or replicas is None or tuple(replicas) != partition.replicas:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the partition has the replicas {list(partition.replicas)}, and this version moves none",
        )
