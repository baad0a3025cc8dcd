"""How many bytes a second something moves, and whether that is more than it may.

Rules: bytes are counted in windows of time, of which the latest count; so a pause is made up for within them, and no longer. Time is given,
in seconds of a monotonic clock. Source: ReplicationQuotaManager, SimpleRate (KIP-73).
"""

from __future__ import annotations

from collections import deque

UNBOUNDED = float("inf")
WINDOWS = 11
WINDOW_S = 1.0


class ByteRate:
    """A rate and its bound, `bytes_per_s_max`. Thread rule: one thread."""

    __slots__ = ("_counted", "_total", "_window_s", "_windows", "bytes_per_s_max")

    def __init__(self, *, windows: int = WINDOWS, window_s: float = WINDOW_S) -> None:
        self.bytes_per_s_max = UNBOUNDED
        self._windows = windows
        self._window_s = window_s
        self._counted: deque[tuple[float, int]] = deque()  # the begin of a window, and what came in it
        self._total = 0

    def record(self, size_bytes: int, now: float) -> None:
        """So many bytes were moved."""
        counted = self._counted
        self._total += size_bytes
        if counted and now - counted[-1][0] < self._window_s:
            counted[-1] = counted[-1][0], counted[-1][1] + size_bytes
        else:
            counted.append((now, size_bytes))

    def rate(self, now: float) -> float:
        """Bytes a second over the windows that count."""
        counted = self._counted
        while counted and now - counted[0][0] >= self._windows * self._window_s:
            self._total -= counted.popleft()[1]
        return self._total / max(now - counted[0][0], self._window_s) if counted else 0.0

    def exceeded(self, now: float) -> bool:
        """Whether it is above its bound."""
        return self.bytes_per_s_max != UNBOUNDED and self.rate(now) > self.bytes_per_s_max

    def wait_s(self, now: float) -> float:
        """How long nothing may be moved until it is not above its bound; 0 where it is not."""
        if not self.exceeded(now):
            return 0.0
        oldest = self._counted[0][0]
        below = oldest + self._total / self.bytes_per_s_max if self.bytes_per_s_max else UNBOUNDED
        return max(min(below, oldest + self._windows * self._window_s) - now, 0.001)
