"""kafka-python against the fastq broker, with assigned partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def read(servers: str, topic: str, count: int) -> list[object]:
    consumer = KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False, consumer_timeout_ms=15_000
    )
    consumer.assign([TopicPartition(topic, 0)])
    found = []
    for record in consumer:
        found.append(record)
        if len(found) == count:
            break
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_round_trip_with_every_codec(
    fastq_servers: str, make_topic: Callable[..., str], codec: str | None, idempotent: bool
) -> None:
    topic = make_topic(fastq_servers)
    producer = KafkaProducer(
        bootstrap_servers=fastq_servers, compression_type=codec, acks="all", enable_idempotence=idempotent
    )
    sent = [
        producer.send(
            topic,
            f"value {number}".encode(),
            key=b"k",
            headers=[("n", str(number).encode())],
            timestamp_ms=1_700_000_000_000 + number,
        )
        for number in range(300)
    ]
    producer.flush()
    assert [future.get(10).offset for future in sent] == list(range(300))
    producer.close()
    for number, record in enumerate(read(fastq_servers, topic, 300)):
        assert (record.offset, record.value, record.timestamp) == (
            number,
            f"value {number}".encode(),
            1_700_000_000_000 + number,
        )
        assert record.headers == [("n", str(number).encode())]


def test_null_value_and_key(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers)
    producer = KafkaProducer(bootstrap_servers=fastq_servers)
    producer.send(topic, None, key=b"tombstone")
    producer.send(topic, b"v", key=None)
    producer.close()
    first, second = read(fastq_servers, topic, 2)
    assert (first.key, first.value, second.key, second.value) == (b"tombstone", None, None, b"v")


def test_offsets(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers)
    producer = KafkaProducer(bootstrap_servers=fastq_servers)
    for number in range(50):
        producer.send(topic, b"v", timestamp_ms=1_700_000_000_000 + number * 10)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=fastq_servers)
    partition = TopicPartition(topic, 0)
    assert consumer.beginning_offsets([partition])[partition] == 0
    assert consumer.end_offsets([partition])[partition] == 50
    assert consumer.offsets_for_times({partition: 1_700_000_000_205})[partition].offset == 21
    consumer.close()


def test_create_and_delete_topics(fastq_servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    admin = KafkaAdminClient(bootstrap_servers=fastq_servers)
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])
    assert name in admin.list_topics()
    admin.delete_topics([name])
    assert name not in admin.list_topics()
    admin.close()
