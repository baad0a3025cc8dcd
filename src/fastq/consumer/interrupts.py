"""Ending what a consumer waits for, from outside: by another thread, or by a signal.

Rules: everything here may be called from any thread and from signal handlers, at any point; it sets a flag and wakes whoever waits.
Flags are looked at between records and between waits, never in the middle of anything, so nothing is lost.
"""

from __future__ import annotations

import logging
import signal
from types import FrameType, TracebackType
from typing import Any

from fastq.errors import WakeupError

logger = logging.getLogger("fastq.consumer")

DEFAULT_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)


class Interruptible:
    """The part of both consumers that others may call."""

    _woken = False
    _stopping = False

    def wakeup(self) -> None:
        """Have the call that waits for records or offsets raise WakeupError, or else the next one that has to wait.

        From any thread, and from signal handlers. Commits are not interrupted.
        """
        self._woken = True
        self._wake()

    def stop(self) -> None:
        """Hand out no more records: iterators end after the record in hand, polls answer nothing, and those that wait do so at
        once. What remains is to close, which commits (with enable_auto_commit) and leaves the group.

        From any thread, and from signal handlers.
        """
        self._stopping = True
        self._detach()
        self._wake()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: for loops around poll, `while not consumer.stopping`."""
        return self._stopping

    def stop_on_signal(self, *signals: signal.Signals) -> StopOnSignal:
        """A context manager: these signals (none given: SIGTERM and SIGINT) `stop` the consumer.

            with Consumer("orders", group_id="billing") as consumer, consumer.stop_on_signal():
                for record in consumer:
                    handle(record)

        The record in hand is finished; then the loop ends, and the consumer commits, leaves its group and closes. A second signal
        does what it did before (SIGINT: KeyboardInterrupt). In the main thread only, as Python has it (ValueError).
        """
        return StopOnSignal(self, signals or DEFAULT_SIGNALS)

    def _raise_if_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError()

    def _wake(self) -> None:
        """Have whoever waits look again."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Iterators ask again before the next record."""
        raise NotImplementedError


class StopOnSignal:
    """While it is entered, signals stop something that has a `stop`. Invariant: `_before` are the handlers to put back."""

    def __init__(self, target: Any, signals: tuple[signal.Signals, ...]) -> None:
        self._target = target
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopOnSignal:
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._on_signal)
        except BaseException:  # one that cannot be handled: the others are not left to somebody who was never entered
            self._put_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._put_back()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Put back at once: a second signal means it.
        self._put_back()
        self._target.stop()

    def _put_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None: installed by something that is not Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
