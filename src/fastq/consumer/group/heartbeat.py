"""Heartbeats while the application is busy: a thread of the blocking consumer.

Rules: `beat` is called with the driver's lock held and does what is due; the thread sleeps without the lock, and without the
selector while nothing is on its way, so that fetches do not wake it. It does not keep its consumer alive.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from fastq.errors import ClientClosed, FastqError, ForkedClient
from fastq.net.blocking import BlockingDriver
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.consumer")

# How long the thread sleeps in the selector while it waits for an answer, and when there is nothing to keep alive.
TURN_S, IDLE_S = 0.2, 1.0


class Beat(NamedTuple):
    """What is next: `busy` while an answer, or a connection, is awaited; `wait_s` until something is due (None: not known)."""

    busy: bool
    wait_s: float | None


class HeartbeatThread:
    """Runs `beat` when it is due, from `start` to `stop`. Thread rule: any thread, without the driver's lock for `stop`."""

    def __init__(self, driver: BlockingDriver, beat: Callable[[], Beat]) -> None:
        self._driver = driver
        self._beat = weakref.WeakMethod(beat)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; idempotent."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fastq-heartbeat", daemon=True)
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """End; idempotent. A beat under way is finished."""
        self._stopped.set()

    def _run(self) -> None:
        driver = self._driver
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            beat = self._beat()
            if beat is None:
                return
            try:
                with driver.lock:
                    if self._stopped.is_set():
                        return
                    busy, due = beat()
                    driver.flush()
                    if busy:
                        driver.run_once(TURN_S, background=True)
            except (ClientClosed, ForkedClient):
                return
            except FastqError as error:
                logger.warning("a heartbeat could not be sent: %s", error)
                busy, due = False, IDLE_S
            except Exception:
                # Whatever it is, as no memory: without this thread the group would give the member's place away.
                logger.exception("a heartbeat failed; the next one is sent in its time")
                busy, due = False, IDLE_S
            del beat
            wait_s = 0.0 if busy else IDLE_S if due is None else min(due, IDLE_S)
