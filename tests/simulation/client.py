"""A Kafka client of a few lines for hosts of a simulation, and what clients do for as long as it runs.

Rules: a request is answered, or raises Unreachable; its connection is then used no more. A producer has one batch on its way and sends it
again, the same bytes, until it has an answer that says what became of it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from math import inf
from typing import Any

from raw_kafka import produce_request

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import ErrorCode
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import FetchRequest, InitProducerIdRequest, MetadataRequest
from simulation.network import Network
from simulation.node import PORT, ip_of
from simulation.world import FIRST_MS, Host, Violation, World

LOST = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_RECORD,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a producer that waits for each of its batches is not told, unless something was lost; or by a leader of old that has not heard
of its successor, which has until STALE_S."""
STALE_S = 20.0
"""Longer than a leader of old can be cut off and still be asked: all faults are over by then."""


class Unreachable(Exception):
    """No answer."""


class Connection(asyncio.Protocol):
    """Requests and their answers, in order."""

    def __init__(self) -> None:
        self.gone = False
        self._transport: Any = None
        self._data = bytearray()
        self._waiting: list[tuple[int, int, asyncio.Future[Any]]] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(Unreachable(str(exc)))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack(">i", self._data[:4])[0]):
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            key, version, future = self._waiting.pop(0)
            if not future.done():
                future.set_result(decode_response(frame, key, version)[1])

    def ask(self, request: Any, version: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request.API_KEY, version, future))
        self._transport.write(encode_request(1, "simulated", request, version))
        return future

    def close(self) -> None:
        self._transport.abort()


class Client:
    """A host that asks brokers."""

    def __init__(self, world: World, network: Network, number: int, nodes: Sequence[int]) -> None:
        self.world, self.nodes = world, nodes
        self.host = Host(world, f"client-{number}", f"10.0.1.{number}")
        network.add(self.host)
        self.random = world.random_of(self.host)
        self._connections: dict[int, Connection] = {}

    def __str__(self) -> str:
        return str(self.host)

    async def ask(self, node_id: int, request: Any, version: int, timeout_s: float = 3.0) -> Any:
        """The answer of a node. Raises Unreachable."""
        try:
            return await asyncio.wait_for(self._ask(node_id, request, version), timeout_s)
        except (asyncio.TimeoutError, OSError) as error:
            connection = self._connections.pop(node_id, None)
            if connection is not None:
                connection.close()
            raise Unreachable(repr(error)) from None

    async def _ask(self, node_id: int, request: Any, version: int) -> Any:
        connection = self._connections.get(node_id)
        if connection is None or connection.gone:
            loop: Any = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, ip_of(node_id), PORT)
            self._connections[node_id] = connection
        return await connection.ask(request, version)

    async def leader_of(self, topic: str, partition: int) -> int:
        """Whom some broker believes to lead; some broker where it does not say."""
        node_id = self.random.choice(self.nodes)
        topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = await self.ask(node_id, MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12, 1.0)
        for found in answer.topics:
            for each in found.partitions:
                if each.partition_index == partition and each.leader_id >= 0:
                    return int(each.leader_id)
        raise Unreachable(f"nobody leads {topic}-{partition}")

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(self.random.uniform(0.5, 1.5) * seconds)


