"""Read, process, write: a transaction that is aborted or killed at any step loses nothing and doubles nothing.

The consumer that goes with the transactions goes back to what is committed, in every way of reading and for both kinds of clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from under_test import broker_under_test

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.errors import AbortableTransactionError, TransactionError, TransactionStateError
from fastq.testing import Broker

STEPS = ("begun", "half sent", "sent", "flushed", "offsets", "refused by the broker", "nothing sent")
RECORDS = 210
OPTIONS: dict[str, Any] = {
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
}
PROTOCOLS = ("classic", "consumer")
# A member that is killed is missed soon.
IMPATIENT = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": 700,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}


class Trouble(Exception):
    """The application's own."""


@pytest.fixture
def topics(shared_broker: Broker, new_topic_name: Callable[[], str]) -> tuple[str, str]:
    return make_topics(shared_broker, new_topic_name(), new_topic_name())


def make_topics(broker: Broker, source: str, target: str) -> tuple[str, str]:
    """A topic of three partitions with records in it, and one to copy them to, which refuses old timestamps."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(source, 3)
        admin.create_topic(target, 2, configs={"message.timestamp.before.max.ms": "3600000"})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for index in range(3):
            producer.send_many(source, [b"%d" % i for i in range(index, RECORDS, 3)], partition=index)
    return source, target


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


def values_in(consumer: Consumer, style: str) -> Iterable[bytes | None]:
    """The next values, in one of the ways of reading."""
    if style == "poll":
        return [record.value for record in consumer.poll(max_records=7, timeout=1.0)]
    if style == "poll_batch":
        batch = consumer.poll_batch(timeout=1.0)
        return list(batch.values) if batch else []
    return [next(iter(consumer)).value]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("style", ["poll", "poll_batch", "iterate"])
def test_aborted_at_every_step(shared_broker: Broker, topics: tuple[str, str], style: str, protocol: str) -> None:
    source, target = topics
    servers = shared_broker.bootstrap_servers
    aborted: list[str] = []
    troubles = list(STEPS) * 2
    with (
        Producer(bootstrap_servers=servers, transactional_id=f"rewind-{target}") as producer,
        Consumer(source, bootstrap_servers=servers, group_id=target, group_protocol=protocol, **OPTIONS) as consumer,
    ):
        done = 0
        while done < RECORDS:
            values = list(values_in(consumer, style))
            if not values:
                continue
            step = troubles.pop() if troubles else ""
            try:
                with producer.transaction(consumer=consumer) as transaction:
                    work(producer, consumer, transaction, target, values, step)
            except (Trouble, AbortableTransactionError):
                aborted.append(step)
            else:
                done += len(values)
    assert sorted(aborted) == sorted(list(STEPS) * 2)
    assert copied(shared_broker, target) == once()


def work(producer: Producer, consumer: Consumer, transaction: Any, target: str, values: list[Any], step: str) -> None:
    """One transaction, which fails at `step`."""

    def at(name: str) -> None:
        if step == name:
            raise Trouble(name)

    at("begun")
    for number, value in enumerate(values):
        if number == len(values) // 2:
            at("half sent")
        if step != "nothing sent":
            producer.send(target, value, timestamp_ms=1 if step == "refused by the broker" else None)
    at("nothing sent")
    at("sent")
    if step == "flushed":
        producer.flush()
    at("flushed")
    if step == "offsets":
        transaction.send_offsets(consumer)
    at("offsets")


async def async_values_in(consumer: AsyncConsumer, style: str) -> Iterable[bytes | None]:
    if style == "poll":
        return [record.value for record in await consumer.poll(max_records=7, timeout=1.0)]
    if style == "poll_batch":
        batch = await consumer.poll_batch(timeout=1.0)
        return list(batch.values) if batch else []
    return [(await anext(aiter(consumer))).value]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("style", ["poll", "poll_batch", "iterate"])
def test_aborted_at_every_step_with_asyncio(
    shared_broker: Broker, topics: tuple[str, str], style: str, protocol: str
) -> None:
    source, target = topics
    servers = shared_broker.bootstrap_servers

    async def main() -> list[str]:
        aborted: list[str] = []
        troubles = list(STEPS) * 2
        async with (
            AsyncProducer(bootstrap_servers=servers, transactional_id=f"rewind-{target}") as producer,
            AsyncConsumer(
                source, bootstrap_servers=servers, group_id=target, group_protocol=protocol, **OPTIONS
            ) as consumer,
        ):
            done = 0
            while done < RECORDS:
                values = list(await async_values_in(consumer, style))
                if not values:
                    continue
                step = troubles.pop() if troubles else ""
                try:
                    async with producer.transaction(consumer=consumer) as transaction:
                        await async_work(producer, consumer, transaction, target, values, step)
                except (Trouble, TransactionError):
                    aborted.append(step)
                else:
                    done += len(values)
        return aborted

    assert sorted(asyncio.run(asyncio.wait_for(main(), 60))) == sorted(list(STEPS) * 2)
    assert copied(shared_broker, target) == once()


async def async_work(
    producer: AsyncProducer, consumer: AsyncConsumer, transaction: Any, target: str, values: list[Any], step: str
) -> None:
    """As `work`, awaited."""

    def at(name: str) -> None:
        if step == name:
            raise Trouble(name)

    at("begun")
    for number, value in enumerate(values):
        if number == len(values) // 2:
            at("half sent")
        if step != "nothing sent":
            await producer.send(target, value, timestamp_ms=1 if step == "refused by the broker" else None)
    at("nothing sent")
    at("sent")
    if step == "flushed":
        await producer.flush()
    at("flushed")
    if step == "offsets":
        await transaction.send_offsets(consumer)
    at("offsets")


WORKER = """
    import os, sys
    from fastq import Consumer, Producer

    servers, source, target, step, protocol = sys.argv[1:6]
    transactions = 0

    def at(name):
        if step == name and transactions == 2:
            os._exit(9)

    with (
        Producer(bootstrap_servers=servers, transactional_id="killed-" + target) as producer,
        Consumer(source, bootstrap_servers=servers, group_id=target, group_protocol=protocol,
                 # Nobody may take the place of a static member of KIP-848 that has not left.
                 group_instance_id="one" if protocol == "classic" else None,
                 enable_auto_commit=False, isolation_level="read_committed", auto_offset_reset="earliest") as consumer,
    ):
        while records := consumer.poll(max_records=10, timeout=6.0):
            with producer.transaction(consumer=consumer) as transaction:
                at("begun")
                for number, record in enumerate(records):
                    producer.send(target, record.value)
                    if number == len(records) // 2:
                        at("half sent")
                at("sent")
                producer.flush()
                at("flushed")
                transaction.send_offsets(consumer)
                at("offsets")
                if step == "committing" and transactions == 2:
                    producer._parts.transactions.begin_commit()
                    producer._driver.core.call_at(0, lambda now: None)
                    producer._wait(lambda: producer._parts.transactions._coordinator.busy, 5)
                    os._exit(9)
            transactions += 1
            at("committed")
