"""A transaction in which a rebalance takes partitions away that were read for it is aborted: their results were committed without the
offsets, and whoever has the partitions made the results again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test
from waiting import until

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from fastq.errors import AbortableTransactionError
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

RECORDS, PARTITIONS = 240, 4
PROTOCOLS = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    with broker_under_test(config=QUICK, in_memory=True) as running:
        yield running


@pytest.fixture
def topics(broker: Broker, new_topic_name: Callable[[], str]) -> tuple[str, str]:
    """One with records in each of its partitions, and one to copy them to."""
    source, target = new_topic_name(), new_topic_name()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(source, PARTITIONS)
        admin.create_topic(target, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for index in range(PARTITIONS):
            producer.send_many(source, [b"%d" % i for i in range(index, RECORDS, PARTITIONS)], partition=index)
    return source, target


def options(broker: Broker, topics: tuple[str, str], protocol: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": topics[1],
        "heartbeat_interval_ms": 100,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        **PROTOCOLS[protocol],
        **more,
    }


def copied(broker: Broker, target: str) -> Counter[bytes]:
    """What a read_committed consumer finds."""
    with Consumer(
        target,
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        return Counter(record.value for record in consumer.read_to_end())


def once() -> Counter[bytes]:
    return Counter(b"%d" % i for i in range(RECORDS))


class Other:
    """Another member, which reads nothing of what it is given until `work`, and then copies it."""

    def __init__(self, broker: Broker, topics: tuple[str, str], protocol: str) -> None:
        self.broker, self.topics = broker, topics
        self.options = options(broker, topics, protocol)
        self.working = self.over = self.assigned = False
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with (
            Producer(
                bootstrap_servers=self.broker.bootstrap_servers, transactional_id=f"other-{self.topics[1]}"
            ) as producer,
            Consumer(self.topics[0], **self.options) as consumer,
        ):
            while not self.over:
                if not self.working:
                    consumer.pause(*consumer.assignment())
                    consumer.poll(timeout=0.05)
                    self.assigned = bool(consumer.assignment())
                    continue
                consumer.resume(*consumer.assignment())
                consumer.seek_to_committed()
                self._copy(producer, consumer)

    def _copy(self, producer: Producer, consumer: Consumer) -> None:
        while not self.over:
            records = consumer.poll(timeout=0.1)
            if records:
                with contextlib.suppress(AbortableTransactionError), producer.transaction(consumer=consumer):
                    for record in records:
                        producer.send(self.topics[1], record.value)

    def __enter__(self) -> Other:
        return self

    def join(self) -> None:
        """Begin."""
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.over = True
        if self.thread.ident is not None:
            self.thread.join()


def copy_all(producer: Producer, consumer: Consumer, broker: Broker, target: str) -> None:
    end = time.monotonic() + 60
    while sum(copied(broker, target).values()) < RECORDS and time.monotonic() < end:
        if records := consumer.poll(timeout=0.2):
            with contextlib.suppress(AbortableTransactionError), producer.transaction(consumer=consumer):
                for record in records:
                    producer.send(target, record.value)


WAYS = ("poll", "iterate", "sent by hand", "poll before", "without a block")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_rebalance_between_two_polls_aborts(broker: Broker, topics: tuple[str, str], way: str, protocol: str) -> None:
    source, target = topics
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"one-{target}") as producer,
        Consumer(source, **options(broker, topics, protocol, max_poll_records=10)) as consumer,
        Other(broker, topics, protocol) as other,
    ):

        def read_over_a_rebalance(send: Callable[[Any], object]) -> None:
            seen: set[int] = set()
            records = iter(consumer)
            while len(seen) < PARTITIONS:
                for record in [next(records)] if way == "iterate" else consumer.poll(timeout=1.0):
                    seen.add(record.partition)
                    send(record)
            other.join()
            while not other.assigned:
                for record in consumer.poll(timeout=0.05, max_records=1):
                    send(record)

        def copy(record: Any) -> None:
            producer.send(target, record.value)

        with pytest.raises(AbortableTransactionError) as caught:
            if way == "poll before":
                read: list[Any] = []
                read_over_a_rebalance(read.append)
                with producer.transaction(consumer=consumer):
                    for record in read:
                        copy(record)
            elif way == "without a block":
                producer.begin_transaction()
                read_over_a_rebalance(copy)
                producer.send_offsets_to_transaction(consumer)
            else:
                with producer.transaction(consumer=consumer) as transaction:
                    read_over_a_rebalance(copy)
                    if way == "sent by hand":
                        transaction.send_offsets(consumer)
        if way == "without a block":
            with pytest.raises(
                AbortableTransactionError
            ):  # nor is what has been sent to be committed without the offsets
                producer.commit_transaction()
            producer.abort_transaction()
            consumer.seek_to_committed()
        told = str(caught.value)
        assert target in told and f"{source}-" in told and "again" in told
        assert copied(broker, target) == Counter()
        other.working = True
        copy_all(producer, consumer, broker, target)
        assert copied(broker, target) == once()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_so_it_does_with_asyncio(broker: Broker, topics: tuple[str, str], protocol: str) -> None:
    source, target = topics

    async def main() -> None:
        async with (
            AsyncProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"one-{target}") as producer,
            AsyncConsumer(source, **options(broker, topics, protocol, max_poll_records=10)) as consumer,
        ):
            with pytest.raises(AbortableTransactionError, match=f"{source}-"):
                async with producer.transaction(consumer=consumer):
                    seen: set[int] = set()
                    async for record in consumer:
                        seen.add(record.partition)
                        await producer.send(target, record.value)
                        if len(seen) == PARTITIONS:
                            break
                    other.join()
                    while not other.assigned:
                        for record in await consumer.poll(timeout=0.05, max_records=1):
                            await producer.send(target, record.value)
            assert copied(broker, target) == Counter()
            other.working = True
            while sum(copied(broker, target).values()) < RECORDS:
                if records := await consumer.poll(timeout=0.2):
                    with contextlib.suppress(AbortableTransactionError):
                        async with producer.transaction(consumer=consumer):
                            for record in records:
                                await producer.send(target, record.value)

    with Other(broker, topics, protocol) as other:
        asyncio.run(asyncio.wait_for(main(), 60))
    assert copied(broker, target) == once()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rebalance_that_takes_nothing_that_is_uncommitted_aborts_nothing(
    broker: Broker, topics: tuple[str, str], protocol: str
) -> None:
    """Each poll's records are committed before the next poll, in whose block the rebalance is then. The coordinator may refuse offsets
    while this member joins."""
    source, target = topics
    aborted: list[str] = []
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"one-{target}") as producer,
        Consumer(source, **options(broker, topics, protocol, max_poll_records=10)) as consumer,
        Other(broker, topics, protocol) as other,
    ):
        records = until(lambda: consumer.poll(timeout=1.0))
        other.join()
        while not other.assigned:
            try:
                with producer.transaction(consumer=consumer):
                    for record in records:
                        producer.send(target, record.value)
                with producer.transaction(consumer=consumer):
                    records = consumer.poll(timeout=0.05, max_records=1)
                    for record in records:
                        producer.send(target, record.value)
            except AbortableTransactionError as error:
                aborted.append(str(error))
            records = []
        other.working = True
        copy_all(producer, consumer, broker, target)
    assert copied(broker, target) == once()
    assert not [error for error in aborted if "taken from this consumer" in error]


def test_partitions_that_the_application_lets_go_of_abort_too(broker: Broker, topics: tuple[str, str]) -> None:
    """What is assigned by hand, or subscribed to, is given up with other words than a rebalance's, and its offsets go the same way."""
    source, target = topics
    given = options(broker, topics, "eager")
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"one-{target}") as producer,
        Consumer(**given) as consumer,
    ):
        for lets_go in (lambda: consumer.assign([TopicPartition(source, 1)]), consumer.unsubscribe):
            consumer.assign([TopicPartition(source, 0)])
            with (
                pytest.raises(AbortableTransactionError, match=f"{source}-0"),
                producer.transaction(consumer=consumer),
            ):
                for record in until(lambda: consumer.poll(timeout=1.0)):
                    producer.send(target, record.value)
                lets_go()
            with producer.transaction(consumer=consumer):
                producer.send(target, b"goes on")
    assert copied(broker, target) == Counter({b"goes on": 2})
