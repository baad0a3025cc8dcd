"""The blocking producer's background thread, and the end of a producer that is dropped without close().

Rules
- Nothing that the thread, the driver or a batch keeps refers to the producer itself but a Holder, which does so weakly: the end of its last
  reference is its end. The thread lets go of it before it sleeps.
- `Producer.__del__` sends nothing and closes nothing that somebody may be at: it may run in the middle of anything, and others that a
  collection ends with the producer may still send. It gives the producer to the thread, which delivers what there is and closes it.
- Where there is no thread, the next producer that is made or the hook at exit sees to it; one that never needed a thread is closed at once
  where that harms nobody.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastq.errors import ClientClosed, FastqError
from fastq.net.blocking import BlockingDriver
from fastq.producer import lifetime

if TYPE_CHECKING:
    from fastq._native.producer_batch import Batch
    from fastq.producer.base import Parts
    from fastq.producer.producer import Producer

logger = logging.getLogger("fastq.producer")

FAILED_PAUSE_S = 1.0
"""How long the background thread waits after an error that nobody foresaw."""

DROPPED_S = 0.1
"""How long a dropped producer is kept after its last record: a collection may still run what sends with it."""


class Holder:
    """How the thread, the timers and the batches of a producer reach it. `kept`: the producer itself, once it was dropped.

    Thread rule: any thread, under the GIL.
    """

    def __init__(self, producer: Producer[Any, Any], parts: Parts, driver: BlockingDriver) -> None:
        self.driver = driver
        self.event = threading.Event()
        self.timer_at = float("inf")
        self.kept: Producer[Any, Any] | None = None
        self._parts = parts
        self._producer = weakref.ref(producer)

    def producer(self) -> Producer[Any, Any] | None:
        """The producer, unless it is gone."""
        return self.kept or self._producer()

    def is_last(self, producer: Producer[Any, Any]) -> bool:
        """In `__del__`: whether it is the end of the last reference, and not a collection, which may end others that still send with it."""
        return self._producer() is producer

    def keep(self, producer: Producer[Any, Any]) -> None:
        """The producer was dropped: the thread sees to the rest."""
        self.kept = producer
        lifetime.keep(producer)
        self.event.set()
        self.driver.wakeup()

    def wait_done(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done, as `Producer._wait_done`. One whose producer is gone is done, and its callbacks run here."""
        producer = self.producer()
        if producer is not None:
            producer._wait_done(batch, timeout)
            return
        if not batch.done:
            self._parts.check_open()  # a fork's child
        callbacks = self._parts.accumulator.callbacks
        while callbacks:
            self._parts.run_callbacks_of(callbacks.popleft())

    def on_timer(self, _now: float) -> None:
        """The turn that this leads to sees what is due."""
        self.timer_at = float("inf")


def finished_by_the_thread(attend: Callable[[Any], None]) -> Callable[[Any], None]:
    """For what a call does for all records once its own is in: where that fails, for want of memory for one, the call has not failed, as
    who is told so sends the record again. The thread takes the turn then."""

    @functools.wraps(attend)
    def attended(producer: Producer[Any, Any]) -> None:
        try:
            attend(producer)
        except FastqError:  # it is over with the producer, or this is none of its processes
            raise
        except Exception:
            producer._parts.sender.work = True
            with contextlib.suppress(MemoryError):
                logger.exception("a turn of the producer failed; its background thread takes it again")
            producer._wake_background()

    return attended


def thread_of(holder: Holder) -> threading.Thread:
    """A thread for the producer, not started yet."""
    return threading.Thread(target=_run, args=(holder,), name="fastq-producer", daemon=True)


def _run(holder: Holder) -> None:
    while _lives(holder):
        try:
            _turn(holder)
            if holder.kept is not None and _is_over(holder.kept, holder):
                holder.kept._close_dropped()
        except ClientClosed:
            return
        except Exception:
            # Whatever it is: without this thread lingering records would stay until somebody sends or flushes.
            producer = holder.producer()
            if producer is not None and not producer._closing:
                producer._resting = False
                del producer
                logger.exception("the producer's background thread failed; it goes on in %g s", FAILED_PAUSE_S)
                holder.event.wait(FAILED_PAUSE_S)


def _lives(holder: Holder) -> bool:
    producer = holder.producer()
    return producer is None or not producer._closing


def _turn(holder: Holder) -> None:
    producer, driver = holder.producer(), holder.driver
    if producer is None:
        # A collection is about to call its __del__, which wakes us; or it is closed, which this raises.
        with driver.lock:
            driver.run_once(3600.0, background=True)
        return
    if holder.kept is not None and producer.accumulator.open_partitions:
        producer.accumulator.close_all()  # nothing to linger for
        driver.wakeup()  # who waits for a delivery sends
    if producer._left_to_callers():
        return
    producer._compress_due()
    with driver.lock:
        producer._before_sleep()
        producer = None  # whoever drops it while this thread sleeps wakes it
        over = holder.kept is not None and not holder.kept.accumulator.incomplete
        driver.run_once(0.0 if over else 3600.0, background=True)
        producer = holder.producer()
        if producer is not None:
            producer._step()
        driver.flush()
    if producer is not None:
        producer._run_callbacks()


def _is_over(producer: Producer[Any, Any], holder: Holder) -> bool:
    """Whether a dropped producer has nothing more to do, and nobody has sent with it for DROPPED_S."""
    accumulator = producer.accumulator
    if accumulator.incomplete or producer._callbacks_left():
        return False
    sent = accumulator.records_total
    holder.event.clear()
    holder.event.wait(DROPPED_S)
    return not accumulator.incomplete and accumulator.records_total == sent
