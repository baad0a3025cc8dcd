"""A consumer whose memory is small beside what comes: each call that has used up what was there makes room, and the next one asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastq import AsyncConsumer, Consumer, Producer, TopicPartition

COUNT = 30
# A batch of the broker's has one record, which is more than a fetch asks for, and all that may be prefetched.
SMALL: dict[str, Any] = {
    "max_partition_fetch_bytes": 1000,
    "prefetch_bytes_max": 3000,
    "auto_offset_reset": "earliest",
}
# Longer than anything here takes; who waits for it has lost a wake-up.
PATIENCE_S = 20


@pytest.fixture
def servers(shared_broker: Any) -> str:
    return str(shared_broker.bootstrap_servers)


@pytest.fixture
def tp(servers: str, make_topic: Callable[..., str]) -> TopicPartition:
    """A partition of records in batches of their own."""
    tp = TopicPartition(make_topic(servers, 1), 0)
    with Producer(bootstrap_servers=servers, batch_size=1, linger_ms=0) as producer:
        for n in range(COUNT):
            producer.send(tp.topic, value=bytes(5000 + n), partition=0)
    return tp


def poll_one(consumer: Any) -> Any:
    return consumer.poll(max_records=1, timeout=PATIENCE_S)


def poll_batch(consumer: Any) -> Any:
    return consumer.poll_batch(timeout=PATIENCE_S)


def poll_before(consumer: Any) -> Any:
    return consumer.poll_batch(timeout=PATIENCE_S, until={consumer.assignment()[0]: COUNT})


@pytest.mark.parametrize("poll", [poll_one, poll_batch, poll_before])
def test_each_call_finds_something(servers: str, tp: TopicPartition, poll: Callable[[Any], Any]) -> None:
    with Consumer(bootstrap_servers=servers, **SMALL) as consumer:
        consumer.assign([tp])
        for _ in range(COUNT):
            if consumer.position(tp) < COUNT:
                assert len(poll(consumer)), f"nothing came at offset {consumer.position(tp)} of {COUNT}"
        assert consumer.position(tp) == COUNT


@pytest.mark.parametrize("poll", [poll_one, poll_batch, poll_before])
def test_each_call_of_the_asyncio_consumer_does(servers: str, tp: TopicPartition, poll: Callable[[Any], Any]) -> None:
    async def read() -> int:
        async with AsyncConsumer(bootstrap_servers=servers, **SMALL) as consumer:
            consumer.assign([tp])
            for _ in range(COUNT):
                if await consumer.position(tp) < COUNT:
                    assert len(await poll(consumer)), f"nothing came at offset {await consumer.position(tp)} of {COUNT}"
            return await consumer.position(tp)

    assert asyncio.run(read()) == COUNT
