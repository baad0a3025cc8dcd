"""Where there is no memory for a moment, whichever: an answer arrives whole or its connection ends; who waits for a disk hears of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from connection_world import ECHO, LATER, EchoRouter, request, response, run, until
from failing_allocations import AllocationsFail
from fastq_broker.descriptors import DescriptorCount
from fastq_broker.output import TURN_BYTES, ReadAhead, SocketWriter, TransportWriter
from fastq_broker.server import Server

ALLOCATIONS = 60
"""More than a turn of a writer takes."""


class Loop:
    """Has what a writer waits for; tests call it."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], object]] = []

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self.ready.append(callback)

    def remove_writer(self, descriptor: int) -> None:
        self.ready.clear()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        self.ready.append(callback)
        return SimpleNamespace(cancel=self.ready.clear)

    call_soon = add_writer


def drain(sock: socket.socket) -> bytes:
    got = bytearray()
    with suppress(BlockingIOError):
        while piece := sock.recv(1 << 20):
            got += piece
    return bytes(got)


@pytest.mark.parametrize("parts", [20, 1])
@pytest.mark.parametrize("moment", ["sent", "continued"])
def test_an_answer_is_never_cut(parts: int, moment: str) -> None:
    """Pieces that could not be joined were left out, and what followed them went out as if nothing were missing."""
    outcomes = set()
    for first in range(ALLOCATIONS):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        loop: Any = Loop()
        errors: list[Exception] = []
        writer = SocketWriter(loop, ours.fileno(), ReadAhead(loop), lambda: None, errors.append, DescriptorCount(1))
        pieces: list[Any] = [bytes([n + 1]) * (600_000 // parts) for n in range(parts)]
        whole, got = b"".join(pieces), bytearray()
        try:
            with AllocationsFail(first if moment == "sent" else 10**9):
                writer.send(pieces)
        except MemoryError as error:  # then who sends it ends the connection
            errors.append(error)
            writer.close()
        got += drain(theirs)
        if moment == "continued":
            (writable,) = loop.ready
            with suppress(MemoryError), AllocationsFail(first):
                writable()
        for _ in range(1000):
            got += drain(theirs)
            if errors or not loop.ready:
                break
            loop.ready[0]()
        outcomes.add(bool(errors))
        assert bytes(got) == (whole[: len(got)] if errors else whole), f"allocation {first}"
        writer.close()
        ours.close()
        theirs.close()
    assert outcomes == {True, False}


def test_an_answer_over_tls_is_never_cut() -> None:
    sent: list[bytes] = []
    taken: list[int] = []

    def write(data: Any) -> None:
        taken.append(len(data))
        if len(taken) == 2:
            raise MemoryError("none left")
        sent.append(bytes(data))

    transport: Any = SimpleNamespace(set_write_buffer_limits=lambda high: None, write=write)
    errors: list[Exception] = []
    loop: Any = Loop()
    writer = TransportWriter(loop, transport, ReadAhead(loop), lambda: None, errors.append)
    assert writer.send([b"one", b"two", b"three"]), "nothing of it goes anywhere any more"
    assert sent == [b"one"] and [type(error) for error in errors] == [MemoryError]


def test_who_waits_for_a_disk_hears_of_it_where_there_was_no_memory_to_say_so() -> None:
    """A fetch, the load of a coordinator or the start waited for good."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        refused: list[bool] = []

        def call_soon_threadsafe(*arguments: Any) -> Any:
            if not refused:
                refused.append(True)
                raise MemoryError("none left")
            return loop.call_soon_threadsafe(*arguments)

        short: Any = SimpleNamespace(create_future=loop.create_future, call_soon_threadsafe=call_soon_threadsafe)
        read_ahead = ReadAhead(short)
        assert await asyncio.wait_for(read_ahead.call(lambda: 7), 10) == 7
        assert refused
        read_ahead.close()

    asyncio.run(main())


def test_what_cannot_be_gone_on_with_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests behind one that had waited were taken, and answered by nobody, as long as the connection was open."""

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one") + request(ECHO, 2, b"two"))
        await until(lambda: bool(router.waiting))
        await until(lambda: bool(next(iter(server.connections))._backlog))

        def no_memory(*_: object) -> None:
            raise MemoryError("none left")

        monkeypatch.setattr(router, "dispatch", no_memory)
        deferred, answer = router.waiting.pop()
        with suppress(MemoryError):
            deferred.complete(answer)
        assert await response(reader) == (1, b"one")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()

    run(scenario)


def test_a_wait_that_cannot_be_ended_ends_with_its_connection_all_the_same() -> None:
    """What the connection held of the memory for requests was not given back."""

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one"))
        await until(lambda: bool(router.waiting))
        deferred, _ = router.waiting.pop()

        def no_memory() -> None:
            raise MemoryError("none left")

        deferred.on_cancel = no_memory
        (connection,) = server.connections
        connection._held = 10
        server.memory.held += 10
        with suppress(MemoryError):
            connection.abort()
        await until(lambda: not server.connections)
        assert not server.memory.held
        writer.close()

    run(scenario)


def test_without_a_descriptor_to_spare_a_turn_that_is_over_is_followed_at_once() -> None:
    """It waited as for a full socket: a large answer went out at 256 KiB each 20 ms."""
    delays: list[float] = []
    loop: Any = Loop()

    def call_later(delay_s: float, callback: Callable[[], object]) -> Any:
        delays.append(delay_s)
        loop.ready.append(callback)
        return SimpleNamespace(cancel=loop.ready.clear)

    loop.call_later = call_later
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    theirs.setblocking(False)
    errors: list[Exception] = []
    writer = SocketWriter(loop, ours.fileno(), ReadAhead(loop), lambda: None, errors.append, DescriptorCount(0))
    writer.send([bytes(1000)] * (2 * TURN_BYTES // 1000))
    size = len(drain(theirs))
    assert (delays == [0]) == (size >= TURN_BYTES), "at once where it was the turn that ended, not the room"
    while loop.ready:
        callback = loop.ready.pop()
        callback()
        size += len(drain(theirs))
    assert size == 2 * TURN_BYTES // 1000 * 1000 and not errors
    writer.close()
    ours.close()
    theirs.close()
