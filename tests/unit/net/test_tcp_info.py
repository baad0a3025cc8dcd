"""What the system tells of a TCP connection."""

from __future__ import annotations

import socket
import struct
import sys
import time

import pytest

from fastq.net.tcp_info import acknowledged_bytes, round_trip_s


class Peer:
    """A socket of a system that tells this."""

    def __init__(self, acknowledged: int, way_us: int) -> None:
        self.info = struct.pack("=120xQ20xI", acknowledged, way_us)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self.info[:size]


@pytest.mark.parametrize(("platform", "told"), [("linux", (2**40 + 7, 0.05)), ("freebsd14", (0, 0.0))])
def test_it_is_read_where_linux_has_it(monkeypatch: pytest.MonkeyPatch, platform: str, told: tuple[int, float]) -> None:
    monkeypatch.setattr(socket, "TCP_INFO", 11, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    peer = Peer(2**40 + 7, 50_000)
    assert (acknowledged_bytes(peer), round_trip_s(peer)) == told  # type: ignore[arg-type]


def test_what_is_not_known_is_0() -> None:
    assert round_trip_s(Peer(0, 2**32 - 1)) == 0.0  # type: ignore[arg-type]
    assert (acknowledged_bytes(None), round_trip_s(None)) == (0, 0.0)
    with socket.socket() as sock:
        pass
    assert (acknowledged_bytes(sock), round_trip_s(sock)) == (0, 0.0), "it is closed"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_of_a_connection_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.sendall(bytes(1000))
            end = time.monotonic() + 30
            while acknowledged_bytes(ours) < 1000:
                assert time.monotonic() < end
                theirs.recv(1000)
            assert 0 < round_trip_s(ours) < 30
