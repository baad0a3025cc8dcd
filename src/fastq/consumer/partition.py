"""One assigned partition: where its consumer stands, what is prefetched for it, and what it waits for.

Rules: plain state, changed by the Fetcher alone. Source: Kafka's SubscriptionState.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from fastq._native.consume import FetchedRecords
from fastq.metadata import ZERO_UUID, TopicPartition


class Phase(Enum):
    """What a partition needs next."""

    COMMITTED = "committed"  # its offset, from the coordinator of the group
    RESET = "reset"  # its offset, from ListOffsets
    VALIDATE = "validate"  # to learn whether its offset survived a change of leader (KIP-320)
    FETCH = "fetch"
    FAILED = "failed"  # nothing, until the user seeks


class PartitionState:
    """Invariants: `fetch_offset` is the offset after all that is in `chunks`, and what the next fetch asks for;
    `generation` grows whenever the user moves it, and an answer to a request of an older generation is dropped;
    `buffered_bytes` is the sum over `chunks`. Thread rule: under the driver's lock.
    """

    __slots__ = (
        "attempts",
        "began",
        "buffered_bytes",
        "chunks",
        "fetch_bytes",
        "fetch_offset",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "moves",
        "offset_epoch",
        "paused",
        "phase",
        "preferred_replica",
        "preferred_until",
        "quiet_offset",
        "refusals",
        "reported",
        "requested",
        "reset_timestamp",
        "retry_at",
        "sought",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition, fetch_bytes: int, phase: Phase = Phase.RESET) -> None:
        self.tp = tp
        self.topic_id = ZERO_UUID  # of the topic that all of this is about; zero while it is not known
        self.phase = phase
        self.reset_timestamp: int | None = None  # None: what auto_offset_reset says
        # The offset of the first record that the application was given, or was to be, and the leader epoch before it: from there they are
        # given again where the group has committed nothing.
        self.began: tuple[int, int] | None = None
        self.fetch_offset = -1
        self.offset_epoch = -1  # leader epoch of the record before fetch_offset
        self.leader_epoch = -1  # of the leader that fetch_offset was checked against
        self.generation = 0
        self.fetch_bytes = fetch_bytes
        self.paused = False
        self.chunks: deque[FetchedRecords] = deque()
        self.buffered_bytes = 0
        self.requested = False  # a request about it is on its way
        self.retry_at = 0.0
        self.attempts = 0
        self.moves = 0  # how often another leader was found while it had failed, since a fetch worked
        self.refusals = 0  # how often an offset was refused since a fetch worked, or the user moved on
        self.sought = False  # fetch_offset is a number that the user gave, and no fetch worked there yet
        self.quiet_offset = -1  # of the last fetch that brought no news although its broker did not wait
        self.reported = 0  # the error code raised last, until a fetch works or the user moves on
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred_replica = -1
        self.preferred_until = 0.0

    @property
    def position(self) -> int:
        """The offset of the next record to hand out; -1 while it is not known."""
        for chunk in self.chunks:
            if chunk.position < chunk.end_position:
                return chunk.position
        return self.fetch_offset

    @property
    def position_epoch(self) -> int:
        """The leader epoch of the record before `position`; -1 while it is not known."""
        for chunk in self.chunks:
            if chunk.position < chunk.end_position:
                return chunk.position_epoch
        return self.offset_epoch

    def forget_position(self) -> int:
        """Go on at what the group has committed, once that is known; answers the bytes of what was dropped."""
        if self.began is None and self.position >= 0 and self.phase in (Phase.FETCH, Phase.VALIDATE):
            self.began = self.position, self.position_epoch
        dropped = self.move(-1)
        self.phase = Phase.COMMITTED
        return dropped

    def drop_chunks(self) -> int:
        """Forget what is prefetched, of which nothing more comes out, whoever holds it, as an iterator may; answers its bytes."""
        dropped = self.buffered_bytes
        while self.chunks:
            self.chunks.popleft().limit = 0
        self.buffered_bytes = 0
        return dropped

    def move(self, offset: int, leader_epoch: int = -1) -> int:
        """Go on at `offset`; answers the bytes of what was dropped. Without the memory for it, nothing is changed."""
        generation, fetching = self.generation + 1, Phase.FETCH
        dropped = self.drop_chunks()
        self.generation = generation
        self.fetch_offset = offset
        self.offset_epoch = leader_epoch
        self.phase = fetching
        self.requested = False
        self.retry_at = 0.0
        self.attempts = 0
        self.moves = 0
        self.refusals = 0
        self.sought = False
        self.quiet_offset = -1
        self.reported = 0
        return dropped

    def begin_reset(self, timestamp: int | None) -> None:
        """Ask for the offset of `timestamp` (a special value of ListOffsets, or milliseconds; None: the policy)."""
        self.phase = Phase.RESET
        self.reset_timestamp = timestamp
        self.requested = False
        self.retry_at = 0.0
