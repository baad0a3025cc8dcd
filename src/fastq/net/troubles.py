"""What a client's log says of what does not get on: when it lasts, when the cause changes, now and then, and when it goes on again.

Rules of this file:
- A subject (an address, a partition, a group) is in trouble from the first attempt that failed until one has come through. Whoever makes
  the attempts reports both, and once in a while as long as it lasts: there are no timers here.
- What passes within the grace is not said: an ordinary change of leaders, a rebalance. Then a cause is said when it is new, another one at
  the earliest CHANGE_S after the line before, and each again after REPEAT_S, then after twice as long each time, up to REPEAT_MAX_S: what
  lasts for days is no line every half a minute.
- Subjects that have the same trouble share a line, and there is one of them in CHANGE_S: a thousand partitions do not flood the log.
- What was said is taken back, with how long it took, once for all that had a line together.
- What nobody tries for now is no trouble, and is none that has lasted when it is tried again; what was said of it is taken back then.
No clock and no I/O but the log: `now` comes in. A message is made only when it is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator

from fastq.errors import FastqError

CHANGE_S = 1.0
REPEAT_S = 30.0
REPEAT_MAX_S = 3600.0
GRACE_S = 3.0
"""As long as a topic may take to be known (`UNKNOWN_GRACE_S` of consumers), and longer than a change of leaders that all goes well with."""
NAMED_MAX = 5
"""So many of the subjects that share a line are named in it."""
CAUSES_MAX = 20
"""Of one subject that are told apart; with more of them all count as new."""


class Told:
    """What was said of one subject. Invariants: `told` has when each cause may be said again, and how long after it was said last that is;
    it is empty while nothing was said."""

    __slots__ = ("attempts", "since", "told", "told_at")

    def __init__(self, since: float) -> None:
        self.since = since
        self.attempts = 0
        self.told: dict[Hashable, tuple[float, float]] = {}
        self.told_at = float("-inf")

    def due(self, cause: Hashable, now: float, grace_s: float) -> bool:
        """Whether this cause is to be said now."""
        if now - self.told_at < CHANGE_S or (not self.told and now - self.since < grace_s):
            return False
        return cause not in self.told or now >= self.told[cause][0]

    def say(self, cause: Hashable, now: float) -> str:
        """It is being said: words for how long it has lasted, where it was said before."""
        again, wait_s = "", REPEAT_S
        if cause in self.told:
            again = f" (for {now - self.since:.0f} s now, {self.attempts} attempts)"
            wait_s = min(2 * self.told[cause][1], REPEAT_MAX_S)
        if len(self.told) >= CAUSES_MAX:
            self.told.clear()
        self.told[cause], self.told_at = (now + wait_s, wait_s), now
        return again


class _Line:
    """Subjects that were said together. `left` of its `members` are in that trouble still, the others came out of it, the last one at
    `over_at`; who is in another line by now, or given up, is no member any more."""

    __slots__ = ("doing", "left", "members", "over_at", "since")

    def __init__(self, doing: str, since: float) -> None:
        self.doing = doing
        self.since = self.over_at = since
        self.members: dict[Trouble, None] = {}
        self.left = 0

    def __str__(self) -> str:
        named = ", ".join(member.name for member in list(self.members)[:NAMED_MAX])
        return named if len(self.members) <= NAMED_MAX else f"{named} and {len(self.members) - NAMED_MAX} more"


class Trouble(Told):
    """Of one subject. `doing` is what cannot be done with it, a participle; `error` why, the last time."""

    __slots__ = ("cause", "doing", "error", "line", "name")

    def __init__(self, name: str, since: float) -> None:
        super().__init__(since)
        self.name = name
        self.doing = ""
        self.error: FastqError | Callable[[], FastqError]
        self.cause: Hashable = None
        self.line: _Line | None = None

    def why(self) -> FastqError:
        """The error of the last attempt, with what to do about it while the attempts go on."""
        error = self.error if isinstance(self.error, FastqError) else self.error()
        return error if error.hint is not None else error.with_context(hint=_meanwhile(error.cure))


def _meanwhile(cure: str) -> str | None:
    """What to do while the client tries on, without the words that this is all; None: nothing."""
    first, _, when_it_stays = cure.partition(". ")
    return (when_it_stays or None) if first.startswith(("Nothing: ", "Nothing when it passes")) else cure


class Troubles:
    """Those of one client; its thread rule is the driver's. `open` has them by subject, and nothing when all is well.

    Invariant: a trouble with a `line` was said, and is counted in `left` there.
    """

    def __init__(self, log: logging.Logger, grace_s: float = GRACE_S) -> None:
        self.open: dict[Hashable, Trouble] = {}
        self._log = log
        self._grace_s = grace_s
        self._resting: dict[Hashable, _Line] = {}  # what is to be taken back of those that nobody tries for now
        self._said_at: dict[Hashable, float] = {}  # by cause, whatever the subject

    def failed(
        self,
        subject: Hashable,
        doing: str,
        error: FastqError | Callable[[], FastqError],
        now: float,
        *,
        name: str | None = None,
        cause: Hashable = None,
    ) -> None:
        """An attempt to do something with `subject` failed, as `doing` says: "read", "joined". `name`: what it is called in messages, or
        str(subject). `cause` tells errors apart, or their class does; with one, `error` may be what makes it."""
        trouble = self.open.get(subject)
        if trouble is None:
            trouble = self.open[subject] = Trouble(str(subject) if name is None else name, now)
        trouble.attempts += 1
        trouble.doing, trouble.error = doing, error
        trouble.cause = (doing, type(error) if cause is None else cause)
        if trouble.due(trouble.cause, now, self._grace_s):
            self._tell(trouble, now)

    def over(self, subject: Hashable, now: float) -> None:
        """It has come through."""
        trouble, line = self.open.pop(subject, None), self._resting.pop(subject, None)
        if trouble is not None and trouble.line is not None:
            line = trouble.line
        if line is not None:
            line.left -= 1
            line.over_at = now
            self._take_back(line)

    def forget(self, subject: Hashable) -> None:
        """Nobody tries any more."""
        self._resting.pop(subject, None)
        trouble = self.open.pop(subject, None)
        if trouble is not None:
            self._leave(trouble)

    def rest(self, subject: Hashable) -> None:
        """Nobody tries for now."""
        trouble = self.open.pop(subject, None)
        if trouble is not None and trouble.line is not None:
            line = self._resting[subject] = _Line(trouble.line.doing, trouble.since)
            self._leave(trouble)
            line.members[trouble] = None
            line.left = 1

    def __bool__(self) -> bool:
        """Whether there is anything that may be over."""
        return bool(self.open or self._resting)

    def __iter__(self) -> Iterator[Trouble]:
        """Those that last, whether they were said or not."""
        return iter(list(self.open.values()))

    def _leave(self, trouble: Trouble) -> None:
        """It is no part of its line any more, which may have waited for it alone."""
        line, trouble.line = trouble.line, None
        if line is not None:
            line.left -= 1
            del line.members[trouble]
            self._take_back(line)

    def _take_back(self, line: _Line) -> None:
        if not line.left and line.members:
            self._log.info("%s can be %s again, after %.1f s", str(line), line.doing, line.over_at - line.since)

    def _tell(self, first: Trouble, now: float) -> None:
        cause = first.cause
        if now - self._said_at.get(cause, float("-inf")) < CHANGE_S:
            return
        if len(self._said_at) >= CAUSES_MAX:
            self._said_at.clear()
        self._said_at[cause] = now
        line, again = _Line(first.doing, first.since), first.say(cause, now)
        others = [other for other in self.open.values() if other.cause == cause and other.due(cause, now, 0.0)]
        for trouble in [first, *others]:
            if trouble is not first:
                trouble.say(cause, now)
            self._leave(trouble)
            trouble.line = line
            line.members[trouble] = None
            line.since = min(line.since, trouble.since)
        line.left = len(line.members)
        self._log.warning("%s cannot be %s: %s; trying on%s", str(line), first.doing, first.why(), again)
