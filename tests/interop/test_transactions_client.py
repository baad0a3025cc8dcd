"""Transactions of our producers against each kind of broker, read back by librdkafka as read_committed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import confluent_kafka
import pytest

from fastq import AsyncProducer, Consumer, Producer
from fastq.errors import (
    AbortableTransactionError,
    ConfigError,
    TransactionAborted,
    TransactionFenced,
    TransactionStateError,
)
from fastq.metadata import TopicPartition
from fastq.producer import transactions as machine


@pytest.fixture(params=[2, 1])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Both versions of transactions: the finalized one, and the older one, as from a cluster that has not finalized it."""
    if request.param == 1:
        monkeypatch.setattr(machine, "FEATURE", "no such feature")
    return int(request.param)


def committed_values(servers: str, topic: str, expected: int, partitions: int = 1, quiet_s: float = 0.5) -> list[Any]:
    """What librdkafka reads as read_committed: `expected` values, and whatever else comes within `quiet_s`."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "nobody", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[Any] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(quiet_s if len(values) >= expected else 5.0)
        if message is not None and message.error() is None:
            values.append(message.value())
        elif len(values) >= expected:
            break
    consumer.close()
    return values


def committed_offset(servers: str, group: str, topic: str) -> int:
    """What librdkafka finds committed for partition 0; -1001 for nothing."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    return int(found.offset)


def test_committed_is_read_and_aborted_is_not(servers: str, make_topic: Any, version: int) -> None:
    topic, expected = make_topic(servers, partitions=3), []
    with Producer(
        bootstrap_servers=servers, transactional_id=topic, compression_type="lz4", batch_size=400
    ) as producer:
        for number in range(12):
            values = [b"%d-%d" % (number, i) for i in range(100)]
            if number % 3 == 2:
                with pytest.raises(ZeroDivisionError), producer.transaction():
                    producer.send_many(topic, values)
                    producer.flush()
                    producer.send(topic, b"not even sent")
                    raise ZeroDivisionError
                continue
            with producer.transaction():
                handle = producer.send_many(topic, values)
            expected += values
            assert handle.done()
        assert producer.metrics()["transactions_committed_total"] == 8
        assert producer.metrics()["transactions_aborted_total"] == 4
    assert sorted(committed_values(servers, topic, len(expected), partitions=3)) == sorted(expected)


def test_nothing_is_sent_outside_of_a_transaction(servers: str, make_topic: Any) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            producer.send(topic, b"x")
        with pytest.raises(TransactionStateError):
            producer.send_many(topic, [b"x"])
        producer.begin_transaction()
        delivery = producer.send(topic, b"in")
        producer.commit_transaction()
        assert delivery.result(0).offset == 0
        with pytest.raises(TransactionStateError, match="cannot send"):
            producer.send(topic, b"after")
        assert producer.partitions_for(topic) == [0]
    with Producer(bootstrap_servers=servers) as plain, pytest.raises(TransactionStateError, match="transactional_id"):
        plain.transaction()
    with pytest.raises(ConfigError, match="transactional_id"):
        Producer(bootstrap_servers=servers, transactional_id="x", acks=1)
    assert committed_values(servers, topic, 1) == [b"in"]


def test_the_second_of_an_id_fences_the_first(servers: str, make_topic: Any, version: int) -> None:
    topic = make_topic(servers)
    first = Producer(bootstrap_servers=servers, transactional_id=topic)
    second = Producer(bootstrap_servers=servers, transactional_id=topic)
    try:
        first.begin_transaction()
        first.send(topic, b"zombie").result(20)
        with second.transaction():
            second.send(topic, b"second")
        with pytest.raises(TransactionFenced, match=topic):
            first.commit_transaction()
        with pytest.raises(TransactionFenced):
            first.begin_transaction()
        with second.transaction():
            second.send(topic, b"third")
    finally:
        first.close(5)
        second.close(5)
    assert committed_values(servers, topic, 2) == [b"second", b"third"]


def test_close_aborts_what_is_open(servers: str, make_topic: Any) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open").result(20)
        waiting = producer.send(topic, b"waiting")
    assert isinstance(waiting.exception(), TransactionAborted)
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"done")
    assert committed_values(servers, topic, 1) == [b"done"]


