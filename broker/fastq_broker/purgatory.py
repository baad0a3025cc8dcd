"""Fetches that wait for data: the long poll.

Rules
- A waiting fetch is checked when one of its logs advances, and ends when enough bytes are there, when its time is up, or when
  something about a partition has changed (deleted, new leader epoch), whichever comes first.
- A log also tells of appends that no reader sees yet (durability "fsync"): what is there is counted, never assumed.
- A fetch that cannot be counted again ends, and tells its client so; one whose end raises keeps no other waiting.
- Ends are not run inside the append that caused them, but together at the next turn of the loop: so an append costs
  nothing more for it, and one answer carries all that a burst of appends has brought.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable

from .log import failures


class WaitingFetch:
    """A fetch in the purgatory. Loop thread only.

    Invariant: it is registered under each of its keys until it is done; `done` never resets.
    """

    __slots__ = ("available", "bytes_missing", "done", "estimate", "finish", "keys", "timer")

    def __init__(
        self,
        available: dict[Hashable, int],
        min_bytes: int,
        estimate: Callable[[Hashable], int],
        finish: Callable[[], None],
    ) -> None:
        """`available` holds the bytes that each watched partition has for this fetch now; `estimate` counts one again."""
        self.keys: Iterable[Hashable] = available.keys()
        self.available = available
        self.bytes_missing = min_bytes - sum(available.values())
        self.estimate = estimate
        self.finish = finish
        self.done = False
        self.timer: asyncio.TimerHandle | None = None


class Purgatory:
    """All waiting fetches of a broker, by the partitions they watch. Loop thread only.

    Invariants: `_watchers[key]` is never empty, who waits for longest is first; a fetch in `_ended` is done and registered nowhere. While
    there are some in it they are answered in the next turn of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[Hashable, dict[WaitingFetch, None]] = {}
        self._ended: deque[WaitingFetch] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def wait(self, fetch: WaitingFetch, max_wait_s: float) -> None:
        """Register a fetch; `fetch.finish` is called once, from the loop, unless `cancel` comes first. Where there is no memory for that it
        is registered nowhere."""
        self._count += 1
        try:
            fetch.timer = self._loop.call_later(max_wait_s, self._expire, fetch)
            for key in fetch.keys:
                self._watchers.setdefault(key, {})[fetch] = None
        except BaseException:
            self._remove(fetch)
            raise

    def watch(self, fetch: WaitingFetch, key: Hashable) -> None:
        """Have a fetch that waits watch one more partition, which is among its keys by now."""
        if not fetch.done:
            self._watchers.setdefault(key, {})[fetch] = None

    def advanced(self, key: Hashable, _source: object = None) -> None:
        """A partition's log has moved on. A listener of that log, which says which one it is (`_source`)."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for fetch in list(watchers):
            try:
                now = fetch.estimate(key)
            except Exception as error:
                failures.report("counting what a waiting fetch has", error)
                self._end(fetch)
                continue
            fetch.bytes_missing -= now - fetch.available[key]
            fetch.available[key] = now
            if fetch.bytes_missing <= 0:
                self._end(fetch)

    def changed(self, key: Hashable) -> None:
        """A partition is gone, or has a new leader epoch: whoever waits for it is answered."""
        for fetch in list(self._watchers.get(key, ())):
            self._end(fetch)

    def end(self, fetch: WaitingFetch) -> None:
        """Answer a fetch with what is there."""
        self._end(fetch)

    def cancel(self, fetch: WaitingFetch) -> None:
        """Forget a fetch whose connection is gone."""
        self._remove(fetch)

    def end_all(self) -> None:
        """Answer every waiting fetch with what is there (the broker stops)."""
        for fetch in [fetch for watchers in self._watchers.values() for fetch in watchers]:
            self._end(fetch)

    def _end(self, fetch: WaitingFetch) -> None:
        if not fetch.done:
            # Before it is taken out: where there is no memory for one of these it waits on, and its timer runs.
            if not self._ended:
                self._loop.call_soon(self._finish_ended)
            self._ended.append(fetch)
            self._remove(fetch)

    def _expire(self, fetch: WaitingFetch) -> None:
        if self._remove(fetch):
            failures.attempt("answering a waiting fetch", fetch.finish)

    def _finish_ended(self) -> None:
        ended = self._ended
        try:
            while ended:
                self._unregister(ended[0])
                failures.attempt("answering a waiting fetch", ended.popleft().finish)
        finally:
            if ended:
                self._loop.call_soon(self._finish_ended)

    def _remove(self, fetch: WaitingFetch) -> bool:
        """Take a fetch out; False when it was out already."""
        if fetch.done:
            return False
        fetch.done = True
        self._count -= 1
        if fetch.timer is not None:
            fetch.timer.cancel()
            fetch.timer = None
        self._unregister(fetch)
        return True

    def _unregister(self, fetch: WaitingFetch) -> None:
        """Have it watch nothing more, or what is left of that."""
        for key in fetch.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(fetch, None)
                if not watchers:
                    del self._watchers[key]
        fetch.keys = ()
