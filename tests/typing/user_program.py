"""A user's program, checked by mypy --strict and never run: every public name keeps its type.

Rules: `assert_type` states what a user's editor shows; a change here is a change of the public API.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

from fastq import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    Record,
    RecordMetadata,
    TopicPartition,
    read_topic,
)
from fastq._native.consume import RecordIterator
from fastq.admin import GroupDescription, OffsetChange, OffsetReset, TransactionListing
from fastq.consumer import ConsumerBatch, ConsumerOptions
from fastq.observability import PrometheusExporter
from fastq.producer import ProducerOptions


def sync(servers: str) -> None:
    with Producer(bootstrap_servers=servers, acks="all", compression_type="zstd") as producer:
        delivery = producer.send("logs", b"line", key=b"host-1", headers=[("trace", b"1")])
        assert_type(delivery.result(1.0), RecordMetadata)
        assert_type(delivery.done(), bool)
        producer.send("logs", bytearray(b"line"), key=memoryview(b"k"), partition=1, timestamp_ms=5)
        deliveries = producer.send_many("logs", [b"a", None], keys=[b"k", None])
        deliveries.result(1.0)
        producer.flush()

    with Consumer("logs", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            assert_type(record, Record[bytes, bytes])
            assert_type(record.topic, str)
            assert_type(record.offset, int)
            assert_type(record.timestamp_ms, int)
        assert_type(consumer.poll(max_records=500, timeout=1.0), list[Record[bytes, bytes]])
        batch = consumer.poll_batch(timeout=1.0)
        assert_type(len(batch), int)
        partition = TopicPartition("logs", 0)
        assert_type(consumer.position(partition), int)
        assert_type(consumer.end_offsets([partition]), dict[TopicPartition, int])
        consumer.seek(partition, 5)
        times = dict.fromkeys(consumer.assignment(), 1_700_000_000_000)
        consumer.offsets_for_times(times)
        consumer.offsets_for_times({("logs", 0): 1_700_000_000_000})

    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("logs", partitions=3, replication_factor=1, configs={"retention.ms": "1000"})
        assert_type(admin.describe_group("billing"), GroupDescription)
        assert_type(admin.group_lag("billing")[partition].result().lag, int | None)
        assert_type(
            admin.reset_group_offsets("billing", OffsetReset.to_earliest(), dry_run=True),
            dict[TopicPartition, OffsetChange],
        )
        assert_type(admin.list_transactions(states=["Ongoing"]), dict[str, TransactionListing])
        exporter = PrometheusExporter()
        exporter.add("out", producer)
        exporter.add("in", consumer)
    assert_type(producer.metrics()["retries_total"], int)
    assert_type(consumer.metrics()["partitions"][partition]["lag"], int | None)


async def asynchronous(servers: str) -> None:
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        delivery = await producer.send("logs", b"line")
        assert_type(await delivery, RecordMetadata)
        await producer.flush()
    async with AsyncConsumer("logs", bootstrap_servers=servers) as consumer:
        async for record in consumer:
            assert_type(record, Record[bytes, bytes])
        assert_type(await consumer.poll(max_records=5, timeout=1.0), list[Record[bytes, bytes]])
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic("logs", partitions=1, replication_factor=1)


class Point:
    """What a program makes of a value."""


class PointDeserializer:
    """An object that wants to know the topic."""

    def deserialize(self, topic: str, headers: tuple[tuple[str, bytes | None], ...], data: bytes) -> Point:
        """One point."""
        return Point()


def to_int(data: bytes) -> int:
    """A number."""
    return int(data)


def records_have_the_types_of_the_deserializers(options: ConsumerOptions) -> None:
    for record in Consumer("logs", key_deserializer=to_int):
        assert_type(record, Record[int, bytes])
        assert_type(record.key, int | None)  # null is not asked about
    for pointed in Consumer("logs", value_deserializer=PointDeserializer(), group_id="g"):
        assert_type(pointed, Record[bytes, Point])
    for named in Consumer("logs", value_deserializer="json", key_deserializer=to_int):
        assert_type(named, Record[int, Any])
    for both in Consumer("logs", value_deserializer="json", key_deserializer="str"):
        assert_type(both, Record[Any, Any])
    for any_ in Consumer({"group.id": "g"}, "logs"):
        assert_type(any_, Record[Any, Any])
    assert_type(Consumer("logs", value_deserializer=to_int).poll(timeout=1), list[Record[bytes, int]])
    assert_type(Consumer("logs", value_deserializer=to_int).read_to_end(), RecordIterator[bytes, int])
    assert_type(
        Consumer("logs", value_deserializer=str, key_deserializer=int), Consumer[int, str]
    )  # the formats of "str", "int"
    Consumer("logs", **options)
    taken_as_any(Consumer("logs", value_deserializer=to_int))


def taken_as_any(consumer: Consumer) -> None:
    """Without types, a consumer is one of anything."""
    for record in consumer:
        assert_type(record, Record[Any, Any])


async def async_records_have_them_too() -> None:
    async for record in AsyncConsumer("logs", value_deserializer=to_int):
        assert_type(record, Record[bytes, int])
    assert_type(await AsyncConsumer("logs", key_deserializer="str").poll(timeout=1), list[Record[Any, bytes]])


def text_to_bytes(value: str) -> bytes:
    """A serializer."""
    return value.encode()


class PointSerializer:
    """One that wants to know the topic."""

    def serialize(self, topic: str, value: Point) -> bytes:
        """A point."""
        return b""


def what_is_sent_has_the_types_of_the_serializers(options: ProducerOptions) -> None:
    plain = Producer()
    plain.send("logs", b"bytes", key=bytearray(b"k"))
    plain.send("logs", None)
    plain.send("logs", "text")  # type: ignore[arg-type]
    plain.send("logs", b"", key="text")  # type: ignore[arg-type]
    plain.send("logs", 5)  # type: ignore[arg-type]
    plain.send_many("logs", [b"bytes", bytearray(b"b"), None], keys=iter([b"k", None, b"k"]))
    plain.send_many("logs", ["text"])  # type: ignore[list-item]
    plain.send_many("logs", "text")  # type: ignore[arg-type]
    plain.send_many("logs", [b""], keys=["text"])  # type: ignore[list-item]
    plain.send_many("logs", read_topic("logs"))
    for batch in Consumer("logs").read_batches_to_end():
        plain.send_many("copies", batch)
        plain.send_many("copies", batch.values, keys=batch.keys, headers=batch.headers, timestamps=batch.timestamps)
    texts = Producer(value_serializer=text_to_bytes)
    texts.send("logs", "text", key=b"k")
    texts.send("logs", b"bytes")  # type: ignore[arg-type]
    texts.send_many("logs", ["text", None], keys=[b"k", None])
    texts.send_many("logs", [b"bytes"])  # type: ignore[list-item]
    texts.send("logs", "text", key="k")  # type: ignore[arg-type]
    typed = Producer(value_serializer=str, key_serializer=int)
    typed.send("logs", "text", key=5)
    typed.send("logs", 5, key="text")  # type: ignore[arg-type]
    points = Producer(value_serializer=PointSerializer())
    points.send("logs", Point())
    points.send("logs", b"")  # type: ignore[arg-type]
    named = Producer(value_serializer="json", key_serializer=text_to_bytes)
    named.send("logs", {"any": 1}, key="text")
    named.send("logs", {"any": 1}, key=b"")  # type: ignore[arg-type]
    named.send_many("logs", [{"any": 1}, 5], keys=["text", "text"])
    Producer(key_serializer="str", value_serializer="json").send("logs", 5, key=5)
    Producer({"value.serializer": "str"}).send("logs", "text")
    Producer(**options).send("logs", "text")
    sends_anything(texts)


def sends_anything(producer: Producer) -> None:
    """Without types, a producer takes anything."""
    producer.send("logs", "text", key=5)
    producer.send_many("logs", ["text"], keys=[5])


async def async_sends_have_them_too() -> None:
    await AsyncProducer().send("logs", b"bytes")
    await AsyncProducer().send("logs", "text")  # type: ignore[arg-type]
    await (await AsyncProducer(value_serializer=text_to_bytes).send("logs", "text"))
    await AsyncProducer().send_many("logs", [b"bytes", None])
    await AsyncProducer().send_many("logs", ["text"])  # type: ignore[list-item]
    await (await AsyncProducer(value_serializer=text_to_bytes).send_many("logs", ["text"]))


def tables(servers: str) -> None:
    table = read_topic("logs", columns=["value"], start={0: 5}, bootstrap_servers=servers)
    for batch in table:
        assert_type(batch, ConsumerBatch)


def options_have_a_name(options: ProducerOptions) -> None:
    mine: ProducerOptions = {"acks": "all", "linger_ms": 5, "raise_on_close": True}
    mine.update(options)
    with Producer(**mine) as producer:
        assert_type(producer, Producer)
    with Producer({"linger.ms": 5}, **options) as other:
        assert_type(other.send("t", b"x").done(), bool)
