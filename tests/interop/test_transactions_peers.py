"""Transactions of the peers' clients on the fastq broker: what read_committed consumers see, fencing, and a broker that dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from under_test import broker_under_test

from fastq.testing import Broker, Cluster

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
    deadline = time.monotonic() + 60
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


def committed_offset(servers: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    (position,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    consumer.close()
    assert position.error is None
    return int(position.offset)


def test_librdkafka_reads_processes_and_writes_exactly_once(fastq_servers: str, make_topic: MakeTopic) -> None:
    """Offsets go with the transaction: an abort takes both back, so the next try sees the same records."""
    source, target, group = make_topic(fastq_servers), make_topic(fastq_servers), make_topic(fastq_servers)
    filler = Producer({"bootstrap.servers": fastq_servers})
    for number in range(30):
        filler.produce(source, b"%d" % number)
    assert filler.flush(20) == 0
    producer = transactional(fastq_servers, group)
    settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": fastq_servers, "isolation.level": "read_committed"}
    for attempt, commits in enumerate([False, True, True, False, True]):
        consumer = Consumer(settings)
        consumer.subscribe([source])
        records = []
        deadline = time.monotonic() + 60
        while len(records) < 10 and time.monotonic() < deadline:
            records += [message for message in consumer.consume(10 - len(records), 1.0) if message.error() is None]
        assert len(records) == 10
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value())
        before = committed_offset(fastq_servers, group, source)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
        )
        if commits:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
            assert committed_offset(fastq_servers, group, source) == before, attempt
        consumer.close()
    assert committed_offset(fastq_servers, group, source) == 30
    assert read(fastq_servers, target) == [b"%d" % number for number in range(30)]


def test_aiokafka_sends_offsets_with_a_transaction(fastq_servers: str, make_topic: MakeTopic) -> None:
    import aiokafka

    topic, group = make_topic(fastq_servers), make_topic(fastq_servers)
    place = aiokafka.TopicPartition(topic, 0)

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=fastq_servers, transactional_id=group)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send(topic, b"v")
                await producer.send_offsets_to_transaction({place: 5}, group)
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: 9}, group)
            await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert committed_offset(fastq_servers, group, topic) == 5
    assert read(fastq_servers, topic) == [b"v"]


@pytest.fixture
def own_broker() -> Iterator[Broker | Cluster]:
    with broker_under_test() as broker:
        yield broker


@pytest.mark.any_nodes
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
