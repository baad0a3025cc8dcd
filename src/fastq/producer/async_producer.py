"""The asyncio producer: the blocking one's names and behaviour, with `await`.

Rules
- Everything happens in the thread of one event loop. `send` appends natively and its await ends at once, but once per full
  batch, when it lets the loop run before its record is in, and when there is no room.
- The sender takes its turn after each turn of the driver, and when a timer says so.
- A cancelled `await producer.send(...)` has not sent; a cancelled `await delivery` changes nothing for the record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from typing_extensions import Self, Unpack

from fastq._native.accumulator import CLOSED, FORKED, NO_TRANSACTION, NOT_STARTED, SYNC
from fastq._native.producer_batch import Batch, TopicState
from fastq._native.producer_core import AsyncDelivery, AsyncProducerCore
from fastq._native.send_many import ManyDelivery, SendMany
from fastq.errors import ClientClosed, FastqError, LoadingWouldBlock, SerializationError
from fastq.interceptors import ProducerRecord
from fastq.metrics import ProducerMetrics
from fastq.net.aio import AsyncDriver
from fastq.net.core import ClientCore
from fastq.producer import lifetime
from fastq.producer.base import Parts, Prepared, report_lost
from fastq.producer.config import ProducerConfig, ProducerOptions, make_config
from fastq.producer.transaction_calls import AsyncTransactionCalls, abort_open

__all__ = ["AsyncProducer"]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Driver(AsyncDriver):
    """A driver that gives the sender its turn after each of its own."""

    def __init__(self, core: ClientCore, after_turn: Callable[[], None]) -> None:
        self._after_turn = after_turn
        super().__init__(core)

    def _turn(self) -> None:
        super()._turn()
        self._after_turn()


class AsyncProducer(AsyncProducerCore, AsyncTransactionCalls):
    """Sends records to a Kafka cluster from one event loop; see Producer for what a record may be.

    `delivery = await producer.send(topic, value)` waits only for room or metadata; `await delivery` waits for the broker and
    answers RecordMetadata. Invariants: `_room` holds the tasks that wait for room, first come first served; a step is
    scheduled whenever something could be sent. Thread rule: the thread of the loop that ran at the first use.
    """

    def __init__(
        self, config: Mapping[str, Any] | ProducerConfig | None = None, /, **options: Unpack[ProducerOptions]
    ) -> None:
        self.config = make_config(config, options)
        parts = Parts(self.config)
        super().__init__(parts.accumulator)
        parts.accumulator.slow |= NOT_STARTED
        parts.accumulator.wait_done = self._wait_done
        self._parts = parts
        self._driver: _Driver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._linger_s = self.config.linger_ms / 1000
        self._max_block_s = self.config.max_block_ms / 1000
        self._room: deque[tuple[asyncio.Future[None], int]] = deque()
        self._metadata_waiters: set[asyncio.Future[None]] = set()
        self._metadata_seen: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._step_scheduled = False
        self._in_callbacks = False
        self._closing = False
        lifetime.register(self)

    # -- the API --------------------------------------------------------------------------------------------------

    async def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamps: Any = None,
    ) -> ManyDelivery:
        """Queue many records, as Producer.send_many does; `await` the handle for the offsets by partition.

        Cancelling it in the middle leaves the records before that point sent; `accepted` of the CancelledError says how many.
        """
        self._start()
        self._parts.check_usable()
        call = SendMany(
            self, await self._topic_state(topic), values, keys, headers, partition, timestamps, self._convert(topic)
        )
        while not call.step():
            self._attend()
            try:
                if call.needs_room:
                    await self._wait_for_room_async(call.topic, call.needs_room)
                else:
                    await asyncio.sleep(0)
            except BaseException as error:
                error.accepted = call.accepted  # type: ignore[attr-defined]
                raise
        self._attend()
        if self.accumulator.slow & SYNC:
            await call.delivery
        return call.delivery

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that is queued now and wait for the answers; see Producer.flush."""
        self._start()
        if self.accumulator.slow & FORKED:
            self._parts.check_usable()
        batches = list(self.accumulator.incomplete)
        self.accumulator.close_all()
        self._attend()
        end = None if timeout is None else time.monotonic() + timeout
        for batch in batches:
            if not batch.done and not await self._wait_future(self._wait_done(batch, None), end):
                left = sum(len(batch) for batch in batches if not batch.done)
                raise TimeoutError(f"{left} records are not delivered after {timeout} s; they are still on their way")

    async def close(self, timeout: float | None = None) -> None:
        """Deliver everything, at most for `timeout` seconds, and close; see Producer.close. Idempotent."""
        if self.accumulator.slow & FORKED or self._closing:
            return
        self._closing = True
        self.accumulator.slow |= CLOSED
        self._wake_all()
        why = f"the producer was closed with timeout={timeout}"
        try:
            if self._driver is not None and abort_open(self._parts.transactions):
                await self._wait_settled(self.config.delivery_timeout_ms / 1000 if timeout is None else timeout)
            if self.accumulator.incomplete:
                await self.flush(timeout)
        except TimeoutError:
            pass
        except BaseException as error:
            why = f"closing was interrupted by {type(error).__name__}"
            raise
        finally:
            self._shut_down(why)

    def metrics(self) -> ProducerMetrics:
        """Counters and gauges; see the names."""
        return self._parts.metrics()

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for its metadata as `send` does."""
        self._start()
        self._parts.check_open()
        return list(range(len((await self._topic_state(topic)).partitions)))

    async def __aenter__(self) -> Self:
        self._start()
        if self._parts.transactions is not None:
            self._parts.transactions.initialize()  # begun now, waited for by the first transaction: see Producer
            self._attend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A producer pickles as its configuration: what comes out is a new one."""
        return type(self), (self.config,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(self.config.bootstrap_servers)}>"

    # -- hooks of the native send ---------------------------------------------------------------------------------

    async def _send_slow(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> AsyncDelivery:
        self._start()
        parts = self._parts
        parts.check_usable()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self.config.interceptors:
            return await self._enqueue(record)
        record = parts.intercept(record)
        try:
            delivery = await self._enqueue(record)
        except Exception as error:
            parts.refused(record, error)
            raise
        delivery.add_done_callback(partial(parts.acknowledge, record))
        return delivery

    async def _enqueue(self, record: ProducerRecord) -> AsyncDelivery:
        state = await self._topic_state(record.topic)
        topic, value, key, headers, partition, timestamp_ms = await self._prepare(record, state)
        if partition is not None and not 0 <= partition < len(state.partitions):
            await self._wait_for_partition_async(state, partition)
        if self._close_full(topic, value, key, partition):
            # The loop lives once per full batch, and before the record is in: a cancelled send has not sent.
            self._attend()
            await asyncio.sleep(0)
        while True:
            delivery = self._try_enqueue(topic, value, key, headers, partition, timestamp_ms)
            if delivery is not None:
                break
            size = sum(memoryview(field).nbytes for field in (key, value) if field is not None)
            await self._wait_for_room_async(state, size + 1024)
        if self.accumulator.slow & SYNC:
            self.accumulator.close_all()
            self._attend()
            await delivery
        return delivery

    async def _prepare(self, record: ProducerRecord, state: TopicState) -> Prepared:
        """Serialize a record; what a serializer has to load first, a schema's id, is loaded in a thread."""
        while True:
            try:
                return self._parts.prepare(record, state)
            except LoadingWouldBlock as missing:
                if missing.load is None:
                    raise
                try:
                    await asyncio.to_thread(missing.load)
                except FastqError as error:
                    raise SerializationError(
                        f"the serializer failed to load what it needs: {error}", topic=record.topic
                    ) from error

    def _attend(self) -> None:
        """A batch was begun or closed: a step will see to it."""
        if not self._step_scheduled and self._loop is not None and not self._closing | self._loop.is_closed():
            self._step_scheduled = True
            self._loop.call_soon(self._scheduled_step)
        elif self._closing and self._driver is not None:
            self._step()

    def _wait_for_partition(self, topic: TopicState, index: int) -> None:
        raise self._parts.no_partition(topic.name, index, len(topic.partitions))

    def _convert(self, topic: str) -> Callable[..., Any] | None:
        parts = self._parts
        if self.accumulator.slow & ~SYNC == 0:
            return None

        def convert(value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None) -> Any:
            record = parts.intercept(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
            state = self.accumulator.topic(topic)
            assert state is not None
            return parts.prepare(record, state)[1:]

        return convert

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _topic_state(self, topic: str) -> TopicState:
        state = self.accumulator.topic(topic)
        if state is not None:
            return state
        if not isinstance(topic, str):
            raise TypeError(f"topic is a str, got {topic!r}")
        self._parts.core.watch_topics([topic])
        end = time.monotonic() + self._max_block_s
        while True:
            state = self._parts.sender.topic_ready(topic)
            if state is not None:
                return state
            hopeless = self._parts.core.hopeless()
            if hopeless is not None:
                raise hopeless
            self._parts.check_open()
            if not await self._wait_for_metadata(end):
                raise self._parts.no_metadata(topic)

    async def _wait_for_partition_async(self, topic: TopicState, index: int) -> None:
        if index >= 0:
            self._parts.core.request_metadata_update(f"partition {index} of {topic.name} is asked for")
            end = time.monotonic() + min(self._max_block_s, self.config.request_timeout_ms / 1000)
            while await self._wait_for_metadata(end):
                self._parts.sender.topic_ready(topic.name)
                if index < len(topic.partitions):
                    return
        raise self._parts.no_partition(topic.name, index, len(topic.partitions))

    async def _wait_for_metadata(self, end: float) -> bool:
        """Wait until something about the metadata or the connections may have changed; False when the time is over."""
        assert self._loop is not None and self._driver is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._metadata_waiters.add(waiter)
        self._driver.kick()
        try:
            return await self._wait_future(waiter, end)
        finally:
            self._metadata_waiters.discard(waiter)

    async def _wait_for_room_async(self, topic: TopicState, need: int) -> None:
        assert self._loop is not None
        end = time.monotonic() + self._max_block_s
        while not self.accumulator.has_room(need):
            if self._closing:
                raise ClientClosed("the producer was closed while send waited for room")
            if self.accumulator.slow & NO_TRANSACTION:
                self._parts.check_usable()
            self.accumulator.close_all()
            self._attend()
            waiter: asyncio.Future[None] = self._loop.create_future()
            entry = (waiter, need)
            self._room.append(entry)
            try:
                if not await self._wait_future(waiter, end):
                    raise self._parts.no_room(topic.name)
            finally:
                if entry in self._room:
                    self._room.remove(entry)

    def _wait_done(self, batch: Batch, timeout: float | None) -> asyncio.Future[None]:
        """A future that is done with the batch. Called for a batch that is done: its callbacks run soon."""
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        if batch.done:
            self._loop.call_soon(self._run_callbacks)
        batch.add_waiter(wake)
        waiter.add_done_callback(lambda _: batch.remove_waiter(wake))
        return waiter

    @staticmethod
    async def _wait_future(waiter: asyncio.Future[None], end: float | None) -> bool:
        """Wait for a future until `end`; False when the time is over, which cancels it."""
        if end is None:
            await waiter
            return True
        try:
            await asyncio.wait((waiter,), timeout=max(end - time.monotonic(), 0.0))
            return waiter.done()
        finally:
            if not waiter.done():
                waiter.cancel()

    async def _wait_settled(self, timeout: float | None) -> None:
        """Wait until the transaction that close() found is decided."""
        transactions = self._parts.transactions
        assert transactions is not None and self._loop is not None
        end = None if timeout is None else time.monotonic() + timeout
        while not transactions.settled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            transactions.waiters.append(partial(_wake, waiter))
            self._step()
            if not await self._wait_future(waiter, end):
                return

    # -- turns ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._loop is None and not self.accumulator.slow & (CLOSED | FORKED):
            self._loop = asyncio.get_running_loop()
            self._driver = _Driver(self._parts.core, self._step)
            self.accumulator.slow &= ~NOT_STARTED

    def _scheduled_step(self) -> None:
        self._step_scheduled = False
        self._step()

    def _step(self) -> None:
        """The sender's turn."""
        parts, accumulator, driver = self._parts, self.accumulator, self._driver
        if driver is None or parts.core.closed or accumulator.slow & FORKED:
            return
        now = time.monotonic()
        linger_at = accumulator.close_due(now, self._linger_s)
        parts.compress_pending()
        due = now >= self._timer_at
        if parts.sender.work or accumulator.ready or accumulator.incomplete or due:
            next_at = parts.sender.run(now)
            if accumulator.held:  # by what may just have been sent
                linger_at = accumulator.close_due(now, self._linger_s)
                parts.compress_pending()
                next_at = parts.sender.run(now)
            if parts.sender.work:
                self._attend()
            self._arm(now, next_at, linger_at)
        if parts.core.writable or parts.core.effects or parts.core.completions:
            driver.kick()
        self._wake_waiters()
        if accumulator.callbacks:
            self._run_callbacks()

    def _arm(self, now: float, next_at: float | None, linger_at: float | None) -> None:
        assert self._loop is not None
        wake_at = min((at for at in (next_at, linger_at) if at is not None), default=float("inf"))
        if self._timer is not None and (self._timer_at <= now or wake_at < self._timer_at):
            self._timer.cancel()
            self._timer, self._timer_at = None, float("inf")
        if self._timer is None and wake_at < float("inf"):
            self._timer_at = wake_at
            self._timer = self._loop.call_later(max(wake_at - now, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._parts.sender.work = True  # a coordinator may be due without any batch that waits
        self._step()

    def _wake_waiters(self) -> None:
        while self._room and self.accumulator.has_room(self._room[0][1]):
            waiter, _ = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break  # it takes the room it was promised first, and its append leads to the next step
        core = self._parts.core
        seen = (
            core.metadata.generation,
            core.metadata_updater.failures,
            core.metadata_updater.successes,
            core.last_error,
        )
        if seen != self._metadata_seen:
            self._metadata_seen = seen
            for waiter in self._metadata_waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _wake_all(self) -> None:
        for waiter in [*(waiter for waiter, _ in self._room), *self._metadata_waiters]:
            _wake(waiter)

    def _run_callbacks(self) -> None:
        if self._in_callbacks:
            return
        self._in_callbacks = True
        try:
            callbacks = self.accumulator.callbacks
            while callbacks:
                self._parts.run_callbacks_of(callbacks.popleft())
        finally:
            self._in_callbacks = False

    # -- the end --------------------------------------------------------------------------------------------------

    def _shut_down(self, why: str) -> None:
        lifetime.unregister(self)
        report_lost(self.accumulator.abort(ClientClosed(f"the record was not delivered: {why}")), why)
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            self._driver.close()
        self._run_callbacks()

    def _close_at_exit(self) -> None:
        """The program ends without close(): the loop is gone, so all that is left is to say what was lost."""
        why = "the AsyncProducer was not closed: use `async with`, or await close()"
        lost = sum(len(batch) for batch in self.accumulator.incomplete)
        report_lost(lost, why)
