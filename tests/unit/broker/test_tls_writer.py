"""Sending through TLS: file ranges are read in chunks as the transport has room, in order with the bytes around them."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from connection_world import ECHO, FILE, EchoRouter, request, response
from fastq_broker.output import ReadAhead, TransportWriter
from fastq_broker.server import Limits, Server

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
