"""DeleteRecords: moves the start of partitions up, so that older records are gone (KIP-107).

Rules (Kafka's ReplicaManager.deleteRecords and DelayedDeleteRecords)
- Offset -1 is the high watermark; above it is OFFSET_OUT_OF_RANGE. A topic whose cleanup.policy does not delete refuses,
  and so does one that a mirror writes. Of internal topics nothing is deleted, whatever their policy says.
- The low watermark answered is the least start of all live replicas' logs. The answer waits until it has reached the offset, for the time
  that the request gives: then it is REQUEST_TIMED_OUT, and the records go nevertheless. A copy on its way to
  another directory of this node is cut with its log, before the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from fastq.values import NamedTuple
from fastq_broker.controller.topics import INTERNAL_TOPICS
from fastq_broker.log import failures

if TYPE_CHECKING:
    from typing import TypeAlias

    from fastq_broker.replication.shared import SharedPartition
    from fastq_broker.router import RequestContext

    Result: TypeAlias = DeleteRecordsResponse.DeleteRecordsPartitionResult

API_KEY = 21
VERSIONS = (0, 2)

HIGH_WATERMARK = -1
NO_WATERMARK = -1
logger = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """What other nodes still have to delete."""

    result: Result
    shared: SharedPartition
    offset: int


def handle(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Coroutine[None, None, DeleteRecordsResponse]:
    """One result a partition, in the order asked for."""
    pending: list[_Pending] = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_partition(context, topic.name, item, pending) for item in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    return _answer_when_deleted(response, pending, request.timeout_ms) if pending else response


async def _answer_when_deleted(
    response: DeleteRecordsResponse, pending: list[_Pending], timeout_ms: int
) -> DeleteRecordsResponse:
    loop = asyncio.get_running_loop()
    waiting = []
    for result, shared, offset in pending:
        future: asyncio.Future[None] = loop.create_future()
        callback = partial(_deleted, future, result, shared)
        shared.wait_deleted(offset, callback)
        waiting.append((future, shared, callback))
    try:
        await asyncio.wait([future for future, _, _ in waiting], timeout=max(timeout_ms, 0) / 1000)
    finally:
        for _, shared, callback in waiting:
            shared.forget_deletion(callback)
    return response


def _deleted(future: asyncio.Future[None], result: Result, shared: SharedPartition, error: KafkaError | None) -> None:
    """All live replicas have deleted, or this node does not lead any more."""
    result.error_code = ErrorCode.NONE if error is None else error.code
    result.low_watermark = shared.low_watermark if error is None else NO_WATERMARK
    future.set_result(None)


def _partition(
    context: RequestContext,
    topic: str,
    item: DeleteRecordsRequest.DeleteRecordsPartition,
    pending: list[_Pending],
) -> Result:
    result = DeleteRecordsResponse.DeleteRecordsPartitionResult(
        partition_index=item.partition_index, low_watermark=NO_WATERMARK
    )
    try:
        _delete(context, topic, item.offset, result, pending)
    except KafkaError as failure:
        place = f"DeleteRecords of {topic}-{item.partition_index}"
        failures.say(logger.warning, place, "%s before %d: %s", place, item.offset, failure)
        result.error_code = failure.code
    return result


def _delete(context: RequestContext, topic: str, offset: int, result: Result, pending: list[_Pending]) -> None:
    number = result.partition_index
    partition = context.image.partition(topic, number)
    if partition is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return
    if topic in INTERNAL_TOPICS:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return
    log = context.logs.get(topic, number)
    if partition.leader != context.node_id or log is None:
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return
    if "delete" not in log.config.cleanup_policy or log.config.mirror_source:
        result.error_code = ErrorCode.POLICY_VIOLATION
        return
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= log.high_watermark:
        result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return
    log.delete_records_before(target)
    context.logs.moves.follow_start(log)
    result.low_watermark = log.log_start_offset
    replica = context.replicas.get(topic, number) if len(partition.replicas) > 1 else None
    if replica is not None and replica.shared is not None:
        result.low_watermark = replica.shared.low_watermark
        if result.low_watermark < target:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            pending.append(_Pending(result, replica.shared, target))
