"""The asyncio consumer: the blocking one's names and behaviour, with `await`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import AsyncRecordIterator, FetchedRecords, Record
from fastq.consumer.base import OVERDUE_S, K, Partition, Topics, V
from fastq.consumer.calls import ConsumerCalls, Steps, Tell, Wait
from fastq.consumer.committable import Committable
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConsumerConfig
from fastq.consumer.offsets import OffsetAndTimestamp
from fastq.errors import ClientClosed, ConcurrentModification, FastqError, LoadingWouldBlock
from fastq.metadata import OffsetAndMetadata, TopicPartition
from fastq.net.aio import AsyncDriver
from fastq.other_clients import refuse_keywords
from fastq.timeouts import check_timeout

if TYPE_CHECKING:
    from typing_extensions import Never, Self, Unpack

    from fastq.consumer.options import (
        ConsumerOptions,
        NamedKeyOptions,
        NamedOptions,
        NamedValueOptions,
        TypedOptions,
    )
    from fastq.consumer.options import K as KeyOf
    from fastq.consumer.options import V as ValueOf

logger = logging.getLogger("fastq.consumer")

T = TypeVar("T")
# The least time between two looks by the clock, and the most.
AGAIN_S = 1.0
LOOK_AGAIN_S = 0.005
LOOK_AROUND_S = 0.5


class AsyncConsumer(ConsumerCalls, Generic[K, V]):
    """Reads its topics as a member of a group, or all of them without one: as `Consumer`, with `async with`, `async for` and
    `await`.

    Iterating lets the event loop run at least every 1,024 records. Cancelling an `await` loses no record and hands none out
    twice. Prefetching and heartbeats go on while nobody awaits, as long as the event loop runs. Rebalance listeners may be
    coroutine functions; they run as a task of their own, which cancelling an `await` leaves alone.

    When the loop is blocked, a native thread sends the heartbeats on plain connections (security_protocol PLAINTEXT, not on
    Windows); with TLS or SASL a loop that is blocked for session_timeout_ms loses its place in the group.

    Thread rule: the thread of the event loop that ran at the first `await`, and no other loop (WrongEventLoop); `wakeup` and `stop` from
    any, and from signal handlers.
    """

    @overload
    def __init__(
        self: AsyncConsumer[Any, Any],
        settings: Mapping[str, Any] | ConsumerConfig,
        /,
        *topics: Topics,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[KeyOf, ValueOf], *topics: Topics, **options: Unpack[TypedOptions[KeyOf, ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[Any, ValueOf], *topics: Topics, **options: Unpack[NamedKeyOptions[ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncConsumer[KeyOf, Any], *topics: Topics, **options: Unpack[NamedValueOptions[KeyOf]]
    ) -> None: ...
    @overload
    def __init__(self: AsyncConsumer[Any, Any], *topics: Topics, **options: Unpack[NamedOptions]) -> None: ...
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(given, options)
        self._driver: AsyncDriver | None = None
        self._turn = contextlib.nullcontext()
        self._waiters: set[asyncio.Future[None]] = set()
        self._raised = False  # the last call that waited ended with an error
        self._timer: asyncio.TimerHandle | None = None
        self._iterator: weakref.ref[AsyncRecordIterator[K, V]] | None = None
        me = weakref.ref(self)

        def progressed() -> None:
            consumer = me()
            if consumer is not None:
                consumer._on_progress()

        self._progressed = progressed  # for the loop and the connections, which are not to keep a consumer alive
        self._ending: asyncio.Future[None] | None = None  # of the close that is under way, or over
        self._listening: set[asyncio.Task[Any] | None] = set()  # tasks in which a listener runs
        self._changing: asyncio.Task[None] | None = None  # the step of a rebalance that is being carried out

    # -- records

    def __aiter__(self) -> AsyncRecordIterator[K, V]:
        """Records, as they come, without an end. The position moves with every record."""
        self._check_open()
        iterator = None if self._iterator is None else self._iterator()
        if iterator is None:
            iterator = self._iterate(self._advance)
            self._iterator = weakref.ref(iterator)
        return iterator

    def _iterate(
        self, advance: Callable[[FetchedRecords | None], Coroutine[Any, Any, FetchedRecords | None]]
    ) -> AsyncRecordIterator[K, V]:
        iterator: AsyncRecordIterator[K, V] = AsyncRecordIterator(
            self._hooks.between(advance), self._hooks.transform, self._progress
        )
        self._remember(iterator)
        return iterator

    async def poll(
        self, *refused: Never, max_records: int | None = None, timeout: float | None = None, **foreign: Never
    ) -> list[Record[K, V]]:
        """`Consumer.poll`, awaited: up to `max_records` (None: max_poll_records) records, those at hand, or the first that come within
        `timeout` seconds (None: as long as it takes; 0: what is at hand); an empty list when none came in time. Both go by name.
        """
        wanted = self._wanted(refused, foreign, max_records)
        self._detach()
        self._asks()
        while True:
            # No await from the first record taken to the return: cancelling cannot lose one.
            chunk = await self._run(self._fetcher.next_chunk, timeout, asks=True)
            records: list[Record] = []
            try:
                while chunk is not None and self._take(chunk, records, wanted):
                    chunk = self._fetcher.next_chunk()
                break
            except LoadingWouldBlock:
                await self._hooks.load()
        self._hooks.missing = None  # behind what was taken: found again by the next call
        self._pump()
        if records and self._hooks.interceptors:
            records = self._hooks.intercept(records)
        self._taken = None
        return records

    async def poll_batch(
        self, *refused: Never, timeout: float | None = None, until: Mapping[TopicPartition, int] | None = None
    ) -> ConsumerBatch:
        """`Consumer.poll_batch`, awaited: all records at hand, or the first that come, as one object with columns; empty when none came
        within `timeout` seconds. What bounds it, and `until`, are told there.
        """
        self._by_name("poll_batch", refused)
        self._detach()
        self._asks()
        if until is None:
            chunk = await self._run(self._fetcher.next_chunk, timeout, asks=True)
        else:
            chunk = await self._do(self._first_before(until, timeout))
        batch = ConsumerBatch()
        while chunk is not None and batch.size_bytes < self.config.prefetch_bytes_max:
            if not self._take_columns(chunk, batch):
                break
            chunk = self._fetcher.next_chunk() if until is None else self._at_hand_before(until)
        self._pump()
        self._taken = None
        return batch

    async def read_to_end(self, timeout: float | None = None) -> AsyncRecordIterator[K, V]:
        """The records up to the end offsets of this moment, as `Consumer.read_to_end`: `async for record in await consumer.read_to_end()`.

        `timeout`: for learning what is assigned, and its end offsets (None: default_api_timeout_ms).
        """
        ends = await self._do(self._find_ends(timeout))

        async def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            await self._next_turn(chunk)
            return await self._do(self._next_to_iterate(ends))

        return self._iterate(advance)

    async def read_batches_to_end(self, *, timeout: float | None = None) -> AsyncBatches:
        """`read_to_end` by `poll_batch`: `async for batch in await consumer.read_batches_to_end()`.

        `timeout`: for learning the end offsets (None: default_api_timeout_ms).
        """
        return AsyncBatches(partial(self._batch_before, await self._do(self._find_ends(timeout))))

    async def _batch_before(self, ends: Mapping[TopicPartition, int]) -> ConsumerBatch | None:
        """The next batch of what lies before `ends`; None when nothing does any more, or `stop` was called."""
        while self._before(ends) and not self._stopping:
            batch = await self.poll_batch(until=ends)
            if len(batch):
                return batch
        return None

    async def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        await self._next_turn(chunk)
        return await self._do(self._next_to_iterate())

    async def _next_turn(self, chunk: FetchedRecords | None) -> None:
        """A chunk is used up, or a turn of the event loop is due."""
        self._check_open()
        self._asks()
        if chunk is not None:
            self._fetcher.release(chunk)
            await asyncio.sleep(0)
        if self._hooks.missing is not None:
            await self._hooks.load()
            self._check_open()

    # -- waiting

    def _start(self) -> AsyncDriver:
        self._check_open()
        if self._driver is None:
            self._driver = AsyncDriver(self._core)
            self._driver.told = self._progressed
        else:
            self._driver.check_loop()
        return self._driver

    async def _run(
        self, look: Callable[[], T | None], timeout: float | None, *, asks: bool = False, quiet: bool = False
    ) -> T | None:
        """Wait until `look()` finds something, or the time is over (None). `asks`: for records, so rebalances go on. `quiet`:
        errors wait for the next call."""
        check_timeout(timeout)
        if self._raised:
            self._raised = False
            # Who calls again and again, whatever is raised at once, leaves the loop to others all the same.
            await asyncio.sleep(0)
        self._asking += asks
        try:
            return await self._drive(look, timeout, asks, quiet)
        except FastqError:
            self._raised = True
            raise
        finally:
            self._asking -= asks

    async def _drive(self, look: Callable[[], T | None], timeout: float | None, asks: bool, quiet: bool) -> T | None:
        """`_run`, whose words hold."""
        driver = self._start()
        clock = self._core.clock
        end = None if timeout is None else clock() + timeout
        while True:
            self._check_open()
            self._pump()
            # Steps come before errors: one that stays must not keep a listener from hearing what is lost.
            rebalances = asks and not self._stopping and self._rebalances()
            if not quiet and not rebalances:
                self._raise_errors()
            if asks and (self._stopping or self._reads_nothing):
                return None
            if not rebalances:
                found = look()
                if found is not None:
                    return found
                if self._fetcher.made_room:
                    continue
            if not quiet:
                self._raise_if_woken()
                self._raise_hopeless()
            remaining = None if end is None else end - clock()
            if remaining is not None and remaining <= 0:
                return None
            waiter: asyncio.Future[None] = driver.loop.create_future()
            timer = None if remaining is None else driver.loop.call_later(remaining, _wake, waiter)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if timer is not None:
                    timer.cancel()

    def _pump(self) -> None:
        """Send what can be sent, and see to it that the rest is looked at again."""
        driver = self._start()
        self._step()
        while self._callbacks:
            driver.loop.call_soon(self._callbacks[0])
            self._callbacks.popleft()  # once the loop has it: there may be no memory for that
        driver.kick()
        wakeup = self._wakeup_in()
        # The driver tells when a connection is ready and when the metadata changed; a back-off ends by the clock alone.
        wait = OVERDUE_S if self._sends_blocked else LOOK_AROUND_S
        wait = wait if wakeup is None else min(wakeup, wait)
        due = driver.loop.time() + max(wait, LOOK_AGAIN_S)
        if self._timer is None or due < self._timer.when():
            before, self._timer = self._timer, driver.loop.call_at(due, self._progressed)
            if before is not None:  # until then: there may be no memory for the other
                before.cancel()

    def _told(self) -> Callable[[], None]:
        return self._progressed

    def _on_progress(self) -> None:
        """Something came: the next fetch goes out, and who waits looks again."""
        if self._closed:
            return
        if self._timer is not None and self._driver is not None and self._timer.when() <= self._driver.loop.time():
            self._timer = None
        try:
            self._pump()
        except Exception:  # there may be no memory for it: heartbeats are due all the same
            if self._timer is None and self._driver is not None:
                self._timer = self._driver.loop.call_later(AGAIN_S, self._progressed)
            raise
        finally:
            self._changed()

    async def _do(self, steps: Steps[T]) -> T:
        """Run a call to its end."""
        if self._driver is not None:
            self._driver.check_loop()  # before a call has begun anything
        try:
            step = next(steps)
            while True:
                try:
                    found = await self._take_step(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _take_step(self, step: Wait | Tell) -> Any:
        if isinstance(step, Wait):
            return await self._run(step.look, step.timeout_s, asks=step.asks, quiet=step.quiet)
        task = asyncio.current_task()
        self._listening.add(task)
        try:
            answer = step.callback(list(step.partitions))
            return await answer if isinstance(answer, Awaitable) else answer
        finally:
            self._listening.discard(task)

    def _wake(self) -> None:
        if self._driver is not None:
            # Without a loop any more there is nobody to wake.
            with contextlib.suppress(RuntimeError):
                self._driver.loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)

    # -- groups

    async def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, after the commits that are due, or let go of what was assigned."""
        await self._await_changing(None)
        await self._do(self._unsubscribe())

    async def commit(self, what: Committable = None, timeout: float | None = None, **foreign: Never) -> None:
        """`Consumer.commit`, awaited: commit offsets for the group, and wait until they are committed. Cancelling the `await` does not
        undo it.
        """
        if foreign:
            refuse_keywords("commit", foreign)
        await self._do(self._commit(what, timeout))

    async def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is (timeout None: default_api_timeout_ms)."""
        return await self._do(self._ask_committed(partitions, timeout))

    def _rebalances(self) -> bool:
        """Whether a step of a rebalance is being carried out: begun here, and what it raised comes out here."""
        task = self._changing
        if task is not None and task.done():
            self._changing = None
            task.result()
        if self._changing is None:
            change = self._next_change()
            if change is None:
                return False
            progressed = self._progressed
            self._changing = self._start().loop.create_task(self._do(self._carry_out(change)))
            self._changing.add_done_callback(lambda _: progressed())
        return True

    def _asks(self) -> None:
        # Other tasks may ask while a listener runs; it must not itself, for it would wait for its own end.
        self._in_listener = self._is_listener()
        super()._asks()

    def _is_listener(self) -> bool:
        task = asyncio.current_task()
        return task in self._listening or (task is not None and task is self._changing)

    async def _await_changing(self, timeout: float | None) -> None:
        """The step of a rebalance that is being carried out comes first."""
        self._in_listener = self._is_listener()
        if self._changing is not None and asyncio.current_task() is not self._changing:
            await asyncio.wait([self._changing], timeout=timeout)

    # -- positions

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out; waits until it is known (None: default_api_timeout_ms)."""
        return await self._do(self._ask_position(partition, timeout))

    async def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition (timeout None: default_api_timeout_ms)."""
        return await self._do(self._ask_ends(partitions, EARLIEST_TIMESTAMP, timeout))

    async def end_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, or what is decided of transactions under
        read_committed (timeout None: default_api_timeout_ms)."""
        return await self._do(self._ask_ends(partitions, LATEST_TIMESTAMP, timeout))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970) in each partition; None where there is none. Raises
        ValueError for a negative time (timeout None: default_api_timeout_ms)."""
        return await self._do(self._ask_times(timestamps, timeout))

    # -- the end

    async def close(self, timeout: float | None = None) -> None:
        """Leave the group, after the commits that are due, and close the connections. Idempotent; every later call raises
        ClientClosed, and so does one that waits. timeout: for the commits (None: request_timeout_ms; 0: they are sent, and not
        waited for). While another task closes it, it waits for that one's end; but for a listener, which that one waits for."""
        check_timeout(timeout)
        if self._ending is not None:
            if not self._ending.done() and not self._is_listener():
                await asyncio.wait([self._ending])
            return
        if self._driver is not None:
            self._driver.check_loop()
        self._ending = asyncio.get_running_loop().create_future()
        try:
            if self._driver is not None:
                await self._await_changing(timeout)
                await self._do(self._leave_group("the consumer is closed", timeout))
        except FastqError as error:
            logger.warning("leaving the group failed: %s", error)
        finally:
            try:
                await self._close()
            finally:
                self._ending.set_result(None)

    async def aclose(self) -> None:
        """`close`, by the name that `contextlib.aclosing` calls."""
        await self.close()

    def _dropped(self) -> None:
        driver = self._driver
        if driver is None or driver.loop.is_closed() or self._ending is not None or sys.is_finalizing():
            return
        try:
            here = asyncio.get_running_loop() is driver.loop
        except RuntimeError:
            here = False
        if here:
            logger.info("%r leaves its group and closes: nobody has it any more", self)
            if self._group is not None:
                self._group.callbacks = {}
            _farewells.add(task := driver.loop.create_task(self.close(timeout=0)))
            task.add_done_callback(_farewells.discard)

    async def _close(self) -> None:
        self._closed = True
        if self._liveness is not None:
            self._liveness.close()
        if self._changing is not None and self._changing is not asyncio.current_task():  # a listener may close too
            self._changing.cancel()
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            try:
                for outgoing in self._fetcher.closing_requests(self._core.can_send):
                    self._send(outgoing)
                self._driver.kick()
                await asyncio.sleep(0)
            except FastqError:
                pass  # the sessions end with their connections
            finally:
                self._driver.close()
                self._changed()
        if self._group is not None:
            self._group.committer.fail_all(ClientClosed())
        try:
            self._tell_callbacks()
        finally:
            self._hooks.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncBatches:
    """Batches up to an end, once. Cancelling an `await` of it takes none, and behind an error it goes on, as a generator does not; behind
    its end, or `aclose`, there is nothing. One task awaits at a time."""

    def __init__(self, advance: Callable[[], Awaitable[ConsumerBatch | None]]) -> None:
        self._advance = advance
        self._waits = self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerBatch:
        if self._waits:
            raise ConcurrentModification(
                "another task waits for the next batch of this AsyncConsumer",
                hint="Give each task a consumer of its own, or have one task read and hand over",
            )
        if self._ended:
            raise StopAsyncIteration
        self._waits = True
        try:
            batch = await self._advance()
        finally:
            self._waits = False
        if batch is None:
            self._ended = True
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """End it, for `contextlib.aclosing`: what it has not read is for the next call of the consumer."""
        self._ended = True


# Consumers that were dropped, and close by themselves: the loop alone would forget their tasks.
_farewells: set[asyncio.Task[None]] = set()


def _wake(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)
