"""Connections and the memory of their requests: what is claimed takes none, who waits for some, and who goes meanwhile."""

from __future__ import annotations

import asyncio
import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from connection_world import ECHO, EchoRouter, request, response, run, until
from fastq_broker.connection import ProtocolViolation
from fastq_broker.ports import Ports
from fastq_broker.router import Router
from fastq_broker.server import Limits, Server
from loops import both_loops

MIB = 1 << 20


def test_a_claimed_size_does_not_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(struct.pack(">i", 100_000_000) + bytes(10))
            writers.append(writer)
        await until(lambda: len(server.connections) == 20 and all(c._frame is not None for c in server.connections))
        assert sum(len(c._frame or b"") for c in server.connections) <= 20 * (128 << 10)
        for writer in writers:
            writer.close()

    run(scenario, Limits(queued_bytes_max=-1))


@both_loops
def test_a_large_frame_waits_until_its_memory_is_free(loop: str) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        bodies = [os.urandom(700_000) for _ in range(3)]
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in bodies]
        for i, ((_, writer), body) in enumerate(zip(streams, bodies, strict=True)):
            writer.write(request(ECHO, i, body)[:300_000])
            await until(lambda taken=i > 0: server.memory.short == taken and server.memory.held == 700_014)
        small_reader, small = await asyncio.open_connection("127.0.0.1", port)
        small.write(request(ECHO, 9, b"small"))
        assert await response(small_reader) == (9, b"small"), "small requests need none of it"
        for i, ((reader, writer), body) in enumerate(zip(streams, bodies, strict=True)):
            assert server.memory.held <= MIB
            writer.write(request(ECHO, i, body)[300_000:])
            assert await response(reader) == (i, body)
        for writer in (small, *(writer for _, writer in streams)):
            writer.close()
        await until(lambda: not server.connections)
        assert server.memory.held == 0

    run(scenario, Limits(queued_bytes_max=MIB), loop)


@both_loops
def test_many_large_frames_share_little_memory(loop: str) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        async def client(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for i, size in enumerate((40_000, 900_000 + number, 3 * MIB, 10, 300_000)):  # one of them above the bound
                body = bytes([number, i]) * (size // 2)
                writer.write(request(ECHO, i, body))
                assert await response(reader) == (i, body)
            writer.close()

        async def watch() -> None:
            while True:
                held = [c._held for c in server.connections if c._held]
                assert sum(held) == server.memory.held
                assert server.memory.held <= MIB or len(held) == 1
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*map(client, range(12)))
        assert not watching.done()
        watching.cancel()
        await until(lambda: not server.connections)
        assert server.memory.held == 0 and not server.memory.short

    run(scenario, Limits(queued_bytes_max=MIB), loop)


def test_who_stalls_or_goes_does_not_keep_others_from_memory() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        streams = []
        for i in range(3):
            streams.append(await asyncio.open_connection("127.0.0.1", port))
            streams[i][1].write(request(ECHO, i, bytes(700_000))[:200_000])
            await until(lambda waiting=i: len(server.memory._waiting) == waiting)
        (stalled_reader, _), (_, gone), (reader, writer) = streams
        gone.transport.abort()
        next(c for c in server.memory._waiting).abort()  # it is not read from, so nothing else would tell
        await until(lambda: len(server.connections) == 2)
        for _ in range(60):  # seconds; 5,833 bytes in each would do
            server._second()
            for connection in server.connections:
                connection.active_tick = server.tick  # a byte now and then does not
        assert await stalled_reader.read() == b""
        writer.write(request(ECHO, 2, bytes(700_000))[200_000:])
        assert await response(reader) == (2, bytes(700_000))
        for _, each in streams:
            each.close()

    run(scenario, Limits(queued_bytes_max=MIB))


def test_a_stop_does_not_wait_for_who_waits_for_memory() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in streams:
            writer.write(request(ECHO, 1, bytes(700_000))[:200_000])
        await until(lambda: server.memory.short)
        await asyncio.wait_for(server.stop(), 1)
        assert not server.connections
        for _, writer in streams:
            writer.close()

    run(scenario, Limits(queued_bytes_max=MIB))


def test_only_produce_may_be_huge(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        for api_key, name in ((3, "Metadata"), (99, "api key 99")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(api_key, 1, bytes(2 * MIB))[:5000])
            assert await reader.read() == b""
            assert f"a request of 2097162 bytes ({name}); other than Produce may have 1048576" in caplog.text
            writer.close()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(0, 1, bytes(2 * MIB)))
        await until(lambda: router.served == 1)
        writer.close()

    run(scenario, Limits(non_produce_request_bytes_max=MIB))

    config = SimpleNamespace(non_produce_request_max_bytes=100)
    broker: Any = SimpleNamespace(**{**dict.fromkeys(Ports.__annotations__), "config": config})
    with pytest.raises(ProtocolViolation, match=r"101 bytes \(Metadata\)"):  # one that came whole
        Router(broker).dispatch(None, bytearray(200), (3, 12, 1, None, 14, 115))  # type: ignore[arg-type]
