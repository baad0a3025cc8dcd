"""Sockets that listen, and what is accepted on them.

Rules
- The broker accepts by itself, one connection after the other: an event loop would take hundreds in one turn before anybody counts them.
- A connection for which no descriptor is left is accepted and closed at once, so that its client hears of it; where not even that is
  possible, nothing is accepted for RETRY_S. Each is said once, and then how often, at a bounded rate.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from .descriptors import DescriptorCount

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
RETRY_S = 0.5
LINE_S = 10.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ListenError(Exception):
    """A listener cannot be opened; the message says which, why and what to do."""


async def bind_sockets(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of a host ("": all interfaces) at one port, with 0 a free one. None listens yet.

    Raises ListenError.
    """
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        last: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sockets.append(_bound(family, kind, protocol, (address[0], port or _port_of(sockets), *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                last = error  # no IPv6 here, say: another address of the name may do
        if not sockets:
            raise last or OSError(errno.EADDRNOTAVAIL, "the name has no address")
    except OSError as error:
        _close(sockets)
        raise ListenError(describe_listen_error(host, port, error)) from error
    except (UnicodeError, OverflowError) as error:
        _close(sockets)
        raise ListenError(f"cannot listen on {host}:{port}: {error}") from error
    return sockets


def _port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


class Accepted(asyncio.BaseProtocol):
    """What serves a connection."""

    @property
    def connected(self) -> bool:
        """Whether `connection_made` was called, so that `connection_lost` will be."""
        raise NotImplementedError


class Acceptor:
    """Accepts on the sockets of one address. Loop thread only.

    Each connection has taken a descriptor of `descriptors`; a protocol that was connected gives it back when the connection is lost.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        descriptors: DescriptorCount,
        make: Callable[[], Accepted],
        *,
        name: str,
        advice: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`advice` ends the line about connections that were refused for want of descriptors."""
        self._loop = loop
        self._sockets = sockets
        self._descriptors = descriptors
        self._make = make
        self._name = name
        self._advice = advice
        self._tls = tls
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._next_line_s = 0.0
        self._untold = 0
        self._closed = False

    @property
    def port(self) -> int:
        return _port_of(self._sockets)

    def listen(self, backlog: int) -> None:
        """Begin to accept. Raises ListenError."""
        for sock in self._sockets:
            try:
                sock.listen(backlog)
            except OSError as error:
                host, port = sock.getsockname()[:2]
                raise ListenError(describe_listen_error(host, port, error)) from error
        self._watch()

    def close(self) -> None:
        """Accept no more; connections that are open stay."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        if self._resume is not None:
            self._resume.cancel()
        _close(self._sockets)
        for task in self._opening:
            task.cancel()

    def _watch(self) -> None:
        self._resume = None
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._acceptable, sock)

    def _unwatch(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())

    def _acceptable(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(error)
                    return
                continue  # that client has gone already
            if self._descriptors.take():
                self._open(accepted)
            else:
                accepted.close()
                taken = self._descriptors.taken
                self._report(f"a connection was refused: {taken} are open, and there is no descriptor for more")

    def _pause(self, error: OSError) -> None:
        """Leave who comes in the system's queue for a while; the loop would be woken for them for ever."""
        self._unwatch()
        self._resume = self._loop.call_later(RETRY_S, self._watch)
        self._report(f"no connection can be accepted: {error.strerror}")

    def _report(self, what: str) -> None:
        now_s = self._loop.time()
        if now_s < self._next_line_s:
            self._untold += 1
            return
        self._next_line_s = now_s + LINE_S
        more, self._untold = self._untold, 0
        told = f" ({more} more since the last such line)" if more else ""
        logger.warning("%s: %s%s; %s", self._name, what, told, self._advice)

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """Make the transport: with TLS that takes a handshake. A client that gives up before has no protocol to hear of it."""
        protocol = self._make()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
        except OSError:
            accepted.close()
        finally:
            if not protocol.connected:
                self._descriptors.give_back()


def describe_listen_error(host: str, port: int, error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use; stop what listens there or pick another (0: a free one)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: this machine has no such address; --advertise is for names from outside"
    if error.errno == errno.EACCES:
        return f"cannot listen on {where}: ports below 1024 need more rights"
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {where}: the host name does not resolve"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"cannot listen on {where}: {error.strerror}; raise the limit of open files (ulimit -n, LimitNOFILE=)"
    return f"cannot listen on {where}: {error.strerror or error}"
