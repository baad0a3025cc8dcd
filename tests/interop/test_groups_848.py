"""The consumer protocol (KIP-848) of librdkafka against our broker, alone and in one group with the classic protocol."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from fastq.testing import Broker

PATIENCE_S = 60
COUNT = 400
PARTITIONS = 4


@pytest.fixture
def topic(quick_broker: Broker, make_topic: Callable[..., str]) -> str:
    """A topic with numbered records."""
    name = make_topic(quick_broker.bootstrap_servers, PARTITIONS)
    producer = Producer({"bootstrap.servers": quick_broker.bootstrap_servers})
    for number in range(COUNT):
        producer.produce(name, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return name


class Member:
    """A consumer, and what it has seen. `forgives` are the codes of errors that the test brings about itself."""

    def __init__(self, broker: Broker, topic: str, protocol: str = "consumer", **config: object) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"group-of-{topic.strip('^$.*')}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
        if protocol == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
            }
        self.values: list[int] = []
        self.lost: list[TopicPartition] = []
        self.forgives: set[int] = set()
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_lost=lambda _, partitions: self.lost.extend(partitions))

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None:
            if message.error():
                if message.error().code() in self.forgives:
                    return
                raise KafkaException(message.error())
            self.values.append(int(message.value()))

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.partition for partition in self.consumer.assignment())


def until(members: list[Member], condition: Callable[[], bool]) -> None:
    """Poll all until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [member.partitions for member in members]
        for member in members:
            member.poll()


def shared(members: list[Member]) -> bool:
    """Whether all partitions are dealt out evenly."""
    everything = [partition for member in members for partition in member.partitions]
    sizes = [len(member.partitions) for member in members]
    return sorted(everything) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1


def close(*members: Member) -> None:
    for member in members:
        member.consumer.close()


def test_members_share_rebalance_commit_and_leave(quick_broker: Broker, topic: str) -> None:
    first = Member(quick_broker, topic)
    until([first], lambda: len(first.values) == COUNT)
    committed = first.consumer.commit(asynchronous=False)
    assert {partition.offset for partition in committed} == {COUNT // PARTITIONS}
    second = Member(quick_broker, topic)
    until([first, second], lambda: shared([first, second]))
    assert not second.values  # it went on where the first one had committed
    group_id = f"group-of-{topic}"
    admin = AdminClient({"bootstrap.servers": quick_broker.bootstrap_servers})
    described = admin.describe_consumer_groups([group_id])[group_id].result()
    assert described.state is ConsumerGroupState.STABLE
    assert described.partition_assignor == "uniform"
    assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [2, 2]
    assert all(member.host == "/127.0.0.1" for member in described.members)
    first.consumer.commit(asynchronous=False, offsets=[TopicPartition(topic, first.partitions[0], 7)])
    close(first)
    until([second], lambda: shared([second]))
    found = second.consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
    assert sorted(partition.offset for partition in found) == [7, 100, 100, 100]
    assert not first.lost
    assert not second.lost
    close(second)


def test_a_static_member_comes_back_to_its_partitions(quick_broker: Broker, topic: str) -> None:
    first = Member(quick_broker, topic, **{"group.instance.id": "one"})
    second = Member(quick_broker, topic, **{"group.instance.id": "two"})
    until([first, second], lambda: shared([first, second]))
    before = second.partitions
    close(second)
    until([first], lambda: len(first.values) >= COUNT // 2)
    assert len(first.partitions) == 2
    again = Member(quick_broker, topic, **{"group.instance.id": "two"})
    until([first, again], lambda: shared([first, again]))
    assert again.partitions == before
    close(first, again)


def test_patterns_are_resolved_by_the_broker(quick_broker: Broker, topic: str) -> None:
    member = Member(quick_broker, f"^{topic}.*")
    until([member], lambda: len(member.values) == COUNT)
    close(member)
    wrong = Member(quick_broker, r"^(a)\1")  # a back-reference: no part of RE2
    with pytest.raises(KafkaException, match="regular expression is not valid"):
        until([wrong], lambda: False)
    close(wrong)


def test_new_partitions_and_new_topics_reach_a_group(quick_broker: Broker, topic: str) -> None:
    member = Member(quick_broker, topic)
    until([member], lambda: shared([member]))
    admin = AdminClient({"bootstrap.servers": quick_broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result()
    until([member], lambda: len(member.partitions) == PARTITIONS + 2)
    reader = Member(quick_broker, "^new-.*", **{"group.id": f"pattern-of-{topic}"})
    reader.poll()
    admin.create_topics([NewTopic(f"new-{topic}", 3)])[f"new-{topic}"].result()
    until([reader], lambda: len(reader.partitions) == 3)
    # It may ask for offsets before it hears that the topic is gone.
    reader.forgives.add(KafkaError.UNKNOWN_TOPIC_OR_PART)
    admin.delete_topics([f"new-{topic}"])[f"new-{topic}"].result()
    until([reader], lambda: not reader.partitions)
    close(member, reader)


def test_range_is_there_for_who_asks(quick_broker: Broker, topic: str) -> None:
    members = [Member(quick_broker, topic, **{"group.remote.assignor": "range"}) for _ in range(2)]
    until(members, lambda: shared(members))
    assert sorted(member.partitions for member in members) == [[0, 1], [2, 3]]
    close(*members)


@pytest.mark.parametrize("classic", ["range", "cooperative-sticky"])
def test_a_live_group_is_upgraded_and_downgraded(quick_broker: Broker, topic: str, classic: str) -> None:
    old = Member(quick_broker, topic, classic)
    until([old], lambda: len(old.values) == COUNT)
    old.consumer.commit(asynchronous=False)
    new = Member(quick_broker, topic)
    until([old, new], lambda: shared([old, new]))
    old.consumer.commit(asynchronous=False, offsets=[TopicPartition(topic, old.partitions[0], 50)])
    new.consumer.commit(asynchronous=False, offsets=[TopicPartition(topic, new.partitions[0], 60)])
    last = Member(quick_broker, topic, classic)
    until([old, new, last], lambda: shared([old, new, last]))
    close(new)
    until([old, last], lambda: shared([old, last]))
    assert old.lost == new.lost == last.lost == []
    found = old.consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
    assert sorted(partition.offset for partition in found) == [50, 60, 100, 100]
    close(old)
    only_new = Member(quick_broker, topic)
    until([last, only_new], lambda: shared([last, only_new]))
    close(last)
    until([only_new], lambda: shared([only_new]))
    close(only_new)


def test_a_group_survives_a_restart_of_the_broker(topic: str, quick_broker: Broker) -> None:
    member = Member(quick_broker, topic)
    until([member], lambda: len(member.values) == COUNT)
    member.consumer.commit(asynchronous=False)
    quick_broker.restart()
    second = Member(quick_broker, topic)
    until([member, second], lambda: shared([member, second]))
    assert len(member.values) == COUNT
    assert not second.values
    close(member, second)
