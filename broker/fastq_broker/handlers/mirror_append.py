"""MirrorAppend, an API of our own: a mirror of another cluster writes batches with the offsets that they have there.

Rules
- Only a topic whose `mirror.source` is what the request names takes anything; for everybody else it is read-only.
- One partition succeeds or fails for itself, and its answer has where its log begins and ends now, an error's too: who was mistaken about
  the end goes on from there.
- What is appended is answered once all who have to have it have it, as with acks=all; after the time that the request gives with
  REQUEST_TIMED_OUT, and it stays. The log's start follows then, up to the high watermark.
- The frame is decoded in place, and nothing of it is kept: its buffer is the next request's.
- ApiVersions tells of it to fastq's clients alone (`api_versions.py`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from fastq._native.wire import DecodeError, Reader
from fastq.errors import ErrorCode, FastqError, KafkaError
from fastq.protocol.frames import encode_response, named
from fastq.protocol.messages import MirrorAppendRequest, MirrorAppendResponse
from fastq_broker.connection import ProtocolViolation
from fastq_broker.log import failures
from fastq_broker.log.mirrored import append_mirrored, check_end, end_mirror
from fastq_broker.mirrored_replicas import check_writes, led_replica, refuse, tell_offsets, when_kept, words_of
from fastq_broker.router import Deferred

if TYPE_CHECKING:
    from typing import TypeAlias

    from fastq_broker.connection import Connection
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica
    from fastq_broker.router import Header, Result

    Answer: TypeAlias = MirrorAppendResponse.MirroredPartitionResult

API_KEY = 10000
VERSIONS = (0, 0)

APPEND, CUT, END = 0, 1, 2
"""Operations: append the records, if any; remove what lies at `offset` and above; abort what is open and forget the source's producers."""
PARTITIONS_MAX = 10_000

logger = logging.getLogger(__name__)


def handle_frame(connection: Connection, ports: Ports, buffer: bytearray, header: Header) -> Result:
    """Serve one request from its frame."""
    _, version, correlation_id, _, start, end = header
    timeout_ms, topics = _decode(Reader(buffer, start, end), version)
    response = MirrorAppendResponse()
    waiting: list[tuple[Answer, Replica, int]] = []
    for topic in topics:
        answers = []
        for wanted in topic.partitions:
            answer = MirrorAppendResponse.MirroredPartitionResult(index=wanted.index)
            answers.append(answer)
            replica = led_replica(ports.replicas, topic.topic_id, wanted.index)
            if isinstance(replica, int):
                answer.error_code = replica
                continue
            try:
                end_offset = _carry_out(ports, replica, topic.source, wanted)
            except Exception as error:
                _refuse(answer, replica, error, connection)
                continue
            waiting.append((answer, replica, end_offset))
        response.topics.append(MirrorAppendResponse.MirroredTopicResult(topic_id=topic.topic_id, partitions=answers))
    starts = {
        (topic.topic_id, wanted.index): wanted.log_start_offset for topic in topics for wanted in topic.partitions
    }
    return _answer_when_kept(connection, ports, correlation_id, version, response, waiting, starts, timeout_ms)


def _decode(reader: Reader, version: int) -> tuple[int, list[MirrorAppendRequest.MirroredTopic]]:
    """The time to wait, and what is asked of each topic. Records are views of the frame; of what becomes objects there is a bound, as the
    frame may be as large as a Produce. Raises DecodeError, ProtocolViolation."""
    try:
        timeout_ms = reader.read_int32()
        topics, left = [], PARTITIONS_MAX
        for _ in range(reader.read_compact_array_length(19)):
            topic = MirrorAppendRequest.MirroredTopic(topic_id=reader.read_uuid(), source=reader.read_compact_string())
            count = reader.read_compact_array_length(23)
            left -= count + 1
            if left < 0:
                raise ProtocolViolation(f"a MirrorAppend has more than {PARTITIONS_MAX} topics and partitions")
            topic.partitions = [MirrorAppendRequest.MirroredPartition.decode(reader, version) for _ in range(count)]
            reader.skip_tagged_fields()
            topics.append(topic)
        return timeout_ms, topics
    except DecodeError as error:
        raise named(error, f"MirrorAppendRequest v{version}") from None


