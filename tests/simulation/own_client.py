"""fastq's own client in the cluster: an AsyncProducer and an AsyncConsumer, their machines, sender, fetcher and driver, as users have them.

Rules
- The producer is idempotent and waits without an end, so whatever befalls the cluster each record is acknowledged, once, with the offset
  that it has, and those of a partition in the order of their sends.
- The consumer reads all of it from the beginning, in order, nothing left out, and goes back behind nothing that it has read.
- Their clock is the world's and their randomness the seed's; what the client takes from modules is lent by `lent`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from fastq import AsyncConsumer, AsyncProducer, TopicPartition
from fastq.net.core import ClientCore
from simulation.client import Client
from simulation.node import PORT, ip_of
from simulation.world import FIRST_MS, Violation, World

FOREVER_MS = 3_600_000
"""Longer than any seed lasts."""
COMMON = {
    "request_timeout_ms": 3000,
    "metadata_max_age_ms": 2000,
    "reconnect_backoff_max_ms": 500,
    "retry_backoff_max_ms": 500,
}


@contextmanager
def lent(world: World) -> Iterator[None]:
    """What the client has of modules, for one seed: the time of its host, and the dice."""
    dice = world.random_of("what the client takes of modules")

    def clock() -> float:
        loop = asyncio._get_running_loop()
        return world.now if loop is None else loop.time()

    with (
        mock.patch.object(time, "monotonic", clock),
        mock.patch.dict(ClientCore.__init__.__kwdefaults__, clock=clock),
        mock.patch("fastq.net.core.Random", partial(_random, dice)),
        mock.patch("fastq.producer.base.random", dice),
    ):
        yield


def _random(dice: Random) -> Random:
    return Random(dice.getrandbits(64))


class OwnProducer:
    """Sends numbered records to two partitions. `acknowledged` has what each offset of a partition was given for."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.stopping = self.ended = False
        self.acknowledged: list[dict[int, bytes]] = [{}, {}]
        self.sent: list[list[bytes]] = [[], []]
        self._handles: set[asyncio.Future[Any]] = set()

    async def run(self) -> None:
        client, random = self.client, self.client.random
        async with AsyncProducer(
            bootstrap_servers=[f"{ip_of(node)}:{PORT}" for node in client.nodes],
            delivery_timeout_ms=FOREVER_MS,
            max_block_ms=FOREVER_MS,
            linger_ms=random.choice((0, 5, 50)),
            batch_size=random.choice((200, 16_384)),
            max_in_flight_requests_per_connection=random.choice((1, 5)),
            compression_type=random.choice(("none", "lz4", "zstd")),
            **COMMON,
        ) as producer:
            number = 0
            while not self.stopping:
                for _ in range(random.choice((1, 2, 20))):
                    partition = random.randrange(2)
                    value = b"own:%d" % number
                    number += 1
                    self.sent[partition].append(value)
                    stamp = FIRST_MS + int(client.world.now * 1000)
                    delivery = await producer.send(self.topic, value, partition=partition, timestamp_ms=stamp)
                    handle = asyncio.ensure_future(self._wait(delivery, partition, value))
                    self._handles.add(handle)
                    handle.add_done_callback(self._done)
                await client.pause(0.1)
            await producer.flush()
        await asyncio.gather(*self._handles)
        for sent, acknowledged in zip(self.sent, self.acknowledged, strict=True):
            if [acknowledged[offset] for offset in sorted(acknowledged)] != sent:
                raise Violation(f"the producer's records of {self.topic} are not in the order of their sends")
        self.ended = True

    async def _wait(self, delivery: Any, partition: int, value: bytes) -> None:
        found = await delivery
        other = self.acknowledged[partition].setdefault(found.offset, value)
        if other is not value:
            raise Violation(f"{self.topic}-{partition}: offset {found.offset} was given to {other!r} and {value!r}")

    def _done(self, handle: asyncio.Future[Any]) -> None:
        self._handles.discard(handle)
        if not handle.cancelled() and (error := handle.exception()) is not None:
            raise Violation(f"the producer: {error!r}") from error


class OwnConsumer:
    """Reads what `producer` sends, until `stopping`."""

    def __init__(self, client: Client, producer: OwnProducer) -> None:
        self.client, self.producer = client, producer
        self.stopping = self.ended = False
        self.read: list[dict[int, bytes]] = [{}, {}]

    def has_all(self) -> bool:
        return all(
            acknowledged.keys() <= read.keys()
            for read, acknowledged in zip(self.read, self.producer.acknowledged, strict=True)
        )

    async def run(self) -> None:
        topic, random = self.producer.topic, self.client.random
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(
            bootstrap_servers=[f"{ip_of(node)}:{PORT}" for node in self.client.nodes],
            auto_offset_reset="earliest",
            fetch_max_wait_ms=random.choice((100, 500)),
            **COMMON,
        )
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        async with consumer:
            while not self.stopping:
                for record in await consumer.poll(timeout=1.0, max_records=random.choice((1, 500))):
                    self._take(record)
        self.ended = True

    def _take(self, record: Any) -> None:
        read = self.read[record.partition]
        place = f"{self.producer.topic}-{record.partition}"
        if record.offset != len(read):
            raise Violation(f"the consumer has read {place} up to {len(read)}, and is given {record.offset}")
        read[record.offset] = bytes(record.value)
        known = self.producer.acknowledged[record.partition].get(record.offset, record.value)
        if known != record.value:
            raise Violation(f"{place} has {record.value!r} at {record.offset}, which was acknowledged for {known!r}")