"""


def test_killed_at_every_step(shared_broker: Broker, topics: tuple[str, str]) -> None:
    kill_at_every_step(shared_broker, *topics, "classic")


@pytest.mark.any_nodes
def test_killed_at_every_step_as_a_member_of_kip_848() -> None:
    with broker_under_test(config=IMPATIENT, in_memory=True) as broker:
        kill_at_every_step(broker, *make_topics(broker, "source", "target"), "consumer")


def kill_at_every_step(broker: Broker, source: str, target: str, protocol: str) -> None:
    steps = ("begun", "half sent", "sent", "flushed", "offsets", "committing", "committed")
    for step in (*steps, "none"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(WORKER), broker.bootstrap_servers, source, target, step, protocol],
            timeout=60,
            capture_output=True,
            text=True,
        )
        assert not done.stderr and done.returncode == (0 if step == "none" else 9), (step, done.returncode, done.stderr)
    assert copied(broker, target) == once()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_has_lost_its_place_commits_nothing(shared_broker: Broker, topics: tuple[str, str], protocol: str) -> None:
    """It was away for longer than it may; another member has read the same by then."""
    source, target = topics
    settings = {
        **OPTIONS,
        "bootstrap_servers": shared_broker.bootstrap_servers,
        "group_id": target,
        "group_protocol": protocol,
    }
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=f"slow-{target}") as producer,
        Consumer(source, **settings, max_poll_interval_ms=1000) as slow,
        Consumer(source, **settings) as quick,
    ):
        records = []
        while not records:
            records = slow.poll(timeout=1.0)
        assert slow.group_metadata().member_id
        read: set[bytes | None] = set()
        while len(read) < RECORDS:
            read |= {record.value for record in quick.poll(timeout=1.0)}
        with pytest.raises(AbortableTransactionError), producer.transaction(consumer=slow):
            for record in records:
                producer.send(target, record.value)
    assert copied(shared_broker, target) == Counter()


def test_a_block_that_ends_in_its_transactions_own_error_is_aborted(
    shared_broker: Broker, topics: tuple[str, str]
) -> None:
    """The call after a record was refused told so, and no transaction could be begun after that."""
    servers, target = shared_broker.bootstrap_servers, topics[1]
    with Producer(bootstrap_servers=servers, transactional_id=f"own-{target}") as producer:
        for timestamp_ms in (1, None):
            with contextlib.suppress(AbortableTransactionError), producer.transaction():
                producer.send(target, b"1", timestamp_ms=timestamp_ms)
                producer.flush()
                producer.send(target, b"2")

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=f"own-{target}") as other:
            for timestamp_ms in (1, None):
                with contextlib.suppress(AbortableTransactionError):
                    async with other.transaction():
                        await other.send(target, b"3", timestamp_ms=timestamp_ms)
                        await other.flush()
                        await other.send(target, b"4")

    asyncio.run(main())
    assert copied(shared_broker, target) == Counter([b"1", b"2", b"3", b"4"])


def test_the_object_of_a_transaction_is_used_once(shared_broker: Broker, topics: tuple[str, str]) -> None:
    """A second `with` on it would commit without the consumer's offsets, which it takes for sent."""
    servers = shared_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=f"once-{topics[1]}") as producer:
        block = producer.transaction()
        with block:
            producer.send(topics[1], b"1")
        with pytest.raises(TransactionStateError, match=r"used once.*Call producer\.transaction\(\) for each"), block:
            producer.send(topics[1], b"2")
        with producer.transaction():
            producer.send(topics[1], b"3")

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=f"again-{topics[1]}") as other:
            block = other.transaction()
            async with block:
                await other.send(topics[1], b"4")
            with pytest.raises(TransactionStateError, match="used once"):
                async with block:
                    await other.send(topics[1], b"5")
            async with other.transaction():
                await other.send(topics[1], b"6")

    asyncio.run(main())
    assert copied(shared_broker, topics[1]) == Counter([b"1", b"3", b"4", b"6"])
