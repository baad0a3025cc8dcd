"""Fetch: slices of the logs, at once or when there is enough, in full or as news of a session.

Rules (Kafka's KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages and DelayedFetch)
- Whole batches are returned. The first partition that has data ignores the size limits, so that a reader always moves.
- An answer goes out at once on max_wait_ms <= 0, enough bytes, an error or a diverging epoch in any partition; else
  it waits in the purgatory and is read again when that ends.
- Records are never copied here: results hold slices that the connection sends from the segment files.
- A read whose bounds lie on pages that are not in memory is finished by a thread; the request waits for it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from fastq._native.fetch_path import FetchBody, decode_fetch, encode_fetch_response
from fastq.errors import KafkaError
from fastq_broker.fetch_session import FetchContext, group_by_topic
from fastq_broker.leaders import current_leader, endpoints
from fastq_broker.log.scan import CorruptSegment
from fastq_broker.purgatory import WaitingFetch
from fastq_broker.router import Deferred

if TYPE_CHECKING:
    from fastq_broker.broker import Broker
    from fastq_broker.connection import Connection
    from fastq_broker.fetch_session import PartitionRequest, PartitionResult
    from fastq_broker.log.scan import LogSlice
    from fastq_broker.output import Part
    from fastq_broker.replicas import Replica
    from fastq_broker.router import Header, Result

API_KEY = 1
VERSIONS = (4, 18)

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 16
READ_COMMITTED = 1
NO_REPLICA = -1

UNKNOWN_SERVER_ERROR = -1
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
NOT_LEADER_OR_FOLLOWER = 6
KAFKA_STORAGE_ERROR = 56
FENCED_LEADER_EPOCH = 74
LED_ELSEWHERE = (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH)
"""Errors that tell the leader along (KIP-951)."""

logger = logging.getLogger(__name__)


def handle_frame(connection: Connection, broker: Broker, buffer: bytearray, header: Header) -> Result:
    """Serve one request from its frame."""
    version = header[1]
    body = decode_fetch(buffer, header[4], header[5], version)
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    context = broker.fetch_sessions.begin(
        body.session_id, body.session_epoch, body.partitions, body.forgotten, by_id, broker.clock()
    )
    if context.error_code != 0:
        return encode_fetch_response(version, header[2], 0, context.error_code, 0, [])
    fetch = _Fetch(broker, connection, header, body, context)
    ready = fetch.read()
    if fetch.cold:
        return fetch.warm()
    if ready or body.max_wait_ms <= 0:
        return fetch.answer()
    return fetch.wait()


class _Fetch:
    """One request being served. Loop thread only; `results` are those of the latest read."""

    __slots__ = (
        "available",
        "body",
        "broker",
        "cold",
        "connection",
        "context",
        "header",
        "leaders",
        "results",
        "table",
        "warmed",
        "watched",
    )

    def __init__(
        self, broker: Broker, connection: Connection, header: Header, body: FetchBody, context: FetchContext
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.header = header
        self.body = body
        self.context = context
        by_id = header[1] >= FIRST_VERSION_WITH_TOPIC_IDS
        self.table = broker.replicas.by_id if by_id else broker.replicas.by_name
        self.results: list[PartitionResult] = []
        self.leaders: set[int] = set()
        self.available: dict[Hashable, int] = {}
        self.watched: dict[Hashable, PartitionRequest] = {}
        self.cold: dict[Replica, LogSlice] = {}
        self.warmed: dict[Replica, LogSlice] = {}

    def read(self) -> bool:
        """Read every partition; True when the answer can go out now. What a thread has to look at is in `cold`."""
        left = min(self.body.max_bytes, self.broker.config.fetch_max_bytes)
        nothing_yet = True
        total = 0
        urgent = not self.context.partitions
        self.results = []
        self.cold = {}
        for request in self.context.partitions:
            replica = self._find(request)
            if isinstance(replica, int):
                result = _error(request, replica)
            else:
                result = self._read_one(replica, request, left, nothing_yet)
                records = result[8]
                if records is not None:
                    nothing_yet = False
                    left = max(0, left - records.size)
                    total += records.size
                self.available[replica] = 0 if records is None else records.size
                self.watched[replica] = request
            if result[2] in LED_ELSEWHERE:
                result = self._with_leader(result)
            urgent = urgent or result[2] != 0 or result[9] is not None
            self.results.append(result)
        return urgent or total >= self.body.min_bytes

    def answer(self) -> list[Part]:
        """The response of the latest read."""
        session_id, results = self.context.answer(self.results)
        for result in results:
            if result[2]:
                self.broker.router.partition_failed(self.header[0], result[2])
        if len(results) > 1 and self.context.session is None:
            results = group_by_topic(results)
        found = (
            endpoints(self.broker.controller.image, self.leaders, self.connection.listener) if self.leaders else None
        )
        return encode_fetch_response(self.header[1], self.header[2], 0, 0, session_id, results, found)

    def wait(self) -> Deferred:
        """Wait for bytes; read again and answer at the end of the wait."""
        self.results = []  # hold no segment file open meanwhile
        purgatory = self.broker.purgatory

        def finish() -> None:
            self.read()
            if self.cold:
                self._warm_then_answer(deferred)
            else:
                deferred.complete(self.answer())

        waiting = WaitingFetch(self.available, self.body.min_bytes, self._estimate, finish)
        deferred = Deferred(self.connection, on_cancel=lambda: purgatory.cancel(waiting))
        deferred.on_hurry = lambda: purgatory.end(waiting)
        purgatory.wait(waiting, self.body.max_wait_ms / 1000)
        return deferred

    def warm(self) -> Deferred:
        """Let a thread finish the reads that would wait for a disk, then answer with what is there."""
        deferred = Deferred(self.connection)
        self._warm_then_answer(deferred)
        return deferred

    def _warm_then_answer(self, deferred: Deferred) -> None:
        pieces = list(self.cold.values())
        self.warmed.update(self.cold)

        def work() -> None:
            for piece in pieces:
                try:
                    piece.warm()
                except (CorruptSegment, OSError) as error:
                    logger.error("fetch: %s", error)

        def done() -> None:
            self.read()
            if self.cold and not deferred.cancelled:
                self._warm_then_answer(deferred)  # a partition had moved on to a cold place; each is warmed once
            else:
                deferred.complete(self.answer())

        self.broker.read_ahead.run(work, done)

    def _with_leader(self, result: PartitionResult) -> PartitionResult:
        """The same error, with the leader in versions that can tell it."""
        if self.header[1] < FIRST_VERSION_WITH_LEADERS:
            return result
        leader = current_leader(self.broker.controller.image, result[0], True, result[1])
        if leader is not None:
            self.leaders.add(leader[0])
        return (*result[:10], leader)

    def _find(self, request: PartitionRequest) -> Replica | int:
        """The replica to read from, or an error code."""
        hosted = self.table.get(request[0])
        replica = None if hosted is None else hosted.get(request[1])
        if replica is None:
            replicas = self.broker.replicas
            return replicas.missing_error(request[0], request[1], self.table is replicas.by_id)
        if replica.leader_id != self.broker.node_id:
            return NOT_LEADER_OR_FOLLOWER
        return replica.epoch_error(request[2]) or replica.follower_error(self.body.replica_id, request[2]) or replica

    def _upper_offset(self, replica: Replica) -> int:
        """Where this reader's view ends: the last stable offset, the high watermark, or the log's end for a follower."""
        log = replica.log
        if self.body.replica_id > NO_REPLICA:
            return log.log_end_offset
        return log.last_stable_offset if self.body.isolation_level == READ_COMMITTED else log.high_watermark

    def _read_one(self, replica: Replica, request: PartitionRequest, left: int, nothing_yet: bool) -> PartitionResult:
        """Read one partition within what is left of the request's size limit."""
        _, index, _, offset, fetched_epoch, _, bytes_max = request
        log = replica.log
        try:
            if fetched_epoch >= 0:
                epoch, end_offset = log.epoch_end_offset(fetched_epoch)
                if end_offset < 0 or epoch < 0:
                    return _error(request, OFFSET_OUT_OF_RANGE)
                if epoch < fetched_epoch or end_offset < offset:
                    return self._result(replica, request, None, (epoch, end_offset))
            if not log.log_start_offset <= offset <= log.log_end_offset:
                return _error(request, OFFSET_OUT_OF_RANGE)
            upper = self._upper_offset(replica)
            size = min(left, bytes_max)
            if offset >= upper or (size <= 0 and not nothing_yet):
                return self._result(replica, request, None, None)
            piece = self.warmed.get(replica)
            if piece is None:
                piece = log.read(offset, size, min_one_batch=nothing_yet, upper_offset=upper)
                if piece.cold:
                    self.cold[replica] = piece
                    return self._result(replica, request, None, None)
            elif piece.cold:  # the thread could not read it
                return _error(request, KAFKA_STORAGE_ERROR)
            return self._result(replica, request, piece if piece.size > 0 else None, None)
        except KafkaError as error:
            return _error(request, int(error.code))
        except CorruptSegment as error:
            logger.error("fetch from %s-%d at offset %d: %s", replica.topic, index, offset, error)
            return _error(request, CORRUPT_MESSAGE)
        except Exception:
            logger.exception("fetch from %s-%d at offset %d failed", replica.topic, index, offset)
            return _error(request, UNKNOWN_SERVER_ERROR)

    def _result(
        self, replica: Replica, request: PartitionRequest, records: Any, diverging: tuple[int, int] | None
    ) -> PartitionResult:
        log = replica.log
        aborted: list[tuple[int, int]] | None = None
        if self.body.isolation_level == READ_COMMITTED:
            found = log.aborted_transactions(request[3], log.last_stable_offset) if records is not None else ()
            aborted = [(entry.producer_id, entry.first_offset) for entry in found]
        stable, start = log.last_stable_offset, log.log_start_offset
        return request[0], request[1], 0, log.high_watermark, stable, start, aborted, -1, records, diverging, None

    def _estimate(self, key: Hashable) -> int:
        """The bytes that a watched partition has for this fetch now; enough to end the wait when it cannot be read.

        The most frequent question, whether there is anything for a fetch of one byte, is answered without a look at the file.
        """
        request = self.watched[key]
        replica = self._find(request)
        if isinstance(replica, int):
            return self.body.min_bytes + self.available[key]
        offset = request[3]
        if replica.log.log_start_offset <= offset:
            upper = self._upper_offset(replica)
            if offset >= upper or self.body.min_bytes <= 1:
                return int(offset < upper)
        result = self._read_one(replica, request, self.body.max_bytes, True)
        if result[2] != 0:
            return self.body.min_bytes + self.available[key]
        if self.cold.pop(replica, None) is not None:
            return self.body.min_bytes + self.available[key]
        return 0 if result[8] is None else int(result[8].size)


def _error(request: PartitionRequest, code: int) -> PartitionResult:
    return request[0], request[1], code, -1, -1, -1, None, -1, None, None, None
