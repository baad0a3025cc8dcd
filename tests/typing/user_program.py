"""A user's program, checked by mypy --strict and never run: every public name keeps its type.

Rules: `assert_type` states what a user's editor shows; a change here is a change of the public API.
"""

from __future__ import annotations

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
)
from fastq.admin import GroupDescription, OffsetChange, OffsetReset, TransactionListing
from fastq.observability import PrometheusExporter


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
            assert_type(record, Record)
            assert_type(record.topic, str)
            assert_type(record.offset, int)
            assert_type(record.timestamp_ms, int)
        assert_type(consumer.poll(max_records=500, timeout=1.0), list[Record])
        batch = consumer.poll_batch(timeout=1.0)
        assert_type(len(batch), int)
        partition = TopicPartition("logs", 0)
        assert_type(consumer.position(partition), int)
        assert_type(consumer.end_offsets([partition]), dict[TopicPartition, int])
        consumer.seek(partition, 5)

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
            assert_type(record, Record)
        assert_type(await consumer.poll(max_records=5, timeout=1.0), list[Record])
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        await admin.create_topic("logs", partitions=1, replication_factor=1)
