"""Many deadlines on one timer: what tens of thousands of idle members need of a clock.

Rules
- Who waits keeps its own deadline and moves it for nothing; here lies at most one entry a waiter, which may be too early.
- When an entry is due, `wake(item, now_ms)` is called: the waiter looks at its deadline, and asks again when it has moved.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Handle(Protocol):
    """What `call_later` answers."""

    def cancel(self) -> None: ...


class Deadlines(Generic[T]):
    """A heap of (time, item), and one timer for the earliest. Loop thread only.

    Invariant: while the heap is not empty, a timer runs that ends no later than its first entry is due.
    """

    __slots__ = ("_call_later", "_clock", "_heap", "_sequence", "_timer", "_timer_at_ms", "_wake")

    def __init__(
        self,
        clock: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Handle],
        wake: Callable[[T, int], None],
    ) -> None:
        """`clock` is monotonic, in ms; `wake(item, now_ms)` is called for each entry that is due."""
        self._clock = clock
        self._call_later = call_later
        self._wake = wake
        self._heap: list[tuple[int, int, T]] = []
        self._sequence = 0
        self._timer: Handle | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_ms: int, item: T) -> None:
        """Have `item` woken at `at_ms`."""
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, item))
        if self._timer is None or at_ms < self._timer_at_ms:
            self._start()

    def clear(self) -> None:
        """Wake nobody any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        at_ms, before = self._heap[0][0], self._timer
        self._timer = self._call_later(max(at_ms - self._clock(), 0) / 1000, self._due)
        self._timer_at_ms = at_ms
        if before is not None:  # until then: there may be no memory for the other
            before.cancel()

    def _due(self) -> None:
        self._timer = None
        now_ms = self._clock()
        try:
            while self._heap and self._heap[0][0] <= now_ms:
                entry = heapq.heappop(self._heap)
                try:
                    self._wake(entry[2], now_ms)
                except MemoryError:  # whoever is woken may not have looked
                    heapq.heappush(self._heap, entry)
                    raise
        finally:
            if self._heap and self._timer is None:
                self._start()
