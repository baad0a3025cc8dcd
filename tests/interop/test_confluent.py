"""confluent-kafka (librdkafka) against the fastq broker, with assigned partitions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(servers: str, topic: str, records: list[dict[str, object]], **config: object) -> list[Message]:
    delivered: list[Message] = []
    failed: list[object] = []

    def on_delivery(error: object, message: Message) -> None:
        (failed if error else delivered).append(error or message)

    producer = Producer({"bootstrap.servers": servers, "acks": "all", **config})
    for record in records:
        producer.produce(topic, on_delivery=on_delivery, **record)
    assert producer.flush(20) == 0
    assert not failed
    return delivered


def consume(
    servers: str, topic: str, count: int, partitions: int = 1, start: int = OFFSET_BEGINNING, **config: object
) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "assigned", "enable.auto.commit": False, **config})
    consumer.assign([TopicPartition(topic, index, start) for index in range(partitions)])
    found: list[Message] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(1000, timeout=0.5) if message.error() is None]
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_round_trip_with_every_codec(
    fastq_servers: str, make_topic: Callable[..., str], codec: str, idempotent: bool
) -> None:
    topic = make_topic(fastq_servers)
    values = [f"value {number} ".encode() * 20 for number in range(500)]
    settings = {"compression.type": codec, "enable.idempotence": idempotent}
    delivered = produce(fastq_servers, topic, [{"value": value, "key": b"k"} for value in values], **settings)
    assert sorted(message.offset() for message in delivered) == list(range(500))
    found = consume(fastq_servers, topic, 500)
    assert [message.value() for message in found] == values
    assert [message.offset() for message in found] == list(range(500))


def test_headers_timestamps_nulls_and_empties(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers)
    records: list[dict[str, object]] = [
        {"value": None, "key": b"tombstone", "timestamp": 1_700_000_000_123},
        {"value": b"", "key": b""},
        {"value": b"v", "key": None, "headers": [("a", b"1"), ("a", None), ("b", b"")]},
    ]
    produce(fastq_servers, topic, records)
    tombstone, empty, headed = consume(fastq_servers, topic, 3)
    assert (tombstone.value(), tombstone.key(), tombstone.timestamp()[1]) == (None, b"tombstone", 1_700_000_000_123)
    assert (empty.value(), empty.key()) == (b"", b"")
    assert headed.key() is None
    assert headed.headers() == [("a", b"1"), ("a", None), ("b", b"")]


def test_large_messages(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers, max_message_bytes="10000000")
    value = bytes(range(256)) * 30_000
    produce(fastq_servers, topic, [{"value": value}], **{"message.max.bytes": 9_000_000})
    (found,) = consume(fastq_servers, topic, 1)
    assert found.value() == value


def test_a_message_over_the_limit_is_refused(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers, max_message_bytes="1000")
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": fastq_servers})
    producer.produce(topic, b"x" * 2000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert errors[0].name() == "MSG_SIZE_TOO_LARGE"  # type: ignore[attr-defined]


def test_watermarks_and_offsets_for_times(fastq_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(fastq_servers)
    base = 1_700_000_000_000
    produce(fastq_servers, topic, [{"value": b"v", "timestamp": base + number * 1000} for number in range(100)])
    consumer = Consumer({"bootstrap.servers": fastq_servers, "group.id": "offsets"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 100)
    asked = [TopicPartition(topic, 0, base + 41_500)]
    assert consumer.offsets_for_times(asked, timeout=10)[0].offset == 42
    consumer.close()
    admin = AdminClient({"bootstrap.servers": fastq_servers})
    partition = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 100), (OffsetSpec.max_timestamp(), 99)):
        assert admin.list_offsets({partition: spec})[partition].result(10).offset == offset


def test_topics_through_the_admin_client(fastq_servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    admin = AdminClient({"bootstrap.servers": fastq_servers})
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "12345"})])[name].result(10)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(10)
    assert entries["retention.ms"].value == "12345"
    admin.create_partitions([NewPartitions(name, 5)])[name].result(10)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 5
    produce(fastq_servers, name, [{"value": b"v", "partition": 0}] * 10)
    partition = TopicPartition(name, 0, 4)
    assert admin.delete_records([partition])[partition].result(10).low_watermark == 4
    admin.delete_topics([name])[name].result(10)
    assert name not in admin.list_topics(timeout=10).topics


def test_auto_created_topic(fastq_servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    produce(fastq_servers, name, [{"value": b"made on the way"}])
    assert [message.value() for message in consume(fastq_servers, name, 1)] == [b"made on the way"]
