"""Topics that are deleted while consumers read them: their groups, and whoever asks about them, go on without a wait.

Rule: calls have ten minutes, so that whoever waits for what will not come does so past the end of the test.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from under_test import broker_under_test

from fastq import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.errors import UnknownTopicOrPartition
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

CONFIG = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}
PATIENCE_S = 25.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    """A broker whose groups rebalance at once."""
    with broker_under_test(config=CONFIG, in_memory=True) as running:
        yield running


@pytest.fixture
def topics(broker: Broker, new_topic_name: Any) -> Iterator[tuple[str, str]]:
    """Two topics of two partitions with a common beginning of their names, and ten records in each partition."""
    stem = new_topic_name()
    names = (f"{stem}-goes", f"{stem}-stays")
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for name in names:
            admin.create_topic(name, partitions=2)
    write(broker, names)
    yield names


def write(broker: Broker, names: tuple[str, ...]) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(20):
            for name in names:
                producer.send(name, b"%d" % number, partition=number % 2)


def options(broker: Broker, topics: tuple[str, str], protocol: str, **more: Any) -> dict[str, Any]:
    """What all consumers here are made with."""
    given = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topics[0]}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "max_poll_records": 5,
        "default_api_timeout_ms": 600_000,
        "allow_auto_create_topics": False,
    }
    return {**given, **more}


def delete(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([topic]).results()


@pytest.mark.parametrize("by", ["pattern", "names"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_rebalances_after_one_of_its_topics_was_deleted(
    broker: Broker, topics: tuple[str, str], protocol: str, by: str
) -> None:
    """With records of it in hand, whose offsets nobody can commit any more; a second member gets its share of the other topic."""
    goes, stays = topics
    given = options(broker, topics, protocol)
    wanted: Any = re.compile(f"{goes[:-4]}.*") if by == "pattern" else list(topics)
    with Consumer(**given) as first, Consumer(**given) as second:
        first.subscribe(wanted)
        read: set[str] = set()
        while len(read) < 2:
            read |= {record.topic for record in first.poll(timeout=30)}
        first.seek_to_beginning(TopicPartition(goes, 0), TopicPartition(goes, 1))
        while not any(record.topic == goes for record in first.poll(timeout=30)):
            pass
        delete(broker, goes)
        second.subscribe(wanted)
        parts = [TopicPartition(stays, 0), TopicPartition(stays, 1)]
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for consumer in (first, second):
                try:
                    consumer.poll(timeout=0.1)
                except UnknownTopicOrPartition as error:
                    assert by == "names" and goes in str(error)
            shares = [[tp for tp in consumer.assignment() if tp.topic == stays] for consumer in (first, second)]
            if sorted(shares[0] + shares[1]) == parts and all(shares):
                break
        else:
            pytest.fail(f"the members have {first.assignment()} and {second.assignment()}")
        if by == "pattern":
            assert not any(goes in consumer._core.metadata_updater.topics for consumer in (first, second))
        write(broker, (stays,))
        found: set[int] = set()
        until = time.monotonic() + PATIENCE_S
        while len(found) < 2 and time.monotonic() < until:
            for consumer in (first, second):
                try:
                    found |= {record.partition for record in consumer.poll(timeout=0.1) if record.topic == stays}
                except UnknownTopicOrPartition as error:
                    assert by == "names" and goes in str(error)
        assert found == {0, 1}


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("by", ["pattern", "names", "hand"])
def test_who_asks_about_a_topic_that_was_deleted_is_told_so(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, topics: tuple[str, str], by: str, kind: Any
) -> None:
    """However often it is asked."""
    goes, stays = topics
    place = TopicPartition(goes, 0)

    async def main() -> None:
        consumer = kind(**options(broker, topics, "classic", enable_auto_commit=False))
        if by == "hand":
            consumer.assign([place, (stays, 0)])
        else:
            consumer.subscribe(re.compile(f"{goes[:-4]}.*") if by == "pattern" else topics)
        read: set[str] = set()
        while len(read) < 2:
            read |= {record.topic for record in await done(consumer.poll(timeout=30))}
        delete(broker, goes)
        for module in ("offsets", "topic_watch"):
            monkeypatch.setattr(f"fastq.consumer.{module}.UNKNOWN_GRACE_S", 0.1)
        for ask in (consumer.end_offsets, consumer.beginning_offsets):
            assert goes in str(await refused(partial(ask, [place])))
        assert goes in str(await refused(partial(consumer.offsets_for_times, {place: 0})))
        assert await done(consumer.end_offsets([(stays, 0)])) == {TopicPartition(stays, 0): 10}
        await done(consumer.close())

    asyncio.run(main())


async def refused(ask: Callable[[], Any]) -> UnknownTopicOrPartition:
    """Why a call fails, once the topic's leader has heard that it was deleted: each node hears that for itself."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            await done(ask())
        except UnknownTopicOrPartition as error:
            return error
    raise AssertionError("it was answered all the time")


async def done(result: Any) -> Any:
    """What a call of either face answers."""
    return await result if asyncio.iscoroutine(result) else result
