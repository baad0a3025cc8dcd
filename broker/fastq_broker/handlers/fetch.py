"""Fetch: slices of the logs, at once or when there is enough, in full or as news of a session.

Rules (Kafka's KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages and DelayedFetch)
- Whole batches are returned. The first partition that has data ignores the size limits, so that a reader always moves.
- An answer goes out at once on max_wait_ms <= 0, enough bytes, an error or a diverging epoch in any partition; else
  it waits in the purgatory and is read again when that ends.
- Records are never copied here: results hold slices that the connection sends from the segment files.
- A follower reads up to the log's end, and what it asks for says what it has: that is told to the partition once, when the request comes,
  and not for what is answered with an error or a diverging epoch. An advance of the high watermark alone ends no follower's wait.
- Who may be told of a replica in its rack is, with nothing else (KIP-392), and that replica serves it up to its own high watermark.
- A read whose bounds lie on pages that are not in memory is finished by a thread; the request waits for it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastq._native.fetch_path import FetchBody, FetchPartition, PartitionData, decode_fetch, encode_fetch_response
from fastq.errors import ErrorCode, KafkaError
from fastq_broker.fetch_session import FetchContext, FetchSession, group_by_topic
from fastq_broker.leaders import current_leader, endpoints
from fastq_broker.log import failures
from fastq_broker.log.scan import CorruptSegment
from fastq_broker.purgatory import WaitingFetch
from fastq_broker.router import Deferred

if TYPE_CHECKING:
    from fastq_broker.connection import Connection
    from fastq_broker.log.scan import LogSlice
    from fastq_broker.output import Part
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica
    from fastq_broker.router import Header, Result

API_KEY = 1
VERSIONS = (4, 18)

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 16
READ_COMMITTED = 1
NO_REPLICA = -1
FIRST_VERSION_WITH_RACKS = 11
"""From it on consumers may read from followers."""
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors that tell the leader along (KIP-951)."""

logger = logging.getLogger(__name__)


def handle_frame(connection: Connection, ports: Ports, buffer: bytearray, header: Header) -> Result:
    """Serve one request from its frame."""
    version = header[1]
    body = decode_fetch(buffer, header[4], header[5], version)
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    context = ports.fetch_sessions.begin(
        body.session_id, body.session_epoch, body.partitions, body.forgotten, by_id, ports.monotonic_ms()
    )
    if context.error_code != 0:
        return encode_fetch_response(version, header[2], 0, context.error_code, 0, [])
    context.look(body.isolation_level, (body.replica_id, body.replica_epoch))
    fetch = _Fetch(ports, connection, header, body, context)
    ready = fetch.read()
    if body.replica_id > NO_REPLICA:
        fetch.note_follower()
    if fetch.cold:
        return fetch.warm()
    if ready or body.max_wait_ms <= 0:
        return fetch.answer()
    return fetch.wait()


