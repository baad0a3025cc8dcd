"""Groups whose record is being written: each hears once what has become of it, however short memory is when that is known.

Rule: what is needed to tell it later is there before anything is written. Members that wait for their assignment count on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastq_broker.coordinator.deadlines import Deadlines
from fastq_broker.log import failures

from .consumer_groups import RETRY_MS

if TYPE_CHECKING:
    from fastq.errors import KafkaError


class Storing:
    """One record. Invariant: `tell` is None once it has told its group, or need not."""

    __slots__ = ("_error", "_known", "_stores", "tell")

    def __init__(self, stores: Stores, tell: Callable[[KafkaError | None], None]) -> None:
        self._stores = stores
        self._error: KafkaError | None = None
        self._known = False
        self.tell: Callable[[KafkaError | None], None] | None = tell

    def done(self, error: KafkaError | None) -> None:
        """It is known what has become of the record: tell it, now or later."""
        self._error, self._known = error, True
        try:
            self.go_on()
        except Exception as failure:
            self._stores.again(self, failure)

    def go_on(self) -> bool:
        """Tell it, if it is known; answers whether it still is to be told. Where that raises it is to be told again."""
        if self._known and self.tell is not None:
            self.tell(self._error)
            self.tell = None
        return self.tell is not None


class Stores:
    """Those of one shard. Loop thread only. Invariant: until a group has heard there is a look at it to come."""

    __slots__ = ("_clock", "_looks", "_place", "_timeout_ms")

    def __init__(
        self,
        timeout_ms: int,
        clock: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Any],
        place: str,
    ) -> None:
        """`timeout_ms`: within it what becomes of a record is known. `clock` is monotonic, in ms. `place` is for the log."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._place = place
        self._looks: Deadlines[Storing] = Deadlines(clock, call_later, self._look)

    def begin(self, tell: Callable[[KafkaError | None], None]) -> Storing:
        """A record is to be written: `done` of what this answers has `tell` called until it does not raise."""
        storing = Storing(self, tell)
        self._looks.add(self._clock() + self._timeout_ms + RETRY_MS, storing)
        return storing

    def again(self, storing: Storing, failure: Exception) -> None:
        """Telling it failed: it is told after a while."""
        try:
            self._looks.add(self._clock() + RETRY_MS, storing)
        except MemoryError:  # then by the look that has been waiting since it began
            pass
        failures.report(self._place, failure)

    def _look(self, storing: Storing, now_ms: int) -> None:
        try:
            to_tell = storing.go_on()
        except MemoryError:  # it is looked at again
            raise
        except Exception as failure:
            self.again(storing, failure)
        else:
            if to_tell:
                self._looks.add(now_ms + RETRY_MS, storing)
