"""Listeners and the set of connections: admission, idle sweep, graceful stop, and one place that logs bad peers.

Rules
- One receive buffer serves all connections, as each fills and empties it within one callback of the loop.
- Log lines about bad peers are limited per second; what was left out is counted and said.
- A listener for other nodes has descriptors of its own, and is not bounded by max.connections: the client that was silent for longest goes
  instead. So no number of clients keeps followers away. Source: ConnectionQuotas.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from fastq.protocol.api import APIS

from .connection import HEAD_BYTES, Connection
from .descriptors import UNLIMITED, DescriptorCount
from .listeners import Acceptor
from .log import failures
from .output import ReadAhead
from .request_memory import RequestMemory
from .surroundings import Surroundings
from .turns import Repeated

if TYPE_CHECKING:
    from .router import Router

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 256 << 10
WINDOW_BYTES = 8 << 20
"""On their way to a connection that sends large requests: some of them, as clients have five in flight."""
BAD_PEER_LINES_PER_S = 5
STOP_GRACE_S = 2.0
BACKLOG = 1024
"""Connections that wait to be accepted."""


class Limits:
    """What a server refuses, in Kafka's units and names. idle_ms 0 is no limit, queued_bytes_max 0 or less neither; socket
    buffers of -1 are the system's."""

    __slots__ = (
        "backlog",
        "connections_max",
        "connections_max_per_ip",
        "connections_max_per_ip_overrides",
        "idle_ms",
        "non_produce_request_bytes_max",
        "queued_bytes_max",
        "receive_buffer_bytes",
        "request_bytes_max",
        "send_buffer_bytes",
    )

    def __init__(
        self,
        *,
        request_bytes_max: int = 100 << 20,
        non_produce_request_bytes_max: int = 8 << 20,
        queued_bytes_max: int = 1 << 30,
        connections_max: int = 2**31 - 1,
        connections_max_per_ip: int = 2**31 - 1,
        connections_max_per_ip_overrides: Mapping[str, int] | None = None,
        idle_ms: int = 600_000,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        backlog: int = BACKLOG,
    ) -> None:
        self.request_bytes_max = request_bytes_max
        self.non_produce_request_bytes_max = non_produce_request_bytes_max
        self.queued_bytes_max = queued_bytes_max
        self.connections_max = connections_max
        self.connections_max_per_ip = connections_max_per_ip
        self.connections_max_per_ip_overrides = dict(connections_max_per_ip_overrides or {})
        self.idle_ms = idle_ms
        self.send_buffer_bytes = send_buffer_bytes
        self.receive_buffer_bytes = receive_buffer_bytes
        self.backlog = backlog


