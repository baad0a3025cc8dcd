"""The consumer as a member of groups, against each kind of broker: ours, and Apache Kafka under `make interop-kafka`.

Rules: the classic protocol, unless a test says otherwise; every test has a group of its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from group_members import commits
from under_test import broker_under_test
from waiting import until

from fastq import Admin, AsyncConsumer, Consumer, Producer, Record, TopicPartition
from fastq.consumer import OffsetAndMetadata, RebalanceListener
from fastq.errors import (
    ConfigError,
    FastqError,
    FencedInstanceId,
    IllegalGeneration,
    NotAssigned,
    UnknownMemberId,
)
from fastq.testing import Broker

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def fastq_servers(quick_broker: Broker) -> str:
    return quick_broker.bootstrap_servers


@pytest.fixture
def options(servers: str, new_topic_name: Callable[[], str]) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "group_id": f"group-of-{new_topic_name()}",
        "group_protocol": "classic",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 30_000,
        "heartbeat_interval_ms": 200,
    }


@pytest.fixture
def topic(servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of four partitions with a hundred records in each."""
    name = make_topic(servers, partitions=4)
    fill(servers, name)
    return name


def fill(servers: str, topic: str, partitions: int = 4, count: int = 100) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for partition in range(partitions):
            producer.send_many(topic, [b"%d" % i for i in range(count)], partition=partition)
        producer.flush()


def read(consumer: Consumer, count: int) -> list[Record]:
    """So many records, by polling."""
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += consumer.poll(max_records=count - len(found), timeout=0.2)
    return found


def offsets(consumer: Consumer, topic: str) -> list[int | None]:
    found = consumer.committed([(topic, i) for i in range(4)])
    return [place.offset if place is not None else None for place in found.values()]


def committed_by(options: dict[str, Any], topic: str) -> list[int | None]:
    """What somebody who is not in the group sees."""
    with Consumer(**options) as outsider:
        return offsets(outsider, topic)


def test_a_group_of_one_goes_on_where_it_stopped(options: dict[str, Any], topic: str) -> None:
    with Consumer(topic, **options) as consumer:
        first = read(consumer, 250)
        assert sorted(consumer.assignment()) == [TopicPartition(topic, i) for i in range(4)]
        who = consumer.group_metadata()
        assert (who.group_id, who.generation_id) == (options["group_id"], 1) and who.member_id
        consumer.poll(max_records=1, timeout=0)  # whoever asks for more is done with what it had
    with Consumer(topic, **options) as consumer:
        second = read(consumer, 150)
    seen = [(record.partition, record.offset) for record in first + second]
    assert sorted(seen) == [(p, o) for p in range(4) for o in range(100)]


def test_iteration_finishes_a_record_when_the_next_is_asked_for(options: dict[str, Any], topic: str) -> None:
    with Consumer(**options) as consumer:
        consumer.assign([(topic, 0)])
        records = iter(consumer)
        for _ in range(7):
            next(records)
    assert committed_by(options, topic) == [6, None, None, None]
    with pytest.raises(RuntimeError, match="the handler"), Consumer(**options) as consumer:
        consumer.assign([(topic, 0)])
        for record in consumer:
            if record.offset == 10:
                raise RuntimeError("the handler")
    assert committed_by(options, topic) == [10, None, None, None]


def test_auto_commit_of_a_slow_handler_stops_before_the_record_in_hand(options: dict[str, Any], topic: str) -> None:
    with Consumer(topic, auto_commit_interval_ms=100, **options) as consumer:
        records = iter(consumer)
        for _ in range(5):
            record = next(records)
        with Consumer(**options) as outsider:
            deadline = time.monotonic() + WAIT_S
            while offsets(outsider, topic)[record.partition] != record.offset:
                assert time.monotonic() < deadline  # by the thread of heartbeats, while this one is busy
                time.sleep(0.05)


