"""Pools: one consumer, many workers. The consumer stays in the thread (or task) that runs the pool; workers get records only.

Rules
- Handed to workers: in order per partition, or per key of a partition, or in no order; see `lanes.py`.
- Committed: what is finished without gaps, at an interval, before partitions are given up, and at the end. A record that
  was not finished is read again after a crash or a rebalance: at least once.
- With `pending_max` records unfinished the partitions are paused, and the consumer is polled on, so it stays in its group.
- A handler that fails is tried again as the RetryPolicy says; meanwhile its lane waits, not its worker.
- A handler has done its work when it returns (ConsumerPool) or when what it answers has been awaited (AsyncConsumerPool). One that cannot
  keep to this is refused, at the latest at its first record, which then counts as not handled: no policy makes up for it.
- A record that a deserializer cannot read is a record that has failed: the policy decides on it as on any other.
- When a record fails for good, nothing new is begun, what runs is finished and committed, and `run` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from fastq._native.consume import Record
from fastq.consumer.async_consumer import AsyncConsumer
from fastq.consumer.consumer import Consumer
from fastq.consumer.group.membership import ChangeKind
from fastq.consumer.hooks import Original, Originals
from fastq.consumer.lanes import Lanes, Task
from fastq.consumer.retry import (
    DeadLetter,
    RetryPolicy,
    async_misuse_of,
    check_async_handler,
    check_handler,
    check_producer,
    misuse_of,
    set_aside_log,
)
from fastq.errors import ConfigError, FastqError, KafkaError, WakeupError
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


class _PoolBase:
    """What both pools decide alike. Invariant: `_held` are the partitions that the pool, not the user, has paused."""

    def __init__(
        self,
        consumer: Consumer | AsyncConsumer,
        *,
        workers: int,
        order: str,
        retry: RetryPolicy | None,
        producer: Any,
        pending_max: int,
        commit_interval_ms: int,
        drain_timeout: float,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is 1 or more, got {workers}")
        if pending_max < 1:
            raise ValueError(f"pending_max is 1 or more, got {pending_max}")
        self.commits = consumer.config.group_id is not None
        if self.commits and consumer.config.enable_auto_commit:
            raise ConfigError(
                "enable_auto_commit=True would commit records that workers have not finished: make the consumer of a pool with "
                "enable_auto_commit=False, the pool commits"
            )
        self.retry = ONCE if retry is None else retry
        check_producer(self.retry, producer)
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
        self._stopping = False
        self._failure: BaseException | None = None
        self._commit_at = 0.0
        self._hooks = consumer._hooks
        self._read = self._hooks.deserialize  # as it is outside of `run`

    @property
    def pending(self) -> int:
        """How many records were handed over and are not finished."""
        return self._lanes.pending

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

    def _due(self, now: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit now, at the interval."""
        if not self.commits or now < self._commit_at:
            return {}
        self._commit_at = now + self.commit_interval_s
        return self._lanes.commits()

    def _commit_failed(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: FastqError) -> None:
        """Offsets that could not be committed are tried again with the next ones, or read again by whoever has them now."""
        if not isinstance(error, KafkaError) and not error.retriable:
            raise error
        logger.warning("a pool could not commit %d partitions, it goes on: %s", len(offsets), error)


