"""What a fetcher asks of replication quotas (KIP-73), and what answers that there are none.

Rules: sans-I/O. Who keeps the rates is the owner's business (`throttles.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fastq_broker.replication.fetcher_session import Key


class FollowerQuota(Protocol):
    """Replication quotas, on the follower's side. Replicas that are in sync are never throttled."""

    def throttled(self) -> Collection[Key]:
        """What is not to be fetched now: empty while the quota is not exceeded."""

    def record(self, key: Key, size_bytes: int) -> None:
        """Bytes of a partition that have come."""


class NoQuota:
    """Nothing is throttled."""

    def throttled(self) -> Collection[Key]:
        return ()

    def record(self, key: Key, size_bytes: int) -> None:
        pass
