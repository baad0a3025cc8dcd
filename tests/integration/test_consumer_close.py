"""Closing a consumer from where it is busy: in its listener, beside another close. Both faces end all of it, once."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test

from fastq import AsyncConsumer, Consumer, Producer
from fastq.errors import ClientClosed
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.min.assignment.interval.ms": 0}
    with broker_under_test(config=config, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    name = make_topic(broker.bootstrap_servers, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(name, b"x", partition=0)
    return name


class Interceptor:
    """Counts its ends."""

    def __init__(self) -> None:
        self.closed = 0

    def on_consume(self, records: Any) -> None: ...

    def close(self) -> None:
        self.closed += 1


def options(broker: Broker, topic: str, protocol: str, interceptor: Interceptor) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topic}",
        "group_protocol": protocol,
        "interceptors": [interceptor],
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_listener_may_close_its_consumer(broker: Broker, topic: str, asynchronous: bool, protocol: str) -> None:
    interceptor, told = Interceptor(), []
    given = options(broker, topic, protocol, interceptor)

    def committed(offsets: Any, error: Any) -> None:
        told.append(error)

    async def main() -> None:
        consumer = AsyncConsumer(**given)

        async def assigned(partitions: Any) -> None:
            consumer.commit_async({(topic, 0): 1}, committed)
            await consumer.close()
            told.append("closed")

        consumer.subscribe(topic, on_assigned=assigned)
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(consumer.poll(), 30)
        await consumer.close()
        # Nothing of it goes on, and what its listener raised is not left to anybody.
        assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}

    if asynchronous:
        asyncio.run(main())
    else:
        consumer: Consumer[Any, Any] = Consumer(**given)

        def assigned(partitions: Any) -> None:
            consumer.commit_async({(topic, 0): 1}, committed)
            consumer.close()
            told.append("closed")

        consumer.subscribe(topic, on_assigned=assigned)
        with pytest.raises(ClientClosed):
            consumer.poll(timeout=30)
        consumer.close()
    assert told == [None, "closed"] and interceptor.closed == 1
    with Consumer(topic, **options(broker, topic, protocol, Interceptor())) as successor:
        assert [record.offset for record in successor.poll(timeout=0.1)] == []
        assert successor.committed([(topic, 0)])[topic, 0].offset == 1  # type: ignore[index,union-attr]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_close_beside_another_waits_for_its_end(broker: Broker, topic: str, asynchronous: bool) -> None:
    """What one close does is not done again, and each ends when all is closed."""
    interceptor, revoked = Interceptor(), []
    given = options(broker, topic, "consumer", interceptor)

    async def main() -> None:
        consumer = AsyncConsumer(**given)
        leaving, may_leave = asyncio.Event(), asyncio.Event()

        async def on_revoked(partitions: Any) -> None:
            revoked.append(partitions)
            leaving.set()
            await consumer.close()  # not for itself
            await may_leave.wait()

        consumer.subscribe(topic, on_revoked=on_revoked)
        await consumer.poll(timeout=0.0)
        while not consumer.assignment():
            await consumer.poll(timeout=0.1)
        first = asyncio.create_task(consumer.close())
        await leaving.wait()
        second = asyncio.create_task(consumer.close())
        done, _ = await asyncio.wait([first, second], timeout=0.05)
        assert not done and interceptor.closed == 0
        may_leave.set()
        await second
        assert interceptor.closed == 1
        await first

    def in_threads() -> None:
        consumer: Consumer[Any, Any] = Consumer(**given)
        leaving, may_leave = threading.Event(), threading.Event()

        def on_revoked(partitions: Any) -> None:
            revoked.append(partitions)
            leaving.set()
            may_leave.wait()

        consumer.subscribe(topic, on_revoked=on_revoked)
        while not consumer.assignment():
            consumer.poll(timeout=0.1)
        threads = [threading.Thread(target=consumer.close) for _ in range(2)]
        threads[0].start()
        leaving.wait()
        threads[1].start()
        threads[1].join(0.05)
        assert threads[1].is_alive() and interceptor.closed == 0
        may_leave.set()
        for thread in threads:
            thread.join()

    asyncio.run(main()) if asynchronous else in_threads()
    assert len(revoked) == 1 and interceptor.closed == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cell_that_is_run_again_after_an_error_says_what_stands_in_its_way(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    """The error that was shown last keeps the consumer, which so is not the one that is dropped."""
    given = options(broker, topic, "consumer", Interceptor())
    made: list[Any] = []

    class Interrupt(Exception):
        """As KeyboardInterrupt, which would end the test."""

    async def main() -> None:
        made.append(AsyncConsumer(topic, **given))
        while not made[0].assignment():
            await made[0].poll(timeout=0.1)
        with pytest.raises(Interrupt) as caught:
            await interrupted(made[0])
        monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
        again: AsyncConsumer[Any, Any] = AsyncConsumer(topic, **given)
        others = [AsyncConsumer(topic, **{**given, "group_id": "another"})]
        await made[0].close()
        others.append(AsyncConsumer(topic, **given))
        for consumer in (again, *others):
            await consumer.close()

    async def interrupted(consumer: Any) -> None:
        raise Interrupt

    def interrupt(consumer: Any) -> None:
        raise Interrupt

    def blocking() -> None:
        made.append(Consumer(topic, **given))
        while not made[0].assignment():
            made[0].poll(timeout=0.1)
        with pytest.raises(Interrupt) as caught:
            interrupt(made[0])
        monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
        with Consumer(topic, **given), Consumer(topic, **{**given, "group_id": "another"}):
            made[0].close()
            Consumer(topic, **given).close()

    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        asyncio.run(main()) if asynchronous else blocking()
    (line,) = (text for text in caplog.messages if "has a member in this process already" in text)
    assert f"group-{topic}" in line and "records of its 2 partitions" in line
