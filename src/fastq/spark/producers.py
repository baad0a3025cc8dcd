"""Producers in Spark's worker processes: one a process and configuration, and what a task does with it.

Rules
- Spark forks its workers, uses one for many tasks, and ends it without atexit: producers are made in the worker, kept for its
  next task, and have delivered everything by the end of each task. A child of a fork starts without any.
- A task that fails closes its producer at once, so that nothing of it is under way when the task is tried again.
- The driver imports this file too, for every micro-batch anew: the producer is imported by the tasks.
- A producer that no task has used for IDLE_S is closed by the next task that asks for one; at most KEPT are kept.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastq.errors import ConfigError, FastqError
from fastq.producer.config import ProducerConfig
from fastq.spark.worker import settle

if TYPE_CHECKING:
    from fastq.producer import ManyDelivery, Producer

IDLE_S = 120.0
KEPT = 8

TASK_DEFAULTS: Mapping[str, Any] = {"client_id": "fastq-spark", "linger_ms": 100}
"""A task's end flushes, so that a batch may wait until it is full; the linger bounds the wait where rows come slowly."""


class Kept:
    """A producer of this process. Invariant: `users` tasks have it now; it is closed by the last of them, when it is not kept."""

    __slots__ = ("producer", "used_at", "users")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.users = 0
        self.used_at = time.monotonic()


_kept: dict[bytes, Kept] = {}
_lock = threading.Lock()


def _start_anew() -> None:
    global _lock
    _lock = threading.Lock()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def key_of(options: Mapping[str, Any]) -> bytes:
    """What tells the producers of a process apart. TypeError when the options don't go from one process to another."""
    try:
        return pickle.dumps(sorted(options.items()))
    except Exception as error:
        raise TypeError(
            f"a producer's options go to Spark's workers by pickle, and these do not: {error}; give what importable classes "
            "or dotted names can express, and convert keys and values by functions of the row"
        ) from error


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The producer's options, found good on the driver. Raises ConfigError."""
    config = ProducerConfig.from_mapping(None, **options)
    if config.transactional_id is not None:
        raise ConfigError(
            "transactional_id is not for tasks, which would fence each other off: for exactly-once write the DataFrame by "
            'format("fastq") with the option delivery=exactly-once, which gives each task an id of its own'
        )
    return dict(options)


@contextmanager
def borrowed(options: Mapping[str, Any], key: bytes | None = None) -> Iterator[Producer]:
    """This process's producer with these options, for one task. A block that raises ends the producer."""
    from fastq.producer import Producer

    key = key_of(options) if key is None else key
    with _lock:
        stale = _take_stale(key)
        kept = _kept.get(key)
        if kept is None:
            kept = _kept[key] = Kept(Producer(TASK_DEFAULTS, **options))
        kept.users += 1
    for producer in stale:
        producer.close()
    try:
        yield kept.producer
    except BaseException:
        with _lock:
            if _kept.get(key) is kept:
                del _kept[key]
        raise
    finally:
        with _lock:
            kept.users -= 1
            kept.used_at = time.monotonic()
            last = not kept.users and _kept.get(key) is not kept
        if last:
            kept.producer.close(timeout=0)
        settle()


def _take_stale(wanted: bytes) -> list[Producer]:
    """Take out what has been idle for too long, and the oldest ones where there are too many. The lock is held."""
    idle = sorted((kept.used_at, key) for key, kept in _kept.items() if not kept.users and key != wanted)
    too_many = len(_kept) + (wanted not in _kept) - KEPT
    limit = time.monotonic() - IDLE_S
    return [_kept.pop(key).producer for place, (used_at, key) in enumerate(idle) if place < too_many or used_at < limit]


class Shipment:
    """The records that one task sends: counted, and every delivery checked, on the way and at the end.

    Invariant: `_pending` has the calls, in order, whose outcome nobody has looked at. Thread rule: the task's thread.
    """

    def __init__(self, producer: Producer, what: str) -> None:
        self._producer = producer
        self._what = what
        self._pending: deque[tuple[int, ManyDelivery]] = deque()
        self.rows = 0

    def send(self, topic: str, values: Any, **columns: Any) -> None:
        """Queue records as `Producer.send_many` does. Raises what an earlier record of the task has failed with."""
        delivery = self._producer.send_many(topic, values, **columns)
        self._pending.append((self.rows, delivery))
        self.rows += delivery.count
        while self._pending and self._pending[0][1].done():
            self._look(*self._pending.popleft())

    def finish(self) -> int:
        """Send what waits, wait for every answer, and answer how many records there were. Raises the first failure."""
        self._producer.flush()
        while self._pending:
            self._look(*self._pending.popleft())
        return self.rows

    def _look(self, first: int, delivery: ManyDelivery) -> None:
        error = delivery.exception()
        if error is not None:
            raise NotDelivered(
                f"{self._what}: of records {first} to {first + delivery.count - 1} of this task, {error}",
                topic=delivery.topic,
            ) from error


class NotDelivered(FastqError):
    """A Spark task could not deliver all of its records; `__cause__` is the SendManyError that has their positions."""

    cure = "Nothing when Spark's next attempt succeeds; else mend what `__cause__` says: it has records and errors."
    default_message = "a task could not deliver all of its records"


def task_name() -> str:
    """Which task this is, for messages."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return "no task"
    context = TaskContext.get()
    if context is None:
        return "no task"
    return f"partition {context.partitionId()}, attempt {context.attemptNumber()}"
