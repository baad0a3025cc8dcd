"""What both pools decide alike: how many records there is room for, what is committed when, what becomes of one that has failed.

Rules
- Nothing waits here, and no handler runs: threads and tasks are the pools' own (`pool.py`).
- A pool hears of rebalances before the listeners of the user, who get them as they would without it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from fastq.arguments import int_of, number_of
from fastq.consumer.async_consumer import AsyncConsumer
from fastq.consumer.consumer import Consumer
from fastq.consumer.group.membership import ChangeKind
from fastq.consumer.lanes import Lanes, Task
from fastq.consumer.retry import DeadLetter, RetryPolicy, check_client, check_producer
from fastq.errors import ConfigError, FastqError, KafkaError
from fastq.metadata import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("fastq.consumer")

POLL_S = 1.0  # the longest wait for records: the commits of idle partitions are made in between
ONCE = RetryPolicy(attempts=1)

Observer = Callable[[Sequence[TopicPartition]], Any]


@contextlib.contextmanager
def observed(consumer: Consumer | AsyncConsumer, revoked: Observer, lost: Observer) -> Iterator[None]:
    """Have a pool told of rebalances, before the listeners of the user."""
    group = consumer._group
    if group is None:
        yield
        return
    users = group.callbacks
    chain = _chain_async if isinstance(consumer, AsyncConsumer) else _chain
    group.callbacks = {
        **users,
        ChangeKind.REVOKE: chain(revoked, users.get(ChangeKind.REVOKE)),
        ChangeKind.LOSE: chain(lost, users.get(ChangeKind.LOSE)),
    }
    try:
        yield
    finally:
        group.callbacks = users


def _chain(first: Observer, second: Observer | None) -> Observer:
    def both(partitions: Sequence[TopicPartition]) -> None:
        first(partitions)
        if second is not None:
            second(partitions)

    return both


def _chain_async(first: Observer, second: Observer | None) -> Observer:
    async def both(partitions: Sequence[TopicPartition]) -> None:
        for callback in (first, second):
            if callback is not None:
                result = callback(partitions)
                if isinstance(result, Awaitable):
                    await result

    return both


class PoolBase:
    """What both pools decide alike. Invariant: `_held` are the partitions that the pool, not the user, has paused."""

    def __init__(
        self,
        consumer: Consumer | AsyncConsumer,
        *,
        workers: int,
        order: str,
        retry: RetryPolicy | None,
        producer: Any,
        asynchronous: bool,
        pending_max: int,
        commit_interval_ms: int,
        drain_timeout: float,
    ) -> None:
        check_client("the consumer of a pool", consumer, "Consumer", asynchronous)
        int_of(workers, "workers", 1)
        int_of(pending_max, "pending_max", 1)
        number_of(commit_interval_ms, "commit_interval_ms", 0)
        number_of(drain_timeout, "drain_timeout", 0)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"retry is a RetryPolicy, as in RetryPolicy(attempts=5), got {retry!r}")
        self.commits = consumer.config.group_id is not None
        self._positions = consumer.positions
        if self.commits and consumer.config.enable_auto_commit:
            raise ConfigError(
                "enable_auto_commit=True would commit records that workers have not finished: make the consumer of a pool with "
                "enable_auto_commit=False, the pool commits"
            )
        self.retry = ONCE if retry is None else retry
        check_producer(self.retry, producer, asynchronous=asynchronous)
        self.producer = producer
        self.workers = workers
        self.pending_max = pending_max
        self.commit_interval_s = commit_interval_ms / 1000
        self.drain_timeout_s = drain_timeout
        self.finished = 0
        self.failed = 0
        self._lanes = Lanes(order, clock=time.monotonic)
        self._random = random.Random()
        self._held: set[TopicPartition] = set()
        self._begun = self._stopping = False
        self._closing = False  # `run` ends its workers
        self._failure: BaseException | None = None
        self._commit_at = 0.0
        self._hooks = consumer._hooks
        self._read = self._hooks.deserialize  # as it is outside of `run`

    @property
    def pending(self) -> int:
        """How many records were handed over and are not finished."""
        return self._lanes.pending

    def _begin(self) -> None:
        """Raises ConfigError for a second `run`: the consumer is past what the first one has left undone, which nobody would do."""
        if self._begun:
            raise ConfigError(
                "a pool runs once, and this one has begun to",
                hint="Make another pool, of another consumer where this one ended in the middle: that reads again what was not finished",
            )
        self._begun = True

    def _hold(self, consumer: Consumer | AsyncConsumer) -> None:
        """No room: have the consumer hand out nothing, and poll on."""
        fresh = set(consumer.assignment()) - set(consumer.paused())
        consumer.pause(*fresh)
        self._held |= fresh

    def _release(self, consumer: Consumer | AsyncConsumer) -> None:
        mine = self._held & set(consumer.paused())
        self._held.clear()
        if mine:
            consumer.resume(*mine)

    def _letter(self, task: Task, error: Exception) -> DeadLetter | None:
        """What to send for a record that failed for good; None where there is no dead-letter topic."""
        original = None if task.original is None else task.original.record
        return self.retry.dead_letter(task.record, error, task.attempts, original=original)

    def _prepare(self, consumer: Consumer | AsyncConsumer) -> int:
        """How many records there is room for; without any, the partitions are held."""
        room = self.pending_max - self._lanes.pending
        if room <= 0:
            self._hold(consumer)
            return 1
        if self._held:
            self._release(consumer)
        return min(room, consumer.config.max_poll_records)

    def _wait_s(self, now: float) -> float:
        """How long to wait for records."""
        if not self.commits or not self._lanes.progress:
            return POLL_S
        return max(0.01, min(POLL_S, self._commit_at - now))

    @property
    def _begins(self) -> bool:
        """Whether workers may begin with a record: not once one has failed for good, however long it takes until `run` hears of it."""
        return self._failure is None and not self._closing

    def _take(self) -> Task | None:
        """A record for a worker to begin with, or None."""
        return self._lanes.take() if self._begins else None

    def _idle_s(self) -> float | None:
        """How long a worker that got none waits, unless it is woken; None: until it is."""
        return self._lanes.wait_s() if self._begins else None

    def _unfinished(self, gone: set[TopicPartition]) -> bool:
        """Whether partitions that are to be given up have records that are worth waiting for. After a failure nothing is begun any more."""
        if self._failure is not None:
            self._lanes.drop_waiting(gone)
            return bool(self._lanes.running(gone))
        return self._lanes.close_gaps(gone)

    def _due(self, now: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit now, at the interval."""
        if not self.commits or now < self._commit_at:
            return {}
        self._commit_at = now + self.commit_interval_s
        return self._finished()

    def _finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit, whatever the interval says. In the consumer's thread."""
        if not self.commits:
            return {}
        self._reached(self._positions())
        return self._lanes.commits()

    def _reached(self, places: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Workers may be at it."""
        self._lanes.reached(places)

    def _commit_failed(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: FastqError) -> None:
        """Offsets that could not be committed are tried again with the next ones, or read again by whoever has them now."""
        if not isinstance(error, KafkaError) and not error.retriable:
            raise error
        logger.warning("a pool could not commit %d partitions, it goes on: %s", len(offsets), error)
