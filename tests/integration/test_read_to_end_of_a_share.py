"""`read_to_end` of a member of a group: of its share, which may be nothing, and which may come only when others have let go of it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test
from waiting import until

from fastq import Admin, AsyncConsumer, Consumer, Producer
from fastq.cli import main as fastq_command
from fastq.errors import UnknownTopicOrPartition
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

PROTOCOLS = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "sticky"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    with broker_under_test(config=QUICK, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, new_topic_name: Callable[[], str]) -> str:
    """With five records in each of two partitions."""
    name = new_topic_name()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(name, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for index in (0, 1):
            producer.send_many(name, [b"%d" % number for number in range(5)], partition=index)
    return name


def options(broker: Broker, topic: str, protocol: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": topic,
        "heartbeat_interval_ms": 300,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **PROTOCOLS[protocol],
        **more,
    }


class Others:
    """So many members that are polled, and read nothing."""

    def __init__(self, broker: Broker, topic: str, protocol: str, count: int) -> None:
        self.over, self.shares = False, [0] * count
        self.made = (topic, options(broker, topic, protocol, max_poll_records=1))
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def _run(self, number: int) -> None:
        topic, given = self.made
        with Consumer(topic, **given) as consumer:
            while not self.over:
                consumer.poll(timeout=0.05)
                self.shares[number] = len(consumer.assignment())

    def __enter__(self) -> Others:
        for thread in self.threads:
            thread.start()
        until(lambda: sum(self.shares) == 2 and all(self.shares))
        return self

    def __exit__(self, *error: object) -> None:
        self.over = True
        for thread in self.threads:
            thread.join()


async def read_by_asyncio(topic: Any, by_batches: bool = False, **given: Any) -> list[Any]:
    async with AsyncConsumer(topic, **given) as consumer:
        if by_batches:
            return [record async for batch in await consumer.read_batches_to_end() for record in batch]
        return [record async for record in await consumer.read_to_end()]


def read(face: str, topic: Any, **given: Any) -> list[Any]:
    if face.startswith("asyncio"):
        return asyncio.run(asyncio.wait_for(read_by_asyncio(topic, face.endswith("batches"), **given), 45))
    with Consumer(topic, **given) as consumer:
        if face.endswith("batches"):
            return [record for batch in consumer.read_batches_to_end() for record in batch]
        return list(consumer.read_to_end())


FACES = ("blocking", "asyncio", "blocking batches", "asyncio batches")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("face", FACES)
def test_a_share_of_nothing_has_been_read(broker: Broker, topic: str, face: str, protocol: str) -> None:
    with Others(broker, topic, protocol, 2):
        assert read(face, topic, **options(broker, topic, protocol, default_api_timeout_ms=20_000)) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("face", FACES[:2])
def test_a_share_that_others_have_to_give_up_first_is_waited_for(
    broker: Broker, topic: str, face: str, protocol: str
) -> None:
    with Others(broker, topic, protocol, 1):
        found = read(face, topic, **options(broker, topic, protocol, default_api_timeout_ms=20_000))
    assert len(found) == 5


def test_the_command_ends_too(broker: Broker, topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["consume", topic, "--bootstrap", broker.bootstrap_servers, "--group", topic, "--exit-at-end"]
    with Others(broker, topic, "consumer", 2):
        assert fastq_command(arguments) == 0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("face", FACES[:2])
def test_topics_by_a_pattern_are_found_first(broker: Broker, topic: str, face: str, protocol: str) -> None:
    """Nothing was waited for, and nothing read."""
    assert len(read(face, re.compile(re.escape(topic)), **options(broker, topic, protocol))) == 10
    assert read(face, re.compile("no-such-topic-.*"), **options(broker, f"{topic}-other", protocol)) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_topic_that_is_not_there_is_no_share_of_nothing(broker: Broker, topic: str, protocol: str) -> None:
    given = options(broker, topic, protocol, allow_auto_create_topics=False)
    with pytest.raises(UnknownTopicOrPartition, match="misspelt"):
        read("blocking", "misspelt", **given)


@pytest.mark.parametrize("face", FACES[:2])
def test_who_is_stopped_while_it_joins_ends(broker: Broker, topic: str, face: str) -> None:
    """Another member does not take part in the rebalance."""
    given = options(broker, topic, "eager")
    with Consumer(topic, **given) as other:
        until(lambda: other.poll(timeout=0.5))
        if face == "blocking":
            with Consumer(topic, **given) as consumer:
                timer = threading.Timer(0.7, consumer.stop)
                timer.start()
                assert list(consumer.read_to_end()) == []
                assert list(consumer.read_batches_to_end()) == []
                timer.join()
            return

        async def main() -> None:
            async with AsyncConsumer(topic, **given) as consumer:
                asyncio.get_running_loop().call_later(0.7, consumer.stop)
                assert [record async for record in await consumer.read_to_end()] == []
                assert [batch async for batch in await consumer.read_batches_to_end()] == []

        asyncio.run(asyncio.wait_for(main(), 45))
