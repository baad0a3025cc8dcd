"""Produce: append each partition's batch, answer when as many have it as `acks` asks for.

Rules (Kafka's ReplicaManager.appendRecords and ProduceRequest.validateRecords)
- The frame is decoded natively and its batches are appended from where they were received.
- Each partition succeeds or fails for itself. acks=0 is never answered; then an error closes the connection instead.
- With synchronous durability the answer waits until the log says that the records are on disk, whatever `acks` is. With acks=all it
  waits until all in sync have them, for the time that the request gives: then the answer is REQUEST_TIMED_OUT, and the records stay.
- Transactional batches are appended once the transaction coordinator has their partitions in the transaction. Where that takes
  time, the frame is copied, and looked at again from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from fastq._native.produce_path import PartitionResponse, decode_produce, encode_produce_response
from fastq.errors import ErrorCode, FastqError, KafkaError, MessageTooLarge, RecordListTooLarge
from fastq.protocol.frames import encode_response
from fastq.protocol.messages import ProduceResponse
from fastq.protocol.uuid import uuid_to_str
from fastq_broker.config_keys import shown
from fastq_broker.connection import ProtocolViolation
from fastq_broker.leaders import current_leader, endpoints
from fastq_broker.log import failures
from fastq_broker.router import Deferred
from fastq_broker.transactions import Operation, operation
from fastq_broker.transactions.batches import admit_batches, unverified_batches

if TYPE_CHECKING:
    import asyncio

    from fastq_broker.connection import Connection
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica
    from fastq_broker.replication.shared import Acknowledgement, SharedPartition
    from fastq_broker.router import Header, Result
    from fastq_broker.transactions.verification import Answer


API_KEY = 0
VERSIONS = (3, 13)

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 10
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_THAT_ADDS = 12
"""Of Produce: from it on the broker adds partitions to the transaction (KIP-890)."""
ZSTD = 4
ATTRIBUTES_POSITION = 21
"""Of the int16 attributes in a batch; the codec is in the low bits of its second byte."""


logger = logging.getLogger(__name__)


def handle_frame(connection: Connection, ports: Ports, buffer: bytearray, header: Header) -> Result:
    """Serve one request from its frame."""
    transactional_id, acks, timeout_ms, partitions = decode_produce(buffer, header[4], header[5], header[1])
    if transactional_id is not None:
        return _append_transactional(
            connection, ports, buffer, header, transactional_id, acks, timeout_ms, partitions, None, None
        )
    return _append_all(connection, ports, buffer, header, acks, timeout_ms, partitions)


def _append_all(
    connection: Connection,
    ports: Ports,
    buffer: bytearray,
    header: Header,
    acks: int,
    timeout_ms: int,
    partitions: Sequence[tuple[bytes, int, int, int]],
    transaction_version: int = -1,
    refused: Mapping[tuple[bytes, int], KafkaError] | None = None,
    deferred: Deferred | None = None,
) -> Result:
    """Append each batch and answer. `refused` are those that the transaction coordinator does not allow.

    `deferred`: the answer that has been promised already; a later one comes through it.
    """
    version = header[1]
    replicas = ports.replicas
    table = replicas.by_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else replicas.by_name
    now_ms = ports.clock()
    view = memoryview(buffer)
    results: list[PartitionResponse] = []
    waiting: list[tuple[int, Replica, int]] = []
    for topic, index, start, end in partitions:
        hosted = table.get(topic)
        replica = None if hosted is None else hosted.get(index)
        if replica is None:
            code = replicas.missing_error(topic, index, version >= FIRST_VERSION_WITH_TOPIC_IDS)
        else:
            code = _precheck(replica, ports.node_id, acks, version, view, start, end)
        if replica is None or code != 0:
            results.append(PartitionResponse(topic, index, code, error_message=_PRECHECK_MESSAGES.get(code)))
            continue
        if refused and (topic, index) in refused:
            results.append(_refused(topic, index, refused[topic, index], connection))
            continue
        try:
            done = replica.log.append(
                view[start:end],
                leader_epoch=replica.leader_epoch,
                now_ms=now_ms,
                transaction_version=transaction_version,
            )
        except Exception as error:
            if isinstance(error, (MessageTooLarge, RecordListTooLarge)):
                ports.router.rejected(replica.topic, end - start)
            results.append(_refused(topic, index, error, connection))
            continue
        if replica.answers_later and acks != 0 and (acks == -1 or replica.synchronous):
            waiting.append((len(results), replica, done.last_offset + 1))
        results.append(
            PartitionResponse(topic, index, 0, done.base_offset, done.log_append_time_ms, done.log_start_offset)
        )
    if waiting:
        return _answer_when_kept(connection, ports, header, acks, timeout_ms, results, waiting, deferred)
    if acks == 0:
        _close_on_error(results, version >= FIRST_VERSION_WITH_TOPIC_IDS)
        return None
    return _encode(connection, ports, header, results)


def _append_transactional(
    connection: Connection,
    ports: Ports,
    buffer: bytearray,
    header: Header,
    transactional_id: str,
    acks: int,
    timeout_ms: int,
    partitions: Sequence[tuple[bytes, int, int, int]],
    deferred: Deferred | None,
    answer: Answer | None,
) -> Result:
    """Ask the transaction coordinator first; `deferred` is the promised answer of a request that has waited for it, `answer` what it
    said where it is another node's."""
    version = header[1]
    wanted = operation(version, FIRST_VERSION_THAT_ADDS)
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    table = ports.replicas.by_id if by_id else ports.replicas.by_name
    batches = unverified_batches(table, memoryview(buffer), partitions)

    def again(answer: Answer | None) -> None:
        assert deferred is not None
        if deferred.cancelled:
            return
        try:
            result = _append_transactional(
                connection, ports, kept, moved, transactional_id, acks, timeout_ms, places, deferred, answer
            )
        except ProtocolViolation as violation:
            deferred.refuse(str(violation))
            return
        except Exception as error:
            _cannot_answer(deferred, error)
            return
        if not isinstance(result, Deferred):
            deferred.complete(result)

    refused = admit_batches(ports.transactions, transactional_id, batches, wanted, again, answer)
    if refused is None:
        kept, moved, places = buffer, header, partitions
        if deferred is None:  # the frame's buffer is used for the next one
            start, deferred = header[4], Deferred(connection)
            kept, moved = buffer[start : header[5]], (*header[:4], 0, header[5] - start)
            places = [(t, index, at - start if at >= 0 else -1, end - start) for t, index, at, end in partitions]
        return deferred
    transaction_version = 2 if wanted is Operation.ADD else 1
    return _append_all(
        connection, ports, buffer, header, acks, timeout_ms, partitions, transaction_version, refused, deferred
    )


