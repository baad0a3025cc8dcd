"""Connections between the hosts of a world: bytes in order, after a while, or a reset, or nothing at all.

Rules
- A direction of a connection keeps its order; different connections overtake each other.
- What a cut holds up comes when the cut is mended, as TCP would send it again. A connection that is reset loses what is on its way.
- A process that ends has its connections reset by its machine. A machine without power is silent: who sends to it hears nothing, or, once
  it is there again, that there is no such connection.
- What a broker answers goes through a real pair of sockets, as it writes to its descriptor; what it is sent comes straight.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from simulation.world import Host, World

RETRY_S = 0.2
"""How often a connection is tried that nobody answers."""
PIECES = 0.03
"""How often bytes that were sent together come in two pieces."""


class Network:
    """All connections. `cut` holds the pairs of hosts between which nothing goes, each way for itself; `slow` their added delay."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.network = self
        self.delay_s = (0.0001, 0.001)
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.hosts: dict[str, Host] = {}
        """By their address: who has it now."""
        self.without_power: set[str] = set()
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.links: list[Link] = []
        self._connecting: dict[int, End] = {}
        self._poll = select.epoll()
        self._wires: dict[int, End] = {}

    def add(self, host: Host) -> None:
        self.hosts[host.ip] = host
        self.without_power.discard(host.ip)

    def close(self) -> None:
        for link in self.links:
            for end in link.ends:
                end.release()
        self._poll.close()

    # -- what the world does

    def reset(self, link: Link) -> None:
        """Both ends hear that the connection is gone."""
        for end in link.ends:
            end.later(end.lost, ConnectionResetError("reset in the simulation"))

    def mend(self) -> None:
        """Everybody reaches everybody; what was held up goes."""
        self.cut, self.slow = set(), {}
        for link in self.links:
            for end in link.ends:
                end.push()

    def died(self, host: Host, *, power: bool) -> None:
        """A process is gone, or its machine has no power."""
        if power:
            self.without_power.add(host.ip)
        for place in [place for place, listener in self.listeners.items() if listener.host is host]:
            del self.listeners[place]
        for link in self.links:
            for end in link.ends:
                if end.host is host:
                    end.release()
                    if not power:  # what it has sent still comes
                        at, error = end.arrives_at, ConnectionResetError("its process has ended")
                        end.peer.host.at(at, end.peer.lost, error)
        self.links = [link for link in self.links if not all(end.closed for end in link.ends)]

    # -- listeners

    async def bind(self, host: Host, name: str, port: int) -> list[Any]:
        return [Listener(self, host, port)]

    # -- connections

    async def connect(self, host: Host, sock: Any, address: tuple[str, int]) -> None:
        """Wait until somebody takes the connection. Raises ConnectionRefusedError."""
        ip, port = address[:2]
        random = self.world.random_of(f"connection {next(self.world.numbers)}")
        while True:
            there = self.hosts.get(ip)
            await asyncio.sleep(2 * self._delay(host, ip, random))
            listener = self.listeners.get((ip, port))
            silent = there is None or ip in self.without_power
            if not silent and not self.is_cut(host.ip, ip) and not self.is_cut(ip, host.ip):
                break
            await asyncio.sleep(RETRY_S)
        if listener is None or not listener.listening:
            raise ConnectionRefusedError(111, f"nobody listens at {ip}:{port}")
        link = Link(self, host, listener.host, port, random)
        self.links.append(link)
        self._connecting[id(sock)] = link.ends[0]
        listener.offer(link.ends[1])

    def connected(self, sock: Any, protocol: Any) -> Any:
        end = self._connecting.pop(id(sock))
        if end.closed:
            raise ConnectionResetError("reset at once")
        end.keeps = sock
        end.begin(protocol)
        return end, protocol

    def accepted(self, sock: Accepted, protocol: Any) -> Any:
        end = sock.end
        if end.closed:
            raise ConnectionResetError("reset before it was accepted")
        self._wires[sock.wire.fileno()] = end
        self._poll.register(sock.wire.fileno(), select.EPOLLIN)
        end.begin(protocol)
        return end, protocol

    def forget_wire(self, wire: socket.socket) -> None:
        if self._wires.pop(wire.fileno(), None) is not None:
            self._poll.unregister(wire.fileno())

    def sweep(self) -> None:
        """Take what was written to descriptors on its way."""
        found = self._poll.poll(0)
        if not found:
            return
        for end in sorted((self._wires[fd] for fd, _ in found if fd in self._wires), key=lambda end: end.number):
            end.drain()

    def is_cut(self, source: str, target: str) -> bool:
        return bool(self.cut) and (source, target) in self.cut

    def _delay(self, host: Host, ip: str, random: Random) -> float:
        return random.uniform(*self.delay_s) + self.slow.get((host.ip, ip), 0.0)


class Listener:
    """A socket that listens."""

    def __init__(self, network: Network, host: Host, port: int) -> None:
        self.host, self._network, self._port = host, network, port
        self._number = 1_000_000 + next(network.world.numbers)
        self._waiting: deque[End] = deque()
        self.listening = False
        network.listeners[host.ip, port] = self

    def listen(self, backlog: int) -> None:
        self.listening = True

    def getsockname(self) -> tuple[str, int]:
        return self.host.ip, self._port

    def fileno(self) -> int:
        return self._number

    def offer(self, end: End) -> None:
        self._waiting.append(end)
        self.host.loop.readable(self._number)

    def accept(self) -> tuple[Accepted, Any]:
        if not self._waiting:
            raise BlockingIOError
        return Accepted(self._waiting.popleft()), None

    def close(self) -> None:
        self._network.listeners.pop((self.host.ip, self._port), None)


