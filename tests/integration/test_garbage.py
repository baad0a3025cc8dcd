"""Requests, and connections that end, leave nothing for the collector of cycles: each of its searches stops the loop of a busy broker."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker as Node
from fastq_broker.config import BrokerConfig
from fastq_broker.coordinator.shard import ShardContext
from fastq_broker.surroundings import Surroundings

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer

TIMES = 200
"""How often each is done: what is left behind each time is seen, what is left once is not. A client of a test before is some forty
objects of a type."""

Run = Callable[[Callable[[str], None]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run clients, which get an address, in a thread against a node of this process."""

    async def main(scenario: Callable[[str], None]) -> None:
        config = BrokerConfig.from_mapping(
            {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0", "num.partitions": 1}
        )
        node = Node(config, asyncio.get_running_loop())
        await node.start()
        try:
            await asyncio.to_thread(scenario, f"127.0.0.1:{node.advertised_listeners[0].port}")
        finally:
            await node.close()

    def run(scenario: Callable[[str], None]) -> None:
        kind = pytest.importorskip("uvloop") if request.param == "uvloop" else asyncio
        loop = kind.new_event_loop()
        try:
            loop.run_until_complete(main(scenario))
        finally:
            loop.close()

    return run


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


@contextmanager
def nothing_is_left(of: str = "") -> Iterator[None]:
    """What is done inside makes no cycles as often as it is done, of types of which package ever, or of one."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        left = Counter(_name(each) for each in gc.garbage)
        many = {name: count for name, count in left.items() if name.startswith(of) and count >= TIMES // 2}
        shown = [repr(each)[:300] for each in gc.garbage if _name(each) in many][:5]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()
    assert not many, f"{many}, as {shown}"


def test_fetches_that_wait_for_records_leave_nothing(run: Run) -> None:
    def scenario(address: str) -> None:
        with Producer(bootstrap_servers=address, linger_ms=0) as producer:
            producer.send("t", b"0").result(30)
            with Consumer(
                "t",
                bootstrap_servers=address,
                group_id="g",
                auto_offset_reset="earliest",
                auto_commit_interval_ms=10,
                value_deserializer=bytes,
            ) as consumer:
                assert [record.value for record in consumer.poll(timeout=30)] == [b"0"]
                with nothing_is_left():
                    for number in range(1, TIMES):
                        producer.send("t", b"%d" % number)
                        assert [record.value for record in consumer.poll(timeout=30)] == [b"%d" % number]

    run(scenario)


def test_fetches_whose_time_is_up_leave_nothing(run: Run) -> None:
    def scenario(address: str) -> None:
        with Producer(bootstrap_servers=address) as producer:
            producer.send("t", b"0").result(30)
        with Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_wait_ms=1) as consumer:
            assert len(consumer.poll(timeout=30)) == 1
            with nothing_is_left():
                for _ in range(TIMES):
                    assert not consumer.poll(timeout=0.02)

    run(scenario)


def test_asyncio_clients_and_transactions_leave_nothing(run: Run) -> None:
    async def clients(address: str) -> None:
        async with (
            AsyncProducer(bootstrap_servers=address, linger_ms=0, transactional_id="mover") as producer,
            AsyncConsumer(
                "t",
                bootstrap_servers=address,
                group_id="g",
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
        ):

            async def once() -> None:
                async with producer.transaction():
                    await producer.send("t", b"value")
                assert len(await consumer.poll(timeout=30)) == 1

            await once()
            with nothing_is_left():
                for _ in range(TIMES):
                    await once()

    run(lambda address: asyncio.run(clients(address)))


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10" + b"\xff" * 16, b"\0\0\0\x0a\0\x01\0\x04" + bytes(6)],
    ids=["no frame", "no such api", "no body"],
)
def test_bad_requests_leave_nothing(run: Run, sent: bytes) -> None:
    def scenario(address: str) -> None:
        host, port = address.split(":")

        def once() -> None:
            with socket.create_connection((host, int(port)), 30) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""

        once()
        with nothing_is_left("fastq_broker."):
            for _ in range(TIMES):
                once()

    run(scenario)


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "in a wait"])
def test_connections_that_end_leave_nothing(run: Run, waits: bool) -> None:
    def scenario(address: str) -> None:
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic("t")

        def once() -> None:
            if waits:
                with Consumer("t", bootstrap_servers=address, fetch_max_wait_ms=30_000) as consumer:
                    consumer.poll(timeout=0.02)
            else:
                with Admin(bootstrap_servers=address) as admin:
                    admin.describe_cluster()

        once()
        with nothing_is_left("fastq_broker."):  # clients that end and asyncio's transports are no part of a busy broker
            for _ in range(TIMES):
                once()

    run(scenario)


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_timers_of_coordinators_leave_nothing(kind: str) -> None:
    """A group's members set one with each heartbeat."""
    loop = pytest.importorskip(kind).new_event_loop()
    heard: list[int] = []

    async def main() -> None:
        replica: Any = SimpleNamespace(partition=0, leader_id=1, leader_epoch=0)
        context = ShardContext(replica, loop, Surroundings())
        for number in range(TIMES):
            context.call_later(0.0, partial(heard.append, number))
            context.call_later(60.0, partial(heard.append, -1)).cancel()
        await asyncio.sleep(0.01)

    with nothing_is_left():
        loop.run_until_complete(main())
    loop.close()
    assert heard == list(range(TIMES))
