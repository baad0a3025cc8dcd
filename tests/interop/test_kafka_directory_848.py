"""Groups of the consumer protocol move with their data directory, from our broker to Apache Kafka and back."""

from __future__ import annotations

import time
from pathlib import Path

import apache_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, MemberDescription, NewTopic

from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOPIC = "moving-848"
GROUP = "group-848"
PATIENCE_S = 60


def add(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        producer.produce(TOPIC, str(number).encode(), partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0


def read_and_commit(servers: str, count: int) -> list[int]:
    """What a static member with a pattern gets, up to `count` records; its place stays when it goes."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "group.instance.id": "static",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["^moving-.*"])
    values: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline, values
        message: Message | None = consumer.poll(0.2)
        if message is not None and not message.error():
            values.append(int(message.value()))
        elif message is not None and message.error().code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(message.error())
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(values)


def described(servers: str) -> list[MemberDescription]:
    """The members of the group; a coordinator that has just started may need a moment."""
    admin = AdminClient({"bootstrap.servers": servers})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            members = admin.describe_consumer_groups([GROUP])[GROUP].result().members
            if members or time.monotonic() > deadline:
                return list(members)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def test_groups_move_with_their_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        for created in admin.create_topics([NewTopic(TOPIC, 2)]).values():
            created.result()
        add(servers, 20)
        assert read_and_commit(servers, 20) == list(range(20))
        (ours,) = described(servers)
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka:
        servers = kafka.bootstrap_servers
        (theirs,) = described(servers)
        assert (theirs.member_id, theirs.group_instance_id) == (ours.member_id, "static")
        assert theirs.assignment.topic_partitions == ours.assignment.topic_partitions
        assert len(theirs.assignment.topic_partitions) == 2
        add(servers, 30)
        assert read_and_commit(servers, 30) == list(range(30))
        (theirs,) = described(servers)
    with Broker(data_dir=data) as broker:
        servers = broker.bootstrap_servers
        (ours,) = described(servers)
        assert (ours.member_id, ours.group_instance_id) == (theirs.member_id, "static")
        assert ours.assignment.topic_partitions == theirs.assignment.topic_partitions
        add(servers, 10)
        assert read_and_commit(servers, 10) == list(range(10))
