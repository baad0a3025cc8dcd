"""The blocking consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self, Unpack

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords, Record, RecordIterator
from fastq.consumer.base import BEGINNING, END, ConsumerBase, timestamps_of
from fastq.consumer.config import ConsumerConfig, ConsumerOptions
from fastq.consumer.offsets import OffsetAndTimestamp, offsets_of
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.net.blocking import BlockingDriver

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
FOREVER_S = 3600.0


class Consumer(ConsumerBase):
    """Reads all partitions of its topics, or the partitions that it is assigned, and commits nothing.

    `topics`: what to read; new partitions of them are found with the metadata, and read from their beginning. None: `assign`
    decides. The options are those of `ConsumerConfig`; names with Kafka's dots may be given as `**{"fetch.min.bytes": 1}`.

    Iterate over it, `poll` lists, or `poll_batch` columns, in any mix: all three go on where the last one stopped. Time-outs
    are in seconds; None waits as long as it takes. Errors: a subclass of FastqError, raised once; the next call goes on.

    Thread rule: one thread at a time; `close` may be called from another. There is no background thread: what is fetched is
    read from the sockets during calls. A child of a fork cannot use its parent's consumer (ForkedClient).
    """

    def __init__(self, *topics: str, **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(topics, ConsumerConfig.from_mapping(options))
        self._driver = BlockingDriver(self._core)
        self._iterator = RecordIterator(self._advance, self._hooks.transform)
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
        while True:
            chunk = self._chunk_for(records, timeout)
            if chunk is None or not self._take(chunk, records, wanted):
                break
        return self._hooks.intercept(records) if records and self._hooks.interceptors else records

    def poll_batch(self, timeout: float | None = None) -> ConsumerBatch:
        """All records at hand, or the first that come, as one object with columns; empty when none came in time. Not more
        than prefetch_bytes_max and a record batch, decompressed.

        Its keys and values are bytes: deserializers and interceptors do not see them.
        """
        self._detach()
        batch = ConsumerBatch()
        while batch.size_bytes < self.config.prefetch_bytes_max:
            chunk = self._chunk_for(batch, timeout)
            if chunk is None:
                break
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
            self._wait(lambda: self._fetcher.partitions or None, self._api_timeout(timeout), "finding the topics")
        ends = self.end_offsets(self.assignment(), timeout)

        def advance(chunk: FetchedRecords | None) -> FetchedRecords | None:
            with self._driver.lock:
                self._next_turn(chunk)
                # A long poll behind the end would hold up what the user does next.
                self._fetcher.until = ends
                while True:
                    pending = self._pending_ends(ends)
                    if not pending:
                        return None
                    found = self._run(partial(self._progress_to, pending), None)
                    if isinstance(found, FetchedRecords):
                        return found

        iterator = RecordIterator(advance, self._hooks.transform)
        self._ending = iterator
        return iterator

    def _chunk_for(self, taken: Any, timeout: float | None) -> FetchedRecords | None:
        """The next chunk; with something `taken` already only one that is at hand, and errors wait for the next call."""
        with self._driver.lock:
            if len(taken):
                return self._fetcher.next_chunk()
            return self._run(self._fetcher.next_chunk, timeout)

    def _advance(self, chunk: FetchedRecords | None) -> FetchedRecords | None:
        with self._driver.lock:
            self._next_turn(chunk)
            self._fetcher.until = None
            return self._run(self._fetcher.next_chunk, None)

    def _next_turn(self, chunk: FetchedRecords | None) -> None:
        """A chunk is used up: room for the next fetch, and a look at what came meanwhile."""
        self._check_open()
        if chunk is not None:
            self._fetcher.release(chunk)

    # -- waiting

    def _run(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """Drive until `look()` finds something, or the time is over (None). The lock is held.

        The next fetch goes out before what was found is handed out.
        """
        clock = self._core.clock
        end = clock() + (FOREVER_S * 24 * 365 if timeout is None else timeout)
        driver = self._driver
        self._check_open()
        self._step()
        driver.run_once(0.0)
        while True:
            self._check_open()
            self._step()
            self._raise_errors()
            found = look()
            if found is not None:
                driver.flush()
                return found
            self._raise_hopeless()
            remaining = end - clock()
            if remaining <= 0:
                return None
            wakeup = self._wakeup_in()
            driver.run_once(min(remaining, FOREVER_S if wakeup is None else wakeup))

    def _wait(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """`_run` for calls that must come to a result: raises when they do not in time."""
        with self._driver.lock:
            found = self._run(look, timeout_s)
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

    def close(self) -> None:
        """Close the connections. Idempotent; every later call raises ClientClosed."""
        with self._driver.lock:
            if self._closed:
                return
            self._closed = True
            self._detach()
            try:
                for outgoing in self._fetcher.closing_requests(self._core.can_send):
                    self._send(outgoing)
                self._driver.run_once(0.0)
            except FastqError:
                pass  # the sessions end with their connections
            self._driver.close()
        self._hooks.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
