"""Slices of files that end early, as a truncation came between the read and the send, or cannot be read: the connection closes with the
reason. Those that memory does not keep are sent."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastq_broker import output
from fastq_broker.descriptors import DescriptorCount
from fastq_broker.log.files import bring_in
from fastq_broker.output import ReadAhead, SocketWriter, TransportWriter

SMALL = output.SMALL_SLICE_BYTES
LARGE = 1 << 20


@dataclass
class Slice:
    fd: int
    position: int
    size: int


class Transport:
    """Of a TransportWriter: takes everything."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.sent += data


@pytest.mark.parametrize("kind", ["socket", "transport"])
@pytest.mark.parametrize("size", [100, SMALL, LARGE])
@pytest.mark.parametrize("left", [0, 1, 50])
def test_a_slice_that_was_cut_closes_the_connection(tmp_path: Path, kind: str, size: int, left: int) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1000 + size))
    descriptor = os.open(path, os.O_RDWR)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        failed: asyncio.Future[OSError] = loop.create_future()
        read_ahead = ReadAhead(loop)
        writer: SocketWriter | TransportWriter
        if kind == "socket":
            writer = SocketWriter(loop, ours.fileno(), read_ahead, lambda: None, failed.set_result, DescriptorCount(1))
        else:
            writer = TransportWriter(loop, Transport(), read_ahead, lambda: None, failed.set_result)  # type: ignore[arg-type]
        os.ftruncate(descriptor, 1000 + left)
        assert writer.send([b"head", Slice(descriptor, 1000, size)]) in (True, False)
        for _ in range(100):  # turns of the loop and of the reader threads, not seconds
            if failed.done():
                break
            await asyncio.sleep(0.01)
        assert failed.done(), "neither sent nor refused"
        assert f"ends at {1000 + left}" in str(failed.result())
        assert read_ahead.cold_reads <= 1
        writer.close()
        read_ahead.close()
        ours.close()
        theirs.close()

    asyncio.run(scenario())
    os.close(descriptor)


