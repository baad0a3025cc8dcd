"""A follower's fetch session with one leader (KIP-227): what the leader knows is fetched, so that a fetch names what changed.

Rules: sans-I/O; one fetch in flight. A session whose fetch got no answer is in doubt: the next fetch closes it and begins another, with
all partitions. A leader may keep none; then each fetch names all. Source: FetchSessionHandler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fastq.values import NamedTuple

Key: TypeAlias = "tuple[bytes, int]"
"""A partition as Fetch names it: topic id and number."""

NO_SESSION = 0
FULL_EPOCH = 0
EPOCH_MAX = (1 << 31) - 1


class ReplicaPartition(NamedTuple):
    """A partition, by its names."""

    topic: str
    topic_id: bytes
    number: int

    @property
    def key(self) -> Key:
        """As Fetch names it."""
        return self.topic_id, self.number

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Position(NamedTuple):
    """From where a partition is fetched, in which leader epoch, and the epoch of the record before; -1 where there is none.

    Two that are equal may be of different times: an answer counts for the object that was asked for, see `ReplicaFetcher`.
    """

    offset: int
    leader_epoch: int
    last_fetched_epoch: int


class Wanted(NamedTuple):
    """What a fetch says of one partition."""

    position: Position
    log_start_offset: int


class FetchPlan(NamedTuple):
    """What one fetch says."""

    session_id: int
    session_epoch: int
    send: dict[Key, Wanted]
    forgotten: list[Key]


class FollowerSession:
    """Invariant: `known` is what the leader was told, as of the last plan, and what its answer is about. `losses`: how often in a row the
    leader refused the session. Costs follow what changes, not how many partitions there are."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self.known: dict[Key, Wanted] = {}
        self.losses = 0

    def plan(self, changes: Mapping[Key, Wanted | None]) -> FetchPlan | None:
        """The next fetch, in which these partitions are wanted so from now on, or not at all; None when there is nothing to fetch."""
        known, send, forgotten = self.known, dict[Key, Wanted](), list[Key]()
        for key, wanted in changes.items():
            before = known.pop(key, None)
            if wanted is not None:
                known[key] = wanted  # behind the others: what has brought records has had its turn
                if wanted != before:
                    send[key] = wanted
            elif before is not None:
                forgotten.append(key)
        if not known:
            self.restart()  # what was forgotten here was told to nobody
            return None
        if self.epoch == FULL_EPOCH:
            return FetchPlan(self.session_id, FULL_EPOCH, dict(known), [])
        return FetchPlan(self.session_id, self.epoch, send, forgotten)

    def answered(self, session_id: int) -> None:
        """The fetch was answered without an error."""
        self.session_id = session_id
        self.losses = 0
        if session_id == NO_SESSION:
            self.epoch = FULL_EPOCH
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def restart(self) -> None:
        """The next fetch closes the session and begins another."""
        self.epoch = FULL_EPOCH

    def lost(self, *, known: bool) -> None:
        """The leader refused the fetch; `known`: it may still have the session."""
        self.losses += 1
        self.epoch = FULL_EPOCH
        if not known:
            self.session_id = NO_SESSION
