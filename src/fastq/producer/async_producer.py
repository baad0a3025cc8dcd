"""The asyncio producer: the blocking one's names and behaviour, with `await`.

Rules
- Everything happens in the thread of one event loop. A record's place is taken when `send` is called: it is in the buffer then, or waits
  for its turn in waiting_sends.py. So records of a partition are in the order of the calls, awaited or not.
- The sender takes its turn after each turn of the driver, and when a timer says so.
- An `await producer.send(...)` that ends as cancelled has not sent; a cancelled `await delivery` changes nothing for the record.
- The calls that wait are those of calls.py; `_run` awaits for them.
- Another event loop than the first one is refused: at the first batch that it begins at the latest, and at once when the first
  one was ended as asyncio.run does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fastq._native.accumulator import CLOSED, FORKED, NOT_STARTED, SYNC, Accumulator
from fastq._native.producer_batch import Batch
from fastq._native.producer_core import AsyncProducerCore
from fastq._native.send_many import ManyDelivery
from fastq.errors import LoadingWouldBlock, TransactionAborted, WrongEventLoop
from fastq.interceptors import ProducerRecord
from fastq.net.aio import AsyncDriver, running_loop
from fastq.net.core import ClientCore
from fastq.producer import lifetime
from fastq.producer.base import Parts, kept_headers, report_lost
from fastq.producer.calls import Calls, Wait
from fastq.producer.config import ProducerConfig, make_config
from fastq.producer.transaction_calls import AsyncTransactionCalls
from fastq.producer.transaction_states import State
from fastq.producer.typed import K, V
from fastq.producer.waiting_sends import WaitingSends

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from typing_extensions import Self, Unpack

    from fastq._native.producer_core import AsyncDelivery
    from fastq.producer.options import ProducerOptions
    from fastq.producer.typed import (
        Arrow,
        Headers,
        KeyOf,
        NamedKeySerializer,
        NamedSerializers,
        NamedValueSerializer,
        TypedProducerOptions,
        ValueOf,
    )

__all__ = ["AsyncProducer"]

logger = logging.getLogger("fastq.producer")

T = TypeVar("T")
AGAIN_S = 1.0
"""After a step that failed: when the next one is taken at the latest."""
LOOK_AGAIN_S = 0.1
"""How often a call that waits looks again: nobody announces that no broker can be had."""


async def _until_the_end(producer: weakref.ref[AsyncProducer]) -> AsyncGenerator[None, None]:
    """Tells the producer when its event loop ends: a loop that is shut down closes its asynchronous generators."""
    try:
        yield
    finally:
        found = producer()
        if found is not None:
            found._loop_ended()


class _Driver(AsyncDriver):
    """A driver that gives the sender its turn after each of its own."""

    def __init__(self, core: ClientCore, after_turn: Callable[[], None]) -> None:
        self._after_turn = after_turn
        super().__init__(core)

    def _turn(self) -> None:
        super()._turn()
        self._after_turn()


# The native core comes first: a call of its methods looks for it from the left.
class AsyncProducer(AsyncProducerCore, AsyncTransactionCalls, Generic[K, V]):
    """Sends records to a Kafka cluster from one event loop; see Producer for what a record may be.

    `delivery = await producer.send(topic, value)` waits only for room or metadata; `await delivery` waits for the broker and
    answers RecordMetadata. Records go in the order of the calls of `send`. Invariant: a step is scheduled whenever something
    could be sent. Thread rule: the thread of the loop that ran at the first use; another loop gets WrongEventLoop.
    """

    if TYPE_CHECKING:  # the method is native and takes anything: what it is given has to be what the serializers take

        def send(
            self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
        ) -> Awaitable[AsyncDelivery]:
            """Send a record; see the native method."""
            ...

    @overload
    def __init__(
        self: AsyncProducer[Any, Any], config: Mapping[str, Any] | ProducerConfig, /, **options: Unpack[ProducerOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[KeyOf, ValueOf],
        config: None = None,
        /,
        **options: Unpack[TypedProducerOptions[KeyOf, ValueOf]],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[Any, ValueOf], config: None = None, /, **options: Unpack[NamedKeySerializer[ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[KeyOf, Any], config: None = None, /, **options: Unpack[NamedValueSerializer[KeyOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncProducer[Any, Any], config: None = None, /, **options: Unpack[NamedSerializers]
    ) -> None: ...
    def __init__(self, config: Mapping[str, Any] | ProducerConfig | None = None, /, **options: Any) -> None:
        self.config = make_config(config, options)
        parts = Parts(self.config)
        super().__init__(parts.accumulator)
        parts.accumulator.slow |= NOT_STARTED
        parts.accumulator.wait_done = self._wait_done
        self._parts = parts
        self._driver: _Driver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._linger_s = self.config.linger_ms / 1000
        self._max_block_s = self.config.max_block_ms / 1000
        self._guard = contextlib.nullcontext()
        self._places = WaitingSends(self)
        self._waits: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._end_watch: AsyncGenerator[None, None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._step_scheduled = False
        self._in_callbacks = False
        self._closing = False
        self._over = threading.Event()
        self._cut_short: str | None = None
        lifetime.register(self)

    # -- the API --------------------------------------------------------------------------------------------------

    async def send_many(
        self,
        topic: str,
        values: Iterable[V | None] | Arrow,
        keys: Iterable[K | None] | Arrow | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamps: Any = None,
    ) -> ManyDelivery:
        """Queue many records, as Producer.send_many does; `await` the handle for the offsets by partition.

        They go behind what was sent to the topic before; what others send while it waits may come between them.
        Cancelling it in the middle leaves the records before that point sent; `accepted` of the CancelledError says how many.
        """
        return await self._run(self._send_many(topic, values, keys, headers, partition, timestamps))

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that is queued now and wait for the answers; see Producer.flush."""
        await self._run(self._flush(timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Deliver everything, at most for `timeout` seconds, and close; see Producer.close. Idempotent: while another task closes it, waits
        for that one's end."""
        await self._run(self._close(timeout))

    async def aclose(self) -> None:
        """`close`, by the name that `contextlib.aclosing` calls."""
        await self.close()

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for its metadata as `send` does."""
        return await self._run(self._partitions_for(topic))

    async def __aenter__(self) -> Self:
        self._parts.check_open()
        self._start()
        if self._parts.transactions is not None:
            self._parts.transactions.initialize()  # begun now, waited for by the first transaction: see Producer
            self._attend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._run(self._close(None, block_failed=kind is not None))

    # -- hooks of the native send ---------------------------------------------------------------------------------

    def _send_slow(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> Any:
        self._start()
        parts = self._parts
        parts.check_usable()
        record = ProducerRecord(topic, value, key, kept_headers(headers), partition, timestamp_ms)
        if not self.config.interceptors:
            place = self._places.place(record)
        else:
            record = parts.intercept(record)
            try:
                place = self._places.place(record)
            except Exception as error:
                parts.refused(record, error)
                raise
        if place.delivery is not None and not self.accumulator.slow & SYNC:
            try:
                return self._sent(place.delivery)
            except MemoryError:  # the record is in, and its place answers the same
                pass
        return place

    def _attend(self) -> None:
        """A batch was begun or closed: a step will see to it.

        That there is no memory to ask the loop for one fails no call: its record is in, and who is told so sends it again.
        """
        loop = self._loop
        if loop is None or self._step_scheduled:
            return
        if loop.is_closed():
            self._refuse_other_loop()
        self._step_scheduled = True
        try:
            if asyncio._get_running_loop() is loop:
                loop.call_soon(self._scheduled_step)
            else:
                loop.call_soon_threadsafe(self._scheduled_step)
        except MemoryError:
            self._step_scheduled = False
            self.accumulator.attention = self._parts.sender.work = True
            try:
                self._attend_later(loop)
            except MemoryError:
                pass
        except BaseException:
            self._step_scheduled = False
            raise

    def _attend_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """No step could be asked for: the timer has one taken, or where there is no memory for one, whatever comes first: a send, an await
        of a delivery, a turn of the driver."""
        try:
            if asyncio._get_running_loop() is loop:
                now = time.monotonic()
                self._arm(now, now, None)
        finally:
            logger.exception("a turn of the producer could not be asked for; it is taken later")

    def _kick(self) -> None:
        """The core was given something: a turn of the driver sends it."""
        self._attend()
        if self._driver is not None and not self._parts.core.closed:
            self._driver.kick()

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _run(self, operation: Calls[T]) -> T:
        """Carry out a call of calls.py."""
        try:
            self._start()
            effect = next(operation)
            while True:
                try:
                    if isinstance(effect, Wait):
                        answer = await self._until(*effect)
                    else:
                        answer = await asyncio.sleep(0, False)
                except BaseException as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the stubs do not say what a generator answers

    async def _until(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `predicate()` or the time is over; whether it became true."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not predicate():
            remaining = end - time.monotonic()
            if remaining <= 0 or self._loop is None or self._driver is None:
                return False
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waits[waiter] = predicate
            self._kick()
            try:
                await asyncio.wait((waiter,), timeout=min(remaining, LOOK_AGAIN_S))
            finally:
                self._waits.pop(waiter, None)
                waiter.cancel()
        return True

    def _places_wanted(self, topic: str | None = None) -> Callable[[], int]:
        waiting = self._places.all() if topic is None else self._places.of(topic)
        return lambda: sum(not entry.settled for entry in waiting)

    def _is_loading(self, topic: str | None) -> bool:
        return self._places.is_loading(topic)

    def _begin_load(self, missing: LoadingWouldBlock) -> asyncio.Future[object]:
        assert self._loop is not None and missing.load is not None
        loading: asyncio.Future[object] = self._loop.run_in_executor(None, missing.load)

        def on_loaded(loading: asyncio.Future[object]) -> None:
            if not loading.cancelled():
                loading.exception()  # looked at, also where nobody waits for it any more
            self._wake_waiters()

        loading.add_done_callback(on_loaded)
        return loading

    def _unheard(self) -> int:
        transactions = self._parts.transactions
        if transactions is None or transactions.state is not State.IN_TRANSACTION:
            return 0
        return sum(not entry.awaited for entry in self._places.all())

    def _abort_begun(self) -> None:
        transactions = self._parts.transactions
        if transactions is not None and transactions.state is State.ABORTING and self._places:
            why, name = "the record was not written: its transaction is aborted", transactions.transactional_id
            self._places.refuse_all(lambda: TransactionAborted(why, transactional_id=name))

    def _wait_done(self, batch: Batch, timeout: float | None) -> asyncio.Future[None]:
        """A future that is done with the batch. Called for a batch that is done: its callbacks run soon."""
        assert self._loop is not None
        if asyncio._get_running_loop() is not self._loop:
            self._refuse_other_loop()
        loop = self._loop
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done() and not loop.is_closed():  # there nobody waits any more
                waiter.set_result(None)

        if batch.done:
            self._loop.call_soon(self._run_callbacks)
        elif self.accumulator.attention:  # a step could not be asked for
            self.accumulator.attention = False
            self._attend()
        batch.add_waiter(wake)
        waiter.add_done_callback(lambda _: batch.remove_waiter(wake))
        return waiter

    # -- turns ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """The first use makes the running loop the producer's; any later one checks it."""
        if self.accumulator.slow & (CLOSED | FORKED):
            return
        loop = running_loop()
        if self._loop is None:
            self._driver = _Driver(self._parts.core, self._step)  # first, as there may be no memory for it
            self._loop, self._loop_thread = loop, threading.current_thread()
        elif self._loop is not loop:
            self._refuse_other_loop()
        self._at_home()
        if self.accumulator.slow & NOT_STARTED:
            self._end_watch = _until_the_end(weakref.ref(self))
            with contextlib.suppress(StopIteration):
                self._end_watch.__anext__().send(None)  # its first step, which makes it known to the loop
            self.accumulator.slow &= ~NOT_STARTED

    def _loop_ended(self) -> None:
        """The loop shuts down: whoever sends now does so in another one, or for nothing."""
        if not self._closing:
            self.accumulator.slow |= NOT_STARTED

    def _refuse_other_loop(self) -> None:
        """Raise WrongEventLoop. What was begun in the wrong loop, or left over from one that has ended, cannot be sent any more."""
        assert self._loop is not None
        error = WrongEventLoop(
            "this AsyncProducer belongs to another event loop"
            + (", which is closed" if self._loop.is_closed() else ""),
            hint="Make a producer in each loop, with `async with AsyncProducer(...)`",
        )
        self.accumulator.slow |= NOT_STARTED
        if self._loop.is_closed():
            lost = self.accumulator.abort(error)
            self._parts.failures.count(lost, error)
            report_lost(lost, "the event loop of the AsyncProducer has ended: use `async with`, or await close()")
        raise error

    def _scheduled_step(self) -> None:
        self._step_scheduled = False
        self._step()

    def _step(self) -> None:
        """The sender's turn."""
        parts, accumulator, driver = self._parts, self.accumulator, self._driver
        if driver is None or parts.core.closed or accumulator.slow & FORKED:
            return
        try:
            self._take_step(parts, accumulator, driver)
        except Exception:  # there may be no memory for it: what was not come to is due all the same
            now = time.monotonic()
            parts.sender.work = True
            self._arm(now, now + AGAIN_S, None)
            raise

    def _take_step(self, parts: Parts, accumulator: Accumulator, driver: _Driver) -> None:
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
        if parts.core.writable or parts.core.effects or parts.core.completions or driver.is_behind:
            driver.kick()
        self._wake_waiters()
        if accumulator.callbacks:
            self._run_callbacks()

    def _arm(self, now: float, next_at: float | None, linger_at: float | None) -> None:
        assert self._loop is not None
        wake_at = min((at for at in (next_at, linger_at) if at is not None), default=float("inf"))
        before = self._timer
        if before is None or self._timer_at <= now or wake_at < self._timer_at:
            later = wake_at < float("inf")
            self._timer = self._loop.call_later(max(wake_at - now, 0.0), self._on_timer) if later else None
            self._timer_at = wake_at
            if before is not None:  # until then: there may be no memory for the other
                before.cancel()

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._parts.sender.work = True  # a coordinator may be due without any batch that waits
        self._step()

    def _wake_waiters(self) -> None:
        batches = self.accumulator.batches_total
        if self._places:
            self._places.pump()
        for waiter, predicate in list(self._waits.items()):
            try:
                ready = predicate()
            except Exception:
                ready = True  # who waits asks again, and gets it
            if ready and not waiter.done():
                waiter.set_result(None)
        if self.accumulator.batches_total != batches:  # who waits for room closes batches, so that they leave
            self._attend()

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
        self._places.close()
        self._parts.abandon(why)
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            self._driver.close()
        self._run_callbacks()
        if self._end_watch is not None:
            with contextlib.suppress(StopIteration):
                self._end_watch.aclose().send(None)

    def _can_await_end(self) -> bool:
        if asyncio.get_running_loop() is not self._loop:
            self._refuse_other_loop()
        return True

    def _wake_closer(self) -> None:
        self._wake_waiters()

    def __del__(self) -> None:
        # Where __init__ has failed there is nothing to close. A loop that runs has the driver, so here it has ended or never ran.
        if self.__dict__.get("_closing", True) or self.accumulator.slow & FORKED:
            return
        lifetime.unregister(self)
        self._tell_lost()
        warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2)

    def _close_at_exit(self) -> bool:
        """The program ends without close(): what the loop of a daemon thread is closing is waited for, as long as that may take, and one of
        a thread that Python is yet to wait for, as in a process of multiprocessing, is left to it. Else the loop is gone, and all that is
        left is to say what was lost, once."""
        thread = self._loop_thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive() and not thread.daemon:
            return False
        try:
            if self._closing and self._loop is not None and self._loop.is_running():
                config = self.config  # an open transaction is aborted, and what waits for its place is delivered
                wait_s = (2 * config.delivery_timeout_ms + config.max_block_ms) / 1000
                self._over.wait(min(wait_s, threading.TIMEOUT_MAX))  # which is 49 days on Windows
        finally:
            if not self._over.is_set():
                self._tell_lost()
        return True

    def _tell_lost(self) -> None:
        self._closing = True
        self._over.set()
        self.accumulator.slow |= CLOSED
        why = "the AsyncProducer was not closed: use `async with`, or await close()"
        lost = sum(len(batch) for batch in list(self.accumulator.incomplete))
        if self._parts.transactions is not None:
            lost = max(lost, self._parts.transactions.records_left)
        report_lost(lost + len(self._places.all()), why)
