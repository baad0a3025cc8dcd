"""ListOffsets: offsets by time and by special value.

Rules (Kafka's Partition.fetchOffsetForTimestamp)
- A time finds the first record that is not older; none answers -1/-1 without an error.
- What lies beyond the reader's view (the high watermark, or the last stable offset for read_committed) is not found.
- A new leader does not know what was committed before it until its own epoch is: clients are then told OFFSET_NOT_AVAILABLE, before
  version 5 LEADER_NOT_AVAILABLE, where the answer is the end or lies beyond it (KIP-207).
- Leaders answer; a replica that follows tells of its own log who debugs (replica id -2).
- Whether a replica id belongs to the partition is not looked at, as Kafka does not: some clients send 0.
- Nothing is tiered here: the earliest local offset is the log's start, the latest tiered and the earliest pending
  upload are -1.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError, MissingPackage
from fastq.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from fastq.values import NamedTuple
from fastq_broker.log import failures
from fastq_broker.log.scan import CorruptSegment

if TYPE_CHECKING:
    from typing import TypeAlias

    from fastq_broker.log import PartitionLog, TimestampOffset
    from fastq_broker.replicas import Replica
    from fastq_broker.router import RequestContext

    Answer: TypeAlias = ListOffsetsResponse.ListOffsetsPartitionResponse

API_KEY = 2
VERSIONS = (1, 11)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

FIRST_VERSION_WITH_LEADER_EPOCH = 4
FIRST_VERSION_WITH_NOT_AVAILABLE = 5

_CODES = {
    CorruptSegment: ErrorCode.CORRUPT_MESSAGE,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
    MissingPackage: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
"""What a search may end with, and what its partition is answered then."""


class Search(NamedTuple):
    """A partition that is searched by time, and its answer."""

    answer: Answer
    topic: str
    asked: ListOffsetsRequest.ListOffsetsPartition


READ_COMMITTED = 1
CONSUMER, DEBUGGING_CONSUMER = -1, -2

logger = logging.getLogger(__name__)


def handle(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Coroutine[None, None, ListOffsetsResponse]:
    """Answer each partition for itself; one that is asked twice is an error in both places."""
    asked = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    repeated = {key for key, count in Counter(asked).items() if count > 1}
    searches: list[Search] = []
    response = ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(context, request, topic.name, partition, repeated, searches)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    if searches:
        return _search_all(context, request, response, searches)
    return _fitting(response, context.api_version)


def _answer(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsRequest.ListOffsetsPartition,
    repeated: set[tuple[str, int]],
    searches: list[Search],
) -> Answer:
    """One partition's answer; what has to be searched for in the log is added to `searches`."""
    answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if (topic, asked.partition_index) in repeated:
        answer.error_code = ErrorCode.INVALID_REQUEST
        return answer
    if asked.timestamp < EARLIEST_PENDING_UPLOAD or FIRST_VERSION_OF.get(asked.timestamp, 0) > context.api_version:
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
        return answer
    replica = _replica_of(context, request, topic, asked)
    if isinstance(replica, int):
        answer.error_code = replica
    elif asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP:
        searches.append(Search(answer, topic, asked))
    else:
        try:
            _set_special(context, request, replica, asked.timestamp, answer)
        except KafkaError as error:
            answer.error_code = int(error.code)
    return answer


def _replica_of(
    context: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsRequest.ListOffsetsPartition
) -> Replica | int:
    """The replica that answers, or the error code."""
    replica: Replica | int | None = None
    if request.replica_id == DEBUGGING_CONSUMER:
        replica = context.replicas.get(topic, asked.partition_index)
    if replica is None:
        replica = context.replicas.leader(topic, asked.partition_index)
    return replica if isinstance(replica, int) else replica.epoch_error(asked.current_leader_epoch) or replica


def _end_for(request: ListOffsetsRequest, replica: Replica) -> int:
    """Where the reader's view of the log ends: followers, and consumers that debug (-2), see all of it."""
    if request.replica_id != CONSUMER:
        return replica.log.log_end_offset
    return replica.log.last_stable_offset if request.isolation_level == READ_COMMITTED else replica.log.high_watermark


def _not_known(context: RequestContext, request: ListOffsetsRequest, replica: Replica) -> int:
    """0, or the error for a client that asks for what this leader does not know yet."""
    if request.replica_id != CONSUMER or replica.shared is None or replica.shared.machine.knows_latest:
        return 0
    told = context.api_version >= FIRST_VERSION_WITH_NOT_AVAILABLE
    return ErrorCode.OFFSET_NOT_AVAILABLE if told else ErrorCode.LEADER_NOT_AVAILABLE


def _set_special(
    context: RequestContext, request: ListOffsetsRequest, replica: Replica, timestamp: int, answer: Answer
) -> None:
    """Answer a special value that needs no search."""
    log = replica.log
    if timestamp == LATEST and (error := _not_known(context, request, replica)):
        answer.error_code = error
    elif timestamp == LATEST:
        answer.offset, answer.leader_epoch = _end_for(request, replica), replica.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset, answer.leader_epoch = log.log_start_offset, log.epochs.epoch_for_offset(log.log_start_offset)


async def _search_all(
    context: RequestContext,
    request: ListOffsetsRequest,
    response: ListOffsetsResponse,
    searches: list[Search],
) -> ListOffsetsResponse:
    """Search the logs by time, in a thread: that may wait for a disk. Meanwhile the next one's topic may be deleted, or led elsewhere."""
    for answer, topic, asked in searches:
        replica, timestamp = _replica_of(context, request, topic, asked), asked.timestamp
        if isinstance(replica, int):
            answer.error_code = replica
            continue
        try:
            if timestamp == MAX_TIMESTAMP:
                timestamp = replica.log.largest_timestamp()
            if timestamp < 0:
                continue
            found = await _search(context, replica.log, timestamp)
        except KafkaError as error:
            answer.error_code = int(error.code)
            continue
        except (CorruptSegment, OSError, MissingPackage) as error:
            place = f"list offsets of {replica.topic}-{replica.partition}"
            failures.say(logger.error, place, "%s: %s", place, error)
            answer.error_code = _CODES[next(kind for kind in _CODES if isinstance(error, kind))]
            continue
        if found is not None and found.offset < _end_for(request, replica):
            answer.timestamp, answer.offset, answer.leader_epoch = found
        else:
            answer.error_code = _not_known(context, request, replica)
    return _fitting(response, context.api_version)


async def _search(context: RequestContext, log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """The first record at or after a time, segment by segment: as a rule it is in the first. Raises KafkaError, CorruptSegment, OSError,
    MissingPackage."""
    since: int | None = 0
    while since is not None:
        query = log.timestamp_query(timestamp_ms, since)
        found: TimestampOffset | None = await context.read_ahead.call(query.run)
        if found is not None:
            return found
        since = query.followed
    return None


def _fitting(response: ListOffsetsResponse, api_version: int) -> ListOffsetsResponse:
    """The response without what its version cannot carry."""
    if api_version < FIRST_VERSION_WITH_LEADER_EPOCH:
        for topic in response.topics:
            for partition in topic.partitions:
                partition.leader_epoch = -1
    return response
