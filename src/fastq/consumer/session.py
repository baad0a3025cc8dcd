"""Fetch sessions (KIP-227): a broker remembers which partitions are fetched, and a fetch names only what changed.

Rules: sans-I/O; one session a broker, one fetch in flight on it. A session whose fetch got no answer is in doubt: the next
fetch closes it and begins a new one (epoch 0).
"""

from __future__ import annotations

from collections.abc import Mapping

from fastq.metadata import TopicPartition
from fastq.values import NamedTuple

FULL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1


class Wanted(NamedTuple):
    """What is asked of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int


class FetchPlan(NamedTuple):
    """What one fetch says. `forgotten` has the topic id that the session knows the partition by."""

    session_id: int
    session_epoch: int
    send: dict[TopicPartition, Wanted]
    forgotten: dict[TopicPartition, bytes]


class FetchSession:
    """Invariant: `known` is what the broker believes, as of the last request that was built. `quiets` are the answers in a row that
    brought nothing and came too soon; until `quiet_until` the same is not asked again. `losses`: how often in a row it was not known;
    `misanswers`: how many answers in a row had other partitions than were asked for.
    """

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = FULL_EPOCH
        self.known: dict[TopicPartition, Wanted] = {}
        self.by_id = False
        self.quiets = 0
        self.quiet_until = 0.0
        self.losses = 0
        self.misanswers = 0

    @property
    def is_full(self) -> bool:
        """Whether the last fetch, or the next one, names all partitions."""
        return self.epoch == FULL_EPOCH

    def plan(self, wanted: Mapping[TopicPartition, Wanted], by_id: bool) -> FetchPlan:
        """The fetch of exactly `wanted`; `by_id` says that it names topics by id (version 13 and later)."""
        if by_id != self.by_id:
            self.by_id = by_id
            self.restart()
        if self.epoch == FULL_EPOCH:
            self.known = dict(wanted)
            return FetchPlan(self.session_id, FULL_EPOCH, dict(wanted), {})
        known = self.known
        send = {tp: ask for tp, ask in wanted.items() if known.get(tp) != ask}
        forgotten = {
            tp: ask.topic_id
            for tp, ask in known.items()
            if tp not in wanted or (by_id and wanted[tp].topic_id != ask.topic_id)
        }
        self.known = dict(wanted)
        return FetchPlan(self.session_id, self.epoch, send, forgotten)

    def answered(self, session_id: int) -> None:
        """The fetch was answered without an error; session id 0: the broker keeps no session."""
        self.session_id = session_id
        self.losses = 0
        if session_id == 0:
            self.epoch = FULL_EPOCH
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def restart(self) -> None:
        """The next fetch closes the session and begins another."""
        self.epoch = FULL_EPOCH

    def lost(self) -> None:
        """The broker does not know the session."""
        self.losses += 1
        self.session_id = 0
        self.epoch = FULL_EPOCH
