"""The asyncio consumer: the blocking one's names and behaviour, with `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self, Unpack

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import AsyncRecordIterator, FetchedRecords, Record
from fastq.consumer.base import BEGINNING, END, ConsumerBase, timestamps_of
from fastq.consumer.config import ConsumerConfig, ConsumerOptions
from fastq.consumer.offsets import OffsetAndTimestamp, offsets_of
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.net.aio import AsyncDriver

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
# Connections and metadata come without an announcement: how often to look while they are awaited, and otherwise.
LOOK_AGAIN_S = 0.005
LOOK_AROUND_S = 0.5


class AsyncConsumer(ConsumerBase):
    """Reads all partitions of its topics, or the partitions that it is assigned, and commits nothing.

    As `Consumer`, with `async with`, `async for` and `await`. Iterating lets the event loop run at least every 1,024 records.
    Cancelling an `await` loses no record and hands none out twice. Prefetching goes on while nobody awaits, up to its bound.

    Thread rule: the thread of the event loop that ran at the first `await`.
    """

    def __init__(self, *topics: str, **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(topics, ConsumerConfig.from_mapping(options))
        self._driver: AsyncDriver | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._iterator = AsyncRecordIterator(self._advance, self._hooks.transform)
        self._ending: AsyncRecordIterator | None = None  # of the last read_to_end

    # -- records

    def __aiter__(self) -> AsyncRecordIterator:
        """Records, as they come, without an end. The position moves with every record."""
        self._check_open()
        return self._iterator

    async def poll(self, max_records: int | None = None, timeout: float | None = None) -> list[Record]:
        """Up to `max_records` (None: max_poll_records) records: those at hand, or the first that come.

        An empty list when none came in time. `timeout` 0: what is at hand.
        """
        wanted = self.config.max_poll_records if max_records is None else max_records
        if wanted < 1:
            raise ValueError(f"max_records is 1 or more, got {wanted}")
        # No await from the first record taken to the return: cancelling cannot lose one.
        self._detach()
        chunk = await self._run(self._fetcher.next_chunk, timeout)
        records: list[Record] = []
        while chunk is not None and self._take(chunk, records, wanted):
            chunk = self._fetcher.next_chunk()
        self._pump()
        return self._hooks.intercept(records) if records and self._hooks.interceptors else records

    async def poll_batch(self, timeout: float | None = None) -> ConsumerBatch:
        """All records at hand, or the first that come, as one object with columns; empty when none came in time. Not more
        than prefetch_bytes_max and a record batch, decompressed.

        Its keys and values are bytes: deserializers and interceptors do not see them.
        """
        self._detach()
        chunk = await self._run(self._fetcher.next_chunk, timeout)
        batch = ConsumerBatch()
        while chunk is not None and batch.size_bytes < self.config.prefetch_bytes_max:
            try:
                batch.add(chunk, bytes_max=self.config.prefetch_bytes_max)
            except Exception:
                if not len(batch):
                    raise
                break
            chunk = self._fetcher.next_chunk()
        self._pump()
        return batch

    async def read_to_end(self, timeout: float | None = None) -> AsyncRecordIterator:
        """The records up to the end offsets of this moment: `async for record in await consumer.read_to_end()`.

        `timeout`: for learning the end offsets (None: default_api_timeout_ms).
        """
        if self._topics and not self._fetcher.partitions:
            await self._wait(lambda: self._fetcher.partitions or None, self._api_timeout(timeout), "finding the topics")
        ends = await self.end_offsets(self.assignment(), timeout)

        async def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            await self._next_turn(chunk)
            # A long poll behind the end would hold up what the user does next.
            self._fetcher.until = ends
            while True:
                pending = self._pending_ends(ends)
                if not pending:
                    return None
                found = await self._run(partial(self._progress_to, pending), None)
                if isinstance(found, FetchedRecords):
                    return found

        self._ending = AsyncRecordIterator(advance, self._hooks.transform)
        return self._ending

    async def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        await self._next_turn(chunk)
        self._fetcher.until = None
        return await self._run(self._fetcher.next_chunk, None)

    async def _next_turn(self, chunk: FetchedRecords | None) -> None:
        """A chunk is used up, or a turn of the event loop is due."""
        self._check_open()
        if chunk is not None:
            self._fetcher.release(chunk)
            await asyncio.sleep(0)

    # -- waiting

    def _start(self) -> AsyncDriver:
        self._check_open()
        if self._driver is None:
            self._driver = AsyncDriver(self._core)
        return self._driver

    async def _run(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """Wait until `look()` finds something, or the time is over (None)."""
        driver = self._start()
        clock = self._core.clock
        end = None if timeout is None else clock() + timeout
        while True:
            self._check_open()
            self._pump()
            self._raise_errors()
            found = look()
            if found is not None:
                return found
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
        driver.kick()
        wait = LOOK_AGAIN_S if self._sends_blocked else min(self._wakeup_in() or LOOK_AROUND_S, LOOK_AROUND_S)
        due = driver.loop.time() + max(wait, LOOK_AGAIN_S)
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = driver.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._on_progress()

    def _on_progress(self) -> None:
        """Something came: the next fetch goes out, and who waits looks again."""
        if self._closed:
            return
        self._pump()
        for waiter in self._waiters:
            _wake(waiter)

    async def _wait(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """`_run` for calls that must come to a result: raises when they do not in time."""
        found = await self._run(look, timeout_s)
        if found is None:
            raise self._timed_out(what, timeout_s)
        return found

    def _api_timeout(self, timeout: float | None) -> float:
        return self.config.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _detach(self) -> None:
        self._fetcher.until = None
        self._iterator.detach()
        if self._ending is not None:
            self._ending.detach()

    # -- positions

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; those that stay keep their position."""
        self._assign(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on at `offset`. Raises ValueError for a negative offset or a partition that is not assigned."""
        self._seek(partition, offset)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Go on at the first record of these partitions; none given: of all that are assigned."""
        self._reset(partitions, BEGINNING)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Go on after the last record of these partitions; none given: of all that are assigned."""
        self._reset(partitions, END)

    def pause(self, *partitions: Partition) -> None:
        """Hand out nothing of these partitions until `resume`. What is prefetched is kept."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: Partition) -> None:
        """End a pause."""
        self._set_paused(partitions, False)
        for waiter in self._waiters:
            _wake(waiter)

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out; waits until it is known (None: default_api_timeout_ms)."""
        state = self._state(partition)
        if state.position >= 0:
            return state.position

        def look() -> int | None:
            return state.position if state.position >= 0 else None

        return await self._wait(look, self._api_timeout(timeout), f"position({partition})")

    async def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return offsets_of(await self._ask(timestamps_of(partitions, BEGINNING), timeout))

    async def end_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, or what is decided of transactions under
        read_committed."""
        return offsets_of(await self._ask(timestamps_of(partitions, END), timeout))

    async def offsets_for_times(
        self, timestamps: Mapping[Partition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970) in each partition; None where there is none."""
        return await self._ask({TopicPartition(*tp): time_ms for tp, time_ms in timestamps.items()}, timeout)

    async def _ask(
        self, targets: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        query = self._query(targets)
        try:
            await self._wait(
                lambda: query if query.finished else None, self._api_timeout(timeout), "asking for offsets"
            )
        finally:
            self._queries.remove(query)
        return query.answers(targets)

    # -- the end

    async def close(self) -> None:
        """Close the connections. Idempotent; every later call raises ClientClosed, and so does one that waits."""
        if self._closed:
            return
        self._closed = True
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
                for waiter in self._waiters:
                    _wake(waiter)
        self._hooks.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _wake(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)
