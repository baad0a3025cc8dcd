"""The blocking producer: the caller does the work.

Rules
- The thread that fills a batch compresses it, and then tries the driver's lock. If it gets it, it sends what is ready and
  drains what has been answered; if not, it wakes the holder, who looks again before it sleeps. So a batch never waits for
  somebody who is not there.
- A thread that must wait (room, metadata, flush, result) drives the connections itself meanwhile.
- The background thread sees to lingering batches, retries, metadata and answers while no caller is active. While callers
  fill batch after batch it keeps away from the sockets: two threads that pass the GIL to and fro cost more than they do.
- Callbacks run one at a time, without the driver's lock, so they may call the producer.
- SIGINT is held back during a turn, so that it cannot tear one, and ends the wait at once.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self, Unpack

from fastq._native.accumulator import CLOSED, FORKED, NO_TRANSACTION, SYNC
from fastq._native.producer_batch import Batch, TopicState
from fastq._native.producer_core import Delivery, SyncProducerCore
from fastq._native.send_many import ManyDelivery, SendMany
from fastq.errors import ClientClosed
from fastq.interceptors import ProducerRecord
from fastq.metrics import ProducerMetrics
from fastq.net.blocking import BlockingDriver
from fastq.producer import lifetime
from fastq.producer.base import Parts, report_lost
from fastq.producer.config import ProducerConfig, ProducerOptions, make_config
from fastq.producer.transaction_calls import BlockingTransactionCalls, abort_open

try:  # what signal.signal wraps: the wrapper's enums cost more than the rest of a turn's bookkeeping
    from _signal import getsignal as _get_handler  # type: ignore[import-not-found,unused-ignore]
    from _signal import signal as _set_handler
except ImportError:
    from signal import getsignal as _get_handler
    from signal import signal as _set_handler

logger = logging.getLogger("fastq.producer")

HOT_S = 0.01
"""How long after a full batch the background thread leaves the connections to the callers."""

QUICK_S = 0.002
"""The same with linger_ms=0, after a send that followed another one within this time: the next send reads the answers."""

SLACK_S = 0.002
"""How much longer a batch may linger than it should, so that a background thread that is about to look is left asleep."""


class HeldInterrupt:
    """Holds SIGINT back in the main thread while the block runs, and raises it at the end.

    `came` says that one is waiting; `driver.wakeup` has been called by then.
    """

    __slots__ = ("_driver", "_frame", "_handler", "came")

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver
        self._handler: Any = None
        self._frame: FrameType | None = None
        self.came = False

    def __enter__(self) -> HeldInterrupt:
        if threading.current_thread() is threading.main_thread():
            handler = _get_handler(signal.SIGINT)
            if callable(handler) and getattr(handler, "__self__", None).__class__ is not HeldInterrupt:
                self._handler = handler
                _set_handler(signal.SIGINT, self._hold)
        return self

    def _hold(self, signum: int, frame: FrameType | None) -> None:
        self.came, self._frame = True, frame
        self._driver.wakeup()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._handler is not None:
            _set_handler(signal.SIGINT, self._handler)
            if self.came:
                self._handler(signal.SIGINT, self._frame)


class Producer(SyncProducerCore, BlockingTransactionCalls):
    """Sends records to a Kafka cluster, from any thread.

    `send` encodes a record straight into the open batch of its partition and answers a light handle; batches leave when
    they are full or `linger_ms` old. Idempotent by default: retries neither duplicate nor reorder. With a
    `transactional_id`, everything is sent inside of transactions: `with producer.transaction():`.

    Takes ProducerConfig's keys as keyword arguments, or in a mapping with Kafka's dotted names.
    Invariants: `_pending` is True whenever somebody asked for a turn that has not begun; every accepted record ends in a
    delivery or an error. Thread rule: any thread; a child of a fork gets ForkedClient.
    """

    def __init__(
        self, config: Mapping[str, Any] | ProducerConfig | None = None, /, **options: Unpack[ProducerOptions]
    ) -> None:
        self.config = make_config(config, options)
        parts = Parts(self.config)
        super().__init__(parts.accumulator)
        self._parts = parts
        self._driver = BlockingDriver(parts.core)
        self._linger_s = self.config.linger_ms / 1000
        self._max_block_s = self.config.max_block_ms / 1000
        self._pending = False
        self._next_at = 0.0
        self._timer_at = float("inf")
        self._waiting = 0
        self._hot_until = 0.0
        self._attended_at = 0.0
        self._full_seen = 0
        self._closing = False
        self._callback_lock = threading.Lock()
        self._background_event = threading.Event()
        self._background_until = 0.0
        self._thread: threading.Thread | None = None
        parts.accumulator.wait_done = self._wait_done
        lifetime.register(self)

    # -- the API --------------------------------------------------------------------------------------------------

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
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
        self._parts.check_usable()
        call = SendMany(
            self, self._topic_state(topic), values, keys, headers, partition, timestamps, self._convert(topic)
        )
        while not call.step():
            if call.needs_room:
                try:
                    self._wait_for_room(call.topic, call.needs_room)
                except BaseException as error:
                    error.accepted = call.accepted  # type: ignore[attr-defined]
                    raise
            self._attend()
        delivery = call.delivery
        if self.accumulator.slow & SYNC:
            self.accumulator.close_all()
            delivery.result()
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that is queued now and wait until the brokers have answered, at most `timeout` seconds.

        A record that fails does not make flush fail: its delivery does. Raises TimeoutError; nothing is lost by it.
        """
        if self.accumulator.slow & FORKED:
            self._parts.check_usable()
        batches = list(self.accumulator.incomplete)
        self.accumulator.close_all()
        batches.reverse()

        def all_done() -> bool:
            while batches and batches[-1].done:
                batches.pop()
            return not batches

        if not self._wait(all_done, timeout):
            left = sum(len(batch) for batch in batches)
            raise TimeoutError(f"{left} records are not delivered after {timeout} s; they are still on their way")

    def close(self, timeout: float | None = None) -> None:
        """Deliver everything, at most for `timeout` seconds (None: until delivery_timeout_ms has decided), and close.

        What is not delivered by then fails with ClientClosed and is counted in the log. An open transaction is aborted; one
        whose commit nobody answers is left to the coordinator. Idempotent.
        """
        if self.accumulator.slow & FORKED or self._closing:
            return
        self._closing = True
        self.accumulator.slow |= CLOSED
        why = f"the producer was closed with timeout={timeout}"
        try:
            with self._driver.lock:
                undecided = abort_open(self._parts.transactions)
            if undecided:
                patience_s = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
                self._wait(lambda: self._parts.transactions is None or self._parts.transactions.settled, patience_s)
            if self.accumulator.incomplete:
                self.flush(timeout)
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

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for its metadata as `send` does."""
        self._parts.check_open()
        return list(range(len(self._topic_state(topic).partitions)))

    def __enter__(self) -> Self:
        transactions = self._parts.transactions
        if transactions is not None:
            # Begun now, waited for by the first transaction: what a dead producer of the same id has left open is aborted,
            # which a consumer of its offsets waits for.
            with self._driver.lock:
                transactions.initialize()
            self._pending = True
            self._wake_background()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A producer pickles as its configuration: what comes out is a new one."""
        return type(self), (self.config,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(self.config.bootstrap_servers)}>"

    # -- hooks of the native send ---------------------------------------------------------------------------------

    def _send_slow(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> Delivery:
        parts = self._parts
        parts.check_usable()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self.config.interceptors:
            delivery = self._enqueue(*parts.prepare(record, self._topic_state(record.topic)))
        else:
            record = parts.intercept(record)
            try:
                delivery = self._enqueue(*parts.prepare(record, self._topic_state(record.topic)))
            except Exception as error:
                parts.refused(record, error)
                raise
            delivery.add_done_callback(partial(parts.acknowledge, record))
        if self.accumulator.slow & SYNC:
            self.accumulator.close_all()  # nothing to linger for: the caller waits
            delivery.result()
        return delivery

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
            accumulator.attention = accumulator.held and not self._linger_s  # then the next send looks for answers
        if self._thread is None or (self._linger_s and self._background_until > now + self._linger_s + SLACK_S):
            self._wake_background()

    def _topic_state(self, topic: str) -> TopicState:
        state = self.accumulator.topic(topic)
        return state if state is not None else self._wait_for_topic(topic)

    def _wait_for_topic(self, topic: str) -> TopicState:
        if not isinstance(topic, str):
            raise TypeError(f"topic is a str, got {topic!r}")
        sender, core, found = self._parts.sender, self._parts.core, []

        def known() -> bool:
            state = sender.topic_ready(topic)
            if state is not None:
                found.append(state)
            elif (hopeless := core.hopeless()) is not None:
                raise hopeless
            return bool(found)

        with self._driver.lock:
            core.watch_topics([topic])
        self._wake_background()
        if not self._wait(known, self._max_block_s):
            raise self._parts.no_metadata(topic)
        return found[0]

    def _wait_for_partition(self, topic: TopicState, index: int) -> None:
        def known() -> bool:
            return self._parts.sender.topic_ready(topic.name) is not None and 0 <= index < len(topic.partitions)

        if index >= 0:
            with self._driver.lock:
                self._parts.core.request_metadata_update(f"partition {index} of {topic.name} is asked for")
            if self._wait(known, min(self._max_block_s, self.config.request_timeout_ms / 1000)):
                return
        raise self._parts.no_partition(topic.name, index, len(topic.partitions))

    def _wait_for_room(self, topic: TopicState, need: int) -> None:
        def room() -> bool:
            if self.accumulator.slow & CLOSED:
                raise ClientClosed("the producer was closed while send waited for room")
            if self.accumulator.slow & NO_TRANSACTION:
                self._parts.check_usable()
            if self.accumulator.has_ample_room(need):
                return True
            self.accumulator.close_all()
            return False

        if not self._wait(room, self._max_block_s):
            raise self._parts.no_room(topic.name)

    def _wait_done(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done; TimeoutError when it is not in time. With timeout 0: only run callbacks."""
        if batch.done:
            self._run_callbacks()
            return
        if self.accumulator.slow & FORKED:
            self._parts.check_usable()
        if not self._wait(lambda: batch.done, timeout):
            raise TimeoutError(f"no answer for {batch.partition.topic.name}-{batch.partition.index} within {timeout} s")

    def _convert(self, topic: str) -> Callable[..., Any] | None:
        """What send_many must do to each record before it is bytes; None when nothing."""
        parts = self._parts
        if self.accumulator.slow & ~SYNC == 0:
            return None

        def convert(value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None) -> Any:
            record = parts.intercept(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
            return parts.prepare(record, self._topic_state(topic))[1:]

        return convert

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
        if wake_at < self._timer_at:
            # A timer, and not only the deadline: a tick that comes in between sets the deadline anew.
            self._timer_at = wake_at
            parts.core.call_at(wake_at, self._on_timer)

    def _on_timer(self, _now: float) -> None:
        """The turn that this leads to sees what is due."""
        self._timer_at = float("inf")

    def _drive(self) -> None:
        """Send what is ready and drain what has been answered, unless another thread is at it: then it will."""
        driver = self._driver
        while self._pending:
            if not driver.lock.acquire(blocking=False):
                driver.wakeup()
                return
            try:
                with HeldInterrupt(driver):
                    self._step()
                    if driver.run_once(0.0):
                        self._step()
                        driver.flush()
            finally:
                driver.lock.release()
            self._run_callbacks()

    def _wait(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Drive until `predicate()` or the time is over; whether it became true. Callbacks run on the way."""
        driver, callbacks = self._driver, self.accumulator.callbacks
        end = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        try:
            while True:
                remaining = None if end is None else max(end - time.monotonic(), 0.0)
                with HeldInterrupt(driver) as held:

                    def ready(held: HeldInterrupt = held) -> bool:
                        self._step()
                        return bool(held.came or predicate() or (callbacks and not self._callback_lock.locked()))

                    driver.wait_until(ready, remaining)
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

    def _run_callbacks(self) -> None:
        """Run what callbacks there are, unless a thread is at it: then it will. Without the driver's lock."""
        callbacks = self.accumulator.callbacks
        while callbacks:
            if not self._callback_lock.acquire(blocking=False):
                return
            try:
                while callbacks:
                    self._parts.run_callbacks_of(callbacks.popleft())
            finally:
                self._callback_lock.release()

    # -- the background thread ------------------------------------------------------------------------------------

    def _wake_background(self) -> None:
        if self._thread is None:
            self._start_background()
        self._background_until = 0.0
        self._background_event.set()
        self._driver.wakeup()

    def _start_background(self) -> None:
        thread = threading.Thread(target=self._background, name="fastq-producer", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down: the exit hook delivers, in its own thread.
            logger.debug("no background thread at interpreter shutdown")

    def _background(self) -> None:
        try:
            while not self._closing:
                self._background_turn()
        except ClientClosed:
            pass
        except Exception:
            if not self._closing:
                logger.exception("the producer's background thread failed; callers go on without it")

    def _background_turn(self) -> None:
        event, now = self._background_event, time.monotonic()
        if self._waiting or now < self._hot_until:
            # Callers drive, and look after lingering batches too: come back when they may have gone, and not after a
            # batch begun meanwhile is due: then nobody needs to wake this thread, which would cost a switch a batch.
            wait_s = min(HOT_S, self._linger_s or HOT_S)
            self._background_until = now + wait_s
            event.wait(wait_s)
            event.clear()
            return
        linger_at = self.accumulator.close_due(now, self._linger_s)
        self._parts.compress_pending()
        with self._driver.lock:
            self._step()
            self._background_until = min(self._parts.core.deadline, now + 3600 if linger_at is None else linger_at)
            self._driver.run_once(3600.0, background=True)
            self._step()
            self._driver.flush()
        self._run_callbacks()

    # -- the end --------------------------------------------------------------------------------------------------

    def _shut_down(self, why: str) -> None:
        lifetime.unregister(self)
        with self._driver.lock:
            report_lost(self.accumulator.abort(ClientClosed(f"the record was not delivered: {why}")), why)
        self._driver.close()
        self._run_callbacks()
        self._background_event.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(1.0)

    def _close_at_exit(self) -> None:
        """Deliver everything when the program ends without close()."""
        self.close()
