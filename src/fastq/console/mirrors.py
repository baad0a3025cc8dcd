"""The mirrors that a console was told of, and how far each is: what `fastq mirror status` says, kept for a moment.

Rules: a mirror is named by whoever starts the console, with the mirror's own file. It is looked at when somebody asks and what is known is
LOOK_S old, by one thread at a time, over connections that stay; who asks waits FIRST_S at most, for the first look alone. A look that fails
is a sentence, and the next one begins with new connections. One event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fastq.errors import FastqError

if TYPE_CHECKING:
    from fastq.mirror.config import MirrorConfig
    from fastq.mirror.report import MirrorStatus, Watch

logger = logging.getLogger("fastq.console")

LOOK_S, FIRST_S, LATE_S, CLOSE_S = 5.0, 10.0, 10.0, 3.0
RATES_S = 1.0
"""From how long before the first look its rates are."""


class Look(NamedTuple):
    """What is known of a mirror: a status of `age_s` seconds ago, or why there is none; neither while the first look takes long. `is_late`
    where the next look should long have been there, and a cluster does not answer it."""

    status: MirrorStatus | None
    trouble: str
    age_s: float | None
    is_late: bool = False


class WatchedMirror:
    """A mirror with its clients."""

    def __init__(self, name: str, config: MirrorConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.config = config
        self._clock = clock
        self._watch: Watch | None = None
        self._known: tuple[MirrorStatus | None, str, float] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._began: float | None = None
        self._closing = threading.Event()

    async def look(self) -> Look:
        """What is known now; a look that has become old is taken anew, for whoever asks next."""
        if self._looking is None and (self._known is None or self._clock() - self._known[2] >= LOOK_S):
            self._looking = asyncio.create_task(self._take())
        if self._looking is not None and self._known is None:
            await asyncio.wait([self._looking], timeout=FIRST_S)
        if self._known is None:
            return Look(None, "", None)
        status, trouble, at = self._known
        age_s = max(0.0, self._clock() - at)
        is_late = self._began is not None and self._clock() - self._began >= LATE_S
        return Look(status, trouble, age_s, is_late)

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = self._clock()
        done: asyncio.Future[tuple[MirrorStatus | None, str]] = loop.create_future()

        # A thread of its own, and no pool's: a cluster that stands still does not hold up the process's end.
        def run() -> None:
            outcome = self._asked()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_give, done, outcome)

        try:
            try:
                threading.Thread(target=run, name=f"fastq-console-mirror-{self.name}", daemon=True).start()
            except RuntimeError as error:  # the machine has no more threads for now
                _give(done, (None, f"the console cannot look: {error}"))
            self._known = (*await done, self._clock())
        finally:
            self._looking = self._began = None

    def _asked(self) -> tuple[MirrorStatus | None, str]:
        """In the thread."""
        from fastq.mirror.report import Watch

        try:
            if self._watch is None:
                self._watch = Watch(self.config)
                self._watch.begin()
                self._closing.wait(RATES_S)
            return self._watch.look(), ""
        except FastqError as error:
            trouble = str(error)
        except Exception:
            logger.exception("the mirror %s cannot be looked at", self.name)
            trouble = "something went wrong in the console; its log says what"
        self._end_watch()
        return None, trouble

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(Exception):  # one that got out would end the looks for good
                watch.close()

    async def close(self) -> None:
        """Close the clients, unless a look still uses them after CLOSE_S. Idempotent."""
        self._closing.set()
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=CLOSE_S)
        if self._looking is None:
            await asyncio.to_thread(self._end_watch)


def _give(done: asyncio.Future[tuple[MirrorStatus | None, str]], outcome: tuple[MirrorStatus | None, str]) -> None:
    if not done.done():
        done.set_result(outcome)
