"""How long the changes of the metadata that this node writes take until they are committed, for metrics.

Rules: what is told is the mean of the current window of WINDOW_MS and the one before; there is none where nothing was committed in them.
Source: commit-latency-avg of Kafka's KafkaRaftMetrics, a mean over the last 30 to 60 s too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW_MS = 30_000


class CommitTimes:
    """Loop thread only. Invariant: `_open` has the changes that are not committed, in the order of their offsets."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._now_ms = monotonic_ms
        self._open: deque[tuple[int, int]] = deque()
        self._begun_ms = monotonic_ms()
        self._sum_ms = self._count = self._sum_before_ms = self._count_before = 0

    def written(self, end_offset: int) -> None:
        """A change was written; it is committed once the high watermark is there."""
        self._open.append((end_offset, self._now_ms()))

    def committed(self, high_watermark: int) -> None:
        """Everything below is committed."""
        if not self._open or self._open[0][0] > high_watermark:
            return
        self._turn()
        now_ms = self._now_ms()
        while self._open and self._open[0][0] <= high_watermark:
            self._sum_ms += now_ms - self._open.popleft()[1]
            self._count += 1

    def forget(self) -> None:
        """Another term: who wrote is not told whether it counts."""
        self._open.clear()

    def mean_ms(self) -> float | None:
        """None: nothing was committed lately."""
        self._turn()
        count = self._count + self._count_before
        return (self._sum_ms + self._sum_before_ms) / count if count else None

    def _turn(self) -> None:
        """Begin another window where it is time."""
        past_ms = self._now_ms() - self._begun_ms
        if past_ms < WINDOW_MS:
            return
        recent = past_ms < 2 * WINDOW_MS
        self._sum_before_ms, self._count_before = (self._sum_ms, self._count) if recent else (0, 0)
        self._sum_ms = self._count = 0
        self._begun_ms += past_ms - past_ms % WINDOW_MS
