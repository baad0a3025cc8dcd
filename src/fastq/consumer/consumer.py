"""The blocking consumer."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords, Record, RecordIterator
from fastq._native.turn import Turn
from fastq.callbacks import check_plain
from fastq.consumer.base import K, Partition, Topics, V
from fastq.consumer.calls import ConsumerCalls, Steps, Tell, Wait
from fastq.consumer.committable import Committable
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.fetcher import NOT_SENT
from fastq.consumer.group.commits import Commit
from fastq.consumer.group.heartbeat import Beat, HeartbeatThread
from fastq.consumer.group.listener import Callback
from fastq.consumer.offsets import OffsetAndTimestamp
from fastq.consumer.tables import BatchStream, chosen_columns
from fastq.errors import ClientClosed, ConcurrentModification, FastqError
from fastq.metadata import OffsetAndMetadata, TopicPartition
from fastq.net.blocking import BlockingDriver
from fastq.other_clients import refuse_keywords
from fastq.timeouts import check_timeout
from fastq.values import NamedTuple

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
FOREVER_S = 3600.0

AT_ONCE_S = 100e-6
"""Who comes back for records within this time is handed the next ones before their successors are asked for."""
# How long the farewell of a consumer that was dropped may take, which is nobody's call.
DROPPED_S = 0.5
LISTENER_HINT = "Coroutine functions are for AsyncConsumer; a blocking one waits for what it does"
# How long commit() waits for its answer before it looks after everything else.
FIRST_LOOK_S = 0.05


class _Ending(NamedTuple):
    """A close: by whom, and whether it is over."""

    thread: int
    over: threading.Event


class Consumer(ConsumerCalls, Generic[K, V]):
    """Reads its topics: as a member of a group (`group_id`), those of their partitions that the group gives it, from what the
    group has committed on; without a group, all of them, and commits nothing.

    `topics`: what to read, by name, or one pattern (compiled, or a string that begins with ^; with a group); none: `subscribe`
    or `assign` decides. Without a group, new partitions are read from their beginning. The options are those of
    `ConsumerConfig`, as keyword arguments, or before the topics as a mapping, which may have Kafka's dotted names, or as a ConsumerConfig:
    `Consumer({"group.id": "billing"}, "orders")`.

    Iterate over it, `poll` lists, or `poll_batch` columns, in any mix: all three go on where the last one stopped. Time-outs
    are in seconds; None waits as long as it takes. Errors: a subclass of FastqError, raised once; the next call goes on.

    Commits: with `enable_auto_commit`, what the application is done with is committed every auto_commit_interval_ms, before
    partitions are given up, and on close. It is done with a record, list or batch when it asks for the next: so the record
    in hand when a loop is left is read again, unless it is committed by `commit`.

    A handler that takes longer than max_poll_interval_ms costs the member its place; the next call raises
    MaxPollIntervalExceeded, which names the record. Every record that an iterator hands out is a sign of life.

    Thread rule: one thread at a time: a call that may wait, while another thread waits in one, raises ConcurrentModification;
    `close`, `wakeup` and `stop` may be called from another, the last two from signal handlers as well. What is fetched is read from
    the sockets during calls; with a group, a background thread sends heartbeats in between, and on plain connections
    (security_protocol PLAINTEXT, not on Windows) a native thread does when no Python can run, as while an extension holds the GIL.
    A child of a fork cannot use its parent's consumer (ForkedClient).
    """

    @overload
    def __init__(
        self: Consumer[Any, Any],
        settings: Mapping[str, Any] | ConsumerConfig,
        /,
        *topics: Topics,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[KeyOf, ValueOf], *topics: Topics, **options: Unpack[TypedOptions[KeyOf, ValueOf]]
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[Any, ValueOf], *topics: Topics, **options: Unpack[NamedKeyOptions[ValueOf]]
    ) -> None: ...
    @overload
    def __init__(self: Consumer[KeyOf, Any], *topics: Topics, **options: Unpack[NamedValueOptions[KeyOf]]) -> None: ...
    @overload
    def __init__(self: Consumer[Any, Any], *topics: Topics, **options: Unpack[NamedOptions]) -> None: ...
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(given, options)
        self._driver = BlockingDriver(self._core)
        self._turn: Turn = Turn(self._driver)
        self._heartbeat: HeartbeatThread | None = None
        self._beats: set[object] = set()  # heartbeats of the thread that are on their way
        self._iterator: weakref.ref[RecordIterator[K, V]] | None = None
        self._waiting: int | None = None  # the thread in a call that waits, for which the lock is given up
        self._ending: _Ending | None = None  # the close that is under way, or over
        self._handed_at = 0.0  # when a call that asks for records found some

    # -- records

    def __iter__(self) -> RecordIterator[K, V]:
        """Records, as they come, without an end. The position moves with every record."""
        self._check_open()
        iterator = None if self._iterator is None else self._iterator()
        if iterator is None:
            iterator = self._iterate(self._advance)
            self._iterator = weakref.ref(iterator)
        return iterator

    def _iterate(self, advance: Callable[[FetchedRecords | None], FetchedRecords | None]) -> RecordIterator[K, V]:
        iterator: RecordIterator[K, V] = RecordIterator(
            self._hooks.between(advance), self._hooks.transform, self._progress
        )
        self._remember(iterator)
        return iterator

    def poll(
        self, *refused: Never, max_records: int | None = None, timeout: float | None = None, **foreign: Never
    ) -> list[Record[K, V]]:
        """Up to `max_records` (None: max_poll_records) records: those at hand, or the first that come within `timeout` seconds.

        An empty list when none came in time. Without a time-out it waits as long as it takes; 0: what is at hand, after a look at the
        sockets. Both go by name: `poll(timeout=1)`.
        """
        wanted = self._wanted(refused, foreign, max_records)
        records: list[Record] = []
        self._asks_next()
        while True:
            chunk = self._chunk_for(records, timeout)
            if chunk is None or not self._take(chunk, records, wanted):
                break
        if records and self._hooks.interceptors:
            records = self._hooks.intercept(records)
        self._taken = None  # nothing can come between here and the caller
        return records

    def poll_batch(
        self, *refused: Never, timeout: float | None = None, until: Mapping[TopicPartition, int] | None = None
    ) -> ConsumerBatch:
        """All records at hand, or the first that come, as one object with columns; empty when none came within `timeout` seconds. Without
        one it waits as long as it takes. Not more than prefetch_bytes_max and a record batch, decompressed: `read_batches_to_end` reads
        a whole topic.

        until: read only these partitions, and each of them up to, but not with, this offset. Empty at once when all of them
        have come there, and `position` says so: also over offsets without a record, which compaction, transactions and
        aborted ones leave. The time-out is then for each step on.

        Its keys and values are bytes: deserializers and interceptors do not see them.
        """
        self._by_name("poll_batch", refused)
        self._asks_next()
        batch = ConsumerBatch()
        while batch.size_bytes < self.config.prefetch_bytes_max:
            chunk = self._chunk_for(batch, timeout) if until is None else self._chunk_before(until, batch, timeout)
            if chunk is None:
                break
            if not self._take_columns(chunk, batch):
                break
        self._taken = None  # nothing can come between here and the caller
        return batch

    def _poll_chunk(self, timeout: float | None) -> ConsumerBatch:
        """`poll_batch` of what was fetched of one partition at once, for who passes records on by partition."""
        self._asks_next()
        batch = ConsumerBatch()
        chunk = self._chunk_for(batch, timeout)
        if chunk is not None:
            self._take_columns(chunk, batch)
        self._taken = None  # nothing can come between here and the caller
        return batch

    def read_to_end(self, timeout: float | None = None) -> RecordIterator[K, V]:
        """The records up to the end offsets of this moment, of all partitions assigned; then the iterator ends. What is read committed ends
        where the first transaction is open: one that has just been committed may be, as its marker is written behind the answer.
        A member of a group that has enough others is given no partitions, and reads nothing, once it is plain that none are to come.

        `timeout`: for learning what is assigned, and its end offsets (None: default_api_timeout_ms).
        """
        return self._iterate_before(self._call(self._find_ends(timeout)), None)

    def _iterate_before(self, ends: Mapping[TopicPartition, int], timeout: float | None) -> RecordIterator[K, V]:
        """The records before `ends`; the iterator ends, too, when none came within `timeout` seconds."""

        def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            return self._next_turn(chunk, ends, timeout)

        return self._iterate(advance)

    def read_batches_to_end(
        self, *, columns: Iterable[str] | None = None, headers: bool = False, timeout: float | None = None
    ) -> BatchStream:
        """`read_to_end` by `poll_batch`: an iterator of batches, which any taker of Arrow streams takes as it is:
        `polars.DataFrame(consumer.read_batches_to_end())`. It goes on where the consumer stands, and is read once.

        columns: of key, value, topic, partition, offset, timestamp, timestampType, headers, for Arrow (None: all but headers, which
        `headers` adds). timeout: for learning the end offsets (None: default_api_timeout_ms). Raises ValueError for another column.
        """
        names = chosen_columns(columns, headers)
        ends = self._call(self._find_ends(timeout))
        return BatchStream(partial(self._batch_before, ends), names)

    def _found_partitions(self) -> list[TopicPartition]:
        """What is assigned, once the topics are found."""
        return self._call(self._find_partitions(None))

    def _batch_before(self, ends: Mapping[TopicPartition, int]) -> ConsumerBatch | None:
        """The next batch of what lies before `ends`; None when nothing does any more, or `stop` was called."""
        while self._before(ends) and not self._stopping:
            batch = self.poll_batch(until=ends)
            if len(batch):
                return batch
        return None

    def _chunk_for(self, taken: Any, timeout: float | None) -> FetchedRecords | None:
        """The next chunk; with something `taken` already only one that is at hand, and errors wait for the next call."""
        with self._turn:
            if len(taken):
                return self._fetcher.next_chunk()
            return self._run(self._fetcher.next_chunk, timeout, asks=True)

    def _chunk_before(
        self, ends: Mapping[TopicPartition, int], taken: Any, timeout: float | None
    ) -> FetchedRecords | None:
        """`_chunk_for` of what lies before `ends`; None also when nothing does any more."""
        with self._turn:
            if len(taken):
                return self._at_hand_before(ends)
            return self._do(self._first_before(ends, timeout))

    def _asks_next(self) -> None:
        with self._turn:
            self._check_thread()
            self._detach()
            self._asks()

    def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        return self._next_turn(chunk, None)

    def _next_turn(
        self, chunk: FetchedRecords | None, ends: Mapping[TopicPartition, int] | None, timeout: float | None = None
    ) -> FetchedRecords | None:
        """A chunk is used up: room for the next fetch, a look at what came meanwhile, and the next chunk."""
        with self._turn:
            self._check_thread()
            self._check_open()
            self._asks()
            if chunk is not None:
                self._fetcher.release(chunk)
            return self._do(self._next_to_iterate(ends, timeout))

    # -- waiting

    def _run(
        self, look: Callable[[], T | None], timeout: float | None, *, asks: bool = False, quiet: bool = False
    ) -> T | None:
        """Drive until `look()` finds something, or the time is over (None). The lock is held.

        The next fetch goes out before what was found is handed out, but for who comes back at once: then by the next call, as what was
        found need not wait for it. `asks`: for records, so rebalances go on. `quiet`: errors
        wait for the next call.
        """
        check_timeout(timeout)
        outermost = self._waiting is None  # else it is within a listener's call, or `close` of another thread
        if outermost:
            self._waiting = threading.get_ident()
        self._asking += asks
        try:
            return self._drive(look, timeout, asks, quiet)
        finally:
            self._asking -= asks
            if outermost:
                self._waiting = None

    def _check_thread(self) -> None:
        """Refuse to wait beside another thread, as Kafka's consumer does: each would take records and rebalances from the other. The lock
        is held."""
        if self._waiting in (None, threading.get_ident()) or self._closed or self._driver._forked:
            return
        names = [thread.name for thread in threading.enumerate() if thread.ident == self._waiting]
        raise ConcurrentModification(
            f"{self!r} is used by the thread {', '.join(names) or self._waiting}, and was called by {threading.current_thread().name}",
            hint="Give each thread a consumer of its own, or hand records to threads with ConsumerPool; only close, wakeup and stop may "
            "come from another thread",
        )

    def _drive(self, look: Callable[[], T | None], timeout: float | None, asks: bool, quiet: bool) -> T | None:
        """`_run`, whose words hold."""
        clock = self._core.clock
        now = clock()
        end = now + (FOREVER_S * 24 * 365 if timeout is None else timeout)
        driver = self._driver
        at_once, has_read = asks and now - self._handed_at < AT_ONCE_S, False
        self._check_open()
        if not at_once or self._fetcher.buffered_bytes or end <= now:
            driver.run_once(0.0)
        while True:
            self._turn.deliver()
            self._check_open()
            if not (at_once and has_read):
                self._step()
            self._run_callbacks()
            # Steps come before errors: one that stays must not keep a listener from hearing what is lost.
            if asks and not self._stopping and self._rebalance():
                continue
            if not quiet:
                self._raise_errors()
            if asks and (self._stopping or self._reads_nothing):
                return None
            found = look()
            if found is not None:
                if asks:
                    self._handed_at = clock()
                driver.flush()
                return found
            if at_once and has_read:
                at_once = False
                continue
            if self._fetcher.made_room:
                continue
            if not quiet:
                self._raise_if_woken()
                self._raise_hopeless()
            remaining = end - clock()
            if remaining <= 0:
                driver.flush()
                return None
            wakeup = self._wakeup_in()
            driver.run_once(min(remaining, FOREVER_S if wakeup is None else wakeup))
            has_read = True

    def _call(self, steps: Steps[T]) -> T:
        """A call of the application, to its end."""
        with self._turn:
            self._check_thread()
            return self._do(steps)

    def _do(self, steps: Steps[T]) -> T:
        """Run a call to its end. The lock is held."""
        try:
            step = next(steps)
            while True:
                try:
                    found = self._take_step(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as end:
            result: T = end.value
            return result

    def _take_step(self, step: Wait | Tell) -> Any:
        if isinstance(step, Wait):
            return self._run(step.look, step.timeout_s, asks=step.asks, quiet=step.quiet)
        nested, self._in_listener = self._in_listener, True
        try:
            with self._turn.released():
                return step.callback(list(step.partitions))
        finally:
            self._in_listener = nested

    def _pump(self) -> None:
        self._step()
        self._driver.flush()

    def _wake(self) -> None:
        self._driver.wakeup()

    def _check_listener(self, callback: Callback) -> None:
        check_plain(callback, "the rebalance listener", LISTENER_HINT)

    # -- groups

    def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, after the commits that are due, or let go of what was assigned."""
        self._call(self._unsubscribe())

    def commit(self, what: Committable = None, timeout: float | None = None, **foreign: Never) -> None:
        """Commit offsets for the group, and wait until they are committed (timeout None: default_api_timeout_ms).

        what: a record, several of them, a batch: up to and with these; a mapping of partitions to offsets (the next to be
        read) or OffsetAndMetadata; None: everything that was handed out. Raises what the coordinator refuses, with group,
        member, generation and partition: NotAssigned, RebalanceInProgress, IllegalGeneration, UnknownMemberId ...
        """
        if foreign:
            refuse_keywords("commit", foreign)
        with self._turn:
            self._check_thread()
            self._do(self._commit(what, timeout, self._hurry_commit))

    def _hurry_commit(self, commit: Commit, timeout_s: float) -> None:
        """The short way, which is the usual one: nothing but the commit, until something comes."""
        core = self._core
        for outgoing in self._in_group().committer.requests(core.clock(), core.can_send):
            self._send(outgoing, self._driver.exchange)
        if not commit.finished:
            self._driver.run_once(min(timeout_s, FIRST_LOOK_S))

    def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is (timeout None: default_api_timeout_ms)."""
        return self._call(self._ask_committed(partitions, timeout))

    def _rebalance(self) -> bool:
        """Carry out the step of a rebalance that is due; whether there was one. The lock is held."""
        change = self._next_change()
        if change is None:
            self._keep_alive()
            return False
        nested, self._in_listener = self._in_listener, True
        try:
            self._do(self._carry_out(change))
        finally:
            self._in_listener = nested
        return True

    def _run_callbacks(self) -> None:
        while self._callbacks:
            callback = self._callbacks.popleft()
            with self._turn.released():
                callback()

    def _keep_alive(self) -> None:
        """With a membership, see to it that heartbeats go on between calls."""
        if self._heartbeat is None and self._group is not None and self._group.membership is not None:
            heartbeat = HeartbeatThread(self._driver, self._beat)
            heartbeat.start()
            self._heartbeat = heartbeat  # where the machine has no thread for it, the next call tries again

    def _beat(self) -> Beat:
        """Called by the thread of heartbeats, with the lock."""
        group, now = self._group, self._core.clock()
        if group is None or group.membership is None or self._closed:
            return Beat(False, None)

        self._follow_life()
        for outgoing in group.heartbeats(now, self._core.can_send):
            try:
                counted = self._counted(outgoing)
            except BaseException:  # no memory: it counts as sent
                outgoing.done(None, NOT_SENT, now)
                raise
            self._send(counted)
        wait_s = group.next_heartbeat(now)
        unreachable = wait_s is not None and wait_s <= 0
        return Beat(bool(self._beats) or unreachable, wait_s)

    def _counted(self, outgoing: Outgoing) -> Outgoing:
        """A request of the thread of heartbeats, which looks for its answer until it is there."""
        beat = object()
        over, then = partial(self._beats.discard, beat), outgoing.done

        def done(response: Any, error: FastqError | None, at: float) -> None:
            over()
            then(response, error, at)

        counted = outgoing._replace(done=done)
        self._beats.add(beat)
        return counted

    # -- positions

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out; waits until it is known (None: default_api_timeout_ms)."""
        return self._call(self._ask_position(partition, timeout))

    def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition (timeout None: default_api_timeout_ms)."""
        return self._call(self._ask_ends(partitions, EARLIEST_TIMESTAMP, timeout))

    def end_offsets(self, partitions: Iterable[Partition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, or what is decided of transactions under
        read_committed (timeout None: default_api_timeout_ms)."""
        return self._call(self._ask_ends(partitions, LATEST_TIMESTAMP, timeout))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970) in each partition; None where there is none. Raises
        ValueError for a negative time (timeout None: default_api_timeout_ms)."""
        return self._call(self._ask_times(timestamps, timeout))

    # -- the end

    def close(self, timeout: float | None = None) -> None:
        """Leave the group, after the commits that are due, and close the connections. Idempotent; every later call raises
        ClientClosed. timeout: for the commits (None: request_timeout_ms; 0: they are sent, and not waited for). While another thread closes
        it, it waits for that one's end."""
        with self._turn:
            check_timeout(timeout)
            ending = self._ending
            if ending is None and not self._closed:
                self._end(timeout)
        if ending is not None and ending.thread != threading.get_ident() and not self._driver._forked:
            ending.over.wait()

    def _end(self, timeout: float | None) -> None:
        """`close`, by the first who calls it. The lock is held."""
        self._ending = ending = _Ending(threading.get_ident(), threading.Event())
        try:
            self._do(self._leave_group("the consumer is closed", timeout))
        except FastqError as error:
            logger.warning("leaving the group failed: %s", error)
        finally:
            try:
                self._close()
            finally:
                try:
                    with self._turn.released():
                        self._hooks.close()
                finally:
                    ending.over.set()

    def _dropped(self) -> None:
        driver: BlockingDriver | None = self.__dict__.get("_driver")
        if driver is None or driver._forked or sys.is_finalizing():
            return
        try:
            with self._turn:
                group = self._group
                if group is not None and group.membership is not None:
                    logger.info("%r leaves its group: nobody has it any more", self)
                    self._commit_finished()
                    self._do(self._farewell(group, "the consumer was dropped", DROPPED_S))
                self._close()
        except FastqError as error:
            logger.warning("%r could not be closed when it was dropped: %s", self, error)

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
        with self._turn.released():
            self._tell_callbacks()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
