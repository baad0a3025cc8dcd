"""Pools: one consumer, many workers. The consumer stays in the thread (or task) that runs the pool; workers get records only.

Rules
- Handed to workers: in order per partition, or per key of a partition, or in no order; see `lanes.py`.
- Committed: what is finished without gaps, at an interval, before partitions are given up, and at the end. A record that
  was not finished is read again after a crash or a rebalance: at least once.
- Partitions are given up when what has begun is finished, and what was passed over below it (another key's): else what is finished
  above would be done again. drain_timeout bounds it; it does not wait for the pause before another attempt.
- With `pending_max` records unfinished the partitions are paused, and the consumer is polled on, so it stays in its group.
- A handler that fails is tried again as the RetryPolicy says; meanwhile its lane waits, not its worker.
- A handler has done its work when it returns (ConsumerPool) or when what it answers has been awaited (AsyncConsumerPool). One that cannot
  keep to this is refused, at the latest at its first record, which then counts as not handled: no policy makes up for it.
- A record that a deserializer cannot read is a record that has failed: the policy decides on it as on any other.
- What a handler awaited and what was cancelled is a failure of its record, as any other. A worker that somebody else than `run` cancels
  ends the pool: no record is left in the hands of nobody.
- When a record fails for good, nothing new is begun, what runs is finished and committed, and `run` raises.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from fastq._native.consume import Record
from fastq.consumer.async_consumer import AsyncConsumer
from fastq.consumer.consumer import Consumer
from fastq.consumer.hooks import Original, Originals
from fastq.consumer.lanes import Task
from fastq.consumer.pool_base import ONCE, PoolBase, observed
from fastq.consumer.retry import (
    RetryPolicy,
    async_misuse_of,
    check_async_handler,
    check_handler,
    misuse_of,
    set_aside_log,
)
from fastq.errors import FastqError, WakeupError
from fastq.metadata import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("fastq.consumer")


class ConsumerPool(PoolBase):
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
            asynchronous=False,
            pending_max=pending_max,
            commit_interval_ms=commit_interval_ms,
            drain_timeout=drain_timeout,
        )
        self.consumer = consumer
        self.handler = handler
        self._changed = threading.Condition()
        self._waiting = False  # the consumer's thread is in a poll that a worker may have to end

    def run(self) -> None:
        """Work until `stop`, `consumer.stop`, or a failure: RecordFailed, what the consumer raises, or an interrupt. A pool runs once."""
        self._begin()
        threads: list[threading.Thread] = []
        try:
            with observed(self.consumer, self._revoked, self._lost), self._hooks.keeping_originals() as originals:
                try:
                    for number in range(self.workers):
                        thread = threading.Thread(target=self._work, name=f"fastq-worker-{number}", daemon=True)
                        thread.start()
                        threads.append(thread)  # one that cannot be started has not to be ended
                    self._feed(originals)
                    self._drain()
                finally:
                    self._end_workers(threads)
                    self._commit(self._finished())
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

    def _reached(self, places: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._changed:
            super()._reached(places)

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
            while self._unfinished(gone) and self._changed.wait(end - time.monotonic()):
                pass
            offsets = {tp: offset for tp, offset in self._finished().items() if tp in gone}
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
                task = self._take()
                while task is None:
                    if self._closing:
                        return
                    self._changed.wait(self._idle_s())
                    task = self._take()
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
        pause = retry.pause_s(error, task.attempts, self._random)
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


class AsyncConsumerPool(PoolBase):
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
            asynchronous=True,
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
        """Work until `stop`, `consumer.stop`, a failure, or until it is cancelled: then without waiting for what has begun. A pool runs
        once."""
        self._begin()
        tasks = [asyncio.ensure_future(self._work()) for _ in range(self.workers)]
        try:
            with observed(self.consumer, self._revoked, self._lost), self._hooks.keeping_originals() as originals:
                try:
                    await self._feed(originals)
                    await self._drain()
                finally:
                    self._closing = True
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    await self._commit(self._finished())
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
        await self._until(lambda: not self._unfinished(gone))
        await self._commit({tp: offset for tp, offset in self._finished().items() if tp in gone})
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
            task = self._take()
            if task is None:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.add(waiter)
                try:
                    await asyncio.wait([waiter], timeout=self._idle_s())
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
        except asyncio.CancelledError as error:
            if self._closing:
                raise
            if _may_be_cancelled():
                self._fail(task, ONCE.failed(task.record, error, task.attempts) or error)
                return
            failure = CancelledError("the handler awaited something that was cancelled")
            failure.__cause__ = error
            await self._failed(task, failure)
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


def _may_be_cancelled() -> bool:
    """Whether a CancelledError may mean the task that runs, and not what it awaited: Python 3.10 does not say."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0