def _cannot_answer(deferred: Deferred, error: Exception) -> None:
    """Close the connection, which is read from no more until it is answered."""
    failures.report("answering a Produce", error)
    deferred.refuse(f"Produce failed: {error!r}")


def _encode(connection: Connection, ports: Ports, header: Header, results: list[PartitionResponse]) -> bytes:
    """The response; where a partition is led elsewhere it tells by whom."""
    version, elsewhere = header[1], False
    for result in results:
        if result.error_code:
            ports.router.partition_failed(header[0], result.error_code)
            elsewhere = elsewhere or result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if elsewhere and version >= FIRST_VERSION_WITH_LEADERS:
        return _encode_with_leaders(connection, ports, header, results)
    return encode_produce_response(version, header[2], results)


def _encode_with_leaders(
    connection: Connection, ports: Ports, header: Header, results: list[PartitionResponse]
) -> bytes:
    """The response with leaders and their addresses, by way of the generated message: this is rare."""
    version = header[1]
    image, by_id = ports.image, version >= FIRST_VERSION_WITH_TOPIC_IDS
    response = ProduceResponse(responses=[], node_endpoints=[])
    leaders = set()
    for topic, partitions in groupby(results, key=attrgetter("topic")):
        named = {"topic_id": topic} if by_id else {"name": topic.decode("utf-8", "replace")}
        answers = []
        for result in partitions:
            code = result.error_code
            answer = ProduceResponse.PartitionProduceResponse(
                index=result.partition,
                error_code=code,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=result.log_start_offset,
                record_errors=[
                    ProduceResponse.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=what)
                    for at, what in result.record_errors or ()
                ],
                error_message=result.error_message,
            )
            elsewhere = code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            leader = current_leader(image, topic, by_id, result.partition) if elsewhere else None
            if leader is not None:
                leaders.add(leader[0])
                answer.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
            answers.append(answer)
        response.responses.append(ProduceResponse.TopicProduceResponse(partition_responses=answers, **named))
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
        for node, host, port, rack in endpoints(image, leaders, connection.listener)
    ]
    return encode_response(header[2], response, version)


