"""OffsetForLeaderEpoch: where a leader epoch ends in the log, for readers that check for truncation (KIP-101, KIP-320).

Rules: an epoch the log does not know answers the end of the largest known one before it; -1/-1 when there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 23
VERSIONS = (2, 4)


def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Answer each partition for itself."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(context, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(
    context: RequestContext, topic: str, asked: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    answer = OffsetForLeaderEpochResponse.EpochEndOffset(partition=asked.partition)
    replica = context.replicas.leader(topic, asked.partition)
    if isinstance(replica, int):
        answer.error_code = replica
        return answer
    answer.error_code = replica.epoch_error(asked.current_leader_epoch)
    if answer.error_code == 0:
        try:
            answer.leader_epoch, answer.end_offset = replica.log.epoch_end_offset(asked.leader_epoch)
        except KafkaError as error:
            answer.error_code = int(error.code)
    return answer
