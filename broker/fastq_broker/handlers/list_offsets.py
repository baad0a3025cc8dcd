"""ListOffsets: offsets by time and by special value.

Rules (Kafka's Partition.fetchOffsetForTimestamp)
- A time finds the first record that is not older; none answers -1/-1 without an error.
- What lies beyond the reader's view (the high watermark, or the last stable offset for read_committed) is not found.
- Nothing is tiered here: the earliest local offset is the log's start, the latest tiered and the earliest pending
  upload are -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from fastq_broker.replicas import Replica
    from fastq_broker.router import RequestContext

API_KEY = 2
VERSIONS = (1, 11)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

READ_COMMITTED = 1
NO_REPLICA = -1
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
UNKNOWN = (-1, -1, -1)
"""Timestamp, offset and leader epoch where there is nothing to tell."""


def handle(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer each partition for itself; one that is asked twice is an error in both places."""
    asked = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    repeated = {key for key in asked if asked.count(key) > 1} if len(set(asked)) < len(asked) else set()
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(context, request, topic.name, partition, (topic.name, partition.partition_index) in repeated)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsRequest.ListOffsetsPartition,
    repeated: bool,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if repeated:
        answer.error_code = INVALID_REQUEST
        return answer
    if asked.timestamp < EARLIEST_PENDING_UPLOAD or FIRST_VERSION_OF.get(asked.timestamp, 0) > context.api_version:
        answer.error_code = UNSUPPORTED_VERSION
        return answer
    replica = context.broker.replicas.leader(topic, asked.partition_index)
    if isinstance(replica, int):
        answer.error_code = replica
        return answer
    answer.error_code = replica.epoch_error(asked.current_leader_epoch)
    if answer.error_code == 0:
        try:
            answer.timestamp, answer.offset, answer.leader_epoch = _look_up(request, replica, asked.timestamp)
        except KafkaError as error:
            answer.error_code = int(error.code)
    return answer


def _look_up(request: ListOffsetsRequest, replica: Replica, timestamp: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) for a time or special value."""
    log = replica.log
    if request.replica_id > NO_REPLICA:
        end = log.log_end_offset
    else:
        end = log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
    if timestamp == LATEST:
        return -1, end, replica.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return UNKNOWN
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= end:
        return UNKNOWN
    return found[0], found[1], log.epoch_for_offset(found[1])