class Opened:
    """The socket of a connection that was opened: options of TCP are of no effect, and it tells none."""

    def setsockopt(self, *option: Any) -> None:
        """What is asked of TCP."""

    def getsockopt(self, *option: Any) -> bytes:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))


OPENED = Opened()


class Accepted:
    """The socket of a connection that was accepted: a real descriptor to write to."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._socket, self.wire = socket.socketpair()
        end.accepted = self
        self.wire.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, blocks: bool) -> None:
        self._socket.setblocking(blocks)

    def setsockopt(self, *option: Any) -> None:
        """What is asked of TCP."""

    def close(self) -> None:
        if self.wire.fileno() < 0:
            return
        self.end._network.forget_wire(self.wire)
        self._socket.close()
        self.wire.close()


class Link:
    """A connection: the end of who asked for it, and that of who took it."""

    def __init__(self, network: Network, asked: Host, took: Host, port: int, random: Random) -> None:
        self.number = next(network.world.numbers)
        first, second = End(network, asked, 40_000 + self.number, random, 0), End(network, took, port, random, 1)
        first.peer, second.peer = second, first
        first.number, second.number = 2 * self.number, 2 * self.number + 1
        self.ends = first, second


EOF = None


class End(asyncio.Transport):
    """One end of a connection, as a transport. `_outgoing` is on its way to the peer: when it arrives, and what (EOF: no more)."""

    peer: End
    number: int

    def __init__(self, network: Network, host: Host, port: int, random: Random, side: int) -> None:
        self.host, self.port = host, port
        self._network, self._world = network, network.world
        self._random = Random(random.getrandbits(64) + side)
        self.accepted: Accepted | None = None
        self.keeps: Any = None
        self.closed = False
        self._protocol: Any = None
        self._paused = self._said_eof = self._closing = False
        self._outgoing: deque[tuple[float, bytes | None]] = deque()
        self.arrives_at = 0.0
        self._inbox: deque[bytes | None] = deque()

    # -- for protocols

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self.later(self._deliver)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer.host.ip, self.peer.port
        return self.accepted or OPENED if name == "socket" else default

    def is_closing(self) -> bool:
        return self.closed or self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def write(self, data: Any) -> None:
        if not self.closed and not self._said_eof and len(data):
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._said_eof:
            self._said_eof = True
            self._send(EOF)

    def close(self) -> None:
        if self.closed or self._closing:
            return
        self.drain()
        self._closing = True
        self.write_eof()
        self.later(self.lost, None)

    def abort(self) -> None:
        if self.closed:
            return
        self.drain()
        self._closing = True
        self.write_eof()
        self.later(self.lost, None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.later(self._deliver)

    # -- for the network

    def later(self, work: Any, *args: Any) -> None:
        self.host.loop.call_soon(work, *args)

    def drain(self) -> None:
        """Take what was written to the descriptor."""
        accepted = self.accepted
        if accepted is None or accepted.wire.fileno() < 0:
            return
        while True:
            try:
                data = accepted.wire.recv(1 << 20)
            except BlockingIOError:
                return
            if not data:
                return
            self.write(data)

    def _send(self, data: bytes | None) -> None:
        network, target = self._network, self.peer.host
        if target.dead and target.ip not in network.without_power:
            self.later(self.lost, ConnectionResetError("there is no such connection any more"))
            return
        pieces: Sequence[bytes | None] = (data,)
        if data is not None:
            self._world.note(b"%d %f" % (self.number, self._world.now))
            self._world.note(data)
            if len(data) > 8 and self._random.random() < PIECES:
                at = self._random.randrange(1, len(data))
                pieces = data[:at], data[at:]
        for piece in pieces:
            delay = network._delay(self.host, target.ip, self._random)
            self.arrives_at = max(self.arrives_at, self._world.now + delay)
            self._outgoing.append((self.arrives_at, piece))
            target.at(self.arrives_at, self._arrived)

    def push(self) -> None:
        """Try again what was held up."""
        if self._outgoing:
            self.peer.later(self._arrived)

    def _arrived(self) -> None:
        """What is due is at the peer now, unless the way is cut."""
        if self._network.is_cut(self.host.ip, self.peer.host.ip):
            return
        while self._outgoing and self._outgoing[0][0] <= self._world.now:
            self.peer._inbox.append(self._outgoing.popleft()[1])
        self.peer._deliver()

    def _deliver(self) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        while self._inbox and not self._paused and not self.closed and not self._closing:
            data = self._inbox.popleft()
            if data is None:
                if not protocol.eof_received():
                    self.close()
                return
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)
                continue
            room = protocol.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            if size < len(data):
                self._inbox.appendleft(data[size:])
            protocol.buffer_updated(size)

    def lost(self, error: Exception | None) -> None:
        """It is over, for this end."""
        if self.closed:
            return
        self.release()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def release(self) -> None:
        self.closed = True
        self._inbox.clear()
        if self.accepted is not None:
            self.accepted.close()
        if self.keeps is not None and hasattr(self.keeps, "close"):
            self.keeps.close()