class Server:
    """All connections of a node. Loop thread only.

    Invariants: `connections` holds every open connection, the oldest first; `tick` counts seconds since the start and is the clock of
    idleness; once `stopping`, no connection is admitted and each closes after the response in progress.
    """

    router: Router
    """What serves requests, once `serve` is called."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        descriptors: DescriptorCount | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`descriptors` are those that connections may take (None: any number); `surroundings` have its network and threads (None: those
        of this machine)."""
        here = surroundings or Surroundings()
        self._bind = here.bind
        self.loop = loop
        self.limits = limits
        self.request_bytes_max = limits.request_bytes_max
        self.memory = RequestMemory(loop, limits.queued_bytes_max)
        self.descriptors = descriptors or DescriptorCount(UNLIMITED)
        self.flexible_versions = flexible_versions()
        self.receive_buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.head_view = self.receive_view[:HEAD_BYTES]
        self.read_ahead = ReadAhead(loop, here.threads)
        self.connections: dict[Connection, None] = {}
        self.tick = 0
        self.stopping = False
        self._per_ip: dict[str, int] = {}
        self._acceptors: list[Acceptor] = []
        self._ticker = Repeated(loop, 1.0, self._second)
        self._empty: asyncio.Event | None = None
        self._bad_lines = 0
        self._bad_left_out = 0

    async def bind(
        self,
        host: str,
        port: int,
        *,
        name: str = "PLAINTEXT",
        tls: ssl.SSLContext | None = None,
        reserve: DescriptorCount | None = None,
    ) -> int:
        """Take a listener's address; answers its port (the free one that was picked for 0). Raises ListenError.

        `reserve`: the descriptors of a listener that is for other nodes. Nobody is served there before `serve`.
        """
        descriptors = self.descriptors if reserve is None else reserve
        acceptor = Acceptor(
            self.loop,
            await self._bind(self.loop, host, port),
            descriptors,
            lambda: Connection(self, name, descriptors),
            name=f"listener {name}",
            advice="raise the limit of open files (ulimit -n, LimitNOFILE=), or let idle clients go sooner "
            "(connections.max.idle.ms)",
            tls=tls,
        )
        self._acceptors.append(acceptor)
        return acceptor.port

    def serve(self, router: Router) -> None:
        """Accept connections on every bound listener, and have `router` answer. Raises ListenError."""
        self.router = router
        for acceptor in self._acceptors:
            acceptor.listen(self.limits.backlog)
        self._ticker.start()

    def set_buffers(self, sock: socket.socket) -> None:
        """Give a connection the socket buffers of the configuration."""
        if self.limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
        if self.limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)

    def widen(self, sock: socket.socket) -> None:
        """Let WINDOW_BYTES be on their way on a connection, now: the system would allow as much in the course of a second.

        That is a side effect of asking to be woken only for so many bytes, which leaves the system free to allow more later. Its
        maximum is half of net.ipv4.tcp_rmem's.
        """
        if sys.platform == "linux" and self.limits.receive_buffer_bytes <= 0:
            for size in (WINDOW_BYTES, 1):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection; answers why it is refused, if it is."""
        ip = connection.peer[0]
        self.connections[connection] = None
        self._per_ip[ip] = count = self._per_ip.get(ip, 0) + 1
        if self.stopping:
            return "the broker is stopping"
        if len(self.connections) > self.limits.connections_max:
            problem = f"more than max.connections={self.limits.connections_max} connections"
            if connection.descriptors is self.descriptors:
                return problem
            self._make_room(f"{problem}, and another node has come: this one was silent for longest")
        allowed = self.limits.connections_max_per_ip_overrides.get(ip, self.limits.connections_max_per_ip)
        if count > allowed:
            return f"more than max.connections.per.ip={allowed} connections from {ip}"
        return None

    def _make_room(self, reason: str) -> None:
        """Close the connection of a client, best one that waits for no answer."""
        clients = [each for each in self.connections if each.open and each.descriptors is self.descriptors]
        if clients:
            min(clients, key=lambda each: (each.pending is not None, each.active_tick)).fail(reason)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        connection.descriptors.give_back()
        ip = connection.peer[0]
        left = self._per_ip[ip] - 1
        if left:
            self._per_ip[ip] = left
        else:
            del self._per_ip[ip]
        if self._empty is not None and not self.connections:
            self._empty.set()

    def report_bad(self, connection: Connection, reason: str) -> None:
        """One line about a connection that is closed for what its peer did."""
        self._bad_lines += 1
        if self._bad_lines > BAD_PEER_LINES_PER_S:
            self._bad_left_out += 1
            return
        host, port = connection.peer
        logger.warning("closing the connection of %s:%d on %s: %s", host, port, connection.listener, reason)

    async def stop(self) -> None:
        """Close the listeners, let requests in progress finish for STOP_GRACE_S at most, close everything."""
        self.stopping = True
        for acceptor in self._acceptors:
            acceptor.close()
        self._ticker.close()
        self._empty = asyncio.Event()
        for connection in list(self.connections):
            connection.stop()
        if self.connections:
            try:
                await asyncio.wait_for(self._empty.wait(), STOP_GRACE_S)
            except asyncio.TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
                await asyncio.sleep(0)
        self.read_ahead.close()

    def _second(self) -> None:
        """About once a second: count time, sweep idle connections, say what was not logged."""
        self.tick += 1
        if self._bad_left_out:
            logger.warning("%d more bad connections within a second were closed", self._bad_left_out)
        self._bad_lines = self._bad_left_out = 0
        idle_ms = self.limits.idle_ms
        idle_ticks_max = idle_ms // 1000 if idle_ms > 0 else 2**62
        for connection in list(self.connections):
            failures.attempt("the sweep of idle connections", partial(connection.check_idle, self.tick, idle_ticks_max))


def flexible_versions() -> bytes:
    """For scan_request: the first version of each API with request header v2; 255 for never."""
    table = bytearray(b"\xff" * (max(APIS) + 1))
    for key, info in APIS.items():
        if info.flexible_version is not None and 0 <= info.flexible_version < 255:
            table[key] = info.flexible_version
    return bytes(table)