class ConsumerPool(_PoolBase):
    """Runs `handler(record)` in `workers` threads for the records of a consumer.

    handler: a plain function, done with the record when it returns. ConfigError for a coroutine or generator function (those are for
    AsyncConsumerPool), and from `run` when one answers something that is still to be awaited, as a future or a delivery is.

    order: "key" (records of a partition with the same key, one after another; those without a key in any order), "partition", or
    "none". retry: what becomes of failures (None: the first one ends the pool with RecordFailed). producer: for its dead-letter
    topic. pending_max: records handed over and not finished. drain_timeout: seconds for records under way, when partitions are
    given up and at the end.

    The consumer needs enable_auto_commit=False when it has a group. Threads help handlers that wait (for I/O) or release the GIL.
    Thread rule: `run` in the consumer's thread; `stop` from any, and from signal handlers.
    """

    def __init__(
        self,
        consumer: Consumer,
        handler: Callable[[Record], None],
        *,
        workers: int = 4,
        order: str = "key",
        retry: RetryPolicy | None = None,
        producer: Any = None,
        pending_max: int = 1000,
        commit_interval_ms: int = 5000,
        drain_timeout: float = 30.0,
    ) -> None:
        check_handler(handler)
        super().__init__(
            consumer,
            workers=workers,
            order=order,
            retry=retry,
            producer=producer,
            pending_max=pending_max,
            commit_interval_ms=commit_interval_ms,
            drain_timeout=drain_timeout,
        )
        self.consumer = consumer
        self.handler = handler
        self._changed = threading.Condition()
        self._closing = False
        self._waiting = False  # the consumer's thread is in a poll that a worker may have to end

    def run(self) -> None:
        """Work until `stop`, `consumer.stop`, or a failure: RecordFailed, what the consumer raises, or an interrupt."""
        threads = [
            threading.Thread(target=self._work, name=f"fastq-worker-{number}", daemon=True)
            for number in range(self.workers)
        ]
        for thread in threads:
            thread.start()
        try:
            with observed(self.consumer, self._revoked, self._lost), self._hooks.keeping_originals() as originals:
                try:
                    self._feed(originals)
                    self._drain()
                finally:
                    self._end_workers(threads)
                    self._commit(self._lanes.commits())
        finally:
            self._release(self.consumer)
            self.consumer._woken = False
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have `run` finish what was handed over, commit, and return."""
        self._stopping = True
        self.consumer.wakeup()

    def _feed(self, originals: Originals) -> None:
        """Records from the consumer to the workers."""
        consumer = self.consumer
        while not self._stopping and not consumer.stopping and self._failure is None:
            with self._changed:
                wanted = self._prepare(consumer)
                self._waiting = True
            try:
                records = consumer.poll(max_records=wanted, timeout=self._wait_s(time.monotonic()))
            except WakeupError:
                records = []
            finally:
                self._waiting = False
            if records:
                with self._changed:
                    self._lanes.add(records, originals)
                    self._changed.notify(len(records))
            originals.clear()
            self._commit(self._due(time.monotonic()))

    def _drain(self) -> None:
        """Wait for what was handed over; after a failure, for what has begun."""
        end = time.monotonic() + self.drain_timeout_s
        with self._changed:
            if self._failure is not None:
                self._lanes.drop_waiting()
            while self._lanes.pending and (self._failure is None or self._lanes.running()):
                if not self._changed.wait(end - time.monotonic()):
                    logger.warning("a pool ends with %d records unfinished; they are read again", self._lanes.pending)
                    return

    def _end_workers(self, threads: Iterable[threading.Thread]) -> None:
        with self._changed:
            self._closing = True
            self._lanes.drop_waiting()
            self._changed.notify_all()
        end = time.monotonic() + self.drain_timeout_s
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if not offsets or not self.commits:
            return
        while True:
            try:
                self.consumer.commit(offsets)
            except WakeupError:
                continue  # `stop` was called: that is looked at later
            except FastqError as error:
                self._commit_failed(offsets, error)
            else:
                with self._changed:
                    self._lanes.committed(offsets)
            return

    # -- rebalances, in the consumer's thread

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish what has begun, commit it, and let go."""
        gone = set(partitions)
        end = time.monotonic() + self.drain_timeout_s
        with self._changed:
            self._lanes.drop_waiting(gone)
            while self._lanes.running(gone) and self._changed.wait(end - time.monotonic()):
                pass
            offsets = {tp: offset for tp, offset in self._lanes.commits().items() if tp in gone}
        self._commit(offsets)
        self._lost(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        with self._changed:
            self._lanes.give_up(partitions)
            self._held.difference_update(partitions)

    # -- workers

    def _work(self) -> None:
        while True:
            with self._changed:
                task = self._lanes.take()
                while task is None:
                    if self._closing:
                        return
                    self._changed.wait(self._lanes.wait_s())
                    task = self._lanes.take()
            self._handle(task)

    def _handle(self, task: Task) -> None:
        task.attempts += 1
        try:
            original = task.original
            if original is not None and original.error is not None:
                self._read_again(task, original)
            answer: Any = self.handler(task.record)  # who does not check types may answer anything
        except Exception as error:
            self._failed(task, error)
        except BaseException as error:  # SystemExit and its kin end the pool, not only this thread
            self._fail(task, error)
        else:
            misuse = None if answer is None else misuse_of(self.handler, answer)
            if misuse is None:
                self._done(task)
            else:
                self._fail(task, misuse)

    def _read_again(self, task: Task, original: Original) -> None:
        """The record that could not be read: the first attempt was the consumer's, and this may be another one."""
        assert original.error is not None and self._read is not None
        if task.attempts == 1:
            raise original.error
        task.record = self._read(original.record) or original.record
        task.original = Original(original.record, None)

    def _failed(self, task: Task, error: Exception) -> None:
        retry, record = self.retry, task.record
        pause = None if self._closing else retry.pause_s(error, task.attempts, self._random)
        if pause is not None:
            with self._changed:
                self._lanes.again(task, pause)
                self._changed.notify_all()
            return
        self.failed += 1
        try:
            letter = self._letter(task, error)
            if letter is not None:
                self.producer.send(letter.topic, letter.value, key=letter.key, headers=letter.headers).result()
                set_aside_log.say(record, letter, error, task.attempts)
            elif (failure := retry.failed(record, error, task.attempts)) is not None:
                self._fail(task, failure)
                return
        except Exception as unsent:
            self._fail(task, unsent)
        else:
            self._done(task)

    def _done(self, task: Task) -> None:
        with self._changed:
            was_full = self._lanes.pending >= self.pending_max
            self._lanes.done(task)
            self.finished += 1
            self._changed.notify_all()
        if was_full and self._waiting:
            self.consumer.wakeup()

    def _fail(self, task: Task, error: BaseException) -> None:
        """The record stays unfinished, and the pool ends."""
        with self._changed:
            self._failure = self._failure or error
            self._lanes.park(task)
            self._changed.notify_all()
        self.consumer.wakeup()


class AsyncConsumerPool(_PoolBase):
    """`ConsumerPool` for asyncio: `workers` tasks await `handler(record)`. `producer` is an AsyncProducer.

    handler: a coroutine function, or one that answers something to await; ConfigError, from `run` at the latest, for another.
    """

    def __init__(
        self,
        consumer: AsyncConsumer,
        handler: Callable[[Record], Awaitable[object]],
        *,
        workers: int = 16,
        order: str = "key",
        retry: RetryPolicy | None = None,
        producer: Any = None,
        pending_max: int = 1000,
        commit_interval_ms: int = 5000,
        drain_timeout: float = 30.0,
    ) -> None:
        super().__init__(
            consumer,
            workers=workers,
            order=order,
            retry=retry,
            producer=producer,
            pending_max=pending_max,
            commit_interval_ms=commit_interval_ms,
            drain_timeout=drain_timeout,
        )
        check_async_handler(handler)
        self.consumer = consumer
        self.handler = handler
        self._idle: set[asyncio.Future[None]] = set()  # workers that wait for a record
        self._progressed = asyncio.Event()
        self._waiting = False

    async def run(self) -> None:
        """Work until `stop`, `consumer.stop`, a failure, or until it is cancelled: then without waiting for what has begun."""
        tasks = [asyncio.ensure_future(self._work()) for _ in range(self.workers)]
        try:
            with observed(self.consumer, self._revoked, self._lost), self._hooks.keeping_originals() as originals:
                try:
                    await self._feed(originals)
                    await self._drain()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    await self._commit(self._lanes.commits())
        finally:
            self._release(self.consumer)
            self.consumer._woken = False
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have `run` finish what was handed over, commit, and return."""
        self._stopping = True
        self.consumer.wakeup()

    async def _feed(self, originals: Originals) -> None:
        consumer = self.consumer
        while not self._stopping and not consumer.stopping and self._failure is None:
            wanted = self._prepare(consumer)
            self._waiting = True
            try:
                records = await consumer.poll(max_records=wanted, timeout=self._wait_s(time.monotonic()))
            except WakeupError:
                records = []
            finally:
                self._waiting = False
            if records:
                self._lanes.add(records, originals)
                self._rouse(len(records))
            originals.clear()
            await self._commit(self._due(time.monotonic()))

    async def _drain(self) -> None:
        if self._failure is not None:
            self._lanes.drop_waiting()
        if not await self._until(
            lambda: not self._lanes.pending or (self._failure is not None and not self._lanes.running())
        ):
            logger.warning("a pool ends with %d records unfinished; they are read again", self._lanes.pending)

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for `condition()`, which records that are finished bring about, for at most drain_timeout."""
        end = time.monotonic() + self.drain_timeout_s
        while not condition():
            self._progressed.clear()
            try:
                await asyncio.wait_for(self._progressed.wait(), end - time.monotonic())
            except (TimeoutError, asyncio.TimeoutError):
                return condition()
        return True

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if not offsets or not self.commits:
            return
        while True:
            try:
                await self.consumer.commit(offsets)
            except WakeupError:
                continue  # `stop` was called: that is looked at later
            except FastqError as error:
                self._commit_failed(offsets, error)
            else:
                self._lanes.committed(offsets)
            return

    # -- rebalances

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._lanes.drop_waiting(gone)
        await self._until(lambda: not self._lanes.running(gone))
        await self._commit({tp: offset for tp, offset in self._lanes.commits().items() if tp in gone})
        self._lost(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._lanes.give_up(partitions)
        self._held.difference_update(partitions)

    # -- workers

    def _rouse(self, count: int) -> None:
        """Wake workers that have nothing to do."""
        for waiter in list(self._idle)[:count]:
            self._idle.discard(waiter)
            if not waiter.done():
                waiter.set_result(None)

    async def _work(self) -> None:
        while True:
            task = self._lanes.take()
            if task is None:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.add(waiter)
                try:
                    await asyncio.wait([waiter], timeout=self._lanes.wait_s())
                finally:
                    self._idle.discard(waiter)
                continue
            await self._handle(task)

    async def _handle(self, task: Task) -> None:
        task.attempts += 1
        try:
            original = task.original
            if original is not None and original.error is not None:
                await self._read_again(task, original)
            answer = self.handler(task.record)
            misuse = async_misuse_of(self.handler, answer)
            if misuse is None:
                await answer
        except Exception as error:
            await self._failed(task, error)
        else:
            if misuse is None:
                self._done(task)
            else:
                self._fail(task, misuse)

    async def _read_again(self, task: Task, original: Original) -> None:
        """The record that could not be read, once more: in a thread, because what it needs may have to be loaded."""
        assert original.error is not None and self._read is not None
        if task.attempts == 1:
            raise original.error
        read: Record | None = await asyncio.to_thread(self._read, original.record)
        task.record = read or original.record
        task.original = Original(original.record, None)

    async def _failed(self, task: Task, error: Exception) -> None:
        retry, record = self.retry, task.record
        pause = retry.pause_s(error, task.attempts, self._random)
        if pause is not None:
            self._lanes.again(task, pause)
            self._progressed.set()
            self._rouse(1)
            return
        self.failed += 1
        try:
            letter = self._letter(task, error)
            if letter is not None:
                await (await self.producer.send(letter.topic, letter.value, key=letter.key, headers=letter.headers))
                set_aside_log.say(record, letter, error, task.attempts)
            elif (failure := retry.failed(record, error, task.attempts)) is not None:
                self._fail(task, failure)
                return
        except Exception as unsent:
            self._fail(task, unsent)
        else:
            self._done(task)

    def _done(self, task: Task) -> None:
        was_full = self._lanes.pending >= self.pending_max
        self._lanes.done(task)
        self.finished += 1
        self._progressed.set()
        self._rouse(1)
        if was_full and self._waiting:
            self.consumer.wakeup()

    def _fail(self, task: Task, error: BaseException) -> None:
        self._failure = self._failure or error
        self._lanes.park(task)
        self._progressed.set()
        self.consumer.wakeup()