def test_offsets_go_with_the_transaction(servers: str, make_topic: Any, version: int) -> None:
    source, topic = make_topic(servers), make_topic(servers)
    group = f"group-{topic}"
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        with producer.transaction() as txn:
            producer.send(topic, b"1")
            txn.send_offsets({TopicPartition(source, 0): 11}, group)
        assert committed_offset(servers, group, source) == 11
        with pytest.raises(ZeroDivisionError), producer.transaction() as txn:
            producer.send(topic, b"2")
            txn.send_offsets({(source, 0): (12, "a note")}, group)
            raise ZeroDivisionError
        with producer.transaction() as txn:
            txn.send_offsets({(source, 0): 13}, group)
    assert committed_offset(servers, group, source) == 13
    assert committed_values(servers, topic, 1) == [b"1"]


def test_a_member_that_lost_its_place_cannot_commit(servers: str, make_topic: Any, version: int) -> None:
    source, topic = make_topic(servers), make_topic(servers)
    stranger = machine.GroupMetadata(f"group-{topic}", 7, "nobody-knows-me")
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        with pytest.raises(AbortableTransactionError, match=stranger.group_id) as caught, producer.transaction() as txn:
            producer.send(topic, b"lost")
            txn.send_offsets({(source, 0): 1}, stranger)
        assert caught.value.hint and "committed offsets" in caught.value.hint
        with producer.transaction():
            producer.send(topic, b"next")
    assert committed_offset(servers, stranger.group_id, source) < 0
    assert committed_values(servers, topic, 1) == [b"next"]


def test_read_process_write_exactly_once(servers: str, make_topic: Any) -> None:
    """A processor that fails in the middle of its transactions, again and again: each input has one output."""
    source, topic = make_topic(servers), make_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(source, [b"%d" % i for i in range(200)])
    failures = 0
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        done = 0
        while done < 200:
            with Consumer(
                source,
                bootstrap_servers=servers,
                group_id=f"group-{topic}",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer:
                try:
                    while done < 200:
                        records = consumer.poll(timeout=5.0, max_records=30)
                        if not records:
                            continue
                        with producer.transaction() as txn:
                            for record in records:
                                producer.send(topic, b"out-" + record.value)
                            txn.send_offsets(consumer)
                            if failures < 3 and done >= 30 * failures:
                                failures += 1
                                producer.flush()
                                raise ZeroDivisionError
                        done += len(records)
                except ZeroDivisionError:
                    pass  # starts again from what was committed
    assert failures == 3
    assert committed_values(servers, topic, 200) == [b"out-%d" % i for i in range(200)]
    assert committed_offset(servers, f"group-{topic}", source) == 200


def test_the_asyncio_producer_does_the_same(servers: str, make_topic: Any, version: int) -> None:
    source, topic = make_topic(servers), make_topic(servers)
    group = f"group-{topic}"

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=topic, max_block_ms=10_000) as producer:
            with pytest.raises(TransactionStateError):
                await producer.send(topic, b"outside")
            for number in range(3):
                async with producer.transaction() as txn:
                    await producer.send(topic, b"%d" % number)
                    await txn.send_offsets({(source, 0): number + 1}, group)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, b"aborted")
                    await producer.flush()
                    raise ZeroDivisionError
            await producer.begin_transaction()
            delivery = await producer.send(topic, b"3")
            await producer.commit_transaction()
            assert (await delivery).offset > 0
            other = AsyncProducer(bootstrap_servers=servers, transactional_id=topic, max_block_ms=10_000)
            await producer.begin_transaction()
            await (await producer.send(topic, b"zombie"))
            await other.init_transactions()
            with pytest.raises(TransactionFenced):
                await producer.commit_transaction()
            await other.begin_transaction()
            await other.send(topic, b"left open")
            await other.close()

    asyncio.run(main())
    assert committed_values(servers, topic, 4) == [b"0", b"1", b"2", b"3"]
    assert committed_offset(servers, group, source) == 3


def test_a_broker_that_cannot_be_had_is_told_at_once() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", transactional_id="x", max_block_ms=300) as producer:
        with pytest.raises(TimeoutError, match=r"init_transactions did not finish within 0\.3 s.*again"):
            producer.begin_transaction()
        with pytest.raises(TimeoutError):
            producer.init_transactions(timeout=0.1)
