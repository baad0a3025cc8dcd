"""Our consumer under the consumer protocol (KIP-848), against each kind of broker, alone and in one group with librdkafka's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from waiting import until

from fastq import Consumer, Producer, TopicPartition
from fastq.consumer import RebalanceListener

WAIT_S = 60.0
COUNT = 200


@pytest.fixture
def topic(servers: str, make_topic: Callable[..., str]) -> str:
    """Four partitions with COUNT records."""
    name = make_topic(servers, partitions=4)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, partition=number % 4)
    return name


@pytest.fixture
def options(servers: str, topic: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "group_id": f"group-{topic}",
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
    }


class Steps(RebalanceListener):
    """Notes what came and went."""

    def __init__(self) -> None:
        self.had: set[TopicPartition] = set()
        self.went: list[TopicPartition] = []

    def on_assigned(self, partitions: Any) -> None:
        assert not self.had & set(partitions)
        self.had |= set(partitions)

    def on_revoked(self, partitions: Any) -> None:
        assert set(partitions) <= self.had
        self.had -= set(partitions)
        self.went += partitions


def test_incremental_rebalances_read_everything_once(options: dict[str, Any], topic: str) -> None:
    steps = Steps()
    with Consumer(**options) as first:
        first.subscribe([topic], listener=steps)
        got = [record.value for record in first.poll(timeout=WAIT_S)]
        until(lambda: got.extend(record.value for record in first.poll(timeout=0.1)) or len(got) == COUNT)
        assert len(steps.had) == 4
        with Consumer(topic, **options) as second:

            def balanced() -> bool:
                got.extend(record.value for record in [*first.poll(timeout=0.1), *second.poll(timeout=0.1)])
                return len(first.assignment()) == len(second.assignment()) == 2

            until(balanced)
            # The other one has been told of its partitions before this one of the epoch, perhaps.
            until(
                lambda: (
                    got.extend(record.value for record in first.poll(timeout=0.1))
                    or first.group_metadata().generation_id > 1
                )
            )
            # What stayed was not taken away meanwhile.
            assert len(steps.went) == 2
            assert set(first.assignment()) == steps.had
        until(lambda: first.poll(timeout=0.1) or len(first.assignment()) == 4)
    assert sorted(map(int, got)) == list(range(COUNT))


def test_a_group_with_librdkafkas_consumer(options: dict[str, Any], topic: str) -> None:
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": options["bootstrap_servers"],
            "group.id": options["group_id"],
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    theirs.subscribe([topic])
    try:
        with Consumer(topic, **options) as ours:

            def shared() -> bool:
                theirs.poll(0.1)
                ours.poll(timeout=0.1)
                return len(theirs.assignment()) == len(ours.assignment()) == 2

            until(shared)
            both = {(tp.topic, tp.partition) for tp in theirs.assignment()} | set(ours.assignment())
            assert both == {(topic, index) for index in range(4)}
    finally:
        theirs.close()


def test_a_static_member_restarts_without_a_rebalance(options: dict[str, Any], topic: str) -> None:
    options = {**options, "group_instance_id": "one"}
    with Consumer(topic, **options) as consumer:
        until(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 4)
        until(lambda: consumer.poll(timeout=0.1) or consumer._group.membership.is_stable)  # type: ignore[union-attr]
        before = consumer.group_metadata()
    with Consumer(topic, **options) as consumer:
        until(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 4)
        after = consumer.group_metadata()
    assert (after.generation_id, after.group_instance_id) == (before.generation_id, "one")
    assert after.member_id != before.member_id


def test_patterns_are_matched_by_the_coordinator(options: dict[str, Any], topic: str) -> None:
    with Consumer(re.compile(topic[:-1]), **options) as consumer:
        until(lambda: consumer.poll(timeout=0.1))
        assert {tp.topic for tp in consumer.assignment()} == {topic}
    # What RE2 does not know is matched here.
    with Consumer(re.compile(f"(?={topic})."), **{**options, "group_id": f"{topic}-look"}) as consumer:
        until(lambda: consumer.poll(timeout=0.1))
        assert {tp.topic for tp in consumer.assignment()} == {topic}


def test_a_handler_that_takes_long_keeps_its_place(options: dict[str, Any], topic: str) -> None:
    with Consumer(topic, max_poll_interval_ms=60_000, **options) as consumer:
        until(lambda: consumer.poll(timeout=0.1))
        until(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 4)
        before = consumer.group_metadata()
        time.sleep(6)  # more than one interval of the coordinator's
        consumer.commit()
        assert consumer.group_metadata() == before
