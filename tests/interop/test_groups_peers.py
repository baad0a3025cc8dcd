"""Groups of other clients on our coordinator: they share partitions, take over, come back, and find what was committed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaConnectionError
from under_test import broker_under_test

from fastq import Producer

pytestmark = pytest.mark.any_nodes

PARTITIONS = 4
PATIENCE_S = 60.0


class Member(threading.Thread):
    """A consumer of one of the clients in a thread of its own, until `stop`.

    `partitions` is what it is assigned now, `assigned` counts how often it was told, `values` is what it has read.
    """

    def __init__(self, servers: str, topic: str, group_id: str, instance_id: str | None = None) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.topic = topic
        self.group_id = group_id
        self.instance_id = instance_id
        self.partitions: frozenset[int] = frozenset()
        self.assigned = 0
        self.values: list[bytes] = []
        self.failure: BaseException | None = None
        self.stopping = False
        # What kafka-python and aiokafka have the same names for.
        self.settings: dict[str, Any] = {
            "bootstrap_servers": servers,
            "group_id": group_id,
            "group_instance_id": instance_id,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 30_000,
        }
        self.start()

    def run(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            self.failure = error

    def consume(self) -> None:
        """Read and commit until `stopping`, then close (and leave, unless the member is static)."""
        raise NotImplementedError

    def note(self, partitions: Any) -> None:
        self.partitions = frozenset(partitions)
        self.assigned += 1

    def stop(self) -> None:
        self.stopping = True
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


class ConfluentMember(Member):
    def consume(self) -> None:
        config = {
            "bootstrap.servers": self.servers,
            "group.id": self.group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 30_000,
        }
        if self.instance_id is not None:
            config["group.instance.id"] = self.instance_id
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(
            [self.topic], on_assign=lambda _, partitions: self.note(item.partition for item in partitions)
        )
        while not self.stopping:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value())
                consumer.commit(message, asynchronous=False)
        consumer.close()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self.member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        """What counts is what comes next."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.member.note(item.partition for item in assigned)


class KafkaPythonMember(Member):
    def consume(self) -> None:
        consumer = KafkaConsumer(**self.settings)
        # One that leads before it knows its topic gives nobody anything, and may not look again.
        while not consumer.partitions_for_topic(self.topic) and not self.stopping:
            time.sleep(0.05)
        consumer.subscribe([self.topic], listener=_Listener(self))
        while not self.stopping:
            try:
                for records in consumer.poll(timeout_ms=2000).values():  # a rejoin gets no further than a call's time
                    self.values.extend(record.value for record in records)
                    consumer.commit()
            except KafkaConnectionError:  # a broker that is away is the caller's to wait for, now and then
                time.sleep(0.1)
        consumer.close(autocommit=False)


class _AsyncListener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self.member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """What counts is what comes next."""

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.member.note(item.partition for item in assigned)


class AioKafkaMember(Member):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(**self.settings)
        consumer.subscribe([self.topic], listener=_AsyncListener(self))
        await consumer.start()
        try:
            while not self.stopping:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.values.extend(record.value for record in records)
                    await consumer.commit()
        finally:
            await consumer.stop()


PEERS = [ConfluentMember, KafkaPythonMember, AioKafkaMember]
Peer = Callable[..., Member]


def eventually(what: Callable[[], bool], *members: Member) -> None:
    """Wait until something is so; a member that has failed says why at once."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        for member in members:
            if member.failure is not None:
                raise member.failure
        assert time.monotonic() < deadline, [(member.partitions, len(member.values)) for member in members]
        time.sleep(0.02)


def produce(servers: str, topic: str, numbers: range) -> list[bytes]:
    values = [b"%d" % number for number in numbers]
    with Producer(bootstrap_servers=servers) as producer:
        for number, value in zip(numbers, values, strict=True):
            producer.send(topic, value, partition=number % PARTITIONS)
    return values


@pytest.fixture(scope="module")
def group_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose groups do not wait for further members at first."""
    with broker_under_test(
        tmp_path_factory.mktemp("groups") / "data", {"group.initial.rebalance.delay.ms": 100}
    ) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("peer", PEERS)
