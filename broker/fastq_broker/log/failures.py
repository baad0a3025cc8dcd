"""What to do with a callback that raises: say so, at a bounded rate, and go on with the others.

Rules
- A loop over callbacks of several logs or clients catches what each raises, because the others have nothing to do with it.
- What a client can bring about as often as it likes is said the same way (`say`).
- Each place is heard of at once, and then once every REPORT_INTERVAL_S with the number of those left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from fastq.errors import KafkaStorageError

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 60.0
_PLACES_MAX: Final = 1000


class FailureReports:
    """Log lines about callbacks that raise, by place; a place is what was done and for which log.

    Invariant: at most _PLACES_MAX places are remembered. `clock` is monotonic, in seconds. Event-loop thread only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When it was last heard of, and how often it was left out since.
        self._places: dict[str, tuple[float, int]] = {}

    def report(self, place: str, error: BaseException) -> None:
        """Say that `place` has raised, with its traceback, unless it has been said within the interval. What a disk does is no mistake of
        the code's: a KafkaStorageError is told as it is. What there is no memory to say is said with the next of that place."""
        try:
            self._report(place, error)
        except MemoryError:
            self._places.pop(place, None)

    def _report(self, place: str, error: BaseException) -> None:
        more = self._more(place)
        if more is None:
            return
        if isinstance(error, KafkaStorageError):
            logger.error("%s failed%s; the others go on: %s", place, more, error)
        else:
            logger.error("%s failed%s; the others go on", place, more, exc_info=error)

    def say(self, log: Callable[..., None], place: str, message: str, *args: object) -> None:
        """Have `log` (a logger's method) say `message % args`, unless something was said of `place` within the interval."""
        more = self._more(place)
        if more is not None:
            log(message + "%s", *args, more)

    def _more(self, place: str) -> str | None:
        """None when it was heard of within the interval; else what to say of how often it was left out since."""
        now = self._clock()
        said_at, left_out = self._places.get(place, (now - REPORT_INTERVAL_S, 0))
        if now - said_at < REPORT_INTERVAL_S:
            self._places[place] = said_at, left_out + 1
            return None
        if len(self._places) >= _PLACES_MAX:
            del self._places[next(iter(self._places))]
        self._places[place] = now, 0
        return f" ({left_out} times more since it was last said)" if left_out else ""

    def attempt(self, place: str, work: Callable[[], object]) -> None:
        """Do one of several pieces of work; what it raises is reported and goes no further."""
        try:
            work()
        except Exception as error:
            self.report(place, error)


failures: Final = FailureReports()
"""Those of this process."""
