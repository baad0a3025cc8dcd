"""DeleteRecords: moves the start of partitions up, so that older records are gone (KIP-107).

Rules: offset -1 is the high watermark; above it is OFFSET_OUT_OF_RANGE. A topic whose cleanup.policy does not delete
refuses. The low watermark answered is the new start of the log, this node being the only replica.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from fastq_broker.log import failures

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 21
VERSIONS = (0, 2)

HIGH_WATERMARK = -1
NO_WATERMARK = -1
logger = logging.getLogger(__name__)


def handle(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """One result a partition, in the order asked for."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name, partitions=[_partition(context, topic.name, item) for item in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _partition(
    context: RequestContext, topic: str, item: DeleteRecordsRequest.DeleteRecordsPartition
) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
    error, watermark = ErrorCode.NONE, NO_WATERMARK
    try:
        error, watermark = _delete(context, topic, item.partition_index, item.offset)
    except KafkaError as failure:
        place = f"DeleteRecords of {topic}-{item.partition_index}"
        failures.say(logger.warning, place, "%s before %d: %s", place, item.offset, failure)
        error = failure.code
    return DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=item.partition_index, low_watermark=watermark, error_code=error
    )


def _delete(context: RequestContext, topic: str, number: int, offset: int) -> tuple[ErrorCode, int]:
    partition = context.image.partition(topic, number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_WATERMARK
    log = context.logs.get(topic, number)
    if partition.leader != context.node_id or log is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_WATERMARK
    if "delete" not in log.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION, NO_WATERMARK
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= log.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, NO_WATERMARK
    log.delete_records_before(target)
    return ErrorCode.NONE, log.log_start_offset