def test_members_share_partitions_and_take_over(group_servers: str, make_topic: Callable[..., str], peer: Peer) -> None:
    topic = make_topic(group_servers, PARTITIONS)
    first = peer(group_servers, topic, topic)
    eventually(lambda: first.partitions == {0, 1, 2, 3}, first)
    second = peer(group_servers, topic, topic)
    eventually(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    assert first.partitions | second.partitions == {0, 1, 2, 3}
    values = produce(group_servers, topic, range(100))
    eventually(lambda: len(first.values) + len(second.values) == 100, first, second)
    assert sorted(first.values + second.values) == sorted(values)
    second.stop()
    eventually(lambda: first.partitions == {0, 1, 2, 3}, first)
    more = produce(group_servers, topic, range(100, 120))
    eventually(lambda: len(first.values) + len(second.values) == 120, first)
    assert set(more) <= set(first.values)
    first.stop()


@pytest.mark.parametrize("peer", PEERS)
def test_committed_offsets_survive_a_restart_of_the_broker(tmp_path: Path, make_topic: Any, peer: Peer) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with broker_under_test(tmp_path / "data", settings) as broker:
        topic = make_topic(broker.bootstrap_servers, PARTITIONS)
        member = peer(broker.bootstrap_servers, topic, "g")
        old = produce(broker.bootstrap_servers, topic, range(40))
        eventually(lambda: len(member.values) == 40, member)
        member.stop()
        assert sorted(member.values) == sorted(old)
    with broker_under_test(tmp_path / "data", settings) as broker:
        new = produce(broker.bootstrap_servers, topic, range(40, 60))
        member = peer(broker.bootstrap_servers, topic, "g")
        eventually(lambda: len(member.values) >= 20, member)
        member.stop()
        assert sorted(member.values) == sorted(new)


@pytest.mark.parametrize("peer", PEERS)
def test_a_group_goes_on_over_a_restart_of_the_broker(tmp_path: Path, make_topic: Any, peer: Peer) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with broker_under_test(tmp_path / "data", settings) as broker:
        topic = make_topic(broker.bootstrap_servers, PARTITIONS)
        member = peer(broker.bootstrap_servers, topic, "g")
        produce(broker.bootstrap_servers, topic, range(20))
        eventually(lambda: len(member.values) == 20, member)
        broker.stop()
        broker.start()
        produce(broker.bootstrap_servers, topic, range(20, 40))
        eventually(lambda: len(set(member.values)) == 40, member)
        member.stop()


@pytest.mark.parametrize("peer", PEERS)
def test_a_static_member_comes_back_without_a_rebalance(
    group_servers: str, make_topic: Callable[..., str], peer: Peer
) -> None:
    topic = make_topic(group_servers, PARTITIONS)
    steady = peer(group_servers, topic, topic, "steady")
    eventually(lambda: len(steady.partitions) == 4, steady)
    passing = peer(group_servers, topic, topic, "passing")
    eventually(lambda: len(steady.partitions) == len(passing.partitions) == 2, steady, passing)
    before = steady.assigned
    passing.stop()
    again = peer(group_servers, topic, topic, "passing")
    eventually(lambda: bool(again.partitions), again, steady)
    assert again.partitions == passing.partitions
    values = produce(group_servers, topic, range(20))
    eventually(lambda: len(steady.values) + len(again.values) == 20, again, steady)
    assert sorted(steady.values + again.values) == sorted(values)
    assert steady.assigned == before
    steady.stop()
    again.stop()


def test_clients_of_three_kinds_in_one_group(group_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(group_servers, PARTITIONS)
    members = [peer(group_servers, topic, topic) for peer in PEERS]

    def shared() -> bool:
        return sorted(number for member in members for number in member.partitions) == [0, 1, 2, 3] and all(
            member.partitions for member in members
        )

    eventually(shared, *members)
    values = produce(group_servers, topic, range(60))
    eventually(lambda: sum(len(member.values) for member in members) == 60, *members)
    assert sorted(value for member in members for value in member.values) == sorted(values)
    for member in members:
        member.stop()


def test_tools_see_the_group(group_servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(group_servers, PARTITIONS)
    member = ConfluentMember(group_servers, topic, topic)
    produce(group_servers, topic, range(8))
    eventually(lambda: len(member.values) == 8, member)
    admin = AdminClient({"bootstrap.servers": group_servers})
    described = admin.describe_consumer_groups([topic])[topic].result()
    assert described.state.name == "STABLE"
    assert [item.partition for m in described.members for item in m.assignment.topic_partitions] == [0, 1, 2, 3]
    listed = admin.list_consumer_groups(states={described.state}).result()
    assert topic in {item.group_id for item in listed.valid}
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(topic)
    found = admin.list_consumer_group_offsets([wanted])[topic].result()
    assert {item.partition: item.offset for item in found.topic_partitions} == dict.fromkeys(range(4), 2)
    member.stop()
    reset = [confluent_kafka.TopicPartition(topic, 0, 1)]
    altered = admin.alter_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(topic, reset)])
    assert altered[topic].result().topic_partitions[0].error is None
    admin.delete_consumer_groups([topic])[topic].result()
    listed = admin.list_consumer_groups().result()
    assert topic not in {item.group_id for item in listed.valid}
