"""Slices of files that end early, because a truncation came between the read and the send: the connection closes with the reason."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastq_broker import output
from fastq_broker.descriptors import DescriptorCount
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
