"""A member of a classic group: what it offers, what it was given, and who waits for its answers."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from fastq.values import NamedTuple

Waiter = Callable[[Any], None]
"""Whom to tell a JoinResult or SyncResult, once."""


class JoinRequest(NamedTuple):
    """A JoinGroup, without its group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names with the member's metadata, in the order of its preference."""
    requires_member_id: bool = True
    """A dynamic member must come with an id that it was given before (KIP-394, version 4)."""
    can_skip_assignment: bool = True
    """The client knows `skip_assignment` (KIP-814, version 9)."""


class JoinResult(NamedTuple):
    """The answer to a JoinGroup."""

    error: int
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """Id, instance id and metadata of all members, for the leader."""


class SyncResult(NamedTuple):
    """The answer to a SyncGroup."""

    error: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Member:
    """One member. Loop thread only.

    `join_waiter` and `sync_waiter` are who waits for its answer; the group answers each exactly once.
    """

    __slots__ = (
        "armed_ms",
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[tuple[str, bytes], ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """It has not had an answer to its first JoinGroup, so it does not know its id and cannot send heartbeats."""
        self.join_waiter: Waiter | None = None
        self.sync_waiter: Waiter | None = None
        self.deadline_ms = 0
        """When its session ends unless it is heard of (monotonic)."""
        self.armed_ms: int | None = None
        """When the group looks at the deadline again; None: not at all."""

    def metadata(self, protocol: str) -> bytes:
        """What the member says under a protocol; empty for one that it does not offer."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Container[str]) -> str:
        """The protocol that it prefers of those that all members offer."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise ValueError(f"member {self.member_id} offers none of the candidates")

    def successor(self, member_id: str) -> Member:
        """The same static member under its new id: all but who waits."""
        return Member(
            member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols,
            self.assignment,
        )
