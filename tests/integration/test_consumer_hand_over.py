"""Consumers of a group that give partitions away, forget them, unsubscribe, or find another topic in the place of theirs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_lives import CONFIG, PROTOCOLS, filled, options
from under_test import broker_under_test

from fastq import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.errors import NotAssigned
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    """A broker that loses patience soon."""
    with broker_under_test(config=CONFIG, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    return filled(broker, make_topic)


def test_a_program_that_forgets_its_consumer_leaves_the_group(broker: Broker, topic: str) -> None:
    program = (
        "import sys\nfrom fastq import Consumer\nconsumer = Consumer(sys.argv[1], bootstrap_servers=sys.argv[2], "
        "group_id='group-' + sys.argv[1], auto_offset_reset='earliest')\nconsumer.poll(timeout=20)"
    )
    subprocess.run([sys.executable, "-c", program, topic, broker.bootstrap_servers], check=True, timeout=60)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        described = admin.describe_groups([f"group-{topic}"])
    assert not described[f"group-{topic}"].result().members


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_revocation_does_not_wait_for_the_end_of_a_chunk(broker: Broker, topic: str, protocol: str) -> None:
    """An iterator holds many records of a partition, and each is handled slowly: another member gets its share after the next record."""
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(2000):
            producer.send(topic, b"%d" % number, partition=number % 2)
    given = options(broker, topic, protocol)
    handled: list[tuple[int, int]] = []
    with Consumer(topic, **given) as slow:
        iterator = iter(slow)
        record = next(iterator)
        with Consumer(topic, **given) as other:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.extend(other.poll(timeout=60)))
            thread.start()
            while thread.is_alive() and len(handled) < 1000:
                handled.append((record.partition, record.offset))
                time.sleep(0.02)
                record = next(iterator)
            thread.join()
            assert found and len(handled) < 1000
            taken = found[0].partition
            # What was handled of the partition was committed before it went.
            assert found[0].offset == sum(partition == taken for partition, _ in handled)
            assert slow.assignment() == [(topic, 1 - taken)]
            assert record.partition == 1 - taken


def test_a_revocation_of_an_asyncio_member_does_not_wait_for_the_end_of_a_chunk(broker: Broker, topic: str) -> None:
    async def main(protocol: str) -> None:
        given = options(broker, topic, protocol, group_id=f"chunks-{protocol}")
        handled: list[tuple[int, int]] = []
        async with AsyncConsumer(topic, **given) as slow, AsyncConsumer(topic, **given) as other:
            record = await anext(iterator := aiter(slow))
            polls = asyncio.create_task(other.poll(timeout=60))
            while not polls.done() and len(handled) < 1000:
                handled.append((record.partition, record.offset))
                await asyncio.sleep(0.02)
                record = await anext(iterator)
            found = await polls
            assert found and len(handled) < 1000
            taken = found[0].partition
            assert found[0].offset == sum(partition == taken for partition, _ in handled)
            assert slow.assignment() == [(topic, 1 - taken)]

    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(2000):
            producer.send(topic, b"%d" % number, partition=number % 2)
    for protocol in PROTOCOLS:
        asyncio.run(main(protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_was_not_polled_yet_is_no_member(broker: Broker, topic: str, protocol: str) -> None:
    """A service opens its consumer at the start, asks for ends, and reads later: nobody waits for it."""

    async def main() -> None:
        given = options(broker, topic, protocol)
        async with AsyncConsumer(topic, **given) as early, AsyncConsumer(topic, **given) as reader:
            assert await early.end_offsets([(topic, 0)]) == {(topic, 0): 10}
            await asyncio.sleep(0.5)  # far longer than it takes to join
            found = await reader.poll(timeout=20)
            assert found and len(reader.assignment()) == 2 and not early.assignment()
            polled = asyncio.create_task(early.poll(timeout=20))
            while not early.assignment():
                await reader.poll(timeout=0.1)
            await polled

    asyncio.run(main())


@pytest.mark.parametrize("told", ["on_assigned", "on_revoked"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_listener_may_unsubscribe(broker: Broker, topic: str, protocol: str, told: str) -> None:
    """The call that it runs in ends at once, the member is out of its group, and its successor has all there is."""
    heard: list[str] = []
    given = options(broker, topic, protocol)
    with Consumer(**given) as consumer, Consumer(topic, **given) as other:

        def leave(partitions: Any) -> None:
            heard.append(told)
            consumer.unsubscribe()

        end = time.monotonic() + 60

        def follow() -> None:
            while len(other.assignment()) < 2 and time.monotonic() < end:
                other.poll(timeout=0.1)

        consumer.subscribe(topic, **{told: leave})
        thread = threading.Thread(target=follow)
        if told == "on_revoked":
            assert consumer.poll(timeout=60, max_records=1)
            thread.start()
        while not heard and time.monotonic() < end:
            consumer.poll(timeout=60)
        assert heard == [told] and consumer.subscription() == consumer.assignment() == []
        with pytest.raises(NotAssigned):
            consumer.poll(timeout=60)
        if told == "on_assigned":
            thread.start()
        thread.join()
        assert len(other.assignment()) == 2
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        assert consumer.poll(timeout=30)


@pytest.mark.parametrize("told", ["on_assigned", "on_revoked"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_coroutine_listener_may_unsubscribe(broker: Broker, topic: str, protocol: str, told: str) -> None:
    heard: list[str] = []
    given = options(broker, topic, protocol)

    async def main() -> None:
        async with AsyncConsumer(**given) as consumer, AsyncConsumer(**given) as other:

            async def leave(partitions: Any) -> None:
                heard.append(told)
                await consumer.unsubscribe()

            end = time.monotonic() + 60

            async def follow() -> None:
                other.subscribe(topic)  # no sooner: it joins by itself, and what is revoked for it ends a poll
                while len(other.assignment()) < 2 and time.monotonic() < end:
                    await other.poll(timeout=0.1)

            consumer.subscribe(topic, **{told: leave})
            if told == "on_revoked":
                assert await consumer.poll(timeout=60, max_records=1)
                follows = asyncio.create_task(follow())
            while not heard and time.monotonic() < end:
                await consumer.poll(timeout=60)
            assert heard == [told] and consumer.subscription() == consumer.assignment() == []
            with pytest.raises(NotAssigned):
                await consumer.poll(timeout=60)
            await (follows if told == "on_revoked" else follow())
            assert len(other.assignment()) == 2

    asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_of_a_topic_that_is_made_anew_is_read(broker: Broker, topic: str, protocol: str) -> None:
    """And what was read of the old one is not committed for it: another member begins where this one ended."""
    given = options(broker, topic, protocol, metadata_max_age_ms=1000, allow_auto_create_topics=False)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin, Consumer(topic, **given) as consumer:
        read: list[bytes] = []
        while len(read) < 20:
            read += [record.value for record in consumer.poll(timeout=10)]
        admin.delete_topics([topic]).results()
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(13):
                producer.send(topic, b"new %d" % number, partition=0)
        read.clear()
        until = time.monotonic() + 30
        while len(read) < 13 and time.monotonic() < until:
            read += [record.value for record in consumer.poll(timeout=1)]
        assert read == [b"new %d" % number for number in range(13)]
        assert consumer.poll(timeout=0.1) == []  # done with them
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        committed = admin.list_group_offsets(given["group_id"]).results()
        assert {tp: place.offset for tp, place in committed.items() if place is not None} == {
            TopicPartition(topic, 0): 13
        }
