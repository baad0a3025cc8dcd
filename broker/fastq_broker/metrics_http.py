"""The HTTP side of metrics and health: GET and HEAD of three paths, on the broker's own loop.

    /metrics        Prometheus text
    /health/live    200, also while logs are recovered; 503 when nothing can be served any more (all log directories offline, the loop held
                    up); no answer at all while the loop is stuck
    /health/ready   200, or 503 with the reason: starting and how far a recovery is, stopping, a log directory offline

Rules: one request a connection; a head of at most HEAD_BYTES_MAX that is there within TIMEOUT_S, from at most CONNECTIONS_MAX peers at
once. What is anything else is closed or answered with its HTTP status; nothing is logged for it. What takes many turns of the loop, as
the first scrape after a start does, gives them up in between; a peer that goes away ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

from fastq.values import NamedTuple

from .config_keys import is_count, shown
from .descriptors import DescriptorCount
from .listeners import Accepted, Acceptor, bind_sockets
from .metrics import CONTENT_TYPE, BrokerMetrics

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 32
TIMEOUT_S = 10.0
PLAIN = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """An HTTP response."""

    status: str
    body: str
    content_type: str = PLAIN


Work: TypeAlias = Generator[None, None, Answer]
"""What comes to an answer in several turns of the loop: it is gone on with in the next one where it yields."""
Serve = Callable[[str], "Answer | Work"]
"""What stands at a path."""


def health(word: str, problem: str | None) -> Answer:
    """200 with the word, or 503 with the problem."""
    return Answer("200 OK", f"{word}\n") if problem is None else Answer("503 Service Unavailable", f"{problem}\n")


def serve_broker(metrics: BrokerMetrics) -> Serve:
    """The three paths of a broker."""

    def told() -> Work:
        yield from metrics.loading()
        return Answer("200 OK", metrics.text(), CONTENT_TYPE)

    def serve(path: str) -> Answer | Work:
        if path == "/metrics":
            return told()
        if path == "/health/live":
            return health("live", metrics.death())
        if path == "/health/ready":
            return health("ready", metrics.problem())
        return Answer("404 Not Found", "there are /metrics, /health/live and /health/ready\n")

    return serve


class _Peer(asyncio.Protocol, Accepted):
    """One connection. Loop thread only."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._asked = False  # the head is there; one request is answered
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one in all but ancestry
        self._server.peers.add(self)
        self._timer = self._server.loop.call_later(TIMEOUT_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.peers.discard(self)
        self._server.descriptors.give_back()
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._asked:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._answer()
        elif len(self._head) > HEAD_BYTES_MAX:
            self._send(Answer("431 Request Header Fields Too Large", "the request's head is too large\n"), True)

    def _answer(self) -> None:
        self._asked = True
        parts = bytes(self._head).split(b"\n", 1)[0].decode("latin-1").split()
        if len(parts) != 3 or not parts[2].startswith("HTTP/1"):
            self._send(Answer("400 Bad Request", "this is no HTTP/1 request\n"), True)
        elif parts[0] not in ("GET", "HEAD"):
            self._send(Answer("405 Method Not Allowed", "GET and HEAD are served\n"), True)
        else:
            try:
                answer = self._server.serve(parts[1].split("?", 1)[0])
            except Exception:
                answer = self._failed(parts[1])
            if isinstance(answer, Answer):
                self._send(answer, parts[0] == "GET")
            else:
                self._go_on(answer, parts[1], parts[0] == "GET")

    def _go_on(self, work: Work, path: str, with_body: bool) -> None:
        """Another turn's work for the answer, if somebody is there to have it."""
        if self._transport is None or self._transport.is_closing():
            work.close()
            return
        try:
            next(work)
        except StopIteration as end:
            self._send(end.value, with_body)
        except Exception:
            self._send(self._failed(path), with_body)
        else:
            self._server.loop.call_soon(self._go_on, work, path, with_body)

    def _failed(self, path: str) -> Answer:
        logger.exception("%s failed", path)
        return Answer("500 Internal Server Error", "the broker's log says more\n")

    def _send(self, answer: Answer, with_body: bool) -> None:
        assert self._transport is not None
        body = answer.body.encode("utf-8", "replace")  # a directory may be called anything
        head = (
            f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()


class MetricsServer:
    """Listens for scrapes. Loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Serve, metrics: BrokerMetrics) -> None:
        self.loop = loop
        self.serve = serve
        self.metrics = metrics
        self.peers: set[_Peer] = set()
        self.port = 0
        self.descriptors = DescriptorCount(CONNECTIONS_MAX)
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> None:
        """Begin to listen; `port` is then the one that was picked for 0. Raises ListenError."""
        self._acceptor = Acceptor(
            self.loop,
            await bind_sockets(self.loop, host, port),
            self.descriptors,
            lambda: _Peer(self),
            name="metrics",
            advice="let fewer ask at once",
        )
        self.port = self._acceptor.port
        self._acceptor.listen(CONNECTIONS_MAX)

    def close(self) -> None:
        """Stop listening, and close what is open."""
        if self._acceptor is not None:
            self._acceptor.close()
        for peer in list(self.peers):
            peer.abort()


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [V6]:PORT or :PORT. ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not is_count(port) or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"--metrics-listen {shown(text)}: it takes HOST:PORT, a port of 0 to 65535")
    return host.strip("[]"), int(port)


async def start_metrics(broker: Broker, metrics: BrokerMetrics, address: str) -> MetricsServer:
    """Serve a broker's metrics at an address. Raises ListenError."""
    server = MetricsServer(broker.loop, serve_broker(metrics), metrics)
    await server.start(*parse_address(address))
    host = address.rpartition(":")[0]
    logger.info("metrics and health are served on %s:%d", host, server.port)
    return server