class Producer:
    """Sends numbered records with acks=all, `most` batches of them. `acknowledged` has their values, in order; `doubtful` the batch whose
    fate is not known."""

    pause_s = 0.02
    """Between an answer and the next batch, on average."""

    def __init__(self, client: Client, name: str, topic: str, partition: int, most: float = inf) -> None:
        self.client, self.name, self.topic, self.partition = client, name, topic, partition
        self.acknowledged: list[bytes] = []
        self.doubtful: list[bytes] = []
        self.most = most
        self.stopping = False
        self.ended = False
        self._lost_since = 0.0

    async def run(self) -> None:
        client = self.client
        producer_id = await self._identity()
        number = leader = 0
        while not self.stopping and self.most > 0:
            self.most -= 1
            count = client.random.choice((1, 1, 2, 5))
            values = [b"%s:%d" % (self.name.encode(), number + at) for at in range(count)]
            stamp_ms = FIRST_MS + int(client.world.now * 1000)
            records = bytes(
                build_batch(
                    [(stamp_ms, *self._record(value), []) for value in values],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=number,
                )
            )
            self.doubtful = values
            while True:
                try:
                    leader = leader or await client.leader_of(self.topic, self.partition)
                    request = produce_request(self.topic, records, partition=self.partition, acks=-1)
                    answer = await client.ask(leader, request, 9)
                    (result,) = answer.responses[0].partition_responses
                except Unreachable:
                    leader = 0
                    await client.pause(0.1)
                    continue
                code = ErrorCode(result.error_code)
                self._lost_since = (self._lost_since or client.world.now) if code in LOST else 0.0
                if code in LOST and client.world.now - self._lost_since > STALE_S:
                    raise Violation(
                        f"{self.name}: {self.topic}-{self.partition} on node {leader} answers {code.name} to sequence {number}, "
                        f"all before which was acknowledged: {result.error_message}"
                    )
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    break
                leader = 0
                await client.pause(0.05)
            self.acknowledged += values
            self.doubtful = []
            number += count
            await client.pause(self.pause_s)
        self.ended = True

    def _record(self, value: bytes) -> tuple[bytes | None, bytes | None]:
        """A record's key and value."""
        return None, value

    def problem_of(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> str | None:
        """What is wrong with the keys and values of a log, as far as they are this producer's: what was acknowledged is there once, in
        order, and what is in doubt whole or not at all."""
        name = self.name.encode() + b":"
        own = [value for _, value in records if value is not None and value.startswith(name)]
        known = self.acknowledged
        if own[: len(known)] != known:
            at = next((at for at, value in enumerate(known) if at >= len(own) or own[at] != value), 0)
            there = own[at] if at < len(own) else None
            return f"{self.name} has the acknowledgement of {known[at]!r}, and {there!r} is in its place"
        if own[len(known) :] not in ([], self.doubtful):
            return f"{self.name} has {own[len(known) :]} unacknowledged, and sent {self.doubtful}"
        return None

    async def _identity(self) -> int:
        while True:
            try:
                request = InitProducerIdRequest(transactional_id=None)
                answer = await self.client.ask(self.client.random.choice(self.client.nodes), request, 4)
            except Unreachable:
                await self.client.pause(0.2)
                continue
            if answer.error_code == 0:
                return int(answer.producer_id)
            await self.client.pause(0.2)


class Reader:
    """Reads one partition from its beginning on. `values` are what it has read: no offset twice, none left out."""

    isolation_level = 0

    def __init__(self, client: Client, topic: str, partition: int) -> None:
        self.client, self.topic, self.partition = client, topic, partition
        self.position = 0
        self.values: list[bytes] = []

    async def run(self) -> None:
        leader, lost_since = 0, 0.0
        while True:
            try:
                leader = leader or await self.client.leader_of(self.topic, self.partition)
                answer = await self.client.ask(leader, self._request(), 12)
            except Unreachable:
                leader = 0
                await self.client.pause(0.2)
                continue
            results = [each for topic in answer.responses for each in topic.partitions]
            if not results or results[0].error_code:
                is_lost = bool(results) and results[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                lost_since = (lost_since or self.client.world.now) if is_lost else 0.0
                if is_lost and self.client.world.now - lost_since > STALE_S:
                    raise Violation(
                        f"{self.topic}-{self.partition} ends on node {leader} before offset {self.position}, up to which it was read"
                    )
                leader = 0
                await self.client.pause(0.1)
                continue
            lost_since = 0.0
            self._take(results[0])

    def _request(self) -> FetchRequest:
        partition = FetchRequest.FetchPartition(
            partition=self.partition, fetch_offset=self.position, partition_max_bytes=1 << 20
        )
        topic = FetchRequest.FetchTopic(topic=self.topic, partitions=[partition])
        return FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=self.isolation_level, topics=[topic]
        )

    def _take(self, result: Any) -> None:
        data = bytes(result.records or b"")
        for position, header in iter_headers(data):
            if header.last_offset < self.position:
                continue
            for record in decode_records(data, position):
                if record.offset < self.position:
                    continue
                if record.offset != self.position:
                    raise Violation(
                        f"{self.topic}-{self.partition} was read up to offset {self.position}, and goes on at {record.offset}"
                    )
                self.values.append(bytes(record.value or b""))
                self.position += 1
