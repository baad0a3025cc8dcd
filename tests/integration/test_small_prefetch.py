"""A consumer whose memory is small beside what comes: each call that has used up what was there makes room, and the next one asks."""

from __future__ import annotations

import asyncio
from collections import Counter
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


def fill(servers: str, topic: str, partitions: int, count: int, first: int = 0) -> None:
    """So many batches of one record for each of these partitions, the first of which is `first`."""
    with Producer(bootstrap_servers=servers, batch_size=1, linger_ms=0) as producer:
        for partition in range(first, partitions):
            for _ in range(count):
                producer.send(topic, value=bytes(1000), partition=partition)


def in_order(places: list[tuple[int, int]], expected: dict[int, int]) -> None:
    """So many records of each partition, once each, from the first on."""
    assert Counter(partition for partition, _ in places) == expected
    for partition, count in expected.items():
        assert [offset for number, offset in places if number == partition] == list(range(count))


# One partition may hold all that may be prefetched.
LARGE: dict[str, Any] = {
    "max_partition_fetch_bytes": 60_000,
    "prefetch_bytes_max": 64_000,
    "auto_offset_reset": "earliest",
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_paused_partition_keeps_no_other_from_being_read(
    servers: str, make_topic: Callable[..., str], asynchronous: bool
) -> None:
    """What is prefetched of it fills the memory, and an iterator is in the middle of it."""
    topic = make_topic(servers, 2)
    fill(servers, topic, 1, 100)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    seen: list[tuple[int, int]] = []

    def add(records: Any) -> int:
        seen.extend((record.partition, record.offset) for record in records)
        return len(records)

    def held(consumer: Any) -> int:
        return int(consumer.metrics()["partitions"][first]["buffered_bytes"])

    async def read() -> None:
        async with AsyncConsumer(bootstrap_servers=servers, **LARGE) as consumer:
            consumer.assign([first, second])
            records = aiter(consumer)
            add([await anext(records)])
            while held(consumer) < 50_000:
                await consumer.end_offsets([first])
            consumer.pause(first)
            await asyncio.to_thread(fill, servers, topic, 2, 100, 1)
            while len(seen) < 101:
                add([await asyncio.wait_for(anext(records), PATIENCE_S)])
            consumer.resume(first)
            while len(seen) < 200 and add(await consumer.poll(timeout=PATIENCE_S)):
                pass

    def read_blocking() -> None:
        with Consumer(bootstrap_servers=servers, **LARGE) as consumer:
            consumer.assign([first, second])
            records = iter(consumer)
            add([next(records)])
            while held(consumer) < 50_000:
                consumer.end_offsets([first])
            consumer.pause(first)
            fill(servers, topic, 2, 100, 1)
            while len(seen) < 101 and add(consumer.poll(timeout=PATIENCE_S)):
                pass
            consumer.resume(first)
            while len(seen) < 200:
                add([next(records)])

    if asynchronous:
        asyncio.run(read())
    else:
        read_blocking()
    in_order(seen, {0: 100, 1: 100})
    assert {partition for partition, _ in seen[1:101]} == {1}


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_fetched_behind_the_ends_keeps_no_partition_from_its_own(
    servers: str, make_topic: Callable[..., str], asynchronous: bool, batches: bool
) -> None:
    """The topic is written to: what has come since the ends were asked for is fetched along, and no room is left for the rest."""
    partitions = 30
    topic = make_topic(servers, partitions)
    fill(servers, topic, partitions, 1)
    options = {**LARGE, "max_partition_fetch_bytes": 6_000}

    async def read() -> list[tuple[int, int]]:
        async with AsyncConsumer(topic, bootstrap_servers=servers, **options) as consumer:
            to_end = await (consumer.read_batches_to_end() if batches else consumer.read_to_end())
            await asyncio.to_thread(fill, servers, topic, partitions, 5)
            consumer.seek_to_beginning()
            found: list[Any] = []
            async for some in to_end:
                found += some if batches else [some]
            return [(record.partition, record.offset) for record in found]

    def read_blocking() -> list[tuple[int, int]]:
        with Consumer(topic, bootstrap_servers=servers, **options) as consumer:
            to_end: Any = consumer.read_batches_to_end() if batches else consumer.read_to_end()
            fill(servers, topic, partitions, 5)
            consumer.seek_to_beginning()
            found = [record for some in to_end for record in (some if batches else [some])]
            return [(record.partition, record.offset) for record in found]

    places = asyncio.run(asyncio.wait_for(read(), 2 * PATIENCE_S)) if asynchronous else read_blocking()
    in_order(places, dict.fromkeys(range(partitions), 1))


def test_what_was_prefetched_of_others_keeps_no_call_from_reading_up_to_an_end(
    servers: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(servers, 2)
    fill(servers, topic, 1, 100)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(bootstrap_servers=servers, **LARGE) as consumer:
        consumer.assign([first, second])
        found = [(record.partition, record.offset) for record in consumer.poll(max_records=1, timeout=PATIENCE_S)]
        while consumer.metrics()["partitions"][first]["buffered_bytes"] < 50_000:
            consumer.end_offsets([first])
        fill(servers, topic, 2, 100, 1)
        while consumer.position(second) < 100:
            batch = consumer.poll_batch(timeout=PATIENCE_S, until={second: 100})
            assert len(batch)
            found += [(record.partition, record.offset) for record in batch]
        while consumer.position(first) < 100:
            found += [(record.partition, record.offset) for record in consumer.poll_batch(timeout=PATIENCE_S)]
    in_order(found, {0: 100, 1: 100})
