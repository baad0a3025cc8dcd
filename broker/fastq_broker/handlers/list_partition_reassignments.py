"""ListPartitionReassignments (KIP-455): those that the metadata has, which a directory from a cluster may bring along."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastq.protocol.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from fastq_broker.controller.image import TopicImage

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 46
VERSIONS = (0, 0)

OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
OngoingPartition = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


def handle(context: RequestContext, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    """Of all partitions (null), or of those that are named; what does not exist has none."""
    image = context.image
    asked: Iterable[tuple[TopicImage, Iterable[int]]]
    if request.topics is None:
        asked = [(topic, range(len(topic.partitions))) for topic in image.topics_by_name.values()]
    else:
        named = [(image.topic(item.name), item.partition_indexes) for item in request.topics]
        asked = [(topic, numbers) for topic, numbers in named if topic is not None]
    topics = [OngoingTopic(name=topic.name, partitions=_ongoing(topic, numbers)) for topic, numbers in asked]
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=[topic for topic in topics if topic.partitions]
    )


def _ongoing(topic: TopicImage, numbers: Iterable[int]) -> list[OngoingPartition]:
    found = [(number, topic.partitions[number]) for number in numbers if 0 <= number < len(topic.partitions)]
    return [
        OngoingPartition(
            partition_index=number,
            replicas=list(partition.replicas),
            adding_replicas=list(partition.adding_replicas),
            removing_replicas=list(partition.removing_replicas),
        )
        for number, partition in found
        if partition.adding_replicas or partition.removing_replicas
    ]
