"""Calls at a time, and calls after the next answer to a metadata request.

Rules: nothing waits here. The core's `tick` runs what is due; a callback that raises is logged, and holds up no other.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

logger = logging.getLogger("fastq.net")


class Timer:
    """A call at a time; `cancel` is idempotent."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[float], object]) -> None:
        self.callback: Callable[[float], object] | None = callback

    def cancel(self) -> None:
        """Forget the call."""
        self.callback = None


class Timers:
    """The part of a ClientCore that calls later. Invariant: `deadline` is at or before the first call."""

    deadline: float

    def __init__(self) -> None:
        self._timers: list[tuple[float, int, Timer]] = []
        self._metadata_waiters: list[Timer] = []
        self._timer_ids = itertools.count()

    def call_at(self, when: float, callback: Callable[[float], object]) -> Timer:
        """Call `callback(now)` in the driver's turn, at `when` on `clock` or a little later."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (when, next(self._timer_ids), timer))
        if when < self.deadline:
            self.deadline = when
        return timer

    def after_metadata(self, callback: Callable[[float], object]) -> Timer:
        """Call `callback(now)` once, after the next answer to a metadata request or its failure."""
        waiter = Timer(callback)
        self._metadata_waiters.append(waiter)
        return waiter

    def metadata_answered(self, now: float) -> None:
        """The updater has an answer, or has failed to get one: whoever waits for it is called as by a timer."""
        waiters, self._metadata_waiters = self._metadata_waiters, []
        for waiter in waiters:
            heapq.heappush(self._timers, (now, next(self._timer_ids), waiter))
        self.deadline = min(self.deadline, now)

    def _run_timers(self, now: float) -> int:
        timers, ran = self._timers, 0
        while timers and (timers[0][0] <= now or timers[0][2].callback is None):
            timer = heapq.heappop(timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                ran += 1
                try:
                    callback(now)
                except Exception:
                    logger.exception("a timer callback failed")
        return ran
