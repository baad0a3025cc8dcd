"""What a coordinator keeps of one partition, and what it may do to the world.

Rules
- A shard is pure: it changes by `replay` alone, whether a record was just written or is read back at a load. So what it
  knows can always be made again from the log.
- It reaches the log, the clock and timers only through its `ShardContext`, which stops working once the shard is unloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from fastq._native.records import build_batch
from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.log import failures

if TYPE_CHECKING:
    import asyncio

    from fastq_broker.replicas import Replica
    from fastq_broker.surroundings import Surroundings

logger = logging.getLogger(__name__)

Done = Callable[[KafkaError | None], None]
CoordinatorRecord = tuple[bytes, bytes | None]
"""Key and value of one record; a value of None is a tombstone."""
BATCH_HEADER_BYTES: Final = 61
RECORD_OVERHEAD_BYTES_MAX: Final = 24
"""What a record takes in a batch beside key and value, at most: three sizes, the offset's delta, and three bytes."""


class Shard(Protocol):
    """The state of one partition of a coordinator's topic. Loop thread only; no I/O but through its context."""

    def replay(
        self, key: bytes, value: bytes | None, timestamp_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Take a record in. One of a transaction comes with its producer, and counts once the marker says so."""

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A producer's transaction has ended in this partition."""

    def loaded(self) -> None:
        """All is replayed: start timers."""

    def unloaded(self) -> None:
        """The partition is led elsewhere, or the broker stops: drop timers, answer who waits with NOT_COORDINATOR."""


class ShardContext:
    """What a shard may do to the world. Loop thread only.

    Invariant: while it is `current` the shard is the current state of the partition under `leader_epoch`.
    """

    __slots__ = (
        "_clock",
        "_led",
        "_loop",
        "_timers",
        "closed",
        "leader_epoch",
        "new_name",
        "on_torn",
        "partition",
        "replica",
        "shard",
    )

    shard: Shard

    def __init__(self, replica: Replica, loop: asyncio.AbstractEventLoop, here: Surroundings) -> None:
        self.replica = replica
        self.partition = replica.partition
        self.leader_epoch = replica.leader_epoch
        self._led = replica.leader_id, replica.leader_epoch
        self.closed = False
        self.on_torn: Callable[[], object] = lambda: None
        """Has the shard read anew, of which nobody knows any more whether it is what the log says."""
        self._loop = loop
        self._clock = here.clock
        self.new_name = here.new_name
        self._timers: set[Timer] = set()

    @property
    def current(self) -> bool:
        """Whether this node coordinates by this still. A replica hears that it leads no more, or anew, and sends away who waits there,
        before the coordinator unloads the shard."""
        return not self.closed and (self.replica.leader_id, self.replica.leader_epoch) == self._led

    @property
    def record_bytes_max(self) -> int:
        """Key and value of the largest record that can be written: alone in its batch."""
        return self.replica.log.config.max_message_bytes - BATCH_HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX

    def now_ms(self) -> int:
        """The broker's clock, in ms since 1970."""
        return self._clock()

    def monotonic_ms(self) -> int:
        """A clock that nobody sets, in ms, for time-outs."""
        return int(self._loop.time() * 1000)

    def append(
        self,
        records: Sequence[CoordinatorRecord],
        on_done: Done,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
        spare_bytes: int = 0,
    ) -> None:
        """Write one batch, whole or not at all; on success the records are replayed at once, then `on_done(None)` comes when they are
        as durable as the log promises: before this returns with page-cache durability, later with fsync.

        On failure nothing is replayed, and `on_done(error)` is called before this returns. No records: nothing is written, all went well.
        `spare_bytes` have to be left below the largest batch: what follows on this may be longer, and has to be written then.
        """
        self._append([records] if records else [], on_done, (producer_id, producer_epoch), transactional, spare_bytes)

    def append_in_parts(
        self,
        records: Sequence[CoordinatorRecord],
        on_done: Done,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        """As `append`, for records that need not come together: as many batches, in order, as their size asks for.

        On failure those before the batch that failed are written and replayed: whoever asks again finishes the rest.
        """
        parts = _parts(records, self.replica.log.config.max_message_bytes)
        self._append(parts, on_done, (producer_id, producer_epoch), transactional)

    def _append(
        self,
        batches: Iterable[Sequence[CoordinatorRecord]],
        on_done: Done,
        producer: tuple[int, int],
        transactional: bool,
        spare_bytes: int = 0,
    ) -> None:
        if not self.current:
            on_done(self._not_coordinator())
            return
        end_offset = -1
        try:
            for records in batches:
                end_offset = self._write(records, *producer, transactional, spare_bytes)
        except KafkaError as error:
            on_done(error)
            return
        except Exception as error:  # a mistake, or no memory: what the log has of it the shard may not have
            failures.report(f"writing to {self.replica.log.path}", error)
            self.closed = True
            try:
                self._loop.call_soon(self.on_torn)
            except Exception as failure:  # who asks next has it done
                failures.report(f"having {self.replica.log.path} read anew", failure)
            on_done(self._not_coordinator())
            return
        if end_offset < 0:
            on_done(None)
        else:
            self.replica.wait_committed(end_offset, on_done)

    def _write(
        self,
        records: Sequence[CoordinatorRecord],
        producer_id: int,
        producer_epoch: int,
        transactional: bool,
        spare_bytes: int,
    ) -> int:
        """Write one batch and replay it; answers the offset after it. Raises KafkaError: nothing has happened then."""
        now_ms = self._clock()
        batch = build_batch(
            [(now_ms, key, value) for key, value in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
        )
        self._check(len(batch) + spare_bytes)
        if producer_id >= 0:
            self._check_producer(producer_id, producer_epoch)
        written = self.replica.log.append(batch, leader_epoch=self.leader_epoch, now_ms=now_ms, from_client=False)
        replay = self.shard.replay
        if transactional:
            for key, value in records:
                replay(key, value, now_ms, producer_id, producer_epoch)
        else:
            for key, value in records:
                replay(key, value, now_ms)
        return int(written.last_offset) + 1

    @property
    def end_offset(self) -> int:
        """Behind all that was written so far."""
        return self.replica.log.log_end_offset

    def when_durable(self, on_done: Done) -> None:
        """Call back once all that was written so far is as durable as the log promises, on all who had to have it: at once where it is,
        however few are in sync by now."""
        if self.closed:
            on_done(self._not_coordinator())
        elif self.replica.is_committed(self.end_offset):
            on_done(None)
        else:
            self.replica.wait_committed(self.end_offset, on_done)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, unless the handle is cancelled or the shard unloaded before."""
        timer = Timer(self, callback)
        timer.handle = self._loop.call_later(max(delay_s, 0.0), timer.run)
        self._timers.add(timer)
        return timer

    def close(self) -> None:
        """Nothing may be done any more: appends fail with NOT_COORDINATOR, timers are dropped."""
        self.closed = True
        for timer in list(self._timers):
            timer.cancel()

    def forget(self, timer: Timer) -> None:
        """A timer has run or was cancelled."""
        self._timers.discard(timer)

    def _check(self, size: int) -> None:
        """Raises what Kafka's leader would refuse an append of its own coordinator with."""
        replica = self.replica
        limit = replica.log.config.max_message_bytes
        if size > limit:
            # Clients are told UNKNOWN_SERVER_ERROR, as Kafka's are: who runs the broker has to hear what to do.
            error = error_for_code(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a change of {size} bytes is above the max.message.bytes {limit} of the coordinator's topic, and was not made",
                topic=replica.topic,
                partition=replica.partition,
                hint="Raise max.message.bytes of that topic, or have smaller groups: fewer members, or shorter subscriptions",
            )
            logger.warning("%s", error)
            raise error
        if replica.under_min_isr:
            raise error_for_code(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"fewer replicas are in sync than min.insync.replicas, which is {replica.min_insync_replicas}",
                topic=replica.topic,
                partition=replica.partition,
            )

    def _check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Raises InvalidProducerEpoch for a producer that a newer one has replaced."""
        known = self.replica.log.producers.get(producer_id)
        if known is not None and producer_epoch < known.epoch:
            raise error_for_code(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} came with epoch {producer_epoch}, but epoch {known.epoch} has been seen",
                topic=self.replica.topic,
                partition=self.partition,
            )

    def _not_coordinator(self) -> KafkaError:
        return error_for_code(
            ErrorCode.NOT_COORDINATOR,
            "the partition is coordinated elsewhere by now",
            topic=self.replica.topic,
            partition=self.partition,
        )


class Timer:
    """A handle of `ShardContext.call_later`."""

    __slots__ = ("_callback", "_context", "handle")

    handle: asyncio.TimerHandle | None

    def __init__(self, context: ShardContext, callback: Callable[[], None]) -> None:
        self._context = context
        self._callback = callback

    def cancel(self) -> None:
        """Never call back; nothing happens when it has."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        self._context.forget(self)

    def run(self) -> None:
        self.handle = None  # asyncio's goes on to hold what it has called
        self._context.forget(self)
        self._callback()


def _parts(records: Sequence[CoordinatorRecord], batch_bytes_max: int) -> Iterator[list[CoordinatorRecord]]:
    """The records in order, in runs that fit a batch each. One that fits none is a run of its own."""
    part: list[CoordinatorRecord] = []
    size = BATCH_HEADER_BYTES
    for key, value in records:
        record_size = RECORD_OVERHEAD_BYTES_MAX + len(key) + (0 if value is None else len(value))
        if part and size + record_size > batch_bytes_max:
            yield part
            part, size = [], BATCH_HEADER_BYTES
        part.append((key, value))
        size += record_size
    if part:
        yield part
