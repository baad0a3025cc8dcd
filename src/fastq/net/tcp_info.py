"""What Linux tells of a TCP connection (`struct tcp_info`): each is 0 where the system does not tell."""

from __future__ import annotations

import socket
import sys

_ACKNOWLEDGED_AT = 120
"""Where `tcpi_bytes_acked` is, 64 bits."""
_SHORTEST_WAY_AT = 148
"""Where `tcpi_min_rtt` is, 32 bits, in microseconds; all of them set before the first one."""
_NONE_YET = 0xFFFF_FFFF


def acknowledged_bytes(sock: socket.socket | None) -> int:
    """How much the other side's system has acknowledged of all that was sent to a socket."""
    return _field(sock, _ACKNOWLEDGED_AT, 8)


def round_trip_s(sock: socket.socket | None) -> float:
    """Seconds to the other side's system and back: the least of the last minutes, so that it is of the way alone, whatever lies on it."""
    found = _field(sock, _SHORTEST_WAY_AT, 4)
    return 0.0 if found == _NONE_YET else found / 1e6


def _field(sock: socket.socket | None, at: int, size: int) -> int:
    if sock is None or sys.platform != "linux":  # elsewhere it has another layout
        return 0
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + size)
    except OSError:
        return 0
    return int.from_bytes(found[at : at + size], sys.byteorder)
