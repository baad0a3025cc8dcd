"""A broker as the client core knows it: its address, the connection of the moment, and the requests that wait for one.

Rules of this file:
- A name may have several addresses: they are tried in turn, without a pause, and only when all of them failed does the peer
  back off, exponentially and with jitter.
- A request that waits for a connection fails when the attempt fails; who sent it decides whether to try again.
- What any broker can answer waits for no broker that takes a connection and says nothing: each SLOW_S another one is tried beside it, and
  the first that is ready gets it. Kafka's clients wait for the whole of socket.connection.setup.timeout.ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from fastq.errors import ConnectionFailed
from fastq.net.addresses import Address, Endpoint
from fastq.net.diagnosis import is_permanent
from fastq.net.outages import SLOW_S
from fastq.net.tcp_info import round_trip_s
from fastq.values import Value

if TYPE_CHECKING:
    from fastq.errors import FastqError
    from fastq.net.connection import Connection
    from fastq.net.requests import PendingRequest

NEVER = float("inf")
# Node ids are below this; above it are the ids of connections apart (`ClientCore.separate`).
SEPARATE = 2**31
NODE_UNKNOWN = 2**28
"""From here on ids stand for addresses whose node nobody knows yet. No node has such an id."""


def separate_id(node_id: int) -> int:
    """The id of the connection apart to a broker."""
    return node_id | SEPARATE


def broker_id(node_id: int) -> int:
    """The broker's own id, whichever connection to it is meant."""
    return node_id & ~SEPARATE if node_id >= 0 else node_id


class Peer:
    """One broker. Invariant: at most one of `resolving` and `connection` is set.

    `failures` counts attempts since the last success; before `retry_at` no attempt starts. Bootstrap servers have
    negative node ids, -1 being the first. `attempt_at` is when the last attempt began, `ready_at` when the last connection was ready
    (-NEVER: none ever was), `away_since` when the first of the failures was.
    """

    __slots__ = (
        "address",
        "attempt_at",
        "away_since",
        "connection",
        "endpoints",
        "failures",
        "last_error",
        "node_id",
        "queue",
        "ready_at",
        "resolve_deadline",
        "resolving",
        "retry_at",
        "throttled_until",
    )

    def __init__(self, node_id: int, address: Address) -> None:
        self.node_id = node_id
        self.address = address
        self.connection: Connection | None = None
        self.resolving: Resolve | None = None
        self.resolve_deadline = NEVER
        self.endpoints: deque[Endpoint] = deque()
        self.queue: deque[PendingRequest] = deque()
        self.failures = 0
        self.retry_at = 0.0
        self.throttled_until = 0.0
        self.last_error: FastqError | None = None
        self.attempt_at = 0.0
        self.away_since = 0.0
        self.ready_at = -NEVER

    @property
    def label(self) -> str:
        """What error messages call this broker."""
        node_id = broker_id(self.node_id)
        return f"{self.address} (node {node_id})" if 0 <= node_id < NODE_UNKNOWN else str(self.address)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self.connection is None and self.resolving is None

    @property
    def ready_connection(self) -> Connection | None:
        """The connection, when requests may go out on it."""
        connection = self.connection
        return connection if connection is not None and connection.is_ready else None

    @property
    def transport(self) -> Any:
        """What that connection uses: a socket, or an event loop's transport."""
        connection = self.ready_connection
        return None if connection is None else connection.transport

    @property
    def reached(self) -> tuple[str, int]:
        """The IP address and port that the connection leads to; there has to be one."""
        ask = getattr(self.transport, "getpeername", None)
        address = ask() if ask is not None else self.transport.get_extra_info("peername")
        return address[0], address[1]

    @property
    def round_trip_s(self) -> float:
        """How long the way there and back is; 0 where that is not known."""
        ask = getattr(self.transport, "get_extra_info", None)
        return 0.0 if ask is None else round_trip_s(ask("socket"))

    def is_final(self, error: FastqError | None, peers: Iterable[Peer]) -> bool:
        """Whether waiting does not mend what its last attempt failed with (None: with nothing). A name that has led to one of `peers` will
        again: a container that is being restarted has none meanwhile."""
        if error is None or not is_permanent(error):
            return False
        if not isinstance(error, ConnectionFailed) or error.phase != "resolve":
            return True
        return all(peer.ready_at == -NEVER for peer in peers if peer.address == self.address)

    def idle_at(self, idle_ms: int) -> float:
        """When its connection has been unused for long enough to be closed; never while it is in use, or for idle_ms=-1."""
        connection = self.ready_connection
        if connection is None or idle_ms < 0 or connection.in_flight:
            return NEVER
        return connection.last_used + idle_ms / 1000

    @property
    def load(self) -> int:
        """Requests in flight and waiting."""
        return len(self.queue) + (len(self.connection.in_flight) if self.connection is not None else 0)


def whom_to_ask(candidates: Sequence[Peer], now: float, random: Random) -> Peer | None:
    """Who is to be asked what any of them can answer: one that is connected and has little to do, else one that is being connected, and
    where that takes long another one beside it; None while all back off. One that a quota keeps from being asked for longer than an
    attempt is waited for comes last."""
    ready = [peer for peer in candidates if peer.ready_connection is not None]
    soonest = min(ready, key=lambda peer: (max(peer.throttled_until, now), peer.load), default=None)
    if soonest is not None and soonest.throttled_until <= now + SLOW_S:
        return soonest
    attempts = (peer for peer in candidates if not peer.is_idle and peer.ready_connection is None)
    latest = max(attempts, key=lambda peer: peer.attempt_at, default=None)
    startable = [peer for peer in candidates if peer.is_idle and peer.retry_at <= now]
    if latest is not None and (not startable or now < latest.attempt_at + SLOW_S):
        return latest
    if not startable:
        return soonest
    # Least failed first, so that a dead bootstrap server does not hide a living one; then any of them.
    fewest = min(peer.failures for peer in startable)
    return random.choice([peer for peer in startable if peer.failures == fewest])


def take_over(others: Iterable[Peer], peer: Peer) -> None:
    """What waits for the connections of others, and any broker can answer, waits for this one's from now on, which is ready."""
    for other in others:
        if other.queue and other is not peer and other.ready_connection is None:
            for pending in [pending for pending in other.queue if pending.anywhere]:
                peer.queue.append(pending)  # first, as there may be no memory for it
                other.queue.remove(pending)


class Resolve(Value, eq=False):
    """The driver is to look up an address, off its loop, and call `core.resolved(this, endpoints, error)`."""

    peer: Peer
    address: Address


class Connect(Value, eq=False):
    """The driver is to open a socket and report to the connection: `connected` or `connection_lost`."""

    connection: Connection
    endpoint: Endpoint


class Close(Value, eq=False):
    """The driver is to close the connection's socket; nothing is expected back."""

    connection: Connection
