"""When the first batch of a transaction goes out, so that it does not meet the end of the one before. Pure.

Rules: under transaction version 2 the leader adds a partition to the transaction when its first batch comes. Apache Kafka's
leader that finds the coordinator still ending the transaction before asks again after 20 ms
(add.partitions.to.txn.retry.backoff.ms), while the end itself takes about a millisecond. So a first answer that takes so
much longer than the fastest one tells that the next transaction should begin a little later. How much later is learned; with
a broker that answers at once it stays at nothing.
"""

from __future__ import annotations

COLLISION_S = 0.015
"""A first answer that takes so much longer than the fastest one has met the end of the transaction before."""

HOLD_STEP_S, HOLD_MAX_S, SHRINK = 0.0005, 0.004, 0.97


class Hold:
    """How long the first batch of a transaction waits after the one before has ended, under version 2: as long as the cluster
    needs to end one, learned from how long first answers take. Zero where that makes no difference.

    Invariant: grows by a step with every collision, up to HOLD_MAX_S, and shrinks with every transaction without one.
    Thread rule: the sender's turn only.
    """

    __slots__ = ("_ended_at", "_fastest_s", "_sent_at", "hold_s")

    def __init__(self) -> None:
        self.hold_s = 0.0
        self._fastest_s = float("inf")
        self._ended_at = float("-inf")
        self._sent_at: float | None = None

    def ended(self, now: float) -> None:
        """The coordinator has answered EndTxn."""
        self._ended_at, self._sent_at = now, None

    def until(self) -> float:
        """When the first batch may go."""
        return self._ended_at + self.hold_s

    def sent(self, now: float) -> None:
        """The first batch goes."""
        self._sent_at = now

    def answered(self, now: float) -> None:
        """An answer has come; the first one of the transaction counts."""
        if self._sent_at is None:
            return
        sent_at, self._sent_at = self._sent_at, None
        took = now - sent_at
        self._fastest_s = min(took, self._fastest_s)
        if sent_at - self._ended_at > COLLISION_S:
            return  # so long after the end of the one before it cannot have met it
        if took > self._fastest_s + COLLISION_S:
            self.hold_s = min(self.hold_s + HOLD_STEP_S, HOLD_MAX_S)
        else:
            self.hold_s = self.hold_s * SHRINK if self.hold_s > HOLD_STEP_S / 10 else 0.0
