"""A server whose router echoes, and what clients by hand need of it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from fastq_broker.connection import ProtocolViolation
from fastq_broker.router import Deferred
from fastq_broker.server import Limits, Server
from loops import run_in

ECHO, LATER, SILENT, FILE, BAD = 1, 2, 3, 4, 5


class Slice:
    """A range of a file, as the log hands them out."""

    def __init__(self, fd: int, position: int, size: int) -> None:
        self.fd = fd
        self.position = position
        self.size = size


class EchoRouter:
    """Answers by api key: the body at once, later, never, or ranges of a file. Bodies are copied, as handlers must."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred, bytes]] = []
        self.served = 0
        self.file = -1
        self.file_bytes = 0

    def dispatch(self, connection: Any, buffer: bytearray, header: Any) -> Any:
        self.served += 1
        api_key, _, correlation_id, _, start, end = header
        response = struct.pack(">ii", 4 + end - start, correlation_id) + bytes(buffer[start:end])
        if api_key == ECHO:
            return response
        if api_key == LATER:
            deferred = Deferred(connection)
            self.waiting.append((deferred, response))
            return deferred
        if api_key == FILE:
            head = struct.pack(">ii", 4 + 2 * self.file_bytes, correlation_id)
            return [head, Slice(self.file, 0, self.file_bytes), b"", Slice(self.file, 0, self.file_bytes)]
        if api_key == BAD:
            raise ProtocolViolation("a bad request")
        return None


Scenario = Callable[[Server, EchoRouter, int], Coroutine[Any, Any, None]]


def run(scenario: Scenario, limits: Limits | None = None, loop: str = "uvloop") -> None:
    """Run a scenario against a server on a free port."""

    async def main() -> None:
        router = EchoRouter()
        server = Server(asyncio.get_running_loop(), limits or Limits())
        port = await server.bind("127.0.0.1", 0)
        server.serve(router)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(scenario(server, router, port), 30)
        finally:
            await server.stop()
        assert not server.connections

    run_in(loop, main())


def request(api_key: int, correlation_id: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, 0, correlation_id, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
    return correlation_id, await reader.readexactly(size - 4)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true")
