"""The blocking producer: the caller does the work.

Rules
- The thread that fills a batch compresses it, and then tries the driver's lock. If it gets it, it sends what is ready and
  drains what has been answered; if not, it wakes the holder, who looks again before it sleeps. So a batch never waits for
  somebody who is not there.
- A thread that must wait (room, metadata, flush, result) drives the connections itself meanwhile.
- The background thread sees to lingering batches, retries, metadata and answers while no caller is active. While callers
  fill batch after batch it keeps away from the sockets: two threads that pass the GIL to and fro cost more than they do.
- Callbacks run one at a time, without the driver's lock, so they may call the producer.
- Signals are held back in whatever changes something (`holding`), so that none can tear it, and end a wait at once. The application's
  code, callbacks and what send_many iterates over, is open to them.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fastq._native.accumulator import CLOSED, FORKED, SYNC
from fastq._native.producer_batch import Batch, TopicState
from fastq._native.producer_core import Delivery, SyncProducerCore
from fastq._native.send_many import ManyDelivery
from fastq._native.turn import Turn, holding, holding_last
from fastq.errors import BufferTimeout, ClientClosed, WaitTimeout
from fastq.interceptors import ProducerRecord
from fastq.net.blocking import BlockingDriver
from fastq.producer import background, lifetime
from fastq.producer.background import Holder
from fastq.producer.base import Parts
from fastq.producer.calls import CUT_SHORT_S, Calls, Wait
from fastq.producer.config import ProducerConfig, make_config
from fastq.producer.transaction_calls import BlockingTransactionCalls
from fastq.producer.typed import K, V
from fastq.timeouts import check_timeout

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

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

logger = logging.getLogger("fastq.producer")
T = TypeVar("T")

HOT_S = 0.01
"""How long after a full batch the background thread leaves the connections to the callers."""

QUICK_S = 0.002
"""The same with linger_ms=0, after a send that followed another one within this time: the next send reads the answers. What sends have left
behind is seen to by the background thread all the same, which rests without the GIL meanwhile (`Accumulator.rest`)."""

LOOK_S = 0.1
"""How late an interrupt may be seen while another thread runs callbacks: a lock's acquisition cannot be ended."""

SLACK_S = 0.002
"""How much longer a batch may linger than it should, so that a background thread that is about to look is left asleep."""


