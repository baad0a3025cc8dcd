"""The asyncio consumer: the blocking one's names and behaviour, with `await`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self, Unpack

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import AsyncRecordIterator, FetchedRecords, Record
from fastq.consumer.base import (
    BEGINNING,
    END,
    CommitCallback,
    Committable,
    ConsumerBase,
    listener_callbacks,
    timestamps_of,
)
from fastq.consumer.config import ConsumerConfig, ConsumerOptions
from fastq.consumer.group.commits import OffsetAndMetadata
from fastq.consumer.group.listener import Callback, is_due
from fastq.consumer.group.membership import Change, ChangeKind
from fastq.consumer.offsets import OffsetAndTimestamp, offsets_of
from fastq.errors import ClientClosed, FastqError, LoadingWouldBlock
from fastq.metadata import TopicPartition
from fastq.net.aio import AsyncDriver

logger = logging.getLogger("fastq.consumer")

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
# Connections and metadata come without an announcement: how often to look while they are awaited, and otherwise.
LOOK_AGAIN_S = 0.005
LOOK_AROUND_S = 0.5
# How long a farewell to the group may take.
LEAVE_S = 3.0


class AsyncConsumer(ConsumerBase):
    """Reads its topics as a member of a group, or all of them without one: as `Consumer`, with `async with`, `async for` and
    `await`.

    Iterating lets the event loop run at least every 1,024 records. Cancelling an `await` loses no record and hands none out
    twice. Prefetching and heartbeats go on while nobody awaits, as long as the event loop runs. Rebalance listeners may be
    coroutine functions; they run as a task of their own, which cancelling an `await` leaves alone.

    When the loop is blocked, a native thread sends the heartbeats on plain connections (security_protocol PLAINTEXT, not on
    Windows); with TLS or SASL a loop that is blocked for session_timeout_ms loses its place in the group.

    Thread rule: the thread of the event loop that ran at the first `await`; `wakeup` and `stop` from any, and from signal handlers.
    """

    def __init__(self, *topics: str | re.Pattern[str], **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(topics, ConsumerConfig.from_mapping(options))
        self._driver: AsyncDriver | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._iterator = AsyncRecordIterator(self._hooks.between(self._advance), self._hooks.transform, self._progress)
        self._ending: AsyncRecordIterator | None = None  # of the last read_to_end
        self._closing = False
        self._changing: asyncio.Task[None] | None = None  # the step of a rebalance that is being carried out

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
        return self._hooks.intercept(records) if records and self._hooks.interceptors else records

    async def poll_batch(
        self, timeout: float | None = None, *, until: Mapping[TopicPartition, int] | None = None
    ) -> ConsumerBatch:
        """All records at hand, or the first that come, as one object with columns; empty when none came in time. Not more
        than prefetch_bytes_max and a record batch, decompressed.

        until: read only these partitions, and each of them up to, but not with, this offset. Empty at once when all of them
        have come there, and `position` says so: also over offsets without a record, which compaction, transactions and
        aborted ones leave. The time-out is then for each step on.

        Its keys and values are bytes: deserializers and interceptors do not see them.
        """
        self._detach()
        self._asks()
        if until is None:
            chunk = await self._run(self._fetcher.next_chunk, timeout, asks=True)
        else:
            chunk = await self._first_before(until, timeout)
        batch = ConsumerBatch()
        while chunk is not None and batch.size_bytes < self.config.prefetch_bytes_max:
            if self._group is not None:
                self._group.handed.taking(chunk)
            try:
                batch.add(chunk, bytes_max=self.config.prefetch_bytes_max)
            except Exception:
                if not len(batch):
                    raise
                break
            chunk = self._fetcher.next_chunk(None if until is None else self._pending_ends(until))
        self._pump()
        return batch

    async def _first_before(self, ends: Mapping[TopicPartition, int], timeout: float | None) -> FetchedRecords | None:
        """The first chunk of what lies before `ends`; None when none came in time, or nothing does any more."""
        self._fetcher.until = ends
        while pending := self._pending_ends(ends):
            found = await self._run(partial(self._progress_to, pending), timeout, asks=True)
            if found is None or isinstance(found, FetchedRecords):
                return found
        return None

    async def read_to_end(self, timeout: float | None = None) -> AsyncRecordIterator:
        """The records up to the end offsets of this moment: `async for record in await consumer.read_to_end()`.

        `timeout`: for learning the end offsets (None: default_api_timeout_ms).
        """
        if self._topics and not self._fetcher.partitions:
            await self._wait(
                lambda: self._fetcher.partitions or None, self._api_timeout(timeout), "finding the topics", asks=True
            )
        ends = await self.end_offsets(self.assignment(), timeout)

        async def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            await self._next_turn(chunk)
            # A long poll behind the end would hold up what the user does next.
            self._fetcher.until = ends
            while True:
                pending = self._pending_ends(ends)
                if not pending or self._stopping:
                    return None
                found = await self._run(partial(self._progress_to, pending), None, asks=True)
                if isinstance(found, FetchedRecords):
                    return self._iterating(found)

        self._ending = AsyncRecordIterator(self._hooks.between(advance), self._hooks.transform, self._progress)
        return self._ending

    async def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        await self._next_turn(chunk)
        self._fetcher.until = None
        return self._iterating(await self._run(self._fetcher.next_chunk, None, asks=True))

    def _iterating(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        if self._group is not None:
            self._group.handed.chunk = chunk
        return chunk

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
        return self._driver

    async def _run(
        self, look: Callable[[], T | None], timeout: float | None, *, asks: bool = False, quiet: bool = False
    ) -> T | None:
        """Wait until `look()` finds something, or the time is over (None). `asks`: for records, so rebalances go on. `quiet`:
        errors wait for the next call."""
        if not asks:
            return await self._drive(look, timeout, False, quiet)
        self._asking += 1
        try:
            return await self._drive(look, timeout, True, quiet)
        finally:
            self._asking -= 1

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
            if asks and self._stopping:
                return None
            if not rebalances:
                found = look()
                if found is not None:
                    return found
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
            driver.loop.call_soon(self._callbacks.popleft())
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

    async def _wait(self, look: Callable[[], T | None], timeout_s: float, what: str, *, asks: bool = False) -> T:
        """`_run` for calls that must come to a result: raises when they do not in time."""
        found = await self._run(look, timeout_s, asks=asks)
        if found is None:
            raise self._timed_out(what, timeout_s)
        return found

    def _wake(self) -> None:
        if self._driver is not None:
            # Without a loop any more there is nobody to wake.
            with contextlib.suppress(RuntimeError):
                self._driver.loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)

    def _api_timeout(self, timeout: float | None) -> float:
        return self.config.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _detach(self) -> None:
        self._fetcher.until = None
        self._iterator.detach()
        if self._ending is not None:
            self._ending.detach()

    # -- groups

    def subscribe(
        self,
        *topics: str | re.Pattern[str] | Iterable[str],
        listener: object | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read these topics, or those that match one pattern, in place of what was read before.

        listener: an object with some of `on_assigned`, `on_revoked` and `on_lost` (see RebalanceListener), or give functions, or
        coroutine functions. They are called with a list of partitions while records are awaited, and may commit and seek.
        Partitions that were lost are told to `on_revoked` when there is no `on_lost`.
        """
        callbacks = listener_callbacks(listener, on_assigned, on_revoked, on_lost)
        self._detach()
        self._subscribe(topics, callbacks)  # type: ignore[arg-type]  # checked there

    async def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, after the commits that are due, or let go of what was assigned."""
        self._check_open()
        self._detach()
        await self._leave_group("the application unsubscribes")
        self._core.unwatch_topics(self._topics)
        self._topics = ()
        self._unknown_since.clear()
        self._fetcher.assign(())

    async def commit(self, what: Committable = None, timeout: float | None = None) -> None:
        """Commit offsets for the group, and wait until they are committed (timeout None: default_api_timeout_ms).

        what: a record, several of them, a batch: up to and with these; a mapping of partitions to offsets (the next to be
        read) or OffsetAndMetadata; None: everything that was handed out. Raises what the coordinator refuses, with group,
        member, generation and partition: NotAssigned, RebalanceInProgress, IllegalGeneration, UnknownMemberId ... Cancelling
        the `await` does not undo it.
        """
        timeout_s = self._api_timeout(timeout)
        commit = self._begin_commit(what, timeout_s)
        if not commit.finished:
            await self._run(lambda: commit.finished or None, timeout_s + 1.0, quiet=True)
        if commit.error is not None or not commit.finished:
            raise commit.error or self._timed_out("commit()", timeout_s)

    def commit_async(self, what: Committable = None, callback: CommitCallback | None = None) -> None:
        """Commit offsets without waiting. `callback(offsets, error)` is called by the event loop; without one, a failure is
        logged. Commits are made in the order of their calls."""
        self._begin_commit(what, self._api_timeout(None), callback)
        self._pump()

    async def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is."""
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._check_open()
        query = self._in_group().committed_query(wanted)
        self._queries.append(query)
        try:
            await self._wait(lambda: query.finished or None, self._api_timeout(timeout), "asking for committed offsets")
        finally:
            self._queries.remove(query)
        if query.error is not None:
            raise query.error
        return {tp: query.results[tp] for tp in wanted}

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
            self._changing = self._start().loop.create_task(self._carry_out(change))
            self._changing.add_done_callback(lambda _: self._on_progress())
        return True

    def _asks(self) -> None:
        # Other tasks may ask while a listener runs; it must not itself, for it would wait for its own end.
        self._in_listener = self._changing is not None and asyncio.current_task() is self._changing
        super()._asks()

    async def _carry_out(self, change: Change) -> None:
        group = self._in_group()
        member = group.membership
        try:
            if change.kind is ChangeKind.REVOKE:
                await self._commit_and_wait()
            elif change.kind is ChangeKind.ASSIGN:
                group.apply(change)
            callback = group.callbacks.get(change.kind)
            if callback is not None and is_due(change):
                await _called(callback, change.partitions)
        finally:
            if change.kind is not ChangeKind.ASSIGN:
                group.apply(change)
            if member is not None:
                member.carried_out(change)

    async def _commit_and_wait(self, timeout: float | None = None) -> None:
        """Commit what is finished, and wait for this and all commits before it."""
        self._commit_finished()
        committer = self._in_group().committer
        if committer.busy:
            timeout_s = self.config.request_timeout_ms / 1000 if timeout is None else timeout
            await self._run(lambda: not committer.busy or None, timeout_s, quiet=True)

    async def _leave_group(self, reason: str, timeout: float | None = None) -> None:
        """Commit what is due, tell the listener, and leave. Errors of leaving are nobody's concern."""
        group = self._group
        if group is None or self._driver is None:
            return
        if self._changing is not None and asyncio.current_task() is not self._changing:
            await asyncio.wait([self._changing], timeout=timeout)
        await self._commit_and_wait(timeout)
        owned = tuple(group.membership.owned) if group.membership is not None else ()
        callback = group.callbacks.get(ChangeKind.REVOKE)
        try:
            if owned and callback is not None:
                await _called(callback, sorted(owned))
        finally:
            left: list[bool] = []
            for outgoing in group.end_membership(reason):
                self._send(outgoing._replace(done=lambda response, error, at: left.append(True), timeout_s=LEAVE_S))
                await self._run(lambda: left or None, LEAVE_S, quiet=True)

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

    async def close(self, timeout: float | None = None) -> None:
        """Leave the group, after the commits that are due, and close the connections. Idempotent; every later call raises
        ClientClosed, and so does one that waits. timeout: for the commits (None: request_timeout_ms; 0: they are sent, and not
        waited for)."""
        if self._closed or self._closing:
            return
        self._closing = True
        try:
            await self._leave_group("the consumer is closed", timeout)
        except FastqError as error:
            logger.warning("leaving the group failed: %s", error)
        finally:
            await self._close()

    async def _close(self) -> None:
        self._closed = True
        if self._liveness is not None:
            self._liveness.close()
        if self._changing is not None:
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
                for waiter in self._waiters:
                    _wake(waiter)
        if self._group is not None:
            self._group.committer.fail_all(ClientClosed())
        while self._callbacks:
            self._callbacks.popleft()()
        self._hooks.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _wake(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _called(callback: Callback, partitions: Iterable[TopicPartition]) -> None:
    """Call a listener, and wait for it when it is a coroutine function."""
    answer = callback(list(partitions))
    if isinstance(answer, Awaitable):
        await answer
