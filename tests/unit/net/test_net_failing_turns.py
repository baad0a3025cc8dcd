"""Turns that fail in the middle, as where there is no memory, and loops that end: what was not come to is done later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import types
from functools import partial
from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq.config import ClientConfig
from fastq.errors import ConnectionFailed
from fastq.net import aio
from fastq.net.client import AsyncClient, BlockingClient
from fastq.net.operations import ANY, Broker
from fastq.protocol.messages import MetadataRequest


def no_memory(*given: Any) -> None:
    if given and asyncio.iscoroutine(given[0]):
        given[0].close()
    raise MemoryError("none left")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_what_a_tick_that_failed_did_not_come_to_is_due(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """No request had a time-out any more, and no metadata was asked for, before something else led to a tick."""
    client: Any = (BlockingClient if kind == "blocking" else AsyncClient)(
        ClientConfig(bootstrap_servers=broker.address)
    )
    core = client.core
    with monkeypatch.context() as patch:
        patch.setattr(core.metadata_updater, "tick", no_memory)
        with pytest.raises(MemoryError):
            core.tick(core.clock())
    assert core.deadline <= core.clock()
    if kind == "blocking":
        client.close()


def test_a_turn_that_failed_is_taken_again(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "AGAIN_S", 0.01)

    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        driver = client.driver
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        answered: asyncio.Future[Any] = driver.loop.create_future()
        take, turns = driver._take_turn, []

        def failing() -> None:
            turns.append(1)
            if len(turns) < 3:
                raise MemoryError
            take()

        monkeypatch.setattr(driver, "_take_turn", failing)
        client.core.send(-1, MetadataRequest(topics=[]), lambda response, error: answered.set_result(response))
        driver.kick()
        assert (await asyncio.wait_for(answered, 5)).cluster_id == "fake"
        await client.close()

    asyncio.run(main())


def test_what_cannot_be_written_ends_its_connection_and_keeps_no_other(broker: FakeBroker) -> None:
    """How much of it the transport has is not known: sent once more, the broker would take it for another request."""

    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        core, driver = client.core, client.driver
        for route in (ANY, Broker(1)):
            await client.call(route, MetadataRequest(topics=[]), 5.0)
        connections = [peer.connection for peer in core._peers.values() if peer.connection is not None]
        assert len(connections) == 2
        outcomes: dict[int, Any] = {}

        def told(node_id: int, response: Any, error: Any) -> None:
            outcomes[node_id] = response or error

        for connection in connections:
            core.send(connection.node_id, MetadataRequest(topics=[]), partial(told, connection.node_id))
        failing = next(iter(core.writable))
        failing.transport, transport = (
            types.SimpleNamespace(write=no_memory, abort=failing.transport.abort),
            failing.transport,
        )
        with pytest.raises(MemoryError):
            driver._turn()
        assert failing.state.value == "closed"
        driver.kick()
        while len(outcomes) < 2:  # noqa: ASYNC110  # as the driver has it, in turns
            await asyncio.sleep(0.001)
        assert isinstance(outcomes.pop(failing.node_id), ConnectionFailed)
        assert [answer.cluster_id for answer in outcomes.values()] == ["fake"]
        assert transport.is_closing()
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["create_task", "sock_connect"])
def test_a_connection_that_cannot_be_begun_is_begun_anew(broker: FakeBroker, where: str) -> None:
    """It was waited for until socket_connection_setup_timeout_ms."""

    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address, reconnect_backoff_ms=1))
        driver: Any = client.driver
        answered: asyncio.Future[Any] = driver.loop.create_future()
        client.core.send(-1, MetadataRequest(topics=[]), lambda response, error: answered.set_result(error))
        loop = driver.loop
        loop.set_exception_handler(lambda loop, context: None)
        names = ("create_task", "call_later", "call_soon", "sock_connect")
        driver.loop = types.SimpleNamespace(**{name: getattr(loop, name) for name in names} | {where: no_memory})
        with contextlib.suppress(MemoryError):
            driver._turn()
        await asyncio.sleep(0)
        driver.loop = loop
        driver.kick()
        assert isinstance(await asyncio.wait_for(answered, 5), ConnectionFailed)
        assert (await client.call(ANY, MetadataRequest(topics=[]), 5.0)).cluster_id == "fake"
        await client.close()

    asyncio.run(main())


def test_a_client_whose_loop_was_closed_as_it_connected_closes(caplog: pytest.LogCaptureFixture) -> None:
    """It raised RuntimeError, and what had waited for an answer was never told."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        loop, told = asyncio.new_event_loop(), []

        async def main() -> AsyncClient:
            client = AsyncClient(ClientConfig(bootstrap_servers=f"127.0.0.1:{full.getsockname()[1]}"))
            client.core.send(-1, MetadataRequest(topics=[]), lambda response, error: told.append(error))
            client.driver.kick()
            while not client.driver._connects:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            return client

        client = loop.run_until_complete(main())
        driver = client._driver
        assert driver is not None
        loop.close()
        driver.close()
        assert client.core.closed and [type(error).__name__ for error in told] == ["ClientClosed"]
        for task in driver._connects:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop was closed under it
        for each in [*waiting, *driver._sockets]:
            each.close()


def test_a_client_that_closes_begins_no_connection(broker: FakeBroker) -> None:
    """A task that nobody saw to any more, which asyncio tells of as one that was destroyed."""

    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        client.core.send(-1, MetadataRequest(topics=[]), lambda response, error: None)
        driver = client.driver
        assert client.core.effects
        driver.close()
        assert not driver._connects

    asyncio.run(main())


def test_a_close_that_failed_in_the_middle_is_done_by_the_next_one(broker: FakeBroker) -> None:
    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        core, driver, told = client.core, client.driver, []
        for route in (ANY, Broker(1)):
            await client.call(route, MetadataRequest(topics=[]), 5.0)
        core.send(1, MetadataRequest(topics=[]), lambda response, error: told.append(error))
        connections = [peer.connection for peer in core._peers.values() if peer.connection is not None]
        transports = [connection.transport for connection in connections]
        connections[0].transport = types.SimpleNamespace(abort=no_memory)
        with pytest.raises(MemoryError):
            driver.close()
        connections[0].transport = transports[0]
        driver.close()
        assert all(transport.is_closing() for transport in transports)
        assert [type(error).__name__ for error in told] == ["ClientClosed"]
        await client.close()

    asyncio.run(main())