def test_a_file_system_without_a_page_cache_is_sent_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread has read is not in memory then either, as far as the kernel can tell: it is not read again for ever."""
    monkeypatch.setattr("fastq_broker.log.files._uncached_devices", set())
    monkeypatch.setattr("fastq_broker.log.files.is_resident", lambda descriptor, position, size: False)
    sent = os.urandom(LARGE)
    (tmp_path / "f").write_bytes(sent)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        read_ahead = ReadAhead(loop)
        drained = loop.create_future()
        writer = SocketWriter(
            loop, ours.fileno(), read_ahead, lambda: drained.set_result(None), drained.set_exception, DescriptorCount(9)
        )
        reader, peer = await asyncio.open_connection(sock=theirs)
        assert not writer.send([Slice(descriptor, 0, LARGE)])
        assert await asyncio.wait_for(reader.readexactly(LARGE), 30) == sent
        assert read_ahead.cold_reads == 1
        writer.close()
        read_ahead.close()
        peer.close()
        ours.close()
        os.close(descriptor)

    asyncio.run(scenario())


async def sent_through(kind: str, path: Path, size: int) -> tuple[bytes | OSError, int]:
    """What arrives of a file that is sent as one slice between a head and a tail, or the error; and how often a thread read of it."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    descriptor = os.open(path, os.O_RDONLY)
    read_ahead = ReadAhead(loop)
    ended: asyncio.Future[OSError | None] = loop.create_future()
    reader, peer = await asyncio.open_connection(sock=theirs)
    arrives = asyncio.ensure_future(reader.readexactly(size + 8))
    transport = Transport()
    writer: SocketWriter | TransportWriter
    if kind == "socket":
        writer = SocketWriter(
            loop, ours.fileno(), read_ahead, lambda: ended.set_result(None), ended.set_result, DescriptorCount(9)
        )
    else:
        writer = TransportWriter(loop, transport, read_ahead, lambda: ended.set_result(None), ended.set_result)  # type: ignore[arg-type]
    try:
        assert not writer.send([b"head", Slice(descriptor, 0, size), b"tail"])
        error = await asyncio.wait_for(ended, 30)
        if error is not None:
            return error, read_ahead.cold_reads
        return bytes(transport.sent) if kind == "transport" else await asyncio.wait_for(
            arrives, 30
        ), read_ahead.cold_reads
    finally:
        arrives.cancel()
        writer.close()
        read_ahead.close()
        peer.close()
        ours.close()
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["socket", "transport"])
def test_who_takes_all_that_is_sent_leaves_others_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    size = 6 * LARGE + 5
    path = tmp_path / "segment"
    path.write_bytes(bytes(size))
    transport, gone = Transport(), 0

    def takes_all(out: int, descriptor: int, position: int, most: int) -> int:
        nonlocal gone
        gone += most
        return most

    monkeypatch.setattr(os, "sendfile", takes_all)

    async def scenario() -> list[int]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptor = os.open(path, os.O_RDONLY)
        read_ahead = ReadAhead(loop)
        drained = loop.create_future()
        writer: SocketWriter | TransportWriter
        if kind == "socket":
            writer = SocketWriter(
                loop,
                ours.fileno(),
                read_ahead,
                lambda: drained.set_result(None),
                drained.set_exception,
                DescriptorCount(9),
            )
        else:
            writer = TransportWriter(
                loop, transport, read_ahead, lambda: drained.set_result(None), drained.set_exception
            )  # type: ignore[arg-type]
        turns = [0]
        assert not writer.send([Slice(descriptor, 0, size)])
        while not drained.done():
            turns.append(gone + len(transport.sent))
            await asyncio.sleep(0)
        await drained
        writer.close()
        read_ahead.close()
        ours.close()
        theirs.close()
        os.close(descriptor)
        return [*turns, gone + len(transport.sent)]

    turns = asyncio.run(scenario())
    assert turns[-1] == size
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 512 << 10


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read is gone again before somebody looks."""
    preadv = os.preadv

    def cold(descriptor: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError
        return preadv(descriptor, buffers, position, flags)

    monkeypatch.setattr("fastq_broker.log.files._uncached_devices", set())
    monkeypatch.setattr(
        "fastq_broker.log.files.is_resident", lambda descriptor, position, size: None if size == 1 else False
    )
    monkeypatch.setattr(os, "preadv", cold)


WITHOUT_WAIT = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot read without a wait")


@WITHOUT_WAIT
@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("kind", ["socket", "transport"])
@pytest.mark.parametrize("size", [100, SMALL, LARGE + 5, 6 * LARGE])
def test_what_memory_does_not_keep_is_sent_a_little_at_a_time(tmp_path: Path, kind: str, size: int) -> None:
    """It is not read again and again until it stays."""
    sent = os.urandom(size)
    (tmp_path / "f").write_bytes(sent)
    arrived, reads = asyncio.run(sent_through(kind, tmp_path / "f", size))
    assert arrived == b"head" + sent + b"tail"
    assert reads <= -(-size // output.PROBE_STEP_BYTES)


@WITHOUT_WAIT
@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("kind", ["socket", "transport"])
@pytest.mark.parametrize("size", [100, LARGE])
def test_what_the_disk_cannot_read_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(output, "bring_in", broken)
    (tmp_path / "f").write_bytes(bytes(size))
    error, reads = asyncio.run(sent_through(kind, tmp_path / "f", size))
    assert isinstance(error, OSError) and error.errno == errno.EIO
    assert f"bytes 0 to {size} of Slice(" in str(error) and reads == 1


def test_a_page_that_cannot_be_read_behind_some_that_can_is_an_error(tmp_path: Path) -> None:
    """The kernel answers with those first, as if the file had no more."""
    (tmp_path / "f").write_bytes(bytes(LARGE))
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if position >= 8192:
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(descriptor, min(size, 8192 - position), position)

    with pytest.raises(OSError, match="Input/output error"):
        bring_in(descriptor, 0, LARGE, pread)
    os.close(descriptor)


def test_a_short_read_of_a_whole_file_is_a_cold_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(5000))
    with open(path, "rb") as file:
        piece = Slice(file.fileno(), 0, 5000)
        monkeypatch.setattr(os, "preadv", lambda *_: 4096)
        assert output.read_if_cached(piece, 0, 5000) is None


@pytest.mark.parametrize("spare", [0, 1])
def test_without_a_descriptor_to_spare_files_are_sent_all_the_same(tmp_path: Path, spare: int) -> None:
    """The socket is full again and again, and cannot be watched: it is tried again after a while."""
    sent = os.urandom(3 * LARGE + 5)
    path = tmp_path / "f"
    path.write_bytes(sent)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptor = os.open(path, os.O_RDONLY)
        descriptors = DescriptorCount(spare)
        drained = loop.create_future()
        writer = SocketWriter(
            loop, ours.fileno(), ReadAhead(loop), lambda: drained.set_result(None), drained.set_exception, descriptors
        )
        reader, peer = await asyncio.open_connection(sock=theirs)
        assert not writer.send([b"head", Slice(descriptor, 0, len(sent)), b"tail"])
        assert await asyncio.wait_for(reader.readexactly(len(sent) + 8), 30) == b"head" + sent + b"tail"
        await asyncio.wait_for(drained, 30)
        assert descriptors.used == spare
        writer.close()
        assert descriptors.used == 0
        peer.close()
        ours.close()
        os.close(descriptor)

    asyncio.run(main())


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_what_no_thread_can_be_had_for_is_read_by_the_loop(error: Exception) -> None:
    """Without memory its caller failed."""

    class Threads(Executor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise error

    async def main() -> int:
        read_ahead = ReadAhead(asyncio.get_running_loop(), lambda count, name: Threads())
        try:
            return await asyncio.wait_for(read_ahead.call(lambda: 7), 10)
        finally:
            read_ahead.close()

    assert asyncio.run(main()) == 7
