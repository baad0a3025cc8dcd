"""How long a commit of offsets, what else a group writes, and who reads what was written, waits for the replicas: who is cut off from them
tells its members to look for the coordinator anew.

Rules: all wait equally long, so that they end in their order: one timer, for the first. Who has been answered costs nothing more than its
place in the line. What is given up may be kept all the same: whoever commits again writes the same.
Source: offsets.commit.timeout.ms, CoordinatorRuntime's write timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.log import failures

Done = Callable[["KafkaError | None"], None]


class OneAnswer:
    """Passes on the first answer that comes, and no other."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done: Done | None = done

    @property
    def waits(self) -> bool:
        return self._done is not None

    def tell(self, error: KafkaError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(error)


class Patience:
    """Those who wait, in the order in which they began. Loop thread only. Invariant: while somebody waits a timer runs."""

    __slots__ = ("_call_later", "_clock", "_line", "_timeout_ms", "_timer")

    def __init__(
        self, timeout_ms: int, clock: Callable[[], int], call_later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        """`clock` is monotonic, in ms."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._call_later = call_later
        self._line: deque[tuple[int, OneAnswer]] = deque()
        self._timer: Any = None

    def wait(self, begin: Callable[[Done], object], done: Done) -> None:
        """Begin what tells how it went, now or later; `done` is told that once, or REQUEST_TIMED_OUT when the time is over, or
        COORDINATOR_NOT_AVAILABLE where it fails inside. What `done` raises goes to who it is told by."""
        waiter = OneAnswer(done)
        try:
            begin(waiter.tell)
            if waiter.waits:
                self.add(waiter)
        except Exception as error:
            if not waiter.waits:
                raise
            failures.report("writing what groups have", error)
            waiter.tell(error_for_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"it could not be written: {error!r}"))

    def add(self, waiter: OneAnswer) -> None:
        """Have it answered with REQUEST_TIMED_OUT when its time is over."""
        line = self._line
        while line and not line[0][1].waits:
            line.popleft()
        line.append((self._clock() + self._timeout_ms, waiter))
        if self._timer is None:
            self._timer = self._call_later(self._timeout_ms / 1000, self._due)

    def end(self, error: KafkaError) -> None:
        """Nobody waits here any more: each is told this."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        line = self._line
        for _ in range(len(line)):
            _tell(line.popleft()[1], error, "answering who waited for a coordinator that ends here")

    def _due(self) -> None:
        """Tell those whose time is over. The timer counts as running meanwhile: who is told may begin to wait anew, behind others."""
        now_ms, line = self._clock(), self._line
        try:
            while line and (line[0][0] <= now_ms or not line[0][1].waits):
                error = error_for_code(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"not all in sync had what was written within {self._timeout_ms} ms (offsets.commit.timeout.ms)",
                )
                _, waiter = line.popleft()
                waiter.tell(error)
        finally:
            self._timer = None  # there may be no memory for another: who waits next begins it
            if line:
                self._timer = self._call_later(max(line[0][0] - now_ms, 0) / 1000, self._due)


class Readers:
    """Those who are answered once all that was written before they came is safe; writing nothing is reading. Loop thread only.

    One of them waits at the log for all that came at the same end of it: who asks again and again leaves nothing behind.
    """

    __slots__ = ("_end_offset", "_lines", "_patience", "_when_durable")

    def __init__(self, end_offset: Callable[[], int], when_durable: Callable[[Done], None], patience: Patience) -> None:
        self._end_offset = end_offset
        self._when_durable = when_durable
        self._patience = patience
        self._lines: dict[int, deque[OneAnswer]] = {}

    def add(self, done: Done) -> None:
        """Tell it once, now or later: None, or why what was written is not safe, or not in time."""
        waiter = OneAnswer(done)
        end = self._end_offset()
        line = self._lines.get(end)
        if line is None:
            self._lines[end] = deque([waiter])
            try:
                self._when_durable(partial(self._tell, end))
            except Exception:
                self._lines.pop(end, None)  # who comes next begins it
                raise
        else:
            while line and not line[0].waits:
                line.popleft()
            line.append(waiter)
        if waiter.waits:
            self._patience.add(waiter)

    def _tell(self, end: int, error: KafkaError | None) -> None:
        for waiter in self._lines.pop(end, ()):
            _tell(waiter, error, "answering who reads what a coordinator has")


def _tell(waiter: OneAnswer, error: KafkaError | None, place: str) -> None:
    """One of several; what it raises is reported and goes no further. It takes no memory to come to the next."""
    try:
        waiter.tell(error)
    except Exception as failure:
        failures.report(place, failure)
