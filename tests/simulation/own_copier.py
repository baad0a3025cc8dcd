"""fastq's own client, as it processes records: members of a group, each with a transactional producer, that copy what OwnProducer sends.

Rules
- What is copied is what was sent, each record once, in its partition, in order: as a consumer that reads committed records has it.
- A transaction that fails is given up, and the same records come again. Nobody else uses a copier's transactional id, and its transactions
  may take as long as they like, so its producer is never of no more use: unless a node's clock has jumped, by which they took that long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq import AsyncConsumer, AsyncProducer, FastqError, TopicPartition
from fastq.errors import FatalTransactionError
from simulation.client import Client
from simulation.node import PORT, ip_of
from simulation.own_client import COMMON, FOREVER_MS, OwnProducer
from simulation.world import FIRST_MS, Violation

COPY = "own-copy"
TRANSACTION_MS = 900_000
"""transaction.max.timeout.ms."""


def _servers(client: Client) -> list[str]:
    return [f"{ip_of(node)}:{PORT}" for node in client.nodes]


class OwnCopier:
    """One member. `protocol` is the group's; `has_jumped` says whether a clock has."""

    def __init__(self, client: Client, number: int, source: str, protocol: str, has_jumped: Callable[[], bool]) -> None:
        self.client, self.number, self.source, self.protocol = client, number, source, protocol
        self._has_jumped = has_jumped
        self.stopping = self.ended = False

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._run()
            except FatalTransactionError as error:
                if not self._has_jumped():
                    raise Violation(f"{self.client}: its producer is of no more use: {error!r}") from error
        self.ended = True

    async def _run(self) -> None:
        client, servers = self.client, _servers(self.client)
        # A JoinGroup is waited for as long as a rebalance may take, also of a node without power, which says nothing.
        classic = {"session_timeout_ms": 3000, "heartbeat_interval_ms": 500, "max_poll_interval_ms": 20_000}
        producer = AsyncProducer(
            bootstrap_servers=servers,
            transactional_id=f"copier-{self.number}",
            transaction_timeout_ms=TRANSACTION_MS,
            delivery_timeout_ms=FOREVER_MS,
            max_block_ms=FOREVER_MS,
            **COMMON,
        )
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(
            bootstrap_servers=servers,
            group_id="copiers",
            group_protocol=self.protocol,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **(classic if self.protocol == "classic" else {"max_poll_interval_ms": FOREVER_MS}),
            **COMMON,
        )
        consumer.subscribe([self.source])
        async with producer, consumer:
            while not self.stopping:
                try:
                    await self._copy(consumer, producer)
                except FatalTransactionError:
                    raise
                except FastqError as error:
                    client.world.tell(client, f"begins anew: {error!r}")
                    await client.pause(0.05)

    async def _copy(self, consumer: AsyncConsumer[Any, Any], producer: AsyncProducer) -> None:
        records = await consumer.poll(timeout=0.5, max_records=self.client.random.choice((5, 100)))
        if records:
            stamp = FIRST_MS + int(self.client.world.now * 1000)
            async with producer.transaction(consumer=consumer):
                for record in records:
                    await producer.send(COPY, record.value, partition=record.partition, timestamp_ms=stamp)


class CopyReader:
    """Reads the copy, by assignment."""

    def __init__(self, client: Client, producer: OwnProducer) -> None:
        self.client, self.producer = client, producer
        self.stopping = self.ended = False
        self.read: list[list[bytes]] = [[], []]
        self._known: set[bytes] = set()

    def has_all(self) -> bool:
        return all(
            len(read) >= len(acknowledged)
            for read, acknowledged in zip(self.read, self.producer.acknowledged, strict=True)
        )

    async def run(self) -> None:
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(
            bootstrap_servers=_servers(self.client),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **COMMON,
        )
        consumer.assign([TopicPartition(COPY, 0), TopicPartition(COPY, 1)])
        async with consumer:
            while not self.stopping:
                for record in await consumer.poll(timeout=1.0):
                    self._take(record.partition, bytes(record.value), record.offset)
        self.ended = True

    def _take(self, partition: int, value: bytes, offset: int) -> None:
        read, sent = self.read[partition], self.producer.sent[partition]
        if value in self._known or len(read) == len(sent) or value != sent[len(read)]:
            expected = sent[len(read)] if len(read) < len(sent) else None
            raise Violation(
                f"{COPY}-{partition}, offset {offset}, has {value!r} as its copy {len(read)}, and not {expected!r}"
            )
        self._known.add(value)
        read.append(value)