_PRECHECK_MESSAGES: dict[int, str] = {
    ErrorCode.INVALID_REQUIRED_ACKS: "acks must be 0, 1 or -1",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "only the broker writes to an internal topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas demands",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "zstd needs a Produce request of version 7 or later",
    ErrorCode.INVALID_RECORD: "a partition needs exactly one record batch",
    ErrorCode.POLICY_VIOLATION: "the topic is mirrored from another cluster, and read-only until fastq mirror fail-over",
}


def _precheck(replica: Replica, node_id: int, acks: int, version: int, view: memoryview, start: int, end: int) -> int:
    """What is wrong before the log looks at the batch: an error code or 0."""
    if acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if replica.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if replica.leader_id != node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if replica.mirrored:
        return ErrorCode.POLICY_VIOLATION
    if acks == -1 and replica.under_min_isr:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if start < 0 or start == end:
        return ErrorCode.INVALID_RECORD
    if version < FIRST_VERSION_WITH_ZSTD and _codec(view[start:end]) == ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return 0


def _codec(batch: memoryview) -> int:
    """The codec that a batch claims; -1 when it is too short to claim one."""
    return batch[ATTRIBUTES_POSITION + 1] & 7 if len(batch) > ATTRIBUTES_POSITION + 1 else -1


def _refused(topic: bytes, index: int, error: Exception, connection: Connection) -> PartitionResponse:
    """The result of an append that the log refused, with record errors where there are some."""
    code = int(error.code) if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
    if not isinstance(error, FastqError):
        logger.error(
            "append to %s-%d from %s failed", topic.decode("utf-8", "replace"), index, connection.peer, exc_info=error
        )
    record_errors = getattr(error, "record_errors", None)
    errors = list(record_errors) if record_errors else None
    # Who reads the answer knows the code and the partition, and says them.
    said = error.context.get("detail") if isinstance(error, FastqError) else None
    return PartitionResponse(topic, index, code, record_errors=errors, error_message=str(said or error))


def _close_on_error(results: list[PartitionResponse], by_id: bool) -> None:
    """acks=0: the client sees an error only as a closed connection."""
    for result in results:
        if result.error_code != 0:
            name = uuid_to_str(result.topic) if by_id else shown(result.topic.decode("utf-8", "replace"))
            why = result.error_message or result.error_code
            raise ProtocolViolation(f"a produce request with acks=0 failed for {name}-{result.partition}: {why}")


def _answer_when_kept(
    connection: Connection,
    ports: Ports,
    header: Header,
    acks: int,
    timeout_ms: int,
    results: list[PartitionResponse],
    waiting: list[tuple[int, Replica, int]],
    promised: Deferred | None,
) -> Deferred:
    """Answer once all who have to have the records have them: every log on disk, with acks=all all who are in sync. A partition that
    fails to get there answers why."""
    deferred = promised or Deferred(connection)
    left = len(waiting)
    timer: asyncio.TimerHandle | None = None
    encode = partial(_encode, connection, ports, header, results)  # now: there may be no memory for it then

    def kept(position: int, error: KafkaError | None) -> None:
        nonlocal left
        if error is not None:
            failed = results[position]
            try:
                results[position] = PartitionResponse(
                    failed.topic, failed.partition, error.code, error_message=str(error)
                )
            except Exception as failure:
                _cannot_answer(deferred, failure)
                return  # so that nobody is told that it went well
        left -= 1
        if left == 0:
            if timer is not None:
                timer.cancel()
            deferred.complete_with(encode, "Produce")

    acknowledgements: list[tuple[SharedPartition, Acknowledgement]] = []
    for position, replica, offset in waiting:
        if acks == -1 and replica.shared is not None:
            acknowledgement = replica.shared.wait(offset, partial(kept, position))
            acknowledgements.append((replica.shared, acknowledgement))
        else:
            replica.log.wait_durable(offset, partial(kept, position))

    def give_up() -> None:
        for shared, acknowledgement in acknowledgements:
            shared.give_up(acknowledgement)

    if left and acknowledgements:
        timer = ports.loop.call_later(max(timeout_ms, 0) / 1000, give_up)
    return deferred
