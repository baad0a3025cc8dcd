"""Sending through TLS: file ranges are read in chunks as the transport has room, in order with the bytes around them."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from pathlib import Path

import pytest
from connection_world import ECHO, FILE, EchoRouter, request, response
from fastq_broker.output import TLS_CHUNK_BYTES, ReadAhead, TransportWriter
from fastq_broker.server import Limits, Server
from loops import run_in

CERTIFICATE = Path(__file__).with_name("localhost.pem")  # self-signed, for these tests alone


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_files_and_bytes_in_order_over_tls(loop: str, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "segment").write_bytes(content)

    async def scenario() -> None:
        router = EchoRouter()
        router.file = os.open(tmp_path / "segment", os.O_RDONLY)
        server = Server(asyncio.get_running_loop(), Limits())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        port = await server.bind("127.0.0.1", 0, name="SSL", tls=context)
        server.serve(router)  # type: ignore[arg-type]
        client = ssl.create_default_context(cafile=str(CERTIFICATE))
        try:
            for size in (100, 50_000, len(content)):
                router.file_bytes = size
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, limit=1 << 16)
                writer.write(request(FILE, 1, b"") + request(ECHO, 2, bytes(700_000)) + request(FILE, 3, b""))
                await asyncio.sleep(0.05)
                assert await response(reader) == (1, content[:size] * 2)
                assert await response(reader) == (2, bytes(700_000))
                assert await response(reader) == (3, content[:size] * 2)
                writer.close()
        finally:
            await server.stop()
            os.close(router.file)

    new_loop = pytest.importorskip("uvloop").new_event_loop() if loop == "uvloop" else asyncio.new_event_loop()
    try:
        new_loop.run_until_complete(asyncio.wait_for(scenario(), 30))
    finally:
        new_loop.close()


def test_what_a_transport_takes_or_sends_is_said_to_have_moved_once() -> None:
    class Transport:
        held = 0

        def set_write_buffer_limits(self, high: int) -> None:
            pass

        def get_extra_info(self, name: str) -> None:
            pass

        def get_write_buffer_size(self) -> int:
            return self.held

        def write(self, data: bytes) -> None:
            self.held += len(data)
            writer.paused()

    transport, loop = Transport(), asyncio.new_event_loop()
    writer = TransportWriter(loop, transport, ReadAhead(loop), lambda: None, lambda error: None)  # type: ignore[arg-type]
    assert not writer.send([bytes(1000), b"what waits"])
    assert [writer.has_moved() for _ in range(2)] == [True, False]
    transport.held = 400  # the other side has read some
    assert [writer.has_moved() for _ in range(2)] == [True, False]
    loop.close()


def test_a_large_part_waits_for_the_transport_as_a_file_does() -> None:
    class Transport:
        def __init__(self) -> None:
            self.taken = bytearray()

        def set_write_buffer_limits(self, high: int) -> None:
            pass

        def get_extra_info(self, name: str) -> None:
            pass

        def write(self, data: bytes | memoryview) -> None:
            assert len(data) <= TLS_CHUNK_BYTES
            self.taken += data
            writer.paused()

    transport, loop, drained = Transport(), asyncio.new_event_loop(), []
    writer = TransportWriter(
        loop,
        transport,  # type: ignore[arg-type]
        ReadAhead(loop),
        lambda: drained.append(len(transport.taken)),
        lambda error: None,
    )
    parts = [b"head", os.urandom(TLS_CHUNK_BYTES + 9), bytearray(os.urandom(2 * TLS_CHUNK_BYTES)), b"", b"tail"]
    assert not writer.send([*parts])
    sizes = []
    while not drained:
        sizes.append(len(transport.taken))
        writer.resumed()
    assert transport.taken == b"".join(parts) and drained == [len(transport.taken)]
    each = [4, TLS_CHUNK_BYTES, 9, TLS_CHUNK_BYTES, TLS_CHUNK_BYTES, 0]
    assert sizes == list(itertools.accumulate(each))
    loop.close()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("reads", [True, False])
def test_who_reads_slowly_over_tls_is_not_idle_but_who_reads_nothing_is(
    loop: str, reads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    size, at_last = 3_000_000, 600_000  # the rest may be the client's

    async def scenario() -> None:
        server = Server(asyncio.get_running_loop(), Limits(idle_ms=15_000, send_buffer_bytes=64 << 10))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        port = await server.bind("127.0.0.1", 0, name="SSL", tls=context)
        server.serve(EchoRouter())  # type: ignore[arg-type]
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        peer.connect(("127.0.0.1", port))
        peer.setblocking(False)
        client = ssl.create_default_context(cafile=str(CERTIFICATE))
        reader, writer = await asyncio.open_connection(
            sock=peer, ssl=client, server_hostname="localhost", limit=8 << 10
        )
        try:
            writer.write(request(ECHO, 1, bytes(size)))
            await writer.drain()
            got = len(await reader.readexactly(1000))
            (connection,) = server.connections
            while reads and got < size - at_last:
                for _ in range(2):
                    server._second()
                got += len(await reader.readexactly(20_000))
                assert connection.open
            for _ in range(32 if reads else 17):
                server._second()
            assert not connection.open
            writer.transport.abort()
        finally:
            await server.stop()

    run_in(loop, asyncio.wait_for(scenario(), 30))
    assert ("in the middle of a request or response" in caplog.text) is not reads


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_who_has_read_all_over_tls_is_idle_from_then_on(loop: str) -> None:
    async def scenario() -> None:
        server = Server(asyncio.get_running_loop(), Limits(idle_ms=15_000))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        port = await server.bind("127.0.0.1", 0, name="SSL", tls=context)
        server.serve(EchoRouter())  # type: ignore[arg-type]
        client = ssl.create_default_context(cafile=str(CERTIFICATE))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        try:
            writer.write(request(ECHO, 1, bytes(100_000)))
            assert await response(reader) == (1, bytes(100_000))
            (connection,) = server.connections
            for _ in range(15):
                server._second()
            assert connection.open
            server._second()
            assert not connection.open
            writer.transport.abort()
        finally:
            await server.stop()

    run_in(loop, asyncio.wait_for(scenario(), 30))
