"""DescribeTopicPartitions: the partitions of topics page by page, with eligible leaders (KIP-966).

Rules: topics are answered in the order of their names; a page holds at most as many partitions as the request and
max.request.partition.size.limit allow; `next_cursor` says where the next page begins.
Source: DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from fastq_broker.controller.image import MetadataImage, PartitionImage, TopicImage
from fastq_broker.controller.topics import INTERNAL_TOPICS, name_problem
from fastq_broker.handlers import operations
from fastq_broker.handlers.metadata import offline_replicas

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 75
VERSIONS = (0, 0)

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Answer one page; INVALID_REQUEST for every topic when the cursor points nowhere."""
    image = context.image
    asked = {topic.name for topic in request.topics}
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0 or (asked and first_topic not in asked):
            return DescribeTopicPartitionsResponse(topics=[_refused(name) for name in sorted(asked)])
    limit = context.config.max_request_partition_size_limit
    room = max(1, min(limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse(topics=[])
    for name in sorted(asked or image.topics_by_name):
        if name < first_topic:
            continue
        start = first_partition if name == first_topic else 0
        if room == 0:
            response.next_cursor = _cursor(name, start)
            break
        topic = image.topic(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        shown = topic.partitions[start : start + room]
        parts = [_partition(image, context.listener, *item) for item in enumerate(shown, start)]
        response.topics.append(_topic(topic, parts))
        room -= len(shown)
        if start + len(shown) < len(topic.partitions):
            response.next_cursor = _cursor(name, start + len(shown))
            break
    return response


def _cursor(name: str, partition: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


def _refused(name: str) -> Topic:
    return Topic(error_code=ErrorCode.INVALID_REQUEST, name=name, partitions=[])


def _unknown(name: str) -> Topic:
    bad = name_problem(name) is not None
    error = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Topic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[])


def _topic(topic: TopicImage, partitions: list[Partition]) -> Topic:
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=operations.TOPIC,
    )


def _partition(image: MetadataImage, listener: str, number: int, partition: PartitionImage) -> Partition:
    leader = image.brokers.get(partition.leader)
    available = leader is not None and not leader.fenced
    return Partition(
        error_code=ErrorCode.NONE if available else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=partition.leader if available else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=offline_replicas(image, partition, listener),
    )
