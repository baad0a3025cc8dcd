"""Accepting: never more than there are descriptors for, no busy loop where there are none, and what is said of it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fastq_broker import listeners
from fastq_broker.descriptors import DescriptorCount, plan_descriptors
from fastq_broker.listeners import Accepted, Acceptor, bind_sockets
from loops import both_loops, run_in


class Peer(asyncio.Protocol, Accepted):
    def __init__(self, descriptors: DescriptorCount) -> None:
        self._descriptors = descriptors
        self.transport: asyncio.BaseTransport | None = None

    @property
    def connected(self) -> bool:
        return self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._descriptors.give_back()


Scenario = Callable[[Acceptor, DescriptorCount], Coroutine[Any, Any, None]]


def run(scenario: Scenario, limit: int, loop: str) -> None:
    async def main() -> None:
        running = asyncio.get_running_loop()
        descriptors = DescriptorCount(limit)
        sockets = await bind_sockets(running, "127.0.0.1", 0)
        acceptor = Acceptor(running, sockets, descriptors, lambda: Peer(descriptors), name="here", advice="do this")
        acceptor.listen(128)
        try:
            await asyncio.wait_for(scenario(acceptor, descriptors), 30)
        finally:
            acceptor.close()

    run_in(loop, main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true")


@both_loops
def test_a_burst_takes_no_more_than_there_are(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(acceptor: Acceptor, descriptors: DescriptorCount) -> None:
        clients = [socket.create_connection(("127.0.0.1", acceptor.port)) for _ in range(40)]
        await until(lambda: descriptors.used == 5)
        streams = [await asyncio.open_connection(sock=client) for client in clients]
        for reader, _ in streams[5:]:
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
        assert descriptors.used == 5
        for _, writer in streams:
            writer.close()
        await until(lambda: descriptors.used == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
        await until(lambda: descriptors.used == 1)
        writer.close()
        await until(lambda: descriptors.used == 0)

    with caplog.at_level(logging.WARNING):
        run(scenario, 5, loop)
    lines = [record.getMessage() for record in caplog.records if record.name == listeners.__name__]
    assert len(lines) == 1
    assert "5 are open" in lines[0] and lines[0].endswith("do this")


class Scarce(socket.socket):
    """A listening socket whose accepts find no descriptor for a while."""

    tries = 0
    left = 3

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.tries <= self.left:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@both_loops
def test_an_accept_without_a_descriptor_is_tried_again_later(
    loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "RETRY_S", 0.01)
    scarce = Scarce(socket.AF_INET, socket.SOCK_STREAM)

    async def bound(*_: object) -> list[socket.socket]:
        scarce.setblocking(False)
        scarce.bind(("127.0.0.1", 0))
        return [scarce]

    monkeypatch.setitem(globals(), "bind_sockets", bound)

    async def scenario(acceptor: Acceptor, descriptors: DescriptorCount) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
        await until(lambda: descriptors.used == 1)
        assert scarce.tries <= scarce.left + 2  # once each RETRY_S, not once a turn of the loop
        writer.close()
        await until(lambda: descriptors.used == 0)

    run(scenario, 5, loop)
    lines = [record.getMessage() for record in caplog.records if record.name == listeners.__name__]
    assert len(lines) == 1 and "Too many open files" in lines[0]


@pytest.mark.parametrize("limit", [64, 256, 1024, 20_000, 1 << 20])
def test_a_plan_leaves_files_and_the_rest_their_share(limit: int) -> None:
    plan = plan_descriptors(limit)
    assert plan.files + plan.kept + plan.connections == limit
    assert plan.files >= 16 and plan.connections >= limit // 4
    assert plan.kept >= 16
    assert limit // 16 <= plan.reserve <= plan.connections // 4
    without_logs = plan_descriptors(limit, logs=False)
    assert without_logs.files + without_logs.kept + without_logs.connections == limit
    assert without_logs.connections >= limit // 2


def test_a_reserve_takes_what_is_free_of_the_others_too_and_gives_that_back_first() -> None:
    others = DescriptorCount(3)
    reserve = DescriptorCount(2, beyond=others)
    assert others.take() and [reserve.take() for _ in range(5)] == [True] * 4 + [False]
    assert (others.used, reserve.used, reserve.taken) == (3, 2, 4) and not others.take()
    reserve.give_back()
    assert (others.used, reserve.used) == (2, 2)
    for _ in range(3):
        reserve.give_back()
    assert (others.used, reserve.taken) == (1, 0)
