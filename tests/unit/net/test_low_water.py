"""A reader of a large answer is woken for much at a time, and for the last of it and whatever comes then as ever."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq.config import ClientConfig
from fastq.errors import ConnectionClosed, NotAKafkaBroker
from fastq.net import low_water
from fastq.net.client import AsyncClient, BlockingClient
from fastq.net.connection import Connection
from fastq.net.low_water import LOW_WATER_BYTES
from fastq.net.operations import ANY
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import MetadataRequest

LARGE = MetadataRequest(topics=None)
SMALL = MetadataRequest(topics=[])

needs_marks = pytest.mark.skipif(not low_water.IS_KEPT, reason="this kernel keeps no mark")


def blocking(address: str, requests: list[MetadataRequest], **config: Any) -> list[Any]:
    client = BlockingClient(ClientConfig.from_mapping({"bootstrap.servers": address, **config}))
    try:
        return [client.call(ANY, request, 10.0) for request in requests]
    finally:
        client.close()


async def _calls(address: str, requests: list[MetadataRequest], config: dict[str, Any]) -> list[Any]:
    client = AsyncClient(ClientConfig.from_mapping({"bootstrap.servers": address, **config}))
    try:
        return [await client.call(ANY, request, 10.0) for request in requests]
    finally:
        await client.close()


def in_asyncio(address: str, requests: list[MetadataRequest], **config: Any) -> list[Any]:
    return asyncio.run(_calls(address, requests, config))


def in_uvloop(address: str, requests: list[MetadataRequest], **config: Any) -> list[Any]:
    uvloop = pytest.importorskip("uvloop", reason="there is no uvloop on this platform")

    def run(main: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()

    return run(_calls(address, requests, config))


@pytest.fixture(params=[blocking, in_asyncio, in_uvloop], ids=["blocking", "asyncio", "uvloop"])
def calls(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    return request.param


@pytest.fixture
def broker() -> Any:
    with FakeBroker() as fake:
        fake.topics = {f"topic-{i:06}": 20 for i in range(1500)}
        yield fake


class Marks:
    """What the drivers were told to set, and by which connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[int] = []
        self._connection: Connection | None = None
        self._change = low_water.change
        monkeypatch.setattr(low_water, "change", self._note)

    def _note(self, connection: Connection) -> int:
        mark = self._change(connection)
        if mark:
            self._connection = connection
            self.told.append(mark)
        return mark

    @property
    def sock(self) -> Any:
        """The socket that was given a mark; None before."""
        transport = None if self._connection is None else self._connection.transport
        return transport if isinstance(transport, socket.socket | None) else transport.get_extra_info("socket")

    @property
    def of_the_socket(self) -> int:
        """The mark that the system has; 0 before one was told."""
        return 0 if self.sock is None else self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def wait_for(condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


@needs_marks
def test_while_much_is_missing_the_socket_has_a_mark(
    calls: Callable[..., list[Any]], broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, seen = Marks(monkeypatch), []

    def write(sock: socket.socket, data: bytes) -> None:
        if len(data) < 500_000:
            if marks.sock is not None and marks.sock.getsockname() == sock.getpeername():  # after a large one
                seen.append(wait_for(lambda: marks.of_the_socket == 1))
            sock.sendall(data)
            return
        sock.sendall(data[:250_000])
        seen.append(wait_for(lambda: marks.of_the_socket == LOW_WATER_BYTES))
        for i in range(250_000, len(data), 1000):  # trickles in, which wakes nobody until there is much of it, or all
            sock.sendall(data[i : i + 1000])

    broker.write = write
    large, small, again = calls(broker.address, [LARGE, SMALL, LARGE])
    assert len(large.topics) == len(again.topics) == 1500 and not small.topics
    assert len(seen) >= 3 and all(seen) and marks.told[:2] == marks.told[-2:] == [LOW_WATER_BYTES, 1]


@needs_marks
def test_a_stream_that_ends_below_the_mark_is_noticed(
    calls: Callable[..., list[Any]], broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, dropped = Marks(monkeypatch), threading.Event()

    def write(sock: socket.socket, data: bytes) -> None:
        if len(data) < 500_000 or dropped.is_set():
            sock.sendall(data)
            return
        sock.sendall(data[:250_000])
        if wait_for(lambda: marks.of_the_socket == LOW_WATER_BYTES):
            dropped.set()
        sock.sendall(data[250_000:251_000])
        broker.drop_connections()

    broker.write = write
    with pytest.raises(ConnectionClosed):
        calls(broker.address, [LARGE], retries=0)
    assert dropped.is_set()


def test_a_receive_buffer_below_the_mark(calls: Callable[..., list[Any]], broker: FakeBroker) -> None:
    (large,) = calls(broker.address, [LARGE], receive_buffer_bytes=8192)
    assert len(large.topics) == 1500


def test_rubbish_of_a_large_size_while_a_connection_is_set_up(
    calls: Callable[..., list[Any]], broker: FakeBroker
) -> None:
    """Its connection may have no transport yet that could be given a mark."""
    broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: (900_000).to_bytes(4, "big") + bytes(900_000)
    with pytest.raises(NotAKafkaBroker):
        calls(broker.address, [SMALL])


@pytest.mark.parametrize(
    ("system", "release", "kept"),
    [
        ("linux", "5.12.0", True),
        ("linux", "6.18.44-generic", True),
        ("linux", "5.11.22", False),
        ("linux", "4.4.0", False),
        ("linux", "3.10.0-1160.el7.x86_64", False),
        ("linux", "", False),
        ("linux", "6", False),
        ("linux", "next.1", False),
        ("darwin", "23.1.0", False),
        ("win32", "11.0", False),
    ],
)
def test_kernels_that_wake_a_reader_below_the_mark(system: str, release: str, kept: bool) -> None:
    assert low_water.kept_by(system, release) is kept
