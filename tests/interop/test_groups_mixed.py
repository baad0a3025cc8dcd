"""One group, members of several clients: ours with librdkafka's and kafka-python's, against each kind of broker.

Rules: every member polls in a thread of its own and keeps what it was given; each record is read by exactly one of them, as all
commit what they have read when they are done.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import pytest

from fastq import Consumer, Producer
from fastq.errors import RebalanceInProgress
from fastq.testing import Broker

PARTITIONS, RECORDS, WAIT_S = 6, 50, 60.0
SESSION_MS, HEARTBEAT_MS = 30_000, 300


@pytest.fixture(scope="module")
def fastq_servers(quick_broker: Broker) -> str:
    return quick_broker.bootstrap_servers


class Member(threading.Thread):
    """A consumer that polls until it is told to stop; `open`, `poll`, `assigned` and `close` are the client's."""

    def __init__(self, servers: str, group: str, topic: str, strategy: str) -> None:
        super().__init__(daemon=True)
        self.servers, self.group, self.topic, self.strategy = servers, group, topic, strategy
        self.seen: list[tuple[int, int]] = []
        self.assigned = 0
        self.failed: BaseException | None = None
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.open()
            while not self.stopping.is_set():
                self.seen += self.poll()
                self.assigned = self.count()
            self.close()
        except BaseException as error:
            self.failed = error

    def stop(self) -> None:
        self.stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive() and self.failed is None, self.failed

    def open(self) -> None: ...
    def poll(self) -> list[tuple[int, int]]: ...  # type: ignore[empty-body]
    def count(self) -> int: ...  # type: ignore[empty-body]
    def close(self) -> None: ...


class Ours(Member):
    def open(self) -> None:
        self.consumer = Consumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.group,
            group_protocol="classic",
            partition_assignment_strategy=self.strategy,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def poll(self) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in self.consumer.poll(timeout=0.1)]

    def count(self) -> int:
        return len(self.consumer.assignment())

    def close(self) -> None:
        with contextlib.suppress(RebalanceInProgress):  # the others leave too: what was handed out is nobody's any more
            self.consumer.commit()
        self.consumer.close()


class Librdkafka(Member):
    def open(self) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group,
                "partition.assignment.strategy": self.strategy,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        self.consumer.subscribe([self.topic])

    def poll(self) -> list[tuple[int, int]]:
        messages = self.consumer.consume(100, 0.1)
        assert not [message.error() for message in messages if message.error()]
        return [(message.partition(), message.offset()) for message in messages]

    def count(self) -> int:
        return len(self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


class KafkaPython(Member):
    def open(self) -> None:
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        strategies: dict[str, Any] = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.servers,
            group_id=self.group,
            partition_assignment_strategy=[strategies[self.strategy]],
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        # One that leads before it knows its topic gives nobody anything, and may not look again.
        while not self.consumer.partitions_for_topic(self.topic) and not self.stopping.is_set():
            time.sleep(0.05)
        self.consumer.subscribe([self.topic])

    def poll(self) -> list[tuple[int, int]]:
        found = self.consumer.poll(timeout_ms=500)  # a rejoin gets no further than a call's time
        return [(record.partition, record.offset) for records in found.values() for record in records]

    def count(self) -> int:
        return len(self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


def until(holds: Callable[[], object], members: list[Member]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        failed = [member.failed for member in members if member.failed is not None]
        assert not failed and time.monotonic() < deadline, (failed, [(type(m).__name__, m.assigned) for m in members])
        time.sleep(0.02)


def shares(members: list[Member]) -> list[int]:
    return sorted(member.assigned for member in members)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("other", [Librdkafka, KafkaPython])
@pytest.mark.parametrize("ours_leads", [True, False])
def test_ours_and_theirs_in_one_group(
    servers: str, make_topic: Callable[..., str], strategy: str, other: type[Member], ours_leads: bool
) -> None:
    topic = make_topic(servers, partitions=PARTITIONS)

    def fill() -> None:
        with Producer(bootstrap_servers=servers) as producer:
            for partition in range(PARTITIONS):
                producer.send_many(topic, [b"x"] * RECORDS, partition=partition)
            producer.flush()

    def make(kind: type[Member]) -> Member:
        return kind(servers, f"mixed-{topic}", topic, strategy)

    kinds = [Ours, other] if ours_leads else [other, Ours]
    members = [make(kinds[0])]
    until(lambda: shares(members) == [6], members)
    members.append(make(kinds[1]))
    until(lambda: shares(members) == [3, 3], members)
    fill()
    members.append(make(Ours))
    until(lambda: shares(members) == [2, 2, 2], members)
    fill()
    leader = members.pop(0)
    leader.stop()
    until(lambda: shares(members) == [3, 3], members)
    everything = [(partition, offset) for partition in range(PARTITIONS) for offset in range(2 * RECORDS)]
    until(lambda: len(leader.seen) + sum(len(member.seen) for member in members) >= len(everything), members)
    for member in members:
        member.stop()
    assert sorted(leader.seen + [place for member in members for place in member.seen]) == everything
