"""Commits carry the leader epoch of what was read: in both protocols, from both faces, by every way to commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_lives import filled
from under_test import broker_under_test

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

PROTOCOLS = ("classic", "consumer")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    """A broker that waits for no further members of a group."""
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.assignment.interval.ms": 0}
    with broker_under_test(config=config, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    return filled(broker, make_topic)


def options(broker: Broker, topic: str, protocol: str, **more: Any) -> dict[str, Any]:
    """What all consumers here are made with."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topic}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        **more,
    }


WAYS_TO_COMMIT = ("commit", "batch", "records", "async", "auto", "close", "positions")


def committed_places(broker: Broker, topic: str) -> list[Any]:
    """What the group has committed, with leader epochs."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=f"group-{topic}") as consumer:
        found = consumer.committed([TopicPartition(topic, index) for index in range(2)])
    return [place for place in found.values() if place is not None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", WAYS_TO_COMMIT)
def test_a_commit_keeps_the_leader_epoch(broker: Broker, topic: str, how: str, protocol: str) -> None:
    """With it, whoever goes on from there finds out that the log was cut (KIP-320). The fixture's leader is in its first epoch."""
    given = options(broker, topic, protocol, auto_commit_interval_ms=100, enable_auto_commit=how in ("auto", "close"))
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with Consumer(topic, **given) as consumer:
        if how == "batch":
            while not len(batch := consumer.poll_batch(timeout=30)):
                pass
            consumer.commit(batch)
        elif how == "close":
            next(iter(consumer))
            next(iter(consumer))
        else:
            records = consumer.poll(timeout=30)
            if how == "records":
                consumer.commit(records)
            elif how == "positions":
                consumer.commit(consumer.positions())
            elif how == "auto":
                end = time.monotonic() + 30
                while not any(consumer.committed(tps).values()) and time.monotonic() < end:
                    consumer.poll(timeout=0.1)
            elif how == "async":
                consumer.commit_async()
                consumer.commit({})
            else:
                consumer.commit()
    found = committed_places(broker, topic)
    assert found and all(place.leader_epoch == 0 for place in found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", WAYS_TO_COMMIT)
def test_a_commit_of_asyncio_keeps_the_leader_epoch(broker: Broker, topic: str, how: str, protocol: str) -> None:
    given = options(broker, topic, protocol, auto_commit_interval_ms=100, enable_auto_commit=how in ("auto", "close"))
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    async def main() -> None:
        async with AsyncConsumer(topic, **given) as consumer:
            if how == "batch":
                while not len(batch := await consumer.poll_batch(timeout=30)):
                    pass
                await consumer.commit(batch)
            elif how == "close":
                records = aiter(consumer)
                await anext(records)
                await anext(records)
            else:
                records = await consumer.poll(timeout=30)
                if how == "records":
                    await consumer.commit(records)
                elif how == "positions":
                    await consumer.commit(consumer.positions())
                elif how == "auto":
                    end = time.monotonic() + 30
                    while not any((await consumer.committed(tps)).values()) and time.monotonic() < end:
                        await consumer.poll(timeout=0.1)
                elif how == "async":
                    consumer.commit_async()
                    await consumer.commit({})
                else:
                    await consumer.commit()

    asyncio.run(main())
    found = committed_places(broker, topic)
    assert found and all(place.leader_epoch == 0 for place in found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_transaction_keeps_the_leader_epoch(broker: Broker, topic: str, protocol: str, asynchronous: bool) -> None:
    given = options(broker, topic, protocol, enable_auto_commit=False)
    of_producer: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "transactional_id": topic}

    async def main() -> None:
        async with AsyncProducer(**of_producer) as producer, AsyncConsumer(topic, **given) as consumer:
            assert await consumer.poll(timeout=30)
            async with producer.transaction(consumer=consumer):
                await producer.send(topic, b"x", partition=0)

    if asynchronous:
        asyncio.run(main())
    else:
        with Producer(**of_producer) as producer, Consumer(topic, **given) as consumer:
            assert consumer.poll(timeout=30)
            with producer.transaction(consumer=consumer):
                producer.send(topic, b"x", partition=0)
    found = committed_places(broker, topic)
    assert found and all(place.leader_epoch == 0 for place in found)