# The native core comes first: a call of its methods looks for it from the left.
class Producer(SyncProducerCore, BlockingTransactionCalls, Generic[K, V]):
    """Sends records to a Kafka cluster, from any thread.

    `send` encodes a record straight into the open batch of its partition and answers a light handle; batches leave when
    they are full or `linger_ms` old. Idempotent by default: retries neither duplicate nor reorder. With a
    `transactional_id`, everything is sent inside of transactions: `with producer.transaction():`.

    Takes ProducerConfig's keys as keyword arguments, or in a mapping with Kafka's dotted names.
    Every accepted record ends in a delivery or an error. Thread rule: any thread; a child of a fork gets ForkedClient.
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
        ) -> Delivery:
            """Send a record; see the native method."""
            ...

    @overload
    def __init__(
        self: Producer[Any, Any], config: Mapping[str, Any] | ProducerConfig, /, **options: Unpack[ProducerOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[KeyOf, ValueOf], config: None = None, /, **options: Unpack[TypedProducerOptions[KeyOf, ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[Any, ValueOf], config: None = None, /, **options: Unpack[NamedKeySerializer[ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[KeyOf, Any], config: None = None, /, **options: Unpack[NamedValueSerializer[KeyOf]]
    ) -> None: ...
    @overload
    def __init__(self: Producer[Any, Any], config: None = None, /, **options: Unpack[NamedSerializers]) -> None: ...
    def __init__(self, config: Mapping[str, Any] | ProducerConfig | None = None, /, **options: Any) -> None:
        self.config = make_config(config, options)
        parts = Parts(self.config)
        super().__init__(parts.accumulator)
        self._parts = parts
        self._driver = BlockingDriver(parts.core)
        self._turn = self._guard = Turn(self._driver)
        self._linger_s = self.config.linger_ms / 1000
        self._max_block_s = self.config.max_block_ms / 1000
        self._pending = False  # True whenever somebody asked for a turn that has not begun
        self._next_at = 0.0
        self._waiting = 0
        self._hot_until = 0.0
        self._attended_at = 0.0
        self._resting = False  # the background thread, beside a stream of sends
        self._full_seen = 0
        self._closing = False
        self._closing_thread = 0
        self._over = threading.Event()
        self._cut_short: str | None = None
        self._callback_lock = threading.Lock()
        self._callback_thread = 0  # who holds it
        self._due_callbacks: Iterator[tuple[int, Callable[[Any], Any], Any]] = iter(())
        self._holder = Holder(self, parts, self._driver)
        self._background_event = self._holder.event
        self._background_until = 0.0
        self._thread: threading.Thread | None = None
        parts.accumulator.wait_done = self._holder.wait_done
        lifetime.register(self, self._holder)

    # -- the API --------------------------------------------------------------------------------------------------

    def send_many(
        self,
        topic: str,
        values: Iterable[V | None] | Arrow,
        keys: Iterable[K | None] | Arrow | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamps: Any = None,
    ) -> ManyDelivery:
        """Queue many records; one handle for all, whose `.result()` gives the offsets by partition.

        values: a list or any iterable of bytes-like objects or None, an Arrow array (binary, string, their large and view
        forms), or an Arrow table with the columns key, value, headers, partition, timestamp, those that it has.
        keys, headers, timestamps: None, or as many as values. Waits for room as `send` does; a BufferTimeout or an error
        in the middle says how many records were accepted before it (`accepted`), and those are still delivered.
        """
        return self._run_open(self._send_many(topic, values, keys, headers, partition, timestamps))

    @holding
    def flush(self, timeout: float | None = None) -> None:
        """Send everything that is queued now, wait until the brokers have answered and callbacks have run, at most `timeout` seconds
        (None: until delivery_timeout_ms has decided).

        A record that fails does not make flush fail: its delivery does. Raises WaitTimeout; nothing is lost by it. Called by a callback,
        it does not wait for callbacks, and raises ClientClosed where that holds a close up which is cut short.
        """
        check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        # In a callback that the closing thread runs, which waits for it: what cuts the close short cuts this short.
        closing = threading.get_ident() == self._closing_thread
        self._run(self._flush(timeout, closing=closing))
        if closing and self._cut_short and self.accumulator.incomplete:
            raise ClientClosed(self._cut_short)
        if not self._callbacks_ran(end):
            raise WaitTimeout(f"delivery callbacks were still running after {timeout} s")

    @holding
    def close(self, timeout: float | None = None) -> None:
        """Deliver everything, at most for `timeout` seconds (None: until delivery_timeout_ms has decided), and close.

        What is not delivered by then fails with ClientClosed and is counted in the log, with what failed before. An open transaction is
        aborted; one whose commit nobody answers is left to the coordinator. All callbacks have run then, unless `timeout` is over.
        Idempotent: while another thread closes it, waits for that one's end, which comes after `timeout` at the latest.
        With `raise_on_close`, raises UndeliveredRecords when records of this producer were not delivered.
        """
        check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            self._run(self._close(timeout))
        finally:
            if not self._callbacks_ran(end):
                logger.warning(
                    "the producer was closed with timeout=%s; its delivery callbacks are still running", timeout
                )

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for its metadata as `send` does."""
        return self._run(self._partitions_for(topic))

    @holding
    def __enter__(self) -> Self:
        self._parts.check_open()
        transactions = self._parts.transactions
        if transactions is not None:
            # Begun now, waited for by the first transaction: what a dead producer of the same id has left open is aborted,
            # which a consumer of its offsets waits for.
            with self._guard:
                transactions.initialize()
            self._pending = True
            self._wake_background()
        return self

    @holding
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._run(self._close(None, block_failed=kind is not None))
        finally:
            self._callbacks_ran(None)

    # -- hooks of the native send ---------------------------------------------------------------------------------

    def _send_slow(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> Delivery:
        parts = self._parts
        parts.check_usable()
        transaction = parts.transaction
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self.config.interceptors:
            prepared = parts.prepare(record, self._wait_for_topic(record.topic))
            parts.check_going_on(transaction)  # others had their turn while the serializers ran
            delivery = self._enqueue(*prepared)
        else:
            record = parts.intercept(record)
            try:
                prepared = parts.prepare(record, self._wait_for_topic(record.topic))
                parts.check_going_on(transaction)
                delivery = self._enqueue(*prepared)
            except Exception as error:
                parts.refused(record, error)
                raise
            parts.acknowledge_later(record, delivery)
        if self.accumulator.slow & SYNC:
            self.accumulator.close_all()  # nothing to linger for: the caller waits
            delivery.result()
        return delivery

    @holding
    @background.finished_by_the_thread
    def _attend(self) -> None:
        """A batch was begun or closed: compress, send, and see that somebody looks after its linger."""
        accumulator, now = self.accumulator, time.monotonic()
        if accumulator.to_compress:
            self._parts.compress_pending()
        if accumulator.ready or self._linger_s == 0:
            if not self._linger_s:
                if now - self._attended_at < QUICK_S:
                    self._hot_until = now + QUICK_S
                self._attended_at = now
            elif accumulator.full_total != self._full_seen:
                self._full_seen = accumulator.full_total
                self._hot_until = now + HOT_S
            self._pending = True
            self._drive()
            if not self._linger_s:
                accumulator.attention = accumulator.held  # then a later send looks for answers
                if self._resting:
                    accumulator.looked(now)
        if self._thread is None or (self._linger_s and self._background_until > now + self._linger_s + SLACK_S):
            self._wake_background()

    @holding
    def _kick(self) -> None:
        """The core was given something: send it now."""
        self._pending = True
        self._drive()
        self._attend()

    def _wait_for_topic(self, topic: str) -> TopicState:
        state = self.accumulator.topic(topic) if isinstance(topic, str) else None
        if state is None:
            transaction = self._parts.transaction
            state = self._run(self._known_topic(topic, transaction))
            self._parts.check_going_on(transaction)
        return state

    def _wait_for_partition(self, topic: TopicState, index: int) -> None:
        transaction = self._parts.transaction
        self._run(self._known_partition(topic, index, transaction))
        self._parts.check_going_on(transaction)

    def _wait_for_room(self, topic: TopicState, wanted_bytes: int, deadline: float | None) -> float:
        transaction = self._parts.transaction
        deadline = self._run(self._room_for(topic, wanted_bytes, deadline))
        self._parts.check_going_on(transaction)
        return deadline

    @holding
    def _wait_done(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done; WaitTimeout when it is not in time, ClientClosed in a callback of a close that is cut short. With
        timeout 0: only run callbacks."""
        check_timeout(timeout)
        if batch.done:
            self._run_callbacks()
            return
        if self.accumulator.slow & FORKED:
            self._parts.check_usable()
        closing = threading.get_ident() == self._closing_thread  # as in flush
        if not self._wait(lambda: bool(batch.done or (closing and self._cut_short)), timeout):
            raise WaitTimeout(f"no answer for {batch.partition.topic.name}-{batch.partition.index} within {timeout} s")
        if not batch.done:
            raise ClientClosed(self._cut_short)

    @holding
    def _run(self, operation: Calls[T]) -> T:
        """Carry out a call of calls.py: drive the connections while it waits."""
        return self._steps(operation, nullcontext)

    @holding
    def _run_open(self, operation: Calls[T]) -> T:
        """The same for a call that runs the application's code between its waits."""
        try:
            return self._steps(operation, self._turn.released)
        except BaseException:
            self._attend()  # to what it has accepted
            raise

    def _steps(self, operation: Calls[T], around: Callable[[], AbstractContextManager[None]]) -> T:
        try:
            with around():
                effect = next(operation)
            while True:
                try:
                    answer = self._wait(*effect) if isinstance(effect, Wait) else None
                except BaseException as error:
                    with around():
                        effect = operation.throw(error)
                else:
                    with around():
                        effect = operation.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the stubs do not say what a generator answers
        except BaseException:
            operation.close()  # an interrupt between its steps: what it has to undo is undone here, not by who collects it
            raise

    def _outside(self) -> AbstractContextManager[Any]:
        return self._turn.released()

    # -- turns ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """The sender's turn; the driver's lock is held."""
        parts, now = self._parts, time.monotonic()
        linger_at = parts.accumulator.close_due(now, self._linger_s)
        parts.compress_pending()
        if self._pending or parts.sender.work or parts.accumulator.ready or now >= self._next_at:
            self._pending = False
            next_at = parts.sender.run(now)
            if parts.accumulator.held:  # by what may just have been sent
                linger_at = parts.accumulator.close_due(now, self._linger_s)
                parts.compress_pending()
                if parts.accumulator.ready:
                    next_at = parts.sender.run(now)
            self._next_at = next_at if next_at is not None else now + 3600
        wake_at = min(self._next_at, linger_at) if linger_at is not None else self._next_at
        if wake_at < self._holder.timer_at:
            # A timer, and not only the deadline: a tick that comes in between sets the deadline anew.
            self._holder.timer_at = wake_at
            parts.core.call_at(wake_at, self._holder.on_timer)

    def _drive(self) -> None:
        """Send what is ready and drain what has been answered, unless another thread is at it: then it will."""
        driver = self._driver
        while self._pending:
            if driver.lock._is_owned():  # type: ignore[attr-defined]  # as Condition asks
                driver.wakeup()  # a __del__ that a collection runs in the middle of our own turn: the next one sees to it
                return
            if not driver.lock.acquire(blocking=False):
                driver.wakeup()
                return
            try:
                self._step()
                if driver.run_once(0.0):
                    self._step()
                    driver.flush()
            finally:
                driver.lock.release()
            self._run_callbacks()

    @holding
    def _wait(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Drive until `predicate()` or the time is over; whether it became true. Callbacks run on the way."""
        driver, turn, callbacks = self._driver, self._turn, self.accumulator.callbacks
        if driver.lock._is_owned():  # type: ignore[attr-defined]  # as Condition asks
            raise BufferTimeout(
                "the producer would have to wait in the middle of its own turn, as in a __del__ that a collection runs there: "
                "send from a method that you call"
            )
        end = None if timeout is None else time.monotonic() + timeout

        def ready() -> bool:
            self._step()
            return bool(turn.interrupted or predicate() or (callbacks and not self._callback_lock.locked()))

        self._waiting += 1
        self.accumulator.look_now()
        try:
            while True:
                remaining = None if end is None else max(end - time.monotonic(), 0.0)
                driver.wait_until(ready, remaining)
                turn.deliver()
                self._run_callbacks()
                with driver.lock:
                    if predicate():
                        return True
                if remaining is not None and remaining <= 0:
                    return False
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._background_event.set()

    @holding
    def _run_callbacks(self) -> None:
        """Run what callbacks there are, unless a thread is at it: then it will. Without the driver's lock, and open to interrupts.

        A `__del__` in the middle of our own turn leaves them to the end of that turn.
        """
        callbacks, driver = self.accumulator.callbacks, self._driver
        if driver.lock._is_owned():  # type: ignore[attr-defined]  # as Condition asks
            return
        while self._callbacks_left():
            if not self._callback_lock.acquire(blocking=False):
                return
            self._callback_thread = threading.get_ident()
            try:
                while self._callbacks_left():
                    if not length_hint(self._due_callbacks):
                        self._due_callbacks = iter(callbacks.popleft().take_callbacks())
                    with self._turn.released():
                        self._parts.run_callbacks(self._due_callbacks)
            finally:
                self._callback_thread = 0
                self._callback_lock.release()

    def _callbacks_left(self) -> bool:
        return bool(self.accumulator.callbacks or length_hint(self._due_callbacks))

    @holding
    def _callbacks_ran(self, end: float | None) -> bool:
        """Wait until the callbacks of what is done have run, which another thread may be at; False when the time is over first.

        A callback, a `__del__` in the middle of our own turn, and a fork's child (where that thread is not) cannot wait for that.
        """
        own_turn = self._driver.lock._is_owned()  # type: ignore[attr-defined]  # as Condition asks
        if own_turn or self._callback_thread == threading.get_ident() or self.accumulator.slow & FORKED:
            return True
        while True:
            self._run_callbacks()
            self._turn.deliver()
            remaining = LOOK_S if end is None else min(end - time.monotonic(), LOOK_S)
            if self._callback_lock.acquire(timeout=max(remaining, 0.0)):
                self._callback_lock.release()
                if not self._callbacks_left():
                    return True
            elif remaining <= 0:
                return False

    # -- the background thread ------------------------------------------------------------------------------------

    def _wake_background(self) -> None:
        if self._thread is None:
            self._start_background()
        self._background_until = 0.0
        self._background_event.set()
        self._driver.wakeup()

    def _start_background(self) -> None:
        self._thread = thread = background.thread_of(self._holder)  # before it starts: other threads look at it
        try:
            thread.start()
        except RuntimeError as error:
            # The interpreter is shutting down, and the exit hook delivers in its own thread; or the machine has no more threads for
            # now, and the next record that waits tries it again.
            self._thread = None
            logger.debug("no background thread: %s", error)

    def _left_to_callers(self) -> bool:
        """Whether callers are driving: then the background thread has rested a little."""
        event, now = self._background_event, time.monotonic()
        if self._waiting or now < self._hot_until:
            # Callers drive, and look after lingering batches too: come back when they may have gone, and not after a
            # batch begun meanwhile is due: then nobody needs to wake this thread, which would cost a switch a batch.
            if self._linger_s or self._waiting:
                wait_s = min(HOT_S, self._linger_s or HOT_S)
                self._background_until = now + wait_s
                event.wait(wait_s)
                event.clear()
                return True
            self._resting = True
            left_alone = self.accumulator.rest(QUICK_S)
            self._resting = False
            return not left_alone
        return False

    def _compress_due(self) -> None:
        """Close and compress what has lingered, before the background thread takes the driver's lock: callers drive meanwhile."""
        self.accumulator.look_now()  # nobody rests from here on
        self.accumulator.close_due(time.monotonic(), self._linger_s)
        self._parts.compress_pending()

    def _before_sleep(self) -> None:
        """The background thread's turn before it sleeps in the selector; the driver's lock is held."""
        now = time.monotonic()
        linger_at = self.accumulator.close_due(now, self._linger_s)
        self._step()
        self._background_until = min(self._parts.core.deadline, now + 3600 if linger_at is None else linger_at)

    # -- the end --------------------------------------------------------------------------------------------------

    def _shut_down(self, why: str) -> None:
        with self._driver.lock:
            self._parts.abandon(why)
        self._driver.close()
        self._holder.kept = None  # nobody waits for a batch any more
        self._run_callbacks()
        self._background_event.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(1.0)

    def _can_await_end(self) -> bool:
        """Not: in the thread that closes it, a callback, which that one waits for, and a `__del__` in the middle of our own turn."""
        own_turn = self._driver.lock._is_owned()  # type: ignore[attr-defined]  # as Condition asks
        return not own_turn and threading.get_ident() not in (self._closing_thread, self._callback_thread)

    def _ended(self, timeout: float | None) -> Calls[bool]:
        yield from ()  # waited for in here: the driver ends before who closes it is done
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = LOOK_S if end is None else min(end - time.monotonic(), LOOK_S)
            if self._over.wait(max(remaining, 0.0)):
                return True
            self._turn.deliver()
            if remaining <= 0:
                return False

    def _wake_closer(self) -> None:
        self._driver.wakeup()

    def _close_at_exit(self) -> bool:
        """Deliver everything when the program ends without close(), or in the middle of one of another thread."""
        try:
            self.close()
        except (KeyboardInterrupt, SystemExit) as error:
            self._end_at_once(f"closing was interrupted by {type(error).__name__}")
            self._over.wait(CUT_SHORT_S)  # what another thread says of it
            raise
        return True

    def _close_dropped(self) -> None:
        """The same for one that nobody has any more, in the background thread: there is nobody to raise to."""
        self._run(self._close(None, raises=False))
        self._callbacks_ran(None)

    @holding_last
    def __del__(self) -> None:
        # Where __init__ has failed there is nothing to close.
        holder: Holder | None = self.__dict__.get("_holder")
        if holder is None or self._closing or self.accumulator.slow & FORKED:
            return
        if self._thread is None and holder.is_last(self) and not self.accumulator.incomplete:
            self._closing = True
            self.accumulator.slow |= CLOSED
            lifetime.unregister(self)
            self._driver.close()  # nobody is in it: this was the only way there
            self._over.set()
        else:
            holder.keep(self)
        warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2)
