"""The blocking consumer."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self, Unpack

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords, Record, RecordIterator
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
from fastq.consumer.group.heartbeat import Beat, HeartbeatThread
from fastq.consumer.group.listener import Callback, is_due
from fastq.consumer.group.membership import Change, ChangeKind
from fastq.consumer.offsets import OffsetAndTimestamp, offsets_of
from fastq.errors import ClientClosed, FastqError
from fastq.metadata import TopicPartition
from fastq.net.blocking import BlockingDriver

logger = logging.getLogger("fastq.consumer")

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
FOREVER_S = 3600.0
# How long a farewell to the group may take.
LEAVE_S = 3.0
# How long commit() waits for its answer before it looks after everything else.
FIRST_LOOK_S = 0.05


class Consumer(ConsumerBase):
    """Reads its topics: as a member of a group (`group_id`), those of their partitions that the group gives it, from what the
    group has committed on; without a group, all of them, and commits nothing.

    `topics`: what to read, by name, or one pattern (compiled, or a string that begins with ^; with a group); none: `subscribe`
    or `assign` decides. Without a group, new partitions are read from their beginning. The options are those of
    `ConsumerConfig`; names with Kafka's dots may be given as `**{"fetch.min.bytes": 1}`.

    Iterate over it, `poll` lists, or `poll_batch` columns, in any mix: all three go on where the last one stopped. Time-outs
    are in seconds; None waits as long as it takes. Errors: a subclass of FastqError, raised once; the next call goes on.

    Commits: with `enable_auto_commit`, what the application is done with is committed every auto_commit_interval_ms, before
    partitions are given up, and on close. It is done with a record, list or batch when it asks for the next: so the record
    in hand when a loop is left is read again, unless it is committed by `commit`.

    A handler that takes longer than max_poll_interval_ms costs the member its place; the next call raises
    MaxPollIntervalExceeded, which names the record. Every record that an iterator hands out is a sign of life.

    Thread rule: one thread at a time; `close`, `wakeup` and `stop` may be called from another, the last two from signal handlers
    as well. What is fetched is read from the sockets during calls; with a group, a background thread sends heartbeats in
    between, and on plain connections (security_protocol PLAINTEXT, not on Windows) a native thread does when no Python can run, as
    while an extension holds the GIL. A child of a fork cannot use its parent's consumer (ForkedClient).
    """

    def __init__(self, *topics: str | re.Pattern[str], **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(topics, ConsumerConfig.from_mapping(options))
        self._driver = BlockingDriver(self._core)
        self._heartbeat: HeartbeatThread | None = None
        self._beats_under_way = 0
        self._iterator = RecordIterator(self._hooks.between(self._advance), self._hooks.transform, self._progress)
        self._ending: RecordIterator | None = None  # of the last read_to_end

    # -- records

    def __iter__(self) -> RecordIterator:
        """Records, as they come, without an end. The position moves with every record."""
        self._check_open()
        return self._iterator

    def poll(self, max_records: int | None = None, timeout: float | None = None) -> list[Record]:
        """Up to `max_records` (None: max_poll_records) records: those at hand, or the first that come.

        An empty list when none came in time. `timeout` 0: what is at hand, after a look at the sockets.
        """
        wanted = self.config.max_poll_records if max_records is None else max_records
        if wanted < 1:
            raise ValueError(f"max_records is 1 or more, got {wanted}")
        self._detach()
        records: list[Record] = []
        self._asks_next()
        while True:
            chunk = self._chunk_for(records, timeout)
            if chunk is None or not self._take(chunk, records, wanted):
                break
        return self._hooks.intercept(records) if records and self._hooks.interceptors else records

    def poll_batch(
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
        self._asks_next()
        batch = ConsumerBatch()
        while batch.size_bytes < self.config.prefetch_bytes_max:
            chunk = self._chunk_for(batch, timeout) if until is None else self._chunk_before(until, batch, timeout)
            if chunk is None:
                break
            if self._group is not None:
                self._group.handed.taking(chunk)
            try:
                batch.add(chunk, bytes_max=self.config.prefetch_bytes_max)
            except Exception:
                if not len(batch):
                    raise
                break
        return batch

    def read_to_end(self, timeout: float | None = None) -> RecordIterator:
        """The records up to the end offsets of this moment, of all partitions assigned; then the iterator ends.

        `timeout`: for learning the end offsets (None: default_api_timeout_ms).
        """
        if self._topics and not self._fetcher.partitions:
            self._wait(
                lambda: self._fetcher.partitions or None, self._api_timeout(timeout), "finding the topics", asks=True
            )
        ends = self.end_offsets(self.assignment(), timeout)

        def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            with self._driver.lock:
                self._next_turn(chunk)
                # A long poll behind the end would hold up what the user does next.
                self._fetcher.until = ends
                while True:
                    pending = self._pending_ends(ends)
                    if not pending or self._stopping:
                        return None
                    found = self._run(partial(self._progress_to, pending), None, asks=True)
                    if isinstance(found, FetchedRecords):
                        return self._iterating(found)

        iterator = RecordIterator(self._hooks.between(advance), self._hooks.transform, self._progress)
        self._ending = iterator
        return iterator

    def _chunk_for(self, taken: Any, timeout: float | None) -> FetchedRecords | None:
        """The next chunk; with something `taken` already only one that is at hand, and errors wait for the next call."""
        with self._driver.lock:
            if len(taken):
                return self._fetcher.next_chunk()
            return self._run(self._fetcher.next_chunk, timeout, asks=True)

    def _chunk_before(
        self, ends: Mapping[TopicPartition, int], taken: Any, timeout: float | None
    ) -> FetchedRecords | None:
        """`_chunk_for` of what lies before `ends`; None also when nothing does any more."""
        with self._driver.lock:
            # A fetch behind the end would be for nothing.
            self._fetcher.until = ends
            while True:
                pending = self._pending_ends(ends)
                if not pending:
                    return None
                if len(taken):
                    return self._fetcher.next_chunk(pending)
                found = self._run(partial(self._progress_to, pending), timeout, asks=True)
                if found is None or isinstance(found, FetchedRecords):
                    return found

    def _asks_next(self) -> None:
        with self._driver.lock:
            self._asks()

    def _iterating(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        if self._group is not None:
            self._group.handed.chunk = chunk
        return chunk

    def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        with self._driver.lock:
            self._next_turn(chunk)
            self._fetcher.until = None
            return self._iterating(self._run(self._fetcher.next_chunk, None, asks=True))

    def _next_turn(self, chunk: FetchedRecords | None) -> None:
        """A chunk is used up: room for the next fetch, and a look at what came meanwhile."""
        self._check_open()
        self._asks()
        if chunk is not None:
            self._fetcher.release(chunk)

    # -- waiting

    def _run(
        self, look: Callable[[], T | None], timeout: float | None, *, asks: bool = False, quiet: bool = False
    ) -> T | None:
        """Drive until `look()` finds something, or the time is over (None). The lock is held.

        The next fetch goes out before what was found is handed out. `asks`: for records, so rebalances go on. `quiet`: errors
        wait for the next call.
        """
        if not asks:
            return self._drive(look, timeout, False, quiet)
        self._asking += 1
        try:
            return self._drive(look, timeout, True, quiet)
        finally:
            self._asking -= 1

    def _drive(self, look: Callable[[], T | None], timeout: float | None, asks: bool, quiet: bool) -> T | None:
        """`_run`, whose words hold."""
        clock = self._core.clock
        end = clock() + (FOREVER_S * 24 * 365 if timeout is None else timeout)
        driver = self._driver
        self._check_open()
        driver.run_once(0.0)
        while True:
            self._check_open()
            self._step()
            self._run_callbacks()
            # Steps come before errors: one that stays must not keep a listener from hearing what is lost.
            if asks and not self._stopping and self._rebalance():
                continue
            if not quiet:
                self._raise_errors()
            if asks and self._stopping:
                return None
            found = look()
            if found is not None:
                driver.flush()
                return found
            if not quiet:
                self._raise_if_woken()
                self._raise_hopeless()
            remaining = end - clock()
            if remaining <= 0:
                driver.flush()
                return None
            wakeup = self._wakeup_in()
            driver.run_once(min(remaining, FOREVER_S if wakeup is None else wakeup))

    def _wait(self, look: Callable[[], T | None], timeout_s: float, what: str, *, asks: bool = False) -> T:
        """`_run` for calls that must come to a result: raises when they do not in time."""
        with self._driver.lock:
            found = self._run(look, timeout_s, asks=asks)
            if found is None:
                raise self._timed_out(what, timeout_s)
            return found

    def _wake(self) -> None:
        self._driver.wakeup()

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

        listener: an object with some of `on_assigned`, `on_revoked` and `on_lost` (see RebalanceListener), or give functions.
        They are called with a list of partitions during the calls that ask for records, and may commit and seek. Partitions
        that were lost are told to `on_revoked` when there is no `on_lost`.
        """
        callbacks = listener_callbacks(listener, on_assigned, on_revoked, on_lost)
        with self._driver.lock:
            self._detach()
            self._subscribe(topics, callbacks)  # type: ignore[arg-type]  # checked there

    def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, after the commits that are due, or let go of what was assigned."""
        with self._driver.lock:
            self._check_open()
            self._detach()
            self._leave_group("the application unsubscribes")
            self._core.unwatch_topics(self._topics)
            self._topics = ()
            self._unknown_since.clear()
            self._fetcher.assign(())

    def commit(self, what: Committable = None, timeout: float | None = None) -> None:
        """Commit offsets for the group, and wait until they are committed (timeout None: default_api_timeout_ms).

        what: a record, several of them, a batch: up to and with these; a mapping of partitions to offsets (the next to be
        read) or OffsetAndMetadata; None: everything that was handed out. Raises what the coordinator refuses, with group,
        member, generation and partition: NotAssigned, RebalanceInProgress, IllegalGeneration, UnknownMemberId ...
        """
        timeout_s = self._api_timeout(timeout)
        with self._driver.lock:
            commit = self._begin_commit(what, timeout_s)
            if not commit.finished:
                # The short way, which is the usual one: nothing but the commit, until something comes.
                core = self._core
                for outgoing in self._in_group().committer.requests(core.clock(), core.can_send):
                    self._send(outgoing, self._driver.exchange)
                if not commit.finished:
                    self._driver.run_once(min(timeout_s, FIRST_LOOK_S))
            if not commit.finished:
                self._run(lambda: commit.finished or None, timeout_s + 1.0, quiet=True)
        if commit.error is not None or not commit.finished:
            raise commit.error or self._timed_out("commit()", timeout_s)

    def commit_async(self, what: Committable = None, callback: CommitCallback | None = None) -> None:
        """Commit offsets without waiting. `callback(offsets, error)` is called during a later call of this consumer; without
        one, a failure is logged. Commits are made in the order of their calls."""
        with self._driver.lock:
            self._begin_commit(what, self._api_timeout(None), callback)
            self._step()
            self._driver.flush()

    def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is."""
        wanted = [TopicPartition(*tp) for tp in partitions]
        with self._driver.lock:
            self._check_open()
            query = self._in_group().committed_query(wanted)
            self._queries.append(query)
            try:
                self._wait(lambda: query.finished or None, self._api_timeout(timeout), "asking for committed offsets")
            finally:
                self._queries.remove(query)
        if query.error is not None:
            raise query.error
        return {tp: query.results[tp] for tp in wanted}

    def _rebalance(self) -> bool:
        """Carry out the step of a rebalance that is due; whether there was one. The lock is held."""
        change = self._next_change()
        if change is None:
            self._keep_alive()
            return False
        self._carry_out(change)
        return True

    def _carry_out(self, change: Change) -> None:
        group = self._in_group()
        member = group.membership
        self._in_listener = True
        try:
            if change.kind is ChangeKind.REVOKE:
                self._commit_and_wait()
            elif change.kind is ChangeKind.ASSIGN:
                group.apply(change)
            callback = group.callbacks.get(change.kind)
            if callback is not None and is_due(change):
                with self._unlocked():
                    callback(list(change.partitions))
        finally:
            self._in_listener = False
            if change.kind is not ChangeKind.ASSIGN:
                group.apply(change)
            if member is not None:
                member.carried_out(change)

    def _commit_and_wait(self, timeout: float | None = None) -> None:
        """Commit what is finished, and wait for this and all commits before it."""
        self._commit_finished()
        committer = self._in_group().committer
        if committer.busy:
            timeout_s = self.config.request_timeout_ms / 1000 if timeout is None else timeout
            self._run(lambda: not committer.busy or None, timeout_s, quiet=True)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """While the application's code runs, the thread of heartbeats may go on."""
        lock = self._driver.lock
        saved = lock._release_save()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            lock._acquire_restore(saved)  # type: ignore[attr-defined]

    def _run_callbacks(self) -> None:
        while self._callbacks:
            callback = self._callbacks.popleft()
            with self._unlocked():
                callback()

    def _keep_alive(self) -> None:
        """With a membership, see to it that heartbeats go on between calls."""
        if self._heartbeat is None and self._group is not None and self._group.membership is not None:
            self._heartbeat = HeartbeatThread(self._driver, self._beat)
            self._heartbeat.start()

    def _beat(self) -> Beat:
        """Called by the thread of heartbeats, with the lock."""
        group, now = self._group, self._core.clock()
        if group is None or group.membership is None or self._closed:
            return Beat(False, None)

        self._follow_life()
        for outgoing in group.heartbeats(now, self._core.can_send):
            self._beats_under_way += 1

            def done(response: Any, error: FastqError | None, at: float, then: Any = outgoing.done) -> None:
                self._beats_under_way -= 1
                then(response, error, at)

            self._send(outgoing._replace(done=done))
        wait_s = group.next_heartbeat(now)
        unreachable = wait_s is not None and wait_s <= 0
        return Beat(self._beats_under_way > 0 or unreachable, wait_s)

    def _leave_group(self, reason: str, timeout: float | None = None) -> None:
        """Commit what is due, tell the listener, and leave. The lock is held. Errors of leaving are nobody's concern."""
        group = self._group
        if group is None or self._in_listener:
            return
        self._commit_and_wait(timeout)
        owned = tuple(group.membership.owned) if group.membership is not None else ()
        callback = group.callbacks.get(ChangeKind.REVOKE)
        try:
            if owned and callback is not None:
                self._in_listener = True
                with self._unlocked():
                    callback(sorted(owned))
        finally:
            self._in_listener = False
            left: list[bool] = []
            for outgoing in group.end_membership(reason):
                self._send(outgoing._replace(done=lambda response, error, at: left.append(True), timeout_s=LEAVE_S))
                self._run(lambda: left or None, LEAVE_S, quiet=True)

    # -- positions

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; those that stay keep their position."""
        with self._driver.lock:
            self._assign(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on at `offset`. Raises ValueError for a negative offset or a partition that is not assigned."""
        with self._driver.lock:
            self._seek(partition, offset)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Go on at the first record of these partitions; none given: of all that are assigned."""
        with self._driver.lock:
            self._reset(partitions, BEGINNING)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Go on after the last record of these partitions; none given: of all that are assigned."""
        with self._driver.lock:
            self._reset(partitions, END)

    def pause(self, *partitions: Partition) -> None:
        """Hand out nothing of these partitions until `resume`. What is prefetched is kept."""
        with self._driver.lock:
            self._set_paused(partitions, True)

    def resume(self, *partitions: Partition) -> None:
        """End a pause."""
        with self._driver.lock:
            self._set_paused(partitions, False)

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out; waits until it is known (None: default_api_timeout_ms)."""
        state = self._state(partition)
        if state.position >= 0:
            return state.position

        def look() -> int | None:
            return state.position if state.position >= 0 else None

        return self._wait(look, self._api_timeout(timeout), f"position({partition})")

    def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._ends(timestamps_of(partitions, BEGINNING), timeout)

    def end_offsets(self, partitions: Iterable[Partition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, or what is decided of transactions under
        read_committed."""
        return self._ends(timestamps_of(partitions, END), timeout)

    def offsets_for_times(
        self, timestamps: Mapping[Partition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970) in each partition; None where there is none."""
        return self._ask({TopicPartition(*tp): time_ms for tp, time_ms in timestamps.items()}, timeout)

    def _ends(self, targets: Mapping[TopicPartition, int], timeout: float | None) -> dict[TopicPartition, int]:
        return offsets_of(self._ask(targets, timeout))

    def _ask(
        self, targets: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        with self._driver.lock:
            query = self._query(targets)
            try:
                self._wait(lambda: query if query.finished else None, self._api_timeout(timeout), "asking for offsets")
            finally:
                self._queries.remove(query)
        return query.answers(targets)

    # -- the end

    def close(self, timeout: float | None = None) -> None:
        """Leave the group, after the commits that are due, and close the connections. Idempotent; every later call raises
        ClientClosed. timeout: for the commits (None: request_timeout_ms; 0: they are sent, and not waited for)."""
        with self._driver.lock:
            if self._closed:
                return
            try:
                self._leave_group("the consumer is closed", timeout)
            except FastqError as error:
                logger.warning("leaving the group failed: %s", error)
            finally:
                self._close()
        self._hooks.close()

    def _close(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._liveness is not None:
            self._liveness.close()
        self._closed = True
        self._detach()
        try:
            for outgoing in self._fetcher.closing_requests(self._core.can_send):
                self._send(outgoing)
            self._driver.run_once(0.0)
        except FastqError:
            pass  # the sessions end with their connections
        self._driver.close()
        if self._group is not None:
            self._group.committer.fail_all(ClientClosed())
        self._run_callbacks()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
