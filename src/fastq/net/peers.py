"""A broker as the client core knows it: its address, the connection of the moment, and the requests that wait for one.

Rules of this file:
- A name may have several addresses: they are tried in turn, without a pause, and only when all of them failed does the peer
  back off, exponentially and with jitter.
- A request that waits for a connection fails when the attempt fails; who sent it decides whether to try again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastq.net.addresses import Address, Endpoint

if TYPE_CHECKING:
    from fastq.errors import FastqError
    from fastq.net.connection import Connection
    from fastq.net.requests import PendingRequest

NEVER = float("inf")
# Node ids are below this; above it are the ids of connections apart (`ClientCore.separate`).
SEPARATE = 2**31


def separate_id(node_id: int) -> int:
    """The id of the connection apart to a broker."""
    return node_id | SEPARATE


def broker_id(node_id: int) -> int:
    """The broker's own id, whichever connection to it is meant."""
    return node_id & ~SEPARATE if node_id >= 0 else node_id


@dataclass(slots=True, eq=False)
class Peer:
    """One broker. Invariant: at most one of `resolving` and `connection` is set.

    `failures` counts attempts since the last success; before `retry_at` no attempt starts. Bootstrap servers have
    negative node ids, -1 being the first.
    """

    node_id: int
    address: Address
    connection: Connection | None = None
    resolving: Resolve | None = None
    resolve_deadline: float = NEVER
    endpoints: deque[Endpoint] = field(default_factory=deque)
    queue: deque[PendingRequest] = field(default_factory=deque)
    failures: int = 0
    retry_at: float = 0.0
    throttled_until: float = 0.0
    last_error: FastqError | None = None

    @property
    def label(self) -> str:
        """What error messages call this broker."""
        return f"{self.address} (node {broker_id(self.node_id)})" if self.node_id >= 0 else str(self.address)

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
    def load(self) -> int:
        """Requests in flight and waiting."""
        return len(self.queue) + (len(self.connection.in_flight) if self.connection is not None else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Resolve:
    """The driver is to look up an address, off its loop, and call `core.resolved(this, endpoints, error)`."""

    peer: Peer
    address: Address


@dataclass(frozen=True, slots=True, eq=False)
class Connect:
    """The driver is to open a socket and report to the connection: `connected` or `connection_lost`."""

    connection: Connection
    endpoint: Endpoint


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """The driver is to close the connection's socket; nothing is expected back."""

    connection: Connection
