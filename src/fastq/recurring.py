"""Lines of the log about what may happen once a record: of each subject the first at once, then one in EVERY_S with how many were left out.

Rules: nothing is left without a line, and no number of records makes a flood of them. A traceback comes with each line, as it is bounded
too. The clock is a parameter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

EVERY_S = 10.0
LOGGED_CHARACTERS_MAX = 400
"""Of an error that is quoted in a line: it may quote a record."""
SUBJECTS_MAX = 1000
"""That are told apart; with more, all of them count as new."""


class Recurring:
    """What recurs, by subject. Thread rule: any. `clock` is monotonic, in seconds.

    Invariant: `_said` has, of each subject, when its last line was, and how many were left out since.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[Hashable, tuple[float, int]] = {}

    def due(self, subject: Hashable) -> int | None:
        """It happened: how many were left out since the last line, where one is due now; None where this one is left out as well."""
        with self._lock:
            now = self._clock()
            said_at, left_out = self._said.get(subject, (float("-inf"), 0))
            if now - said_at < EVERY_S:
                self._said[subject] = said_at, left_out + 1
                return None
            if len(self._said) >= SUBJECTS_MAX:
                self._said.clear()
            self._said[subject] = now, 0
            return left_out

    def failed(self, logger: logging.Logger, subject: Hashable, message: str, *arguments: object) -> None:
        """Somebody's code raised, in whose handler this is called: log it with its traceback, if a line is due."""
        left_out = self.due(subject)
        if left_out is not None:
            logger.exception(f"{message}%s", *arguments, more(left_out))


def more(left_out: int, of: str = "") -> str:
    """The end of a line that stands for others too; empty where it does not."""
    return f" (and {left_out} more{of} since it was last said)" if left_out else ""
