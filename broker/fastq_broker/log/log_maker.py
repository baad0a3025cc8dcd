"""Makes the files of new logs in a thread, once the change that brings them is through.

Rules: hundreds of logs come at once, and each file takes the system a third of a millisecond. Who touches a log before its turn makes its
files itself. Once it is closed nothing is made any more: another process may hold the directory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from .partition_log import PartitionLog


class LogMaker:
    """One thread, begun with the first log. Event-loop thread only."""

    __slots__ = ("_loop", "_thread", "_threads", "_unmade")

    def __init__(self, loop: Any, threads: Callable[[int, str], Executor]) -> None:
        """`loop` is an asyncio event loop; `threads(count, name)` begins some."""
        self._loop: Any = loop
        self._threads = threads
        self._thread: Executor | None = None
        self._unmade: deque[PartitionLog] = deque()

    def add(self, log: PartitionLog) -> None:
        """Make the files of a log, soon."""
        self._unmade.append(log)
        if len(self._unmade) == 1:
            try:
                self._loop.call_soon(self._begin)
            except BaseException:  # nothing is begun, and what comes later would wait for that
                self._unmade.clear()
                raise

    def wait(self) -> None:
        """Wait for what has been begun."""
        if self._thread is not None:
            self._thread.submit(int).result()

    def close(self) -> None:
        """End the thread; the next start makes what has no directory by now."""
        self._loop = None
        self._unmade.clear()
        if self._thread is not None:
            self._thread.shutdown()

    def _begin(self) -> None:
        if self._loop is None:
            return
        try:
            if self._thread is None:
                self._thread = self._threads(1, "fastq-make-logs")
            self._thread.submit(self._make_all)
        except (RuntimeError, MemoryError):  # no thread can be started: who touches a log makes its files
            self._unmade.clear()
            self._thread = None

    def _make_all(self) -> None:
        """Runs in the thread."""
        while True:
            try:
                self._unmade.popleft().make()
            except IndexError:
                return
            except (OSError, MemoryError):
                continue  # it fails again when the log is first touched, which takes the directory offline and says so
