"""Transactions of the peers' clients on the fastq broker: what read_committed consumers see, fencing, and a broker that dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from fastq.testing import Broker

MakeTopic = Callable[..., str]


def transactional(servers: str, name: str, **config: object) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, **config})
    producer.init_transactions(20)
    return producer


def read(servers: str, topic: str, isolation: str = "read_committed", partitions: int = 1) -> list[bytes]:
    """Everything up to the end that this reader has, through librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    found: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 30
    while len(ended) < partitions and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    assert len(ended) == partitions
    return found


def read_with_aiokafka(servers: str, topic: str, count: int) -> list[bytes]:
    import aiokafka

    async def run() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        await consumer.start()
        try:
            found = []
            while len(found) < count:
                batches = await consumer.getmany(timeout_ms=1000)
                found += [record.value for records in batches.values() for record in records]
            more = await consumer.getmany(timeout_ms=200)
            return found + [record.value for records in more.values() for record in records]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_librdkafka_commits_and_aborts(fastq_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(fastq_servers, partitions=2)
    producer = transactional(fastq_servers, topic)
    kept = []
    for number in range(10):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, item) for item in range(20)]
        for item, value in enumerate(values):
            producer.produce(topic, value, partition=item % 2)
        if number % 3:
            producer.commit_transaction(20)
            kept += values
        else:
            assert producer.flush(20) == 0
            producer.abort_transaction(20)
    assert sorted(read(fastq_servers, topic, partitions=2)) == sorted(kept)
    everything = read(fastq_servers, topic, "read_uncommitted", partitions=2)
    assert set(kept) < set(everything)


def test_a_second_producer_with_the_same_id_fences_the_first(fastq_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(fastq_servers)
    first = transactional(fastq_servers, topic)
    first.begin_transaction()
    first.produce(topic, b"lost")
    assert first.flush(20) == 0
    second = transactional(fastq_servers, topic)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(20)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"kept")
    second.commit_transaction(20)
    assert read(fastq_servers, topic) == [b"kept"]
    assert sorted(read(fastq_servers, topic, "read_uncommitted")) == [b"kept", b"lost"]


def test_aiokafka_commits_and_aborts(fastq_servers: str, make_topic: MakeTopic) -> None:
    import aiokafka

    topic = make_topic(fastq_servers)

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=fastq_servers, transactional_id=topic)
        await producer.start()
        try:
            for number in range(5):
                await producer.begin_transaction()
                for item in range(10):
                    await producer.send(topic, b"%d-%d" % (number, item))
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    kept = [b"%d-%d" % (number, item) for number in (0, 2, 4) for item in range(10)]
    assert read(fastq_servers, topic) == kept
    assert read_with_aiokafka(fastq_servers, topic, len(kept)) == kept


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_transactions_outlive_a_broker_that_is_killed(own_broker: Broker, make_topic: MakeTopic) -> None:
    servers = own_broker.bootstrap_servers
    topic = make_topic(servers)
    producer = transactional(servers, topic)
    kept = []
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        if number % 2:
            assert producer.flush(20) == 0
            own_broker.kill()
            own_broker.start()
        producer.commit_transaction(60)
        kept.append(b"%d" % number)
        if number % 2 == 0:  # after the decision, perhaps before the markers
            own_broker.kill()
            own_broker.start()
    assert read(servers, topic) == kept