def _carry_out(ports: Ports, replica: Replica, source: str, wanted: MirrorAppendRequest.MirroredPartition) -> int:
    """Do what is asked; the offset below which everybody has to have everything before it is answered. Raises KafkaError."""
    log, now_ms = replica.log, ports.clock()
    check_writes(replica, source)
    if wanted.operation == END:
        return end_mirror(log, leader_epoch=replica.leader_epoch, now_ms=now_ms)
    if wanted.operation == CUT:
        return _cut(replica, wanted.offset)
    if wanted.operation != APPEND:
        refuse(replica, ErrorCode.INVALID_REQUEST, f"operation {wanted.operation} is none of {APPEND}, {CUT} and {END}")
    if wanted.records:
        records = wanted.records
        assert isinstance(records, memoryview)
        return append_mirrored(log, records, offset=wanted.offset, leader_epoch=replica.leader_epoch, now_ms=now_ms)
    if wanted.offset >= 0:
        check_end(log, wanted.offset)
    return log.log_end_offset


def _cut(replica: Replica, offset: int) -> int:
    """Remove what the source has lost. Of a partition that other nodes have too only an election of the controller can have it removed
    everywhere."""
    if replica.shared is not None:
        refuse(
            replica,
            ErrorCode.POLICY_VIOLATION,
            "other nodes have it too, and have to have the same: delete the topic here, and its mirror copies it anew",
        )
    if not replica.log.log_start_offset <= offset:
        refuse(
            replica,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log begins at offset {replica.log.log_start_offset}, and {offset} lies before it: delete the topic here, and its mirror "
            "copies it anew",
        )
    logger.warning("%s: what its mirror's source has lost, from offset %d on, is cut off", replica.log.name, offset)
    replica.log.truncate_to(offset)
    return replica.log.log_end_offset


def _refuse(answer: Answer, replica: Replica, error: Exception, connection: Connection) -> None:
    answer.error_code = int(error.code) if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
    answer.error_message = words_of(error)
    if not isinstance(error, FastqError):
        logger.error("a mirror's append to %s from %s failed", replica.log.name, connection.peer, exc_info=error)
    if replica.log.loaded:
        tell_offsets(answer, replica)


def _answer_when_kept(
    connection: Connection,
    ports: Ports,
    correlation_id: int,
    version: int,
    response: MirrorAppendResponse,
    waiting: list[tuple[Answer, Replica, int]],
    starts: dict[tuple[bytes, int], int],
    timeout_ms: int,
) -> Deferred:
    """Answer once every partition has come to its end."""
    deferred = Deferred(connection)
    encode = partial(encode_response, correlation_id, response, version)  # now: there may be no memory for it then

    def done() -> None:
        deferred.complete_with(encode, "MirrorAppend")

    def kept(answer: Answer, replica: Replica, error: KafkaError | None) -> None:
        try:
            if error is not None:
                answer.error_code, answer.error_message = int(error.code), words_of(error)
            else:
                _follow_start(replica, starts[replica.topic_id, replica.partition])
            tell_offsets(answer, replica)
        except Exception as failure:
            failures.report(f"answering the mirror of {replica.log.name}", failure)
            answer.error_code, answer.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)

    asked = [(replica, offset, partial(kept, answer, replica)) for answer, replica, offset in waiting]
    when_kept(ports.loop, max(timeout_ms, 0) / 1000, asked, done)
    return deferred


def _follow_start(replica: Replica, offset: int) -> None:
    """The source has no more what lies below `offset`."""
    log = replica.log
    start = min(offset, log.high_watermark)
    if start > log.log_start_offset:
        log.raise_start(start)
