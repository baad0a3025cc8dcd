"""What both producers do, once: calls that may have to wait, as generators, and what a record goes through before it is bytes.

Rules
- A call is a generator that yields what it needs: `Wait` for something to become so, `TURN` to let others run. `Producer`
  and `AsyncProducer` each have one driver for all of them (`_run`), and that is where they differ.
- The core is changed under `_guard`: the driver's lock of the blocking producer, nothing in an event loop.
- A time-out counts for the whole of a call, however often it has to wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastq._native.accumulator import (
    CLOSED,
    FORKED,
    INTERCEPTORS,
    PARTITIONER,
    SERIALIZERS,
    SYNC,
    Accumulator,
)
from fastq._native.arrow_source import is_arrow
from fastq._native.producer_batch import TopicState
from fastq._native.send_many import ManyDelivery, SendMany
from fastq.errors import ClientClosed, LoadingWouldBlock, WaitTimeout
from fastq.interceptors import ProducerRecord
from fastq.metrics import ProducerMetrics
from fastq.producer import lifetime
from fastq.producer.config import ProducerConfig
from fastq.producer.failures import not_loaded
from fastq.producer.transaction_states import State
from fastq.timeouts import check_timeout
from fastq.values import NamedTuple

if TYPE_CHECKING:
    from asyncio import Future

    from fastq._native.producer_core import DeliveryBase
    from fastq.producer.base import Parts
    from fastq.producer.transactions import Transactions

logger = logging.getLogger("fastq.producer")
T = TypeVar("T")


class Wait(NamedTuple):
    """Wait until `predicate()` is true, at most `timeout_s` (None: for ever); the answer is whether it became so."""

    predicate: Callable[[], bool]
    timeout_s: float | None


class _Turn:
    """Let others run."""


TURN = _Turn()
CONVERTING = SERIALIZERS | INTERCEPTORS | PARTITIONER
AT_HAND = (list, tuple, range, str, bytes, bytearray, memoryview)
"""Rows that are there, or that are none."""

CUT_SHORT_S = 1.0
"""How long a `close` whose time is over waits for the other one that it has cut short: for its clearing up."""
Effect: TypeAlias = "Wait | _Turn"
Calls: TypeAlias = Generator[Effect, Any, T]


class Conversion:
    """What a row of send_many goes through where the producer has serializers, interceptors or a partitioner; see SendMany."""

    def __init__(self, parts: Parts, topic: str, check: Callable[[], None]) -> None:
        self._parts, self._topic, self._check = parts, topic, check
        self._record: ProducerRecord | None = None  # intercepted, while it waits for its topic or a serializer
        self.missing: LoadingWouldBlock | None = None  # what has to be loaded before the row comes again

    def __call__(self, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None) -> Any:
        parts, record = self._parts, self._record
        watched = bool(parts.config.interceptors)
        if record is None:
            record = ProducerRecord(self._topic, value, key, headers, partition, timestamp_ms)
            if watched:
                record = parts.intercept(record)
        self._record = None
        try:
            state = parts.accumulator.topic(record.topic)
            if state is None:
                self._record = record
                return record.topic
            try:
                prepared = parts.prepare(record, state)
            except LoadingWouldBlock as missing:
                if missing.load is None:
                    raise
                self._record, self.missing = record, missing
                return record.topic  # as above: the row comes again
            self._check()
            return (state, *prepared[1:], record if watched else None)
        except Exception as error:
            if watched:
                parts.refused(record, error)
            raise

    def appended(self, record: ProducerRecord, delivery: DeliveryBase) -> None:
        """The record is in: its interceptors hear of its delivery."""
        delivery.add_done_callback(partial(self._parts.acknowledge, record))

    def give_up(self, error: BaseException) -> None:
        """The call ends: so does the record that waits for its topic, or its serializer."""
        record, self._record = self._record, None
        if record is not None:
            self._parts.refused(record, error)

    def refused(self, record: ProducerRecord, error: BaseException) -> None:
        """The record was not accepted."""
        self._parts.refused(record, error)


def each_checked(rows: Any, check: Callable[[], None]) -> Any:
    """Rows of send_many that the application makes one by one: each is looked at once it is there, as others had their turn meanwhile."""
    if isinstance(rows, AT_HAND) or not hasattr(rows, "__iter__") or hasattr(rows, "to_pylist") or is_arrow(rows):
        return rows
    return _each_checked(rows, check)


def _each_checked(rows: Any, check: Callable[[], None]) -> Iterator[Any]:
    for row in rows:
        check()
        yield row


class ProducerCalls:
    """The calls that both producers have. Thread rule: that of the producer."""

    if TYPE_CHECKING:
        config: ProducerConfig
        _parts: Parts
        _guard: AbstractContextManager[Any]
        _max_block_s: float
        _closing: bool
        _closing_thread: int
        _over: threading.Event  # what closes the producer has done so
        _cut_short: str | None  # why what closes it waits no longer

        @property
        def accumulator(self) -> Accumulator: ...
        def _attend(self) -> None: ...
        def _kick(self) -> None: ...
        def _shut_down(self, why: str) -> None: ...
        def _can_await_end(self) -> bool: ...
        def _wake_closer(self) -> None: ...

    def _outside(self) -> AbstractContextManager[Any]:
        """For calls of what is not ours and may wait: an interrupt ends them."""
        return nullcontext()

    def metrics(self) -> ProducerMetrics:
        """Counters since the start and what is buffered now, by name: those of `fastq.metrics.ProducerMetrics`."""
        return self._parts.metrics()

    def __reduce__(self) -> tuple[Any, ...]:
        """A producer pickles as its configuration: what comes out is a new one."""
        return type(self), (self.config,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(self.config.bootstrap_servers)}>"

    # -- metadata -------------------------------------------------------------------------------------------------

    def _known_topic(self, topic: str, sent_in: int | None = None, timeout: float | None = None) -> Calls[TopicState]:
        """The state of a topic; waits for its metadata, at most `timeout` (None: max_block_ms), while its transaction is open."""
        parts = self._parts
        if not isinstance(topic, str):
            raise TypeError(f"topic is a str, got {topic!r}")
        state = parts.accumulator.topic(topic)
        if state is not None:
            return state
        found: list[TopicState] = []
        asked = parts.core.metadata_updater.requests

        def known() -> bool:
            state = parts.sender.topic_ready(topic, asked)
            if state is not None:
                found.append(state)
            elif (hopeless := parts.core.hopeless()) is not None:
                raise hopeless
            else:
                parts.check_open()
                if sent_in is not None:
                    parts.check_transaction(sent_in)
            return bool(found)

        with self._guard:
            parts.core.watch_topics([topic])
        if not (yield Wait(known, self._max_block_s if timeout is None else timeout)):
            raise parts.no_metadata(topic)
        return found[0]

    def _known_partition(self, topic: TopicState, index: int, sent_in: int) -> Calls[None]:
        """Wait for a partition that the topic may have got since the metadata came: the first answer to a request from now on decides."""
        parts = self._parts
        updater = parts.core.metadata_updater
        asked = updater.requests

        def decided() -> bool:
            parts.check_going_on(sent_in)
            parts.sender.topic_ready(topic.name)
            return index < len(topic.partitions) or updater.answered > asked

        if index >= 0:
            with self._guard:
                parts.core.request_metadata_update(f"partition {index} of {topic.name} is asked for")
            yield Wait(decided, min(self._max_block_s, self.config.request_timeout_ms / 1000))
        if not 0 <= index < len(topic.partitions):
            raise parts.no_partition(topic.name, index, len(topic.partitions))

    def _partitions_for(self, topic: str) -> Calls[list[int]]:
        self._parts.check_open()
        return list(range(len((yield from self._known_topic(topic)).partitions)))

    # -- records --------------------------------------------------------------------------------------------------

    def _begin_load(self, missing: LoadingWouldBlock) -> Future[object]:
        """Have a serializer get what it needs, in a thread. Raises `missing` where the call would block a loop to wait for that."""
        raise missing

    def _loaded(self, missing: LoadingWouldBlock, topic: str, check: Callable[[], None]) -> Calls[None]:
        """Wait until a serializer has what it needs, however long that takes: max_block_ms is of what is ours."""
        loading = self._begin_load(missing)

        def over() -> bool:
            check()
            return loading.done()

        yield Wait(over, None)
        error = loading.exception()
        if error is not None:
            raise not_loaded(error, topic) if isinstance(error, Exception) else error

    def _room_for(self, topic: TopicState, wanted_bytes: int, deadline: float | None) -> Calls[float]:
        """Wait for room; answers the deadline, which counts for all the waiting of one call."""
        now, accumulator, transaction = time.monotonic(), self.accumulator, self._parts.transaction
        end = now + self._max_block_s if deadline is None else deadline

        def room() -> bool:
            if accumulator.slow & CLOSED:
                raise ClientClosed("the producer was closed while send waited for room")
            self._parts.check_transaction(transaction)
            if accumulator.has_ample_room(wanted_bytes):
                return True
            accumulator.close_all()
            return False

        if (deadline is not None and now >= end) or not (yield Wait(room, end - now)):
            raise self._parts.no_room(topic.name)
        return end

    def _send_many(
        self, topic: str, values: Any, keys: Any, headers: Any, partition: int | None, timestamps: Any
    ) -> Calls[ManyDelivery]:
        parts, accumulator = self._parts, self.accumulator
        parts.check_usable()
        transaction, end = parts.transaction, time.monotonic() + self._max_block_s
        ordered_by = None if parts.config.interceptors else topic
        before = self._places_wanted(ordered_by)
        while before() and not (yield Wait(lambda: not before(), self._max_block_s)):
            if not self._is_loading(ordered_by):
                raise parts.no_room(topic)
        state = yield from self._known_topic(topic, transaction, max(end - time.monotonic(), 0.0))
        check = partial(parts.check_going_on, transaction)
        check()
        conversion = Conversion(parts, topic, check) if accumulator.slow & CONVERTING else None
        if parts.transactions is not None:
            values, keys, headers, timestamps = (
                each_checked(rows, check) for rows in (values, keys, headers, timestamps)
            )
        call = SendMany(self, state, values, keys, headers, partition, timestamps, conversion)  # type: ignore[arg-type]  # a ProducerCore too
        deadline: float | None = None
        try:
            while not call.step():
                self._attend()
                if call.needs_room:
                    deadline = yield from self._room_for(state, accumulator.wanted_bytes, deadline)
                elif call.needs_topic is not None:
                    if conversion is not None and conversion.missing is not None:
                        missing, conversion.missing = conversion.missing, None
                        yield from self._loaded(missing, call.needs_topic, check)
                    else:
                        yield from self._known_topic(call.needs_topic, transaction)
                elif call.needs_partition is not None:
                    yield from self._known_partition(call.row_topic, call.needs_partition, transaction)
                else:
                    deadline = None
                    yield TURN
                check()
            if parts.core.closed:
                check()  # its last rows came after the end
        except BaseException as error:
            if parts.core.closed:
                parts.abandon("the producer was closed in the middle of send_many")
            call.give_up(error)
            if conversion is not None:
                conversion.give_up(error)
            raise
        self._attend()
        if accumulator.slow & SYNC:
            accumulator.close_all()  # nothing to linger for: the caller waits
            self._attend()
            delivery = call.delivery
            yield Wait(delivery.done, None)
            delivery.outcome()
        return call.delivery

    # -- the end --------------------------------------------------------------------------------------------------

    def _places_wanted(self, topic: str | None = None) -> Callable[[], int]:
        """How many of the sends that wait for their place now, of one topic or all, still do."""
        return lambda: 0

    def _is_loading(self, topic: str | None) -> bool:
        """Whether the first of them waits for its serializer."""
        return False

    def _unheard(self) -> int:
        """How many of those that wait in an open transaction nobody awaits."""
        return 0

    def _abort_begun(self) -> None:
        """Sends that wait are of the transaction that is aborted."""

    def _flush(self, timeout: float | None, *, closing: bool = False) -> Calls[None]:
        """Deliver what there is. closing: for the call that closes, which gives up what is left when it is cut short, and for one that a
        callback of it makes; any other waits until that has its fate."""
        check_timeout(timeout)
        accumulator = self.accumulator
        if accumulator.slow & FORKED:
            self._parts.check_usable()
        end = None if timeout is None else time.monotonic() + timeout
        waiting = self._places_wanted()
        if waiting() and not (yield Wait(lambda: bool((closing and self._cut_short) or not waiting()), timeout)):
            from fastq.words import counted

            left = waiting()
            raise WaitTimeout(
                f"{counted(left, 'record')} still {'waits' if left == 1 else 'wait'} for room or metadata after {timeout} s"
            )
        batches = list(accumulator.incomplete)
        if not batches:
            return
        accumulator.close_all()
        self._attend()
        batches.reverse()

        def all_done() -> bool:
            while batches and batches[-1].done:
                batches.pop()
            return bool((closing and self._cut_short) or not batches)

        if not (yield Wait(all_done, None if end is None else max(end - time.monotonic(), 0.0))):
            left = sum(len(batch) for batch in batches)
            raise WaitTimeout(f"{left} records are not delivered after {timeout} s; they are still on their way")

    def _close(self, timeout: float | None, *, block_failed: bool = False, raises: bool = True) -> Calls[None]:
        """Deliver and end. block_failed: it is the end of a `with` whose error says enough. raises: there is somebody to raise to."""
        check_timeout(timeout)
        if self.accumulator.slow & FORKED:
            return
        raises = self.config.raise_on_close and raises and not block_failed
        with self._guard:
            begun, self._closing = self._closing, True
        if begun:
            yield from self._join_close(timeout, raises)
            return
        self._closing_thread = threading.get_ident()
        self.accumulator.slow |= CLOSED
        transactions = self._parts.transactions
        why = f"the producer was closed with timeout={timeout}"
        try:
            try:
                with self._guard:
                    if not block_failed:
                        self._parts.tell_open_transaction(self._unheard())
                    undecided = abort_open(transactions)
                if undecided and transactions is not None:
                    self._abort_begun()
                    patience_s = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
                    yield Wait(lambda: bool(self._cut_short or transactions.settled), patience_s)
                yield from self._flush(timeout, closing=True)
            except WaitTimeout:
                pass
            except BaseException as error:
                why = f"closing was interrupted by {type(error).__name__}"
                raise
            finally:
                self._shut_down(self._cut_short or why)
            self._parts.failures.tell_total(raises)
        finally:
            # Only now: the hook at exit waits for what is registered, and daemon threads end with it.
            lifetime.unregister(self)  # type: ignore[arg-type]  # both producers have a _close_at_exit
            self._over.set()

    def _join_close(self, timeout: float | None, raises: bool) -> Calls[None]:
        """Wait for the end of another call that closes the producer. When the time of this one is over first, that one is cut short."""
        if self._over.is_set() or not self._can_await_end():
            return
        if not (yield from self._ended(timeout)):
            self._end_at_once(f"the producer was closed with timeout={timeout}")
            if not (yield from self._ended(CUT_SHORT_S)):
                logger.warning(
                    "the producer was closed with timeout=%s; another call that closes it is still at it", timeout
                )
                return
        if raises:
            self._parts.failures.tell_total(True)  # else it was told by who closed it

    def _ended(self, timeout: float | None) -> Calls[bool]:
        """Wait until the producer is closed, by another call; whether it is."""
        is_over: bool = yield Wait(self._over.is_set, timeout)
        return is_over

    def _end_at_once(self, why: str) -> None:
        """What closes the producer gives up what is not delivered."""
        self._cut_short = self._cut_short or why
        self._wake_closer()


def abort_open(transactions: Transactions | None) -> bool:
    """Begin to abort what a closing producer leaves open; whether there is something to wait for."""
    if transactions is None:
        return False
    if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
        transactions.begin_abort()
    return transactions.state in (State.COMMITTING, State.ABORTING)
