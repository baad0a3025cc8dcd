"""How a follower goes about much that it lacks: in small answers, with a pause behind some of them. Sans-I/O.

Rules
- A large answer takes the leader's loop, and then the follower's, from others for as long as it takes to send, and to write, all of it; in
  small ones the two work at the same time. In the pauses whoever shares their cores has these.
- A leader that gets half as much meanwhile as it gives, or more, is followed without a pause, and in answers as large as any: it might
  never be caught up with.
- Over a long way an answer takes its time, however small: the longer, the larger they are. In 50 ms there and back, small ones would be
  ten megabytes a second.
- Whoever has all that is committed is not behind, however much is appended meanwhile: those in sync wait for nothing.
"""

from __future__ import annotations

from typing import Final

CATCH_UP_BYTES: Final = 512 << 10
"""The most that is fetched at a time from a leader that is near."""
CATCH_UP_WAY_S: Final = 0.001
"""How far that is at most, there and back: in that time so much is sent and written anyway."""
CATCH_UP_PAUSE_S: Final = 0.001
CATCH_UP_FETCHES: Final = 4
"""Between two pauses: what is fetched in that time takes some three times as long as a pause where both nodes are on one machine. A pause
behind each fetch costs a third of the pace, and others are disturbed a little less."""


class CatchUp:
    """Of one fetcher, by its last answer: `is_behind` says that it was not all that the leader had."""

    __slots__ = ("_fetches", "_got", "_grown", "_pause_s", "_rested", "is_behind")

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._fetches = 0  # since the last pause
        self.begin()

    def begin(self) -> None:
        """An answer begins, or none is to come."""
        self.is_behind = self._rested = False
        self._got = self._grown = 0

    def took(self, got: int, lacked: int | None, lacks: int) -> None:
        """A partition of the answer had so many records; how many of the committed ones were not here before (None: not known), and are not
        now. One that lacked nothing says nothing: what is written to those in sync is no part of what is caught up with."""
        if not (lacked or lacks > 0):
            return
        self.is_behind = self.is_behind or lacks > 0
        self._got += got
        if lacked is not None:
            self._grown += max(0, lacks + got - lacked)

    @property
    def _is_outrun(self) -> bool:
        """Whether the leader has grown so much meanwhile that it might never be caught up with."""
        return self._got < 2 * self._grown

    def bytes_max(self, most: int, way_s: float) -> int:
        """Of the next answer, which may have so many otherwise and is so far away: less while it would be full each time."""
        if not self.is_behind or self._is_outrun:
            return most
        return min(most, int(CATCH_UP_BYTES * max(1.0, way_s / CATCH_UP_WAY_S)))

    def rest_s(self) -> float:
        """Seconds to let pass before the next fetch, from now on: for each answer once."""
        if self._rested or not self.is_behind or self._got == 0 or self._is_outrun:
            return 0.0
        self._rested = True
        self._fetches = (self._fetches + 1) % CATCH_UP_FETCHES
        return 0.0 if self._fetches else self._pause_s
