"""Sends of the asyncio producer whose records are not in yet: their places, in the order of the calls.

Rules
- A send that cannot append at the call takes its place here, and so does every later one for its topic, whatever it would need.
- A record goes in when what is before it is in, and what it waits for is there: metadata, room, its serializer's schema, or only a turn
  of the loop, which once per full batch others are given. Whether it is awaited makes no difference to that. What a serializer takes to
  load is not of max_block_ms, as in Kafka's own client.
- Of an awaited send, the task that awaits it appends, in its own step: so one that is cancelled before has not sent. Cancelling it, or the
  last of several, gives the place up; so does a task of its own that is cancelled before its first step, unless the record is in by
  then: that one ends with the delivery.
- A send that nobody awaits and that fails is told in the log as any record that was not delivered; in a transaction it is the
  transaction that fails, as by a record that the broker refuses. A record is of the transaction that it was sent in, and of no later one.
Thread rule: the loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import count, islice
from types import TracebackType
from typing import Any, Protocol

from fastq._native.accumulator import SYNC, WAITING
from fastq._native.producer_core import AsyncDelivery
from fastq.arguments import int_of
from fastq.errors import (
    AbortableTransactionError,
    ClientClosed,
    FastqError,
    LoadingWouldBlock,
    TransactionAborted,
)
from fastq.interceptors import ProducerRecord
from fastq.producer.base import Parts, Prepared
from fastq.producer.failures import not_loaded

WOKEN_TOGETHER = 64
"""Tasks that are woken in one turn when the first of a topic may go on."""


class Appender(Protocol):
    """What the places ask of the producer."""

    _parts: Parts
    _max_block_s: float

    def _attend(self) -> None: ...
    def _kick(self) -> None: ...
    def _try_enqueue(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> AsyncDelivery | None: ...
    def _close_full(self, topic: str, value: Any, key: Any, headers: Any, partition: int | None) -> bool: ...


def _now() -> bool:
    return True


class WaitingSend:
    """One send: awaitable, wherever a coroutine is, for its delivery.

    Invariant: `delivery` or `error` is set exactly when it has left its queue. `worth_a_try` says whether what it waits for may be there.
    """

    __slots__ = (
        "_steps", "asked", "awaited", "began", "deadline", "delivery", "error", "gave_way", "loading", "number",
        "places", "prepared", "record", "transaction", "waiters", "worth_a_try",
    )  # fmt: skip

    def __init__(self, places: WaitingSends, record: ProducerRecord, number: int, deadline: float) -> None:
        self.places, self.record, self.number, self.deadline = places, record, number, deadline
        self.transaction = places.producer._parts.transaction
        self.prepared: Prepared | None = None
        self.delivery: AsyncDelivery | None = None
        self.error: BaseException | None = None
        self.began = places.producer._parts.core.metadata_updater.requests  # for metadata before it
        self.awaited = self.gave_way = False
        self.loading = False  # its serializer, in a thread
        self.asked: int | None = None  # requests for metadata before its partition was asked for
        self.worth_a_try: Callable[[], bool] = _now
        self.waiters: list[asyncio.Future[None]] = []  # of the tasks that await it
        self._steps: Generator[Any, None, AsyncDelivery] | None = None

    @property
    def settled(self) -> bool:
        """Whether the record is in, or never will be."""
        return self.delivery is not None or self.error is not None

    def wake(self) -> None:
        """Have who awaits it look again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> AsyncDelivery:
        self.awaited = True
        try:
            while not self.settled:
                self.places.advance_awaited(self)
                if self.settled:
                    break
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.waiters.append(waiter)
                try:
                    await waiter
                finally:
                    self.waiters.remove(waiter)
        except BaseException:
            if not self.waiters:  # the last one who wants it
                self.places.withdraw(self)
            raise
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.delivery is not None
        if self.places.producer._parts.accumulator.slow & SYNC:
            await self.delivery
        return self.delivery

    # A coroutine for asyncio.create_task too.

    def __await__(self) -> Generator[Any, None, AsyncDelivery]:
        return self._wait().__await__()

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        if self._steps is None:  # before its first step, which what is thrown here would never come to
            parts = self.places.producer._parts
            if self.delivery is not None and not parts.accumulator.slow & SYNC:
                raise StopIteration(self.delivery)
            if not self.waiters:
                self.places.withdraw(self)
            self._steps = self.__await__()
        error = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        return self._steps.throw(error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()


class WaitingSends:
    """The places of one producer: a queue a topic.

    Invariant: WAITING of the accumulator's flags is on exactly while there is a queue; no queue is empty.
    """

    def __init__(self, producer: Appender) -> None:
        self.producer = producer
        self._queues: dict[str, deque[WaitingSend]] = {}
        self._numbers = count()
        self._pumping = self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._queues)

    def all(self) -> list[WaitingSend]:
        """Those that wait now."""
        return [entry for queue in self._queues.values() for entry in queue]

    def is_loading(self, topic: str | None) -> bool:
        """Whether the first of a topic (None: of any) waits for its serializer."""
        return any(queue[0].loading for name, queue in self._queues.items() if topic is None or name == topic)

    def of(self, topic: str) -> list[WaitingSend]:
        """Those of a topic."""
        return list(self._queues.get(topic, ()))

    def place(self, record: ProducerRecord) -> WaitingSend:
        """A new send: in at once where that can be, else at the end of its topic's queue. Raises what it fails with at once."""
        entry = WaitingSend(self, record, next(self._numbers), time.monotonic() + self.producer._max_block_s)
        queue = self._queues.get(record.topic)
        if queue is None:
            delivery = self._try(entry)
            if delivery is not None:
                self._accepted(entry, delivery)
                return entry
            self._queues[record.topic] = deque((entry,))
            self.producer._parts.accumulator.slow |= WAITING
        else:
            queue.append(entry)
        try:
            self._set_timer()
        except BaseException as error:  # the call has failed: who sends the record again has it once
            entry.error = error
            self._leave(entry)
            raise
        return entry

    # -- one send -------------------------------------------------------------------------------------------------

    def _try(self, entry: WaitingSend) -> AsyncDelivery | None:
        """Append the record, or note in the entry what has to happen first."""
        parts, producer, record = self.producer._parts, self.producer, entry.record
        parts.check_transaction(entry.transaction)
        if not isinstance(record.topic, str):
            raise TypeError(f"topic is a str, got {record.topic!r}")
        state = parts.accumulator.topic(record.topic)
        if state is None:
            parts.core.watch_topics([record.topic])
            state = parts.sender.topic_ready(record.topic, entry.began)
            if state is None:
                hopeless = parts.core.hopeless()
                if hopeless is not None:
                    raise hopeless
                entry.worth_a_try = parts.metadata_watch()
                producer._kick()
                return None
        if entry.prepared is None:
            try:
                entry.prepared = parts.prepare(record, state)
            except LoadingWouldBlock as missing:
                if missing.load is None:
                    raise
                self._load(entry, missing.load)
                return None
        topic, value, key, headers, partition, timestamp_ms = entry.prepared
        if partition is not None and type(partition) is not int:
            # Below 0: refused next, with the numbers that there are.
            partition = int_of(partition, "partition", -(2**63))
        if partition is not None and not 0 <= partition < len(state.partitions):
            updater = parts.core.metadata_updater
            if entry.asked is None and partition >= 0:
                entry.asked = updater.requests
                parts.core.request_metadata_update(f"partition {partition} of {topic} is asked for")
            parts.sender.topic_ready(topic)
            decided = entry.asked is None or updater.answered > entry.asked
            if partition < 0 or (partition >= len(state.partitions) and decided):
                raise parts.no_partition(topic, partition, len(state.partitions))
            if partition >= len(state.partitions):
                entry.worth_a_try = parts.metadata_watch()
                producer._kick()
                return None
        if not entry.gave_way and producer._close_full(topic, value, key, headers, partition):
            entry.gave_way = True  # the loop lives once per full batch, and before the record is in
            entry.worth_a_try = _now
            producer._attend()
            self._schedule()
            return None
        delivery = producer._try_enqueue(topic, value, key, headers, partition, timestamp_ms)
        if delivery is None:
            wanted_bytes = parts.accumulator.wanted_bytes
            entry.worth_a_try = partial(parts.accumulator.has_room, wanted_bytes)
            parts.accumulator.close_all()
            producer._attend()
        return delivery

    def _load(self, entry: WaitingSend, load: Callable[[], object]) -> None:
        """Have a serializer get what it needs, a schema's id, in a thread."""
        topic, began = entry.record.topic, time.monotonic()
        loaded = asyncio.get_running_loop().run_in_executor(None, load)
        entry.worth_a_try, entry.loading = loaded.done, True

        def on_loaded(loaded: asyncio.Future[object]) -> None:
            entry.loading = False
            took_s = time.monotonic() - began
            for one in self._queues.get(topic, ()):
                one.deadline += took_s
            error = None if loaded.cancelled() else loaded.exception()
            if error is not None and not entry.settled:
                self._refuse(entry, not_loaded(error, topic) if isinstance(error, Exception) else error)
            self.pump()

        loaded.add_done_callback(on_loaded)

    def _timed_out(self, entry: WaitingSend) -> FastqError:
        parts, topic = self.producer._parts, entry.record.topic
        state = parts.accumulator.topic(topic)
        if state is None:
            return parts.no_metadata(topic)
        return parts.no_room(topic)

    def _accepted(self, entry: WaitingSend, delivery: AsyncDelivery) -> None:
        parts = self.producer._parts
        entry.delivery = delivery
        try:
            if parts.config.interceptors:
                parts.acknowledge_later(entry.record, delivery)
            if parts.accumulator.slow & SYNC:
                parts.accumulator.close_all()  # nothing to linger for: who awaits the send waits for the broker
                self.producer._attend()
        finally:  # also where there is no memory for that: others are behind it
            self._leave(entry)

    def _refuse(self, entry: WaitingSend, error: BaseException) -> None:
        entry.error = error
        try:
            self._tell(entry, error)
        finally:
            self._leave(entry)

    def _tell(self, entry: WaitingSend, error: BaseException) -> None:
        """Say to whom it matters that a record is refused."""
        parts = self.producer._parts
        if parts.config.interceptors:
            parts.refused(entry.record, error)
        if not entry.awaited:
            if not isinstance(error, FastqError):
                error = FastqError("the record was refused", cause=error)
            told = error if error.topic is not None else error.with_context(topic=entry.record.topic)
            transactions = parts.transactions
            if transactions is not None and not parts.is_over(entry.transaction):
                transactions.batch_failed(told)  # whose commit raises
                self.producer._attend()  # to those of it that wait too
            elif not isinstance(error, TransactionAborted | AbortableTransactionError):  # whose transaction tells
                parts.failures.note(1, told, time.monotonic())

    def _leave(self, entry: WaitingSend) -> None:
        """It waits no more: let the next one be the first, and have who awaits it look."""
        topic = entry.record.topic
        queue = self._queues.get(topic)
        if queue is not None and entry in queue:
            queue.remove(entry)
            if not queue:
                del self._queues[topic]
            if not self._queues:
                self.producer._parts.accumulator.slow &= ~WAITING
        if entry.waiters:  # looked at here, as a call takes memory, and the record may be in
            entry.wake()
        if queue is not None and topic not in self._queues:
            self.producer._attend()  # to calls that go behind them

    def _advance(self, entry: WaitingSend) -> None:
        """Try the first send of a queue, and let it go if it is over."""
        try:
            delivery = self._try(entry)
        except Exception as error:
            self._refuse(entry, error)
            return
        if delivery is not None:
            self._accepted(entry, delivery)
        elif not entry.loading and time.monotonic() >= entry.deadline:
            self._refuse(entry, self._timed_out(entry))

    def advance_awaited(self, entry: WaitingSend) -> None:
        """The same, for the task that awaits it; no effect while others are before it."""
        queue = self._queues.get(entry.record.topic)
        if queue and queue[0] is entry and self._ready(entry):
            self._advance(entry)
            if entry.settled:
                self.pump()

    def _ready(self, entry: WaitingSend) -> bool:
        """Whether a look at the first send of a queue may settle it: what it waits for may be there, or its transaction is over."""
        return entry.worth_a_try() or self.producer._parts.is_over(entry.transaction)

    def withdraw(self, entry: WaitingSend) -> None:
        """The task that awaits it was cancelled: its record is not sent."""
        if not entry.settled:
            entry.error = asyncio.CancelledError()
            try:
                if self.producer._parts.config.interceptors:
                    self.producer._parts.refused(entry.record, entry.error)
            finally:
                self._leave(entry)
            self.pump()

    # -- all of them ----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            asyncio.get_running_loop().call_soon(self._scheduled_pump)
            self._scheduled = True  # once the loop has it: there may be no memory for that

    def _scheduled_pump(self) -> None:
        self._scheduled = False
        self.pump()

    def pump(self) -> None:
        """Let go on who can, first come first served; once a turn, and whenever one was settled."""
        if self._pumping or not self._queues:
            return
        self._pumping = True
        try:
            self._pump(time.monotonic())
        finally:
            self._pumping = False
        self._set_timer()

    def _pump(self, now: float) -> None:
        blocked: set[str] = set()
        while True:
            heads = [queue[0] for topic, queue in self._queues.items() if topic not in blocked]
            if not heads:
                return
            entry = min(heads, key=_number)
            ready = self._ready(entry)
            if not ready and (entry.loading or now < entry.deadline):
                blocked.add(entry.record.topic)
            elif not ready:
                self._refuse(entry, self._timed_out(entry))
            elif entry.awaited:
                for woken in islice(self._queues[entry.record.topic], WOKEN_TOGETHER):
                    if not woken.awaited:
                        break
                    woken.wake()
                blocked.add(entry.record.topic)
            else:
                self._advance(entry)
                if not entry.settled:
                    blocked.add(entry.record.topic)

    def _set_timer(self) -> None:
        deadlines = [queue[0].deadline for queue in self._queues.values() if not queue[0].loading]
        if deadlines and self._timer is None:
            at = min(deadlines)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(at - time.monotonic(), 0.001), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.pump()
        finally:
            self._set_timer()

    def close(self) -> None:
        """Fail those that still wait: the producer is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.refuse_all(lambda: ClientClosed("the producer was closed while send waited for its turn"))

    def refuse_all(self, error: Callable[[], FastqError]) -> None:
        """Fail those that wait now, each with an error of its own."""
        for entry in self.all():
            if not entry.settled:  # by what an interceptor did about one before it
                self._refuse(entry, error())


def _number(entry: WaitingSend) -> int:
    return entry.number