class _Fetch:
    """One request being served. Loop thread only.

    `results` are those of the latest read, and `asked` whose they are, in a session: of what sleeps there is none.
    `late` are partitions that have woken before the wait began.
    """

    __slots__ = (
        "asked",
        "available",
        "body",
        "cold",
        "connection",
        "context",
        "header",
        "late",
        "leaders",
        "max_bytes",
        "min_bytes",
        "ports",
        "rack",
        "results",
        "table",
        "waits",
        "warmed",
        "watched",
    )

    def __init__(
        self, ports: Ports, connection: Connection, header: Header, body: FetchBody, context: FetchContext
    ) -> None:
        self.ports = ports
        self.connection = connection
        self.header = header
        self.body = body
        self.max_bytes = min(body.max_bytes, ports.config.fetch_max_bytes)
        # Else no answer would be large enough (KafkaApis.handleFetchRequest).
        self.min_bytes = min(body.min_bytes, self.max_bytes)
        self.context = context
        by_id = header[1] >= FIRST_VERSION_WITH_TOPIC_IDS
        self.table = ports.replicas.by_id if by_id else ports.replicas.by_name
        self.results: list[PartitionData] = []
        self.asked: list[tuple[FetchPartition, Replica | int]] = []
        session = context.session
        self.waits: WaitingFetch | None = None
        self.late: list[Replica] = []
        if session is not None:
            session.waiting = self
        # Consumers that say where they are, if it is looked at.
        looked_at = ports.config.replica_selector_class == RACK_AWARE and body.replica_id == NO_REPLICA
        self.rack = body.rack_id if looked_at and header[1] >= FIRST_VERSION_WITH_RACKS else ""
        self.leaders: set[int] = set()
        self.available: dict[Hashable, int] = {}
        self.watched: dict[Hashable, FetchPartition] = {}
        self.cold: dict[Replica, LogSlice] = {}
        self.warmed: dict[Replica, LogSlice] = {}

    def read(self) -> bool:
        """Read every partition that is awake; True when the answer can go out now. What a thread has to look at is in `cold`."""
        left = self.max_bytes
        nothing_yet = True
        total = 0
        in_session = self.context.session is not None
        urgent = not in_session and not self.context.partitions
        self.results = []
        self.asked = []
        self.cold = {}
        for request in self.context.partitions:
            replica = self._find(request)
            if in_session:
                self.asked.append((request, replica))
            if isinstance(replica, int):
                result = _error(request, replica)
            else:
                result = self._read_one(replica, request, left, nothing_yet)
                records = result.records
                if records is not None:
                    nothing_yet = False
                    left = max(0, left - records.size)
                self.available[replica] = there = self._there(replica, request, records)
                total += there
                self.watched[replica] = request
            if result.error_code:
                urgent = True
                if result.error_code in LED_ELSEWHERE:
                    self._name_leader(result)
            elif result.diverging_epoch is not None or result.preferred_read_replica >= 0:
                urgent = True
            self.results.append(result)
        return urgent or total >= self.min_bytes

    def answer(self) -> list[Part]:
        """The response of the latest read."""
        session = self.context.session
        session_id, results = self.context.answer(self.results)
        if session is not None:
            if session.waiting is self:
                session.waiting = None
            self._put_to_sleep(session)
        if self.body.replica_id > NO_REPLICA:
            self._count(results)
        router = self.ports.router
        for result in results:
            if result.error_code:
                router.partition_failed(self.header[0], result.error_code)
        if router.counts_fetches:
            router.fetched(self.header[1] >= FIRST_VERSION_WITH_TOPIC_IDS, self.body.replica_id > NO_REPLICA, results)
        if len(results) > 1 and self.context.session is None:
            results = group_by_topic(results)
        found = endpoints(self.ports.image, self.leaders, self.connection.listener) if self.leaders else None
        return encode_fetch_response(self.header[1], self.header[2], 0, 0, session_id, results, found)

    def _count(self, results: Iterable[PartitionData]) -> None:
        """Count what a follower gets."""
        leader = self.ports.throttles.leader
        for result in results if leader.keys else ():
            if result.records is not None:  # replicas fetch by topic id
                leader.record((result.topic, result.partition), result.records.size)

    def _put_to_sleep(self, session: FetchSession) -> None:
        """Let those sleep of which the reader has all there is and, with this answer, knows it."""
        node_id = self.body.replica_id
        for (request, replica), result in zip(self.asked, self.results, strict=True):
            if (
                not isinstance(replica, int)
                and result.records is None
                and not result.error_code
                and result.diverging_epoch is None
                and result.preferred_read_replica < 0
                and request.fetch_offset >= self._upper_offset(replica)
                and result.high_watermark == replica.log.high_watermark  # it may have moved by this very fetch
                and (node_id <= NO_REPLICA or (replica.shared is not None and replica.shared.is_settled(node_id)))
            ):
                session.sleep(request, replica)

    def woken(self, request: FetchPartition, replica: Replica) -> None:
        """A partition of the session sleeps no more: it is waited for as the others are."""
        self.watched[replica] = request
        if replica not in self.available:
            self.available[replica] = 0
            if self.waits is not None:
                self.ports.purgatory.watch(self.waits, replica)
            else:
                self.late.append(replica)

    def wait(self) -> Deferred:
        """Wait for bytes; read again and answer at the end of the wait."""
        self.results = []  # hold no segment file open meanwhile
        self.asked = []
        purgatory = self.ports.purgatory

        def finish() -> None:
            self._finish(deferred)

        def cancel() -> None:
            self._wait_no_more()
            purgatory.cancel(waiting)

        waiting = self.waits = WaitingFetch(self.available, self.min_bytes, self._estimate, finish)
        deferred = Deferred(self.connection, on_cancel=cancel)
        deferred.on_hurry = lambda: purgatory.end(waiting)
        purgatory.wait(waiting, self.body.max_wait_ms / 1000)
        for late in self.late:
            purgatory.advanced(late)
        if self.body.replica_id > NO_REPLICA:
            # What it has may have had a produce acknowledged, and the next one of that connection appended, since this was read.
            for request in list(self.watched.values()):
                replica = self._find(request)
                if not isinstance(replica, int) and replica.log.log_end_offset > request.fetch_offset:
                    purgatory.advanced(replica)
        return deferred

    def _wait_no_more(self) -> None:
        """What wakes from now on, the session's next fetch sees."""
        self.waits = None
        session = self.context.session
        if session is not None and session.waiting is self:
            session.waiting = None

    def _finish(self, deferred: Deferred) -> None:
        """Read again and answer as promised; where that fails the client is not left waiting."""
        self._wait_no_more()
        try:
            self.context.look(self.body.isolation_level, (self.body.replica_id, self.body.replica_epoch))
            self.read()
            if self.cold:
                self._warm_then_answer(deferred)
            else:
                deferred.complete(self.answer())
        except Exception as error:
            failures.report("answering a fetch", error)
            deferred.refuse(f"Fetch failed: {error}")

    def warm(self) -> Deferred:
        """Let a thread finish the reads that would wait for a disk, then answer with what is there."""
        deferred = Deferred(self.connection)
        self._warm_then_answer(deferred)
        return deferred

    def _warm_then_answer(self, deferred: Deferred) -> None:
        pieces = list(self.cold.items())
        problems: list[tuple[str, Exception]] = []
        self.warmed.update(self.cold)

        def work() -> None:
            for replica, piece in pieces:
                try:
                    piece.warm()
                except (CorruptSegment, OSError) as error:
                    problems.append((f"fetch from {replica.topic}-{replica.partition}", error))

        def done() -> None:
            for place, error in problems:
                failures.attempt(place, partial(failures.say, logger.error, place, "%s: %s", place, error))
            if not deferred.cancelled:
                self._finish(deferred)  # a partition may have moved on to a cold place; each is warmed once

        self.ports.read_ahead.run(work, done)

    def _name_leader(self, result: PartitionData) -> None:
        """Add the leader to an error, in versions that can tell it."""
        if self.header[1] < FIRST_VERSION_WITH_LEADERS:
            return
        leader = current_leader(self.ports.image, result.topic, True, result.partition)
        if leader is not None:
            self.leaders.add(leader[0])
        result.current_leader = leader

    def _find(self, request: FetchPartition) -> Replica | int:
        """The replica to read from, or an error code."""
        hosted = self.table.get(request.topic)
        replica = None if hosted is None else hosted.get(request.partition)
        if replica is None:
            replicas = self.ports.replicas
            return replicas.missing_error(request.topic, request.partition, self.table is replicas.by_id)
        if replica.leader_id != self.ports.node_id and not self._may_follow(replica):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = request.current_leader_epoch
        body = self.body
        error = replica.epoch_error(epoch)
        if not error and body.replica_id > NO_REPLICA:
            error = replica.follower_error(body.replica_id, epoch, body.replica_epoch)
        return error or replica

    def _may_follow(self, replica: Replica) -> bool:
        """Whether this reader is served by a replica that does not lead."""
        return (
            replica.shared is not None
            and self.body.replica_id <= NO_REPLICA
            and self.header[1] >= FIRST_VERSION_WITH_RACKS
        )

    def note_follower(self) -> None:
        """Tell the partitions what the follower has that asks."""
        body, table = self.body, self.table
        for request, result in zip(self.context.partitions, self.results, strict=True):
            if not result.error_code and result.diverging_epoch is None:
                shared = table[request.topic][request.partition].shared
                if shared is not None:
                    shared.fetched(body.replica_id, request.fetch_offset, request.log_start_offset, body.replica_epoch)

    def _throttled(self, replica: Replica) -> bool:
        """Whether a quota keeps a follower that is not in sync from getting anything of a partition now."""
        shared = replica.shared
        return (
            self.body.replica_id > NO_REPLICA
            and shared is not None
            and (replica.topic_id, replica.partition) in self.ports.throttles.leader.throttled()
            and self.body.replica_id not in shared.machine.isr.committed
        )

    def _preferred(self, replica: Replica, offset: int) -> int:
        """The node that this consumer should rather read from; -1: this one."""
        if replica.shared is None:
            return -1
        return replica.shared.machine.preferred_replica(self.rack, offset, self.connection.listener)

    def _upper_offset(self, replica: Replica) -> int:
        """Where this reader's view ends: the last stable offset, the high watermark, or the log's end for a follower."""
        log = replica.log
        if self.body.replica_id > NO_REPLICA:
            return log.log_end_offset
        return log.last_stable_offset if self.body.isolation_level == READ_COMMITTED else log.high_watermark

    def _read_one(self, replica: Replica, request: FetchPartition, left: int, nothing_yet: bool) -> PartitionData:
        """Read one partition within what is left of the request's size limit."""
        offset, fetched_epoch = request.fetch_offset, request.last_fetched_epoch
        log = replica.log
        try:
            if fetched_epoch >= 0:
                epoch, end_offset = log.epoch_end_offset(fetched_epoch)
                if end_offset < 0 or epoch < 0:
                    return _error(request, ErrorCode.OFFSET_OUT_OF_RANGE)
                if epoch < fetched_epoch or end_offset < offset:
                    return self._result(replica, request, None, (epoch, end_offset))
            if not log.log_start_offset <= offset <= log.log_end_offset:
                return _error(request, ErrorCode.OFFSET_OUT_OF_RANGE)
            if self.rack and (preferred := self._preferred(replica, offset)) >= 0:
                return self._result(replica, request, None, None, preferred)
            upper = self._upper_offset(replica)
            size = min(left, request.partition_max_bytes)
            if self._throttled(replica):
                return self._result(replica, request, None, None)
            if offset >= upper or (size <= 0 and not nothing_yet):
                return self._result(replica, request, None, None)
            piece = self.warmed.get(replica)
            if piece is None:
                piece = log.read(offset, size, min_one_batch=nothing_yet, upper_offset=upper)
                if piece.cold:
                    self.cold[replica] = piece
                    return self._result(replica, request, None, None)
            elif piece.cold:  # the thread could not read it
                return _error(request, ErrorCode.KAFKA_STORAGE_ERROR)
            return self._result(replica, request, piece if piece.size > 0 else None, None)
        except KafkaError as error:
            return _error(request, int(error.code))
        except CorruptSegment as error:
            place = f"fetch from {replica.topic}-{replica.partition}"
            failures.say(logger.error, place, "%s at offset %d: %s", place, offset, error)
            return _error(request, ErrorCode.CORRUPT_MESSAGE)
        except Exception:
            logger.exception("fetch from %s-%d at offset %d failed", replica.topic, replica.partition, offset)
            return _error(request, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _result(
        self,
        replica: Replica,
        request: FetchPartition,
        records: Any,
        diverging: tuple[int, int] | None,
        preferred: int = -1,
    ) -> PartitionData:
        log = replica.log
        aborted: list[tuple[int, int]] | None = None
        if self.body.isolation_level == READ_COMMITTED:
            aborted = []
            if records is not None:
                upper = min(log.upper_offset_of(records), log.last_stable_offset)
                aborted = [
                    (entry.producer_id, entry.first_offset)
                    for entry in log.aborted_transactions(request.fetch_offset, upper)
                ]
        stable, start = log.last_stable_offset, log.log_start_offset
        return PartitionData(
            request.topic,
            request.partition,
            0,
            log.high_watermark,
            stable,
            start,
            records,
            aborted,
            diverging,
            preferred_read_replica=preferred,
        )

    def _estimate(self, key: Hashable) -> int:
        """The bytes that a watched partition has for this fetch now; enough to end the wait when it cannot be read.

        The most frequent question, whether there is anything for a fetch of one byte, is answered without a look at the file.
        """
        request = self.watched[key]
        replica = self._find(request)
        if isinstance(replica, int):
            return self.min_bytes + self.available[key]
        offset = request.fetch_offset
        if self._throttled(replica):
            return 0
        if replica.log.log_start_offset <= offset:
            upper = self._upper_offset(replica)
            if offset >= upper or self.min_bytes <= 1:
                return int(offset < upper)
        result = self._read_one(replica, request, self.max_bytes, True)
        if result.error_code != 0:
            return self.min_bytes + self.available[key]
        if self.cold.pop(replica, None) is not None:
            return self.min_bytes + self.available[key]
        return self._there(replica, request, result.records)

    def _there(self, replica: Replica, request: FetchPartition, records: LogSlice | None) -> int:
        """The bytes of a partition that count for `min_bytes`, of which these were read: where the reader's limit has left something
        behind, which an answer of whole batches does, all that the limit allows. Source: DelayedFetch.tryComplete, which counts bytes.
        """
        size = 0 if records is None else records.size
        if size >= self.min_bytes or self.min_bytes <= 1 or self._throttled(replica):
            return size
        unread = request.fetch_offset if records is None else replica.log.upper_offset_of(records)
        return max(size, request.partition_max_bytes) if unread < self._upper_offset(replica) else size


def _error(request: FetchPartition, code: int) -> PartitionData:
    return PartitionData(request.topic, request.partition, code)
