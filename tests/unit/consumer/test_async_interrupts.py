"""Cancellation wherever it can come: a call of the asyncio consumer that it ends has handed out nothing, and the next one goes on.

At the n-th suspension of a call, for every n that it has: while it waits, which cancels what it waits for, and when what it waits for
has just come, which is then lost on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest
from consumer_fakes import SocketCluster

from fastq import AsyncConsumer, Producer, TopicPartition

TP = [TopicPartition("logs", 0), TopicPartition("logs", 1)]
ROUNDS = 25


class CancelledAt:
    """Awaits a coroutine and cancels its task at its n-th suspension; `was` says whether it had so many."""

    def __init__(self, call: Awaitable[Any], number: int, late: bool) -> None:
        self.call, self.number, self.late = call, number, late
        self.was = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.call.__await__()
        count = 0
        error: BaseException | None = None
        while True:
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            count += 1
            if count == self.number and not self.late:
                self.cancel()
            try:
                yield waits_for
                error = None
            except BaseException as came:
                error = came
            else:
                if count == self.number and self.late:
                    self.was, error = True, asyncio.CancelledError()

    def cancel(self) -> None:
        self.was = True
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def cancelled_at(call: Awaitable[Any], number: int, late: bool) -> tuple[bool, Any]:
    """Whether the call had an n-th suspension, and what it answered all the same, if it did."""
    cancelled = CancelledAt(call, number, late)

    async def whole() -> Any:
        return await cancelled

    try:
        answer = await asyncio.wait_for(asyncio.create_task(whole()), 20)
    except asyncio.CancelledError:
        assert cancelled.was
        return True, None
    return cancelled.was, answer


@pytest.fixture
def cluster() -> Iterator[SocketCluster]:
    made = SocketCluster()
    yield made
    made.close()


def fill(cluster: SocketCluster, batches: int) -> None:
    for log in cluster.create("logs", 0 if cluster.logs else 2):
        for _ in range(batches):
            with cluster.lock:
                log.append([(b"k", b"%d" % (log.end + n)) for n in range(3)])


class Reader:
    """What a program has seen of both partitions: every record once, in order."""

    def __init__(self) -> None:
        self.seen = dict.fromkeys(TP, 0)

    def saw(self, records: Any) -> None:
        for record in records or ():
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == self.seen[tp], f"{tp}: {record.offset} instead of {self.seen[tp]}"
            self.seen[tp] = record.offset + 1


async def poll(consumer: AsyncConsumer) -> Any:
    return await consumer.poll(max_records=4, timeout=5)


async def poll_batch(consumer: AsyncConsumer) -> Any:
    return list(await consumer.poll_batch(timeout=5))


async def iterate(consumer: AsyncConsumer) -> Any:
    """One record: the step of an `async for` that has to wait."""
    return [await anext(aiter(consumer))]


WAYS: dict[str, Callable[[AsyncConsumer], Awaitable[Any]]] = {
    "poll": poll,
    "poll_batch": poll_batch,
    "iteration": iterate,
}


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "when it has come"])
@pytest.mark.parametrize("way", WAYS)
def test_no_record_is_skipped_or_comes_twice(cluster: SocketCluster, way: str, late: bool) -> None:
    fill(cluster, 5)
    reader = Reader()

    async def main() -> int:
        async with AsyncConsumer("logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            cut, number = 0, 1
            for round_ in range(ROUNDS):
                was, found = await cancelled_at(WAYS[way](consumer), number, late)
                reader.saw(found)
                cut += was and found is None
                number = number + 1 if was else 1
                if round_ % 3:  # else the next call finds nothing, and waits
                    fill(cluster, 1 + round_ % 2)
                else:
                    asyncio.get_running_loop().call_later(0.02, fill, cluster, 1)
                if round_ % 4 == 3:
                    reader.saw(await consumer.poll(max_records=100, timeout=10))
            while not all(reader.seen[tp] == log.end for tp, log in cluster.logs.items()):
                found = await consumer.poll(timeout=10)
                assert found, f"nothing more comes behind {reader.seen}"
                reader.saw(found)
            assert {tp: await consumer.position(tp) for tp in TP} == reader.seen
            return cut

    assert asyncio.run(main()) > 3, "calls that never wait prove nothing"


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "when it has come"])
def test_a_cancelled_commit_has_committed_all_or_nothing(
    shared_broker: Any, make_topic: Callable[..., str], late: bool
) -> None:
    servers = str(shared_broker.bootstrap_servers)
    topic = make_topic(servers, 1)
    at = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(200)]).result(20)

    async def main() -> int:
        async with AsyncConsumer(
            bootstrap_servers=servers, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([at])
            number, cut, before, was = 1, 0, 0, True
            while was and number < 50:
                (record,) = await consumer.poll(max_records=1, timeout=10)
                assert record.offset == before
                was, _ = await cancelled_at(consumer.commit(timeout=10), number, late)
                cut += was
                stored = (await consumer.committed([at]))[at]
                # One that was cancelled on its way may be handled yet.
                assert (0 if stored is None else stored.offset) in ((before, before + 1) if was else (before + 1,))
                await consumer.commit(timeout=10)
                stored = (await consumer.committed([at]))[at]
                assert stored is not None and stored.offset == before + 1
                before, number = before + 1, number + 1
            assert not was
            return cut

    assert asyncio.run(main()) >= 1
