"""What an aborted transaction had read is handed out again where the group has committed nothing yet, too: a consumer that begins at the
end went to the end once more, and nobody was ever given those records."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test
from waiting import until

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from fastq.errors import AbortableTransactionError
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

PROTOCOLS = ("classic", "consumer")


class Trouble(Exception):
    """The application's own."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.assignment.interval.ms": 0}
    with broker_under_test(config=config, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, new_topic_name: Callable[[], str]) -> str:
    """With ten records in each of two partitions, before anybody reads it."""
    name = new_topic_name()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(name, 2)
    fill(broker, name, range(10))
    return name


def fill(broker: Broker, topic: str, numbers: range, partitions: tuple[int, ...] = (0, 1)) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for index in partitions:
            producer.send_many(topic, [b"%d" % number for number in numbers], partition=index)


def options(broker: Broker, topic: str, protocol: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": topic,
        "group_protocol": protocol,
        "enable_auto_commit": False,
        **more,
    }


def placed(consumer: Consumer, topic: str) -> None:
    """Have the consumer find out where it begins."""
    until(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 2)
    assert [consumer.position((topic, index)) for index in (0, 1)] == [10, 10]


def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """So many records, by partition and offset."""
    found: list[tuple[int, int]] = []
    end = time.monotonic() + 30
    while len(found) < count and time.monotonic() < end:
        found += [(record.partition, record.offset) for record in consumer.poll(timeout=0.5)]
    return sorted(found)


NEW = [(index, offset) for index in (0, 1) for offset in range(10, 15)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("reset", ["latest", "by_duration:PT0.3S"])
def test_they_come_again(broker: Broker, topic: str, reset: str, protocol: str) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
        Consumer(topic, **options(broker, topic, protocol, auto_offset_reset=reset)) as consumer,
    ):
        time.sleep(0.4)
        placed(consumer, topic)
        fill(broker, topic, range(10, 15))
        for _ in range(3):
            with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
                assert read(consumer, 10) == NEW
                time.sleep(0.4)
                raise Trouble
        with producer.transaction(consumer=consumer):
            assert read(consumer, 10) == NEW
        with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
            raise Trouble
        fill(broker, topic, range(15, 16))
        assert read(consumer, 2) == [(0, 15), (1, 15)], "from what is committed by now"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_so_do_they_with_asyncio(broker: Broker, topic: str, protocol: str) -> None:
    async def main() -> None:
        async with (
            AsyncProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
            AsyncConsumer(topic, **options(broker, topic, protocol)) as consumer,
        ):
            while len(consumer.assignment()) < 2:
                await consumer.poll(timeout=0.1)
            assert [await consumer.position((topic, index)) for index in (0, 1)] == [10, 10]
            await asyncio.to_thread(fill, broker, topic, range(10, 15))
            for _ in range(3):
                with contextlib.suppress(Trouble):
                    async with producer.transaction(consumer=consumer):
                        found: list[tuple[int, int]] = []
                        async for record in consumer:
                            found.append((record.partition, record.offset))
                            if len(found) == 10:
                                break
                        assert sorted(found) == NEW
                        raise Trouble

    asyncio.run(asyncio.wait_for(main(), 60))


def test_those_that_nobody_had_been_given_come_too(broker: Broker, topic: str) -> None:
    """They came to a partition of which nothing was in the transaction."""
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
        Consumer(topic, **options(broker, topic, "classic")) as consumer,
    ):
        placed(consumer, topic)
        fill(broker, topic, range(10, 15), partitions=(0,))
        with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
            assert read(consumer, 5) == NEW[:5]
            consumer.pause((topic, 1))
            fill(broker, topic, range(10, 15), partitions=(1,))
            raise Trouble
        consumer.resume((topic, 1))
        assert read(consumer, 10) == NEW


def test_a_seek_before_the_first_record_is_where_they_begin(broker: Broker, topic: str) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
        Consumer(topic, **options(broker, topic, "classic", max_poll_records=1)) as consumer,
    ):
        placed(consumer, topic)
        for index in (0, 1):
            consumer.seek((topic, index), 8)
        for _ in range(3):
            with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
                assert read(consumer, 4) == [(0, 8), (0, 9), (1, 8), (1, 9)]
                consumer.seek_to_beginning((topic, 0))
                assert read(consumer, 1) == [(0, 0)]
                raise Trouble


def test_records_that_were_deleted_meanwhile_are_passed_over_by_the_policy(broker: Broker, topic: str) -> None:
    """The policy says where to go on, and what came since it did comes again, too."""
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
        Consumer(topic, **options(broker, topic, "classic")) as consumer,
    ):
        placed(consumer, topic)
        fill(broker, topic, range(10, 15), partitions=(0,))
        with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
            assert read(consumer, 5) == NEW[:5]
            raise Trouble
        fill(broker, topic, range(15, 20), partitions=(0,))
        admin.delete_records({TopicPartition(topic, 0): 18})
        assert read(consumer, 1) == [], "from the end on"
        assert consumer.position((topic, 0)) == 20
        fill(broker, topic, range(20, 22), partitions=(0,))
        for _ in range(2):
            with contextlib.suppress(Trouble), producer.transaction(consumer=consumer):
                assert read(consumer, 2) == [(0, 20), (0, 21)]
                raise Trouble


@pytest.mark.parametrize("back", ["in the block", "behind it"])
def test_partitions_that_a_rebalance_gives_back_begin_where_they_did(broker: Broker, topic: str, back: str) -> None:
    """The eager protocol takes all away, and gives most back: what was read of them is aborted, and comes again."""
    given = options(broker, topic, "classic", partition_assignment_strategy="range", heartbeat_interval_ms=100)
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer,
        Consumer(topic, **given) as consumer,
    ):
        placed(consumer, topic)
        fill(broker, topic, range(10, 15))
        with pytest.raises(AbortableTransactionError), producer.transaction(consumer=consumer):
            assert read(consumer, 10) == NEW
            consumer._group.membership.rejoin("the test")  # type: ignore[union-attr]
            while consumer.assignment():
                consumer.poll(timeout=0)
            if back == "in the block":
                until(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 2)
                assert [consumer.position((topic, index)) for index in (0, 1)] == [15, 15], "the policy's"
        assert read(consumer, 10) == NEW
