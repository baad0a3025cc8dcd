"""Synchronous commits, one after the other, through what a broker and a network do to them: each is committed, or says why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from under_test import ONE_COORDINATOR, broker_under_test, leader_of

from fastq import AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.consumer import OffsetAndMetadata
from fastq.errors import FastqError, OffsetMetadataTooLarge, RebalanceInProgress, RequestTimedOut
from fastq.testing import Broker

pytestmark = pytest.mark.any_nodes

TP = TopicPartition("committed", 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    """The node with the switches: the coordinator."""
    config = {"group.initial.rebalance.delay.ms": 0, **ONE_COORDINATOR}
    with broker_under_test(in_memory=True, config=config) as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send(TP.topic, b"record", partition=0).result(30)
        with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="first") as consumer:
            consumer.committed([TP])
        yield leader_of(broker, "__consumer_offsets")


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    running.clear_faults()


@pytest.fixture
def consumer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=request.node.name, enable_auto_commit=False
    ) as consumer:
        consumer.assign([TP])
        consumer.commit({TP: 1})
        yield consumer


def committed(consumer: Consumer) -> OffsetAndMetadata | None:
    return consumer.committed([TP])[TP]


def test_one_after_the_other(consumer: Consumer) -> None:
    for offset in range(300):
        consumer.commit({TP: offset})
    assert committed(consumer) == OffsetAndMetadata(299)
    consumer.commit({TP: OffsetAndMetadata(7, "note", 0)})
    assert committed(consumer) == OffsetAndMetadata(7, "note", 0)


def test_the_answer_takes_its_time(broker: Broker, consumer: Consumer) -> None:
    broker.delay("OffsetCommit", seconds=0.3)
    started = time.monotonic()
    consumer.commit({TP: 2})
    assert time.monotonic() - started > 0.25
    # A slow answer changes how the next ones are waited for, not what comes of them.
    for offset in range(3, 50):
        consumer.commit({TP: offset})
    assert committed(consumer) == OffsetAndMetadata(49)


def test_the_answer_does_not_come_in_time(broker: Broker, consumer: Consumer) -> None:
    broker.delay("OffsetCommit", seconds=1.5)
    with pytest.raises(RequestTimedOut):
        consumer.commit({TP: 3}, timeout=0.2)
    consumer.commit({TP: 4})
    assert committed(consumer) == OffsetAndMetadata(4)


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"])
def test_what_passes_is_tried_again(broker: Broker, consumer: Consumer, error: str) -> None:
    broker.fail("OffsetCommit", error=error, times=2)
    consumer.commit({TP: 5})
    assert broker.faults_left() == {} and committed(consumer) == OffsetAndMetadata(5)


def test_a_connection_that_ends_is_made_again(broker: Broker, consumer: Consumer) -> None:
    broker.disconnect("OffsetCommit", times=2)
    consumer.commit({TP: 6})
    assert broker.faults_left() == {} and committed(consumer) == OffsetAndMetadata(6)


def test_what_the_group_refuses_is_final(broker: Broker, consumer: Consumer) -> None:
    broker.fail("OffsetCommit", error="REBALANCE_IN_PROGRESS")
    with pytest.raises(RebalanceInProgress):
        consumer.commit({TP: 7})
    with pytest.raises(OffsetMetadataTooLarge):
        consumer.commit({TP: OffsetAndMetadata(7, "n" * 5000)})
    assert committed(consumer) == OffsetAndMetadata(1)
    consumer.commit({TP: 8})
    assert committed(consumer) == OffsetAndMetadata(8)


def test_those_without_waiting_keep_their_place(broker: Broker, consumer: Consumer) -> None:
    broker.delay("OffsetCommit", seconds=0.2)
    heard: list[tuple[int, FastqError | None]] = []
    for offset in (10, 11):
        consumer.commit_async({TP: offset}, lambda offsets, error: heard.append((offsets[TP].offset, error)))
    consumer.commit({TP: 12})
    consumer.poll(timeout=0)
    assert heard == [(10, None), (11, None)] and committed(consumer) == OffsetAndMetadata(12)


EAGER = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 50, "group_protocol": "classic"}


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_a_slow_commit_is_not_taken_back_by_the_interval(broker: Broker, how: str) -> None:
    """What is in hand is committed by the application; the interval, and the end, know only what was before it."""
    given: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "group_id": f"slow-{how}", **EAGER}
    with Consumer(TP.topic, **given) as consumer:
        broker.delay("OffsetCommit", seconds=0.5, times=2)
        assert consumer.poll(timeout=30)
        if how == "commit":
            consumer.commit()
        else:
            consumer.commit_async()
    with Consumer(**given) as consumer:
        assert committed(consumer) == OffsetAndMetadata(1, "", 0)


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_a_slow_commit_of_asyncio_is_not_taken_back_by_the_interval(broker: Broker, how: str) -> None:
    given: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "group_id": f"slow-aio-{how}", **EAGER}

    async def main() -> None:
        async with AsyncConsumer(TP.topic, **given) as consumer:
            broker.delay("OffsetCommit", seconds=0.5, times=2)
            assert await consumer.poll(timeout=30)
            if how == "commit":
                await consumer.commit()
            else:
                consumer.commit_async()

    asyncio.run(main())
    with Consumer(**given) as consumer:
        assert committed(consumer) == OffsetAndMetadata(1, "", 0)


@pytest.mark.parametrize("when", ["before its position is known", "after"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_the_application_chose_is_not_taken_back_by_what_it_never_read(
    broker: Broker, when: str, asynchronous: bool
) -> None:
    """The position that the policy gives a partition says nothing of what was done; one that is sought, or read from, does."""
    given: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "group_id": f"chose-{when}-{asynchronous}"}
    given |= EAGER
    early = when.startswith("before")

    async def main() -> None:
        async with AsyncConsumer(**given) as consumer:
            consumer.assign([TP])
            if not early:
                await consumer.position(TP)
            await consumer.commit({TP: 2})
            await consumer.position(TP)

    if asynchronous:
        asyncio.run(main())
    else:
        with Consumer(**given) as consumer:
            consumer.assign([TP])
            if not early:
                consumer.position(TP)
            consumer.commit({TP: 2})
            consumer.position(TP)
    with Consumer(**given) as consumer:
        assert committed(consumer) == OffsetAndMetadata(2)
        consumer.assign([TP])
        consumer.commit({TP: 3})
        consumer.seek(TP, 1)
    with Consumer(**given) as consumer:
        assert committed(consumer) == OffsetAndMetadata(1)
        consumer.assign([TP])
        consumer.commit({TP: 0})
        end = consumer.poll(timeout=30)[-1].offset + 1
        consumer.poll(timeout=0)
    with Consumer(**given) as consumer:
        found = committed(consumer)
        assert found is not None and found.offset == end


def test_heartbeats_go_out_between_commits(broker: Broker) -> None:
    with Consumer(
        TP.topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="busy",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        group_protocol="classic",
        heartbeat_interval_ms=100,
    ) as consumer:
        assert consumer.poll(timeout=30)
        generation = consumer.group_metadata().generation_id
        broker.delay("Heartbeat", seconds=0.01, times=3)
        end = time.monotonic() + 30
        offset = 0
        while broker.faults_left() and time.monotonic() < end:
            for _ in range(20):
                offset += 1
                consumer.commit({TP: offset})
        assert broker.faults_left() == {}, "nobody sent heartbeats while the application did nothing but commit"
        assert consumer.group_metadata().generation_id == generation
        assert committed(consumer) == OffsetAndMetadata(offset)
