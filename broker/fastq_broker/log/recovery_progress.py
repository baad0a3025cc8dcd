"""How far the recovery after a crash is, and the way to end it early.

Rules: written by the thread that recovers, read by any. What a recovery that was stopped leaves is what a crash in the middle
of it would: the next start does it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

LINE_INTERVAL_MS: Final = 5_000


class RecoveryStopped(Exception):
    """The broker is to stop before its logs are recovered."""


class RecoveryProgress:
    """Counts of one recovery. `monotonic_ms` is a clock that never jumps."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.logs = 0
        """Logs to recover."""
        self.done = 0
        self.bytes_read = 0
        self.current = ""
        """The log that is being recovered."""
        self._monotonic_ms = monotonic_ms
        self._next_line_ms = monotonic_ms() + LINE_INTERVAL_MS
        self._stopped = False

    def __str__(self) -> str:
        return f"recovering, {self.done} of {self.logs} logs, {self.bytes_read / 1e6:.0f} MB read"

    @property
    def under_way(self) -> bool:
        return self.done < self.logs

    def begin(self, name: str) -> None:
        """The next log begins. Raises RecoveryStopped."""
        self.current = name
        self.read(0)

    def read(self, size: int) -> None:
        """So many bytes more were read: called for each piece of a log, a megabyte or so. Raises RecoveryStopped."""
        self.bytes_read += size
        if self._stopped:
            raise RecoveryStopped
        now_ms = self._monotonic_ms()
        if now_ms >= self._next_line_ms:
            self._next_line_ms = now_ms + LINE_INTERVAL_MS
            logger.info("%s, now %s", str(self), self.current)

    def stop(self) -> None:
        """End it at the next piece."""
        self._stopped = True