def test_commits_of_every_form(options: dict[str, Any], topic: str) -> None:
    with Consumer(topic, enable_auto_commit=False, **options) as consumer:
        record = read(consumer, 3)[-1]
        consumer.commit(record)
        assert offsets(consumer, topic)[record.partition] == record.offset + 1
        consumer.commit({(topic, 0): 7, TopicPartition(topic, 1): OffsetAndMetadata(8, "note", 0)})
        assert consumer.committed([(topic, 1)]) == {TopicPartition(topic, 1): OffsetAndMetadata(8, "note", 0)}
        consumer.commit(read(consumer, 20))
        consumer.commit()
        assert offsets(consumer, topic) == [consumer.position((topic, partition)) for partition in range(4)]
        batch = consumer.poll_batch(timeout=WAIT_S)
        consumer.commit(batch)
        ends = {TopicPartition(*tp): end for tp, end in batch.next_offsets.items()}
        assert ends and {tp: place.offset for tp, place in consumer.committed(ends).items() if place} == ends
        told: list[Any] = []
        consumer.commit_async({(topic, 2): 50}, lambda offsets, error: told.append((offsets, error)))
        consumer.commit_async({(topic, 2): 60})
        deadline = time.monotonic() + WAIT_S
        while not told or offsets(consumer, topic)[2] != 60:
            assert time.monotonic() < deadline
            consumer.poll(max_records=1, timeout=0.05)
        assert told == [({TopicPartition(topic, 2): OffsetAndMetadata(50)}, None)]


def test_bad_commits_say_what_is_wrong(options: dict[str, Any], topic: str) -> None:
    with Consumer(topic, enable_auto_commit=False, **options) as consumer:
        read(consumer, 1)
        with pytest.raises(NotAssigned, match=r"the partition is not assigned.*group group-of") as caught:
            consumer.commit({("elsewhere", 3): 5})
        assert (caught.value.topic, caught.value.partition) == ("elsewhere", 3)
        with pytest.raises(
            FastqError, match=r"OFFSET_METADATA_TOO_LARGE.*group group-of.*member .*offset\.metadata\.max"
        ):
            consumer.commit({(topic, 0): OffsetAndMetadata(1, "x" * 5000)})
        with pytest.raises(ValueError, match="an offset to commit"):
            consumer.commit({(topic, 0): -1})
        with pytest.raises(TypeError, match="commit takes records"):
            consumer.commit(["text"])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="decides what is read"):
            consumer.assign([(topic, 0)])
    without = {key: value for key, value in options.items() if "group" not in key}
    with Consumer(topic, **without) as consumer, pytest.raises(ConfigError, match="needs a group_id"):
        consumer.commit()


class Log(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", [tp.partition for tp in partitions]))

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", [tp.partition for tp in partitions]))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", [tp.partition for tp in partitions]))


