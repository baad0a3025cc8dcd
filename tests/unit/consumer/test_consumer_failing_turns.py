"""Turns of consumers that fail in the middle, as where there is no memory: what was not come to is done later."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from failing_allocations import AllocationsFail

from fastq import AsyncConsumer, Consumer
from fastq.consumer import async_consumer
from fastq.consumer.effects import Outgoing
from fastq.consumer.group import heartbeat
from fastq.consumer.group.coordinator import Coordinator
from fastq.consumer.offsets import OffsetQuery
from fastq.errors import ConnectionFailed
from fastq.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from fastq.protocol.messages import HeartbeatRequest


def no_memory(*_: Any) -> None:
    raise MemoryError("none left")


def assigned() -> Any:
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([("t", 0)])
    return consumer


def test_heartbeats_go_on_after_one_that_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended, and was taken for one that runs: over TLS nobody kept the member in its group any more."""
    monkeypatch.setattr(heartbeat, "IDLE_S", 0.001)
    beaten, later = [], threading.Event()

    class Member:
        def beat(self) -> heartbeat.Beat:
            beaten.append(1)
            if len(beaten) == 1:
                raise MemoryError("none left")
            later.set()
            return heartbeat.Beat(False, None)

    member, driver = Member(), SimpleNamespace(lock=threading.RLock(), flush=lambda: None)
    thread = heartbeat.HeartbeatThread(driver, member.beat)  # type: ignore[arg-type]
    thread.start()
    try:
        assert later.wait(10)
    finally:
        thread.stop()
    assert caplog.text.count("a heartbeat failed") == 1


def test_an_asyncio_consumer_whose_turn_failed_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_consumer, "AGAIN_S", 0.01, raising=False)

    async def main() -> None:
        consumer, again = assigned(), asyncio.Event()
        consumer._pump()
        step = consumer._step

        def counted() -> None:
            again.set()
            step()

        monkeypatch.setattr(consumer, "_step", no_memory)
        waiting = asyncio.ensure_future(consumer.poll())
        with pytest.raises(MemoryError):  # and who waits hears of it
            await asyncio.wait_for(waiting, 5)
        consumer._timer.cancel()
        consumer._timer = None
        waiting = consumer._driver.loop.create_future()
        consumer._waiters.add(waiting)
        with pytest.raises(MemoryError):
            consumer._on_progress()
        assert waiting.done()
        monkeypatch.setattr(consumer, "_step", counted)
        await asyncio.wait_for(again.wait(), 5)
        await consumer.close()

    asyncio.run(main())


def test_the_timer_that_runs_ends_once_the_next_one_is_had() -> None:
    async def main() -> None:
        consumer = assigned()
        consumer._pump()
        driver = consumer._driver
        loop = driver.loop
        before = consumer._timer = loop.call_later(3600, lambda: None)
        driver.loop = SimpleNamespace(time=loop.time, call_soon=loop.call_soon, call_at=no_memory)
        consumer._start = lambda: driver
        with pytest.raises(MemoryError):
            consumer._pump()
        driver.loop = loop
        assert consumer._timer is before and not before.cancelled()
        consumer._pump()
        assert consumer._timer is not before and before.cancelled()
        await consumer.close()

    asyncio.run(main())


def test_what_an_interceptor_hears_later_is_kept_where_the_loop_has_no_memory_for_it() -> None:
    async def main() -> None:
        consumer, told = assigned(), asyncio.Event()
        consumer._pump()
        driver = consumer._driver
        loop = driver.loop
        consumer._callbacks.append(told.set)
        driver.loop = SimpleNamespace(time=loop.time, call_soon=no_memory, call_at=loop.call_at)
        consumer._start = lambda: driver
        with pytest.raises(MemoryError):
            consumer._pump()
        driver.loop = loop
        consumer._pump()
        await asyncio.wait_for(told.wait(), 5)
        await consumer.close()

    asyncio.run(main())


@pytest.mark.parametrize("told_as_well", [False, True])
def test_a_request_that_cannot_be_sent_is_told_once_to_who_made_it(told_as_well: bool) -> None:
    """It was waited for for good: a member sent no heartbeat any more, and nothing was fetched from a broker."""
    consumer: Any = Consumer(bootstrap_servers="127.0.0.1:1")
    told: list[Any] = []
    sent: list[Any] = []

    def failing(node_id: int, request: Any, completed: Any, **_: Any) -> None:
        sent.append(completed)
        raise MemoryError("none left")

    consumer._core.send, send = failing, consumer._core.send
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    consumer._send(Outgoing(-1, 12, lambda version: message, None, lambda response, error, now: told.append(error)))
    if told_as_well:
        sent[0](None, ConnectionFailed("ended"))
    assert [type(error) for error in told] == [ConnectionFailed] and told[0].retriable
    consumer._core.send = send
    consumer.close()


def test_a_request_that_nothing_can_be_readied_for_is_told_to_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no memory for what is called at its answer nobody was told."""
    consumer: Any = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    told: list[Any] = []
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    out = Outgoing(-1, 12, lambda version: message, None, lambda response, error, now: told.append(error))
    monkeypatch.setattr(consumer, "_told", no_memory)
    consumer._send(out)
    assert [type(error) for error in told] == [ConnectionFailed]
    monkeypatch.undo()
    consumer._group.membership = SimpleNamespace(due=False, next_heartbeat=lambda now: None, leave=lambda reason: [])
    consumer._group.heartbeats = lambda now, can_send: iter([out])
    monkeypatch.setattr(consumer, "_follow_life", lambda: None)
    monkeypatch.setattr(consumer, "_counted", no_memory)
    with pytest.raises(MemoryError):
        consumer._beat()
    assert [type(error) for error in told] == [ConnectionFailed] * 2 and not consumer._beats
    consumer._group.membership = None
    consumer.close()


def test_offsets_that_could_not_be_asked_for_of_all_brokers_are_asked_for_later() -> None:
    """Those of the first ones counted as asked for."""
    outcomes = []
    for first in range(200):
        metadata = ClusterMetadata()
        metadata.topics = {"t": TopicMetadata("t", partitions=(PartitionMetadata(0, 1), PartitionMetadata(1, 2)))}
        metadata.nodes = {node: Node(node, "broker", node) for node in (1, 2)}
        updater: Any = SimpleNamespace(requests=0, answered=0)
        query = OffsetQuery(
            metadata, updater, {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}, False, cast(Any, None)
        )
        out: list[Outgoing] = []
        with suppress(MemoryError), AllocationsFail(first):
            out = query.requests(0.0, lambda node_id: True)
        outcomes.append(bool(out))
        assert len(query.requests(0.0, lambda node_id: True)) == (0 if out else 2), f"allocation {first}"
    assert not all(outcomes) and outcomes[-1]


def test_a_coordinator_that_there_is_no_memory_to_look_up_is_looked_up_later() -> None:
    """It counted as asked for, and the group was never joined."""
    outcomes = []
    for at in range(30):
        coordinator = Coordinator(
            "g",
            troubles=cast(Any, None),
            any_broker=lambda now: 1,
            separate=lambda node: node.node_id,
            backoff_ms=(1, 1),
            random=Random(1),
        )
        out: list[Outgoing] = []
        with suppress(MemoryError), AllocationsFail(at):
            out = coordinator.requests(0.0, lambda node_id: True)
        outcomes.append(bool(out))
        assert len(coordinator.requests(0.0, lambda node_id: True)) == (not out)
    assert not all(outcomes) and outcomes[-1]
