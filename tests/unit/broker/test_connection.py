"""Connections against a router that echoes: framing, order, back-pressure, limits, and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from connection_world import BAD, ECHO, FILE, LATER, SILENT, EchoRouter, request, response, run, until
from fastq_broker.descriptors import DescriptorCount
from fastq_broker.server import Limits, Server
from loops import both_loops


@both_loops
@pytest.mark.parametrize("chunk", [1, 3, 1000, 1 << 20])
def test_frames_arrive_whole_however_they_are_cut(loop: str, chunk: int) -> None:
    bodies = [b"", b"x", os.urandom(5000), b"y" * 3]
    if chunk > 3:
        bodies += [os.urandom(300_000), os.urandom(40_000), b"z", os.urandom(3_000_000), os.urandom(900_000), b"end"]

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b"".join(request(ECHO, i, body) for i, body in enumerate(bodies))

        async def send() -> None:
            for at in range(0, len(data), chunk):
                writer.write(data[at : at + chunk])
                await writer.drain()
                if chunk < 1000:
                    await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        for i, body in enumerate(bodies):
            assert await response(reader) == (i, body)
        await sending
        writer.close()

    run(scenario, loop=loop)


@both_loops
@pytest.mark.parametrize("seed", range(6))
def test_what_follows_a_large_frame_need_not_be_as_large(loop: str, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [300_000]
    for _ in range(60):
        near = max(sizes[-1], 33_000) + chance.choice([-1, 0, 0, 0, 1])
        sizes.append(chance.choice([near, near, near, 0, 40, 33_000, 600_000]))
    kinds = [chance.choice([ECHO, ECHO, LATER]) for _ in sizes]

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b"".join(
            request(kind, i, i.to_bytes(4, "big") * (size // 4 + 1))
            for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
        )

        async def send() -> None:
            at = 0
            while at < len(data):
                chunk = chance.choice([1, 100, 5_000, 200_000, 1 << 20])
                writer.write(data[at : at + chunk])
                at += chunk
                await writer.drain()
                await asyncio.sleep(0)

        async def answer_later() -> None:
            while True:
                for deferred, answer in router.waiting:
                    deferred.complete(answer)
                router.waiting.clear()
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(send()), asyncio.create_task(answer_later())]
        for i, size in enumerate(sizes):
            assert await response(reader) == (i, i.to_bytes(4, "big") * (size // 4 + 1))
        await tasks[0]
        tasks[1].cancel()
        writer.close()

    run(scenario, loop=loop)


def test_a_connection_with_large_requests_gets_a_wide_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    widened: list[Any] = []
    monkeypatch.setattr(Server, "widen", lambda server, sock: widened.append(sock))

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for size, expected in ((1000, 0), (100_000, 0), (300_000, 1), (300_000, 1)):
            writer.write(request(ECHO, 1, bytes(size)))
            await response(reader)
            assert len(widened) == expected
        writer.close()

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take the receive window for their own business")
def test_a_window_is_widened_unless_the_user_has_set_it() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            server.limits.receive_buffer_bytes = 100_000
            server.widen(sock)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before
            server.limits.receive_buffer_bytes = -1
            server.widen(sock)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > before
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1

    run(scenario)


@both_loops
def test_responses_keep_the_order_of_pipelined_requests(loop: str) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        kinds = [ECHO, LATER, ECHO, SILENT, LATER, LATER, ECHO, ECHO]
        writer.write(b"".join(request(kind, i, b"%d" % i * 20_000) for i, kind in enumerate(kinds)))
        expected = [i for i, kind in enumerate(kinds) if kind != SILENT]
        got = []
        for _ in expected:
            receiving = asyncio.create_task(response(reader))
            await until(lambda receiving=receiving: receiving.done() or bool(router.waiting))  # type: ignore[misc]
            if not receiving.done():
                assert len(router.waiting) == 1, "one request at a time is in progress"
                deferred, answer = router.waiting.pop()
                deferred.complete(answer)
            correlation_id, body = await receiving
            assert body == b"%d" % correlation_id * 20_000
            got.append(correlation_id)
        assert got == expected
        writer.close()

    run(scenario, loop=loop)


@both_loops
def test_files_are_sent_between_bytes_and_a_slow_reader_is_waited_for(loop: str, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    (tmp_path / "segment").write_bytes(content)

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        router.file = os.open(tmp_path / "segment", os.O_RDONLY)
        try:
            for size in (100, 20_000, len(content)):
                router.file_bytes = size
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
                writer.write(request(FILE, 1, b"") + request(ECHO, 2, b"after") + request(FILE, 3, b""))
                await asyncio.sleep(0.02)
                assert await response(reader) == (1, content[:size] * 2)
                assert await response(reader) == (2, b"after")
                assert await response(reader) == (3, content[:size] * 2)
                writer.close()
        finally:
            os.close(router.file)

    run(scenario, loop=loop)


def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(8 << 20))

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        router.file, router.file_bytes = os.open(tmp_path / "segment", os.O_RDONLY), 8 << 20
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(b"".join(request(FILE, i, b"") for i in range(10)))
        for i in range(200):
            writer.write(request(ECHO, i, bytes(100_000)))
        await asyncio.sleep(0.2)
        assert router.served == 1
        writer.transport.abort()
        await until(lambda: not server.connections)
        os.close(router.file)

    run(scenario)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS hello"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP request"),
        (struct.pack(">i", -1), "size field"),
        (struct.pack(">i", 3) + b"abc", "size field"),
        (struct.pack(">i", 2**31 - 1), "size field"),
        (request(BAD, 1, b""), "a bad request"),
    ],
)
def test_what_is_not_the_protocol_closes_the_connection_with_one_line(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(request(ECHO, 1, b"still here"))
        assert await response(other_reader) == (1, b"still here")
        other.close()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert [reason in record.message for record in caplog.records if record.name.startswith("fastq_broker")] == [True]


def test_requests_before_a_bad_one_are_answered() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(ECHO, 1, b"good") + request(BAD, 2, b""))
        assert await response(reader) == (1, b"good")
        writer.close()

    run(scenario)


def test_a_half_closed_client_still_gets_its_answers() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one") + request(ECHO, 2, b"two"))
        writer.write_eof()
        await until(lambda: bool(router.waiting))
        deferred, answer = router.waiting.pop()
        deferred.complete(answer)
        assert await response(reader) == (1, b"one")
        assert await response(reader) == (2, b"two")
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_a_lost_connection_cancels_what_it_waits_for() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one"))
        await until(lambda: bool(router.waiting))
        reset = writer.get_extra_info("socket")
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        deferred, answer = router.waiting.pop()
        await until(lambda: deferred.cancelled)
        deferred.complete(answer)

    run(scenario)


@both_loops
def test_an_answer_to_an_aborted_connection_touches_no_descriptor(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one"))
        await until(lambda: bool(router.waiting))
        (connection,) = server.connections
        deferred, answer = router.waiting.pop()
        connection.abort()
        assert deferred.cancelled and connection.pending is None, "at once, not when the loop says that it is lost"
        monkeypatch.setattr(os, "dup", lambda descriptor: pytest.fail(f"{descriptor} may be another's by now"))
        monkeypatch.setattr(os, "write", lambda descriptor, data: pytest.fail(f"{descriptor} may be another's by now"))
        deferred.complete(answer)
        for parts in ([answer], [answer, answer]):
            assert connection._writer is not None and connection._writer.send(parts)
        monkeypatch.undo()
        writer.close()

    run(scenario, loop=loop)


def test_connection_limits() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        answers = []
        for reader, writer in pairs:
            try:
                writer.write(request(ECHO, 1, b""))
                answers.append(await response(reader))
            except (asyncio.IncompleteReadError, ConnectionError):
                answers.append((-1, b""))
        assert sorted(answers) == [(-1, b""), (1, b""), (1, b"")]
        for _, writer in pairs:
            writer.close()
        await until(lambda: not server.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(ECHO, 9, b""))
        assert await response(reader) == (9, b"")
        writer.close()

    run(scenario, Limits(connections_max_per_ip=2))
    run(scenario, Limits(connections_max=2))


def test_clients_do_not_crowd_other_nodes_out() -> None:
    """Neither of the descriptors nor of max.connections: the client that was silent for longest goes."""

    async def main(limits: Limits, clients_max: int) -> list[int]:
        server = Server(asyncio.get_running_loop(), limits, clients := DescriptorCount(clients_max))
        reserve = DescriptorCount(2, beyond=clients)
        ports = [await server.bind("127.0.0.1", 0), await server.bind("127.0.0.1", 0, name="NODES", reserve=reserve)]
        server.serve(EchoRouter())  # type: ignore[arg-type]
        writers: list[asyncio.StreamWriter] = []
        answered = []
        try:
            for number, port in enumerate([ports[0]] * 4 + [ports[1]] * 2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
                try:
                    writer.write(request(ECHO, number, b""))
                    answered.append((await response(reader))[0])
                except (asyncio.IncompleteReadError, ConnectionError):
                    pass
                for connection in server.connections:
                    connection.active_tick -= connection.listener == "PLAINTEXT" and number < 3
            await until(lambda: len(server.connections) == 3 + (clients_max == 3) * 2)
            assert sum(connection.listener == "NODES" for connection in server.connections) == 2
            assert (clients.used, reserve.used) == (len(server.connections) - 2, 2)
        finally:
            for writer in writers:
                writer.close()
            await server.stop()
        assert (clients.used, reserve.used) == (0, 0)
        return answered

    assert asyncio.run(main(Limits(), 3)) == [0, 1, 2, 4, 5]
    assert asyncio.run(main(Limits(connections_max=3), 9)) == [0, 1, 2, 4, 5]


def test_idle_and_trickling_connections_end() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", port)
        slow_reader, slow = await asyncio.open_connection("127.0.0.1", port)
        busy_reader, busy = await asyncio.open_connection("127.0.0.1", port)
        slow.write(struct.pack(">i", 1000) + b"x")
        busy.write(request(LATER, 1, b"long poll"))
        await until(lambda: len(router.waiting) == 1 and any(c._frame is not None for c in server.connections))
        for _ in range(40):  # seconds, without waiting for them
            server._second()
            for connection in server.connections:
                if connection._frame is not None:
                    connection.active_tick = server.tick  # a byte now and then
        assert await slow_reader.read() == b""
        for _ in range(30):
            server._second()
        assert await idle_reader.read() == b""
        deferred, answer = router.waiting.pop()
        deferred.complete(answer)
        assert await response(busy_reader) == (1, b"long poll")
        for writer in (idle, slow, busy):
            writer.close()

    run(scenario, Limits(idle_ms=60_000))


def test_who_waited_long_for_an_answer_is_not_idle_once_it_has_it() -> None:
    """A member that was let into its group was cut off for the time that it had waited."""

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"long wait"))
        await until(lambda: len(router.waiting) == 1)
        for _ in range(70):
            server._second()
        deferred, answer = router.waiting.pop()
        deferred.complete(answer)
        assert await response(reader) == (1, b"long wait")
        server._second()
        writer.write(request(ECHO, 2, b"next"))
        assert await response(reader) == (2, b"next")
        writer.close()

    run(scenario, Limits(idle_ms=60_000))


@pytest.mark.parametrize("reads", [True, False])
def test_who_reads_a_large_answer_slowly_is_not_idle_but_who_reads_nothing_is(
    reads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    size = 8_000_000

    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        peer.connect(("127.0.0.1", port))
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, request(ECHO, 1, bytes(size)))
        got = len(await loop.sock_recv(peer, 1000))
        seconds = 0
        while reads and got < size:
            for _ in range(2):
                server._second()
            seconds += 2
            # The system says that there is room when a third of what it holds has gone.
            read_to = min(size, got + 500_000)
            while got < read_to:
                got += len(await loop.sock_recv(peer, 1 << 18))
        if reads:
            assert seconds > 20 and len(server.connections) == 1
        else:
            await asyncio.sleep(0.05)
            for _ in range(17):
                server._second()
            await until(lambda: not server.connections)
        peer.close()

    run(scenario, Limits(idle_ms=15_000))
    assert ("in the middle of a request or response" in caplog.text) is not reads


def test_a_stop_answers_what_is_in_progress() -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(LATER, 1, b"one") + request(ECHO, 2, b"never served"))
        await until(lambda: bool(router.waiting))
        stopping = asyncio.create_task(server.stop())
        assert await idle_reader.read() == b""
        deferred, answer = router.waiting.pop()
        deferred.complete(answer)
        assert await response(reader) == (1, b"one")
        assert await reader.read() == b""
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        idle.close()

    run(scenario)


def test_bad_peers_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, router: EchoRouter, port: int) -> None:
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        for peer in peers:
            peer.send(b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: server._bad_lines + server._bad_left_out >= 50 and not server.connections)
        server._second()
        for peer in peers:
            peer.close()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert sum(record.name.startswith("fastq_broker") for record in caplog.records) <= 20
    assert any("more bad connections" in record.message for record in caplog.records)


def test_one_connection_that_cannot_be_swept_leaves_the_others_swept(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = Server(asyncio.get_running_loop(), Limits())
        swept: list[int] = []

        class Swept:
            def __init__(self, broken: bool) -> None:
                self.broken = broken

            def check_idle(self, tick: int, _: int) -> None:
                if self.broken:
                    raise ValueError("broken connection")
                swept.append(tick)

        server.connections.update((Swept(broken), None) for broken in (True, False, True, False))  # type: ignore[misc]
        server._second()
        assert swept == [1, 1]
        server.connections.clear()
        await server.stop()

    asyncio.run(scenario())
    assert "broken connection" in caplog.text