class Member(threading.Thread):
    """A consumer in a thread of its own that polls until it is told to stop."""

    def __init__(self, topic: str, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(**options)
        self.log = Log()
        self.consumer.subscribe(topic, listener=self.log)
        self.seen: list[tuple[int, int]] = []
        self.failed: BaseException | None = None
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with self.consumer:
                while not self.stopping.is_set() or not commits(self.consumer):
                    self.seen += [(r.partition, r.offset) for r in self.consumer.poll(timeout=0.1)]
        except BaseException as error:
            self.failed = error

    def stop(self) -> None:
        self.stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive() and self.failed is None, self.failed


def held(members: list[Member]) -> list[int]:
    return sorted(len(member.consumer.assignment()) for member in members)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_and_go_and_every_record_is_read_once(options: dict[str, Any], topic: str, strategy: str) -> None:
    options["partition_assignment_strategy"] = strategy
    members = [Member(topic, options)]
    until(lambda: held(members) == [4])
    members.append(Member(topic, options))
    until(lambda: held(members) == [2, 2])
    fill(options["bootstrap_servers"], topic)
    members.append(Member(topic, options))
    until(lambda: held(members) == [1, 1, 2])
    first = members.pop(0)
    first.stop()
    until(lambda: held(members) == [2, 2])
    fill(options["bootstrap_servers"], topic)
    everything = [(p, o) for p in range(4) for o in range(300)]
    until(lambda: len(first.seen) + sum(len(member.seen) for member in members) >= len(everything))
    for member in members:
        member.stop()
    assert sorted(first.seen + [place for member in members for place in member.seen]) == everything
    kept = ("revoked", [0, 1, 2, 3]) not in first.log.events
    assert kept == (strategy == "cooperative-sticky")
    assert first.log.events[0] == ("assigned", [0, 1, 2, 3])


def test_a_strategy_of_ones_own(options: dict[str, Any], topic: str) -> None:
    from fastq.consumer import Assignor, GroupTopics, MemberSubscription

    class Youngest(Assignor):
        name = "all-to-the-last"

        def assign(self, topics: GroupTopics, members: dict[str, MemberSubscription]) -> Any:  # type: ignore[override]
            return {max(members): topics.partitions(topics.counts)}

    with Consumer(topic, partition_assignment_strategy=[Youngest], **options) as consumer:
        assert len(read(consumer, 400)) == 400


def test_a_pattern_follows_the_topics(options: dict[str, Any], servers: str, new_topic_name: Callable[[], str]) -> None:
    stem = new_topic_name()
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(f"{stem}-a", partitions=1, replication_factor=1)
        fill(servers, f"{stem}-a", 1, 3)
        with Consumer(re.compile(f"{stem}-[ab]"), metadata_max_age_ms=300, **options) as consumer:
            assert len(read(consumer, 3)) == 3
            assert consumer.subscription() == [f"{stem}-a"]
            admin.create_topic(f"{stem}-b", partitions=1, replication_factor=1)
            admin.create_topic(f"{stem}-c", partitions=1, replication_factor=1)
            fill(servers, f"{stem}-b", 1, 2)
            assert {record.topic for record in read(consumer, 2)} == {f"{stem}-b"}
            assert consumer.subscription() == [f"{stem}-a", f"{stem}-b"]


def test_new_partitions_are_divided_too(options: dict[str, Any], servers: str, topic: str) -> None:
    with Consumer(topic, metadata_max_age_ms=300, **options) as consumer, Admin(bootstrap_servers=servers) as admin:
        read(consumer, 400)
        admin.create_partitions({topic: 6})
        deadline = time.monotonic() + WAIT_S
        while len(consumer.assignment()) < 6:
            assert time.monotonic() < deadline
            consumer.poll(timeout=0.1)


def test_a_static_member_comes_back_without_a_rebalance(options: dict[str, Any], topic: str) -> None:
    options["group_instance_id"] = "one"
    with Consumer(topic, **options) as consumer:
        read(consumer, 400)
        first = consumer.group_metadata()
    with Consumer(topic, **options) as consumer:
        consumer.poll(max_records=1, timeout=1.0)
        until(lambda: consumer.poll(max_records=1, timeout=0.1) or consumer.assignment())
        second = consumer.group_metadata()
        assert second.generation_id == first.generation_id and second.member_id != first.member_id


def test_an_instance_id_used_twice_fences_the_first(options: dict[str, Any], topic: str) -> None:
    options["group_instance_id"] = "one"
    with Consumer(topic, **options) as first, Consumer(topic, **options) as second:
        read(first, 10)
        second.poll(max_records=1, timeout=2.0)
        read(first, 390)
        with pytest.raises(FencedInstanceId, match=r"group group-of.*its own group_instance_id"):
            first.poll(timeout=WAIT_S)
        with pytest.raises(FencedInstanceId):  # it stays of no use
            first.poll(timeout=WAIT_S)


def test_a_member_that_was_removed_joins_again(options: dict[str, Any], servers: str, topic: str) -> None:
    log = Log()
    with Consumer(enable_auto_commit=False, **options) as consumer, Admin(bootstrap_servers=servers) as admin:
        consumer.subscribe([topic], listener=log)
        read(consumer, 5)
        first = consumer.group_metadata()
        admin.remove_members(options["group_id"], member_ids=[first.member_id])
        with pytest.raises((UnknownMemberId, IllegalGeneration), match=r"joins again by itself|another rebalance"):
            consumer.commit({(topic, 0): 1})
        read(consumer, 5)
        assert consumer.group_metadata().member_id != first.member_id
        assert log.events[:3] == [("assigned", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]


def test_heartbeats_go_on_while_the_handler_is_busy(options: dict[str, Any], topic: str) -> None:
    options |= {"session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}
    with Consumer(topic, **options) as consumer:
        read(consumer, 1)
        before = consumer.group_metadata()
        time.sleep(8)
        consumer.commit()
        assert consumer.group_metadata() == before


def test_a_listener_may_commit_and_seek_but_not_poll(options: dict[str, Any], topic: str) -> None:
    problems: list[BaseException] = []
    with Consumer(enable_auto_commit=False, **options) as consumer:

        def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            for tp in partitions:
                consumer.seek(tp, 90)
            try:
                consumer.poll(timeout=0)
            except RuntimeError as error:
                problems.append(error)

        consumer.subscribe(topic, on_assigned=on_assigned, on_revoked=lambda partitions: consumer.commit())
        assert {record.offset for record in read(consumer, 40)} == set(range(90, 100))
        assert "not ask for records" in str(problems[0])
        consumer.unsubscribe()
        assert consumer.assignment() == [] and offsets(consumer, topic) == [100] * 4


def test_what_a_listener_raises_comes_out_of_the_call(options: dict[str, Any], topic: str) -> None:
    with Consumer(**options) as consumer:
        consumer.subscribe(topic, on_assigned=lambda partitions: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(timeout=WAIT_S)
        consumer.subscribe(topic)
        assert len(read(consumer, 10)) == 10


def test_assigned_by_hand_with_a_group(options: dict[str, Any], topic: str) -> None:
    with Consumer(**options) as consumer:
        consumer.assign([(topic, 1)])
        consumer.commit({(topic, 1): 40})
        assert consumer.group_metadata().generation_id == -1
    with Consumer(**options) as consumer:
        consumer.assign([(topic, 1), (topic, 2)])
        firsts = {record.partition: record.offset for record in reversed(read(consumer, 160))}
        assert firsts == {1: 40, 2: 0}


def test_without_a_committed_offset_the_policy_decides(options: dict[str, Any], topic: str) -> None:
    options["auto_offset_reset"] = "none"
    with Consumer(topic, **options) as consumer, pytest.raises(FastqError, match="auto_offset_reset='none'"):
        consumer.poll(timeout=WAIT_S)


@pytest.mark.any_nodes
@pytest.mark.parametrize("protocol", ["classic", "auto"])
def test_a_member_lives_through_the_death_of_its_coordinator(new_topic_name: Callable[[], str], protocol: str) -> None:
    with broker_under_test(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        servers, topic = broker.bootstrap_servers, new_topic_name()
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, partitions=2)
        fill(servers, topic, 2, 50)
        options = {"bootstrap_servers": servers, "group_id": topic, "group_protocol": protocol}
        with Consumer(topic, auto_offset_reset="earliest", **options) as consumer:
            before = read(consumer, 100)
            consumer.commit()
            who = consumer.group_metadata()
            broker.kill()
            broker.start()
            fill(servers, topic, 2, 50)
            after = read(consumer, 100)
            consumer.commit()
            assert consumer.group_metadata().member_id == who.member_id
            assert [place and place.offset for place in consumer.committed(consumer.assignment()).values()] == [
                100,
                100,
            ]
        assert len({(record.partition, record.offset) for record in before + after}) == 200


def test_asyncio(options: dict[str, Any], topic: str) -> None:
    async def main() -> None:
        log: list[tuple[str, int]] = []

        async def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            await asyncio.sleep(0)
            log.append(("assigned", len(partitions)))

        async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            await consumer.commit()
            log.append(("revoked", len(partitions)))

        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with AsyncConsumer(enable_auto_commit=False, **options) as consumer:
            consumer.subscribe(topic, on_assigned=on_assigned, on_revoked=on_revoked)
            count = 0
            async for record in consumer:
                count += 1
                if count == 200:
                    await consumer.commit(record)
                    consumer.commit_async(record, lambda offsets, error: told.set_result(error))
                    assert await told is None
                elif count == 400:
                    break
            assert log == [("assigned", 4)]
            other = AsyncConsumer(topic, **options)
            async with other:
                while len(other.assignment()) != 2:
                    await asyncio.gather(consumer.poll(timeout=0.1), other.poll(timeout=0.1))
        assert ("revoked", 4) in log
        async with AsyncConsumer(**options) as outsider:
            places = await outsider.committed([(topic, i) for i in range(4)])
        assert [place.offset for place in places.values() if place] == [100] * 4

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("protocol", ["classic", "auto"])
def test_a_rolling_restart_loses_and_doubles_nothing(
    options: dict[str, Any], servers: str, make_topic: Callable[..., str], protocol: str
) -> None:
    """Each member is replaced by a new one while records come; those that stay go on with what stays theirs."""
    topic = make_topic(servers, partitions=8)
    options |= {"partition_assignment_strategy": "cooperative-sticky"} if protocol == "classic" else {}
    options["group_protocol"] = protocol
    members = [Member(topic, options) for _ in range(4)]
    until(lambda: held(members) == [2, 2, 2, 2])
    gone: list[Member] = []
    for _ in range(4):
        fill(servers, topic, 8, 20)
        member = members.pop(0)
        member.stop()
        gone.append(member)
        members.append(Member(topic, options))
        until(lambda: held(members) == [2, 2, 2, 2])
    fill(servers, topic, 8, 20)
    everything = [(partition, offset) for partition in range(8) for offset in range(100)]
    until(lambda: sum(len(member.seen) for member in gone + members) >= len(everything))
    for member in members:
        member.stop()
    assert sorted(place for member in gone + members for place in member.seen) == everything
