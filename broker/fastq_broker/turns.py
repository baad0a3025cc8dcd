"""When a machine without I/O is at work in an event loop: in turns, of which the next one follows on what happens in it or on its timer;
and what is done again and again.

Rules: everything happens in the loop's thread. A turn asks the machine what is to be done and does it; a turn that is wanted meanwhile
follows at once, never inside. After a turn a timer waits for the time at which the machine wants the next one; after one that failed for
AGAIN_S, unless one waits already: what a machine does never ends by a mistake in one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastq_broker.log import failures

NEVER = float("inf")
LATE = 1.5
"""Intervals after which it is seen to that what is done again and again is."""
AGAIN_S = 1.0
"""After a turn of the timer's that failed: when the next one is taken."""


class Turns:
    """The turns of one machine. Invariants: no turn is inside another; until it is closed, a turn is due when the machine wants one. An
    error of `work` goes to who wanted the turn, and leaves a timer that waits as it was."""

    __slots__ = ("_again", "_loop", "_next_wakeup", "_now", "_soon", "_timer", "_turning", "_work", "closed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        now: Callable[[], float],
        work: Callable[[float], object],
        next_wakeup: Callable[[float], float],
    ) -> None:
        """`now` gives seconds that only go on; `work(now)` does what is due; `next_wakeup(now)` is when that is to be done at the latest,
        NEVER where nothing is. Without a `loop` there are no timers."""
        self._loop = loop
        self._now = now
        self._work = work
        self._next_wakeup = next_wakeup
        self._timer: asyncio.TimerHandle | None = None
        self._turning = self._again = self._soon = self.closed = False

    def turn(self) -> None:
        """Do what is due: now, or once the turn that is being taken is through."""
        self._again = True
        if self._turning or self.closed:
            return
        self._turning = True
        try:
            while self._again and not self.closed:
                self._again = False
                self._work(self._now())
            if not self.closed:
                self._arm()
        except Exception:
            if self._timer is None and self._loop is not None and not self.closed:
                self._timer = self._loop.call_later(AGAIN_S, self._timed)
            raise
        finally:
            self._turning = False

    def soon(self) -> None:
        """Take a turn in the next pass of the loop: one, however often it is wanted until then."""
        if not self._soon:
            assert self._loop is not None
            self._loop.call_soon(self._due)
            self._soon = True  # once the loop has it: there may be no memory for that

    def close(self) -> None:
        """Take no more turns; one that is being taken ends without another. Idempotent."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _timed(self) -> None:
        self._timer = None
        self.turn()

    def _due(self) -> None:
        self._soon = False
        self.turn()

    def _arm(self) -> None:
        if self._loop is None:
            return
        now = self._now()
        due = self._next_wakeup(now)
        timer = None if due == NEVER else self._loop.call_later(max(0.0, due - now), self._timed)
        before, self._timer = self._timer, timer
        if before is not None:  # until then: there may be no memory for the other
            before.cancel()


class Repeated:
    """Work that is done at an interval, whatever it raises. Invariant: from its start to its close one of two timers runs at least, and has
    the other one begun where there was no memory for that, the one of the work both before and after it."""

    __slots__ = ("_interval_s", "_look", "_loop", "_timer", "_work", "closed")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float, work: Callable[[], object]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._work = work
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self.closed = False

    def start(self) -> None:
        """Do it an interval from now; nothing happens when it is about to be done."""
        if self.closed:
            return
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._run)
        if self._look is None:
            self._look = self._loop.call_later(self._interval_s * LATE, self._look_after)

    def close(self) -> None:
        """Do it no more. Idempotent."""
        self.closed = True
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()

    def _look_after(self) -> None:
        """Begin what could not be begun: nobody else may."""
        self._look = None
        if self._timer is None:
            self._run()
        else:
            self.start()

    def _run(self) -> None:
        self._timer = None
        try:
            self.start()
        except Exception as error:
            failures.report("waiting for what is done again and again", error)
        try:
            self._work()
        finally:
            self.start()
