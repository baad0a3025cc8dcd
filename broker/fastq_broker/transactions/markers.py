"""Transaction markers: the control batches that end a transaction in its partitions.

Rules
- A partition that this node leads gets its marker by a call, one that another leads by a request; what cannot be reached now is tried
  again by who asked.
- A partition that is gone from the metadata, has seen a newer epoch of the producer, or is a mirror's now and has no transaction of the
  producer has none to end: it counts as done. One that is a mirror's and has it open still waits: the mirror brings its end, or it is no
  mirror's any more, as after a fail-back that was refused, and the marker is written then. Left out, the transaction would stay open.
- What cannot be written is said at once, and then once in UNTOLD_MS with the number of those left out: a partition that is away is tried
  again for each transaction that ends.
- One that is written and whose replicas do not follow is given up after TIMEOUT_S, as others wait for the end of its transaction, or behind
  it: the marker stays, and who tries again writes another, which changes nothing.
- A marker in a partition of a coordinator's topic is told to that coordinator once it is durable: pending offsets become real.
- A round is over when all that was asked for has been told: begun again before, what waits for another node could come behind the
  transaction's end, and end the next one of that producer's epoch.
Source: TransactionMarkerChannelManager, KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.log import failures

from .marker import Done, GiveUp, Marker
from .states import TransactionState
from .transaction import Partition, Transaction

if TYPE_CHECKING:
    import asyncio

    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica

logger = logging.getLogger(__name__)

UNTOLD_MS: Final = 10_000
TIMEOUT_S: Final = 5.0
"""How long a marker waits for the other replicas of its partition: well below the 30 s after which another node's coordinator gives up the
request, with all that is in it."""

_NOTHING_TO_END = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class MarkerWriter:
    """Writes markers into partitions, wherever they are. Loop thread only."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._quiet_until_ms = ports.monotonic_ms()
        self._untold = 0

    def write_all(
        self,
        coordinator_epoch: int,
        txn: Transaction,
        partitions: frozenset[Partition],
        on_done: Callable[[frozenset[Partition]], None],
    ) -> None:
        """Write the decision of a transaction; `on_done` gets the partitions that have to be tried again. Where this raises, it has asked
        for nothing, or called `on_done`."""
        committed = txn.state == TransactionState.PREPARE_COMMIT
        marker = Marker(txn.producer_id, txn.producer_epoch, committed, coordinator_epoch, txn.version)
        wanted = sorted(partitions)
        waiting: set[Partition | None] = {None, *wanted}  # None while not all are asked for
        left: set[Partition] = set()
        timer: asyncio.TimerHandle | None = None

        def over() -> None:
            if not waiting:
                if timer is not None:
                    timer.cancel()
                on_done(frozenset(left))

        def done(partition: Partition, error: KafkaError | None) -> None:
            if partition not in waiting:
                return  # it failed inside once it was asked for, and is tried again
            waiting.discard(partition)
            try:
                if error is not None:
                    left.add(partition)
                    dropped = error.code in _NOTHING_TO_END or self._ports.image.partition(*partition) is None
                    if dropped:
                        left.discard(partition)
                    self._say(txn.transactional_id, partition, "left out" if dropped else "trying again", error)
            finally:  # whatever there is no memory for
                over()

        unfollowed: list[GiveUp] = []
        for partition in wanted:
            try:
                give_up = self._write_anywhere(partition, marker, partial(done, partition))
                if give_up is not None:
                    unfollowed.append(give_up)
            except Exception as error:
                failures.report("asking for the markers of transactions", error)
                if partition in waiting:
                    waiting.discard(partition)
                    left.add(partition)
        if len(waiting) > 1 and unfollowed:
            try:
                timer = give_up_later(self._ports.loop, unfollowed)
            except Exception as error:
                failures.report("waiting for the markers of transactions", error)
                _give_up(unfollowed)
        waiting.discard(None)
        over()

    def _write_anywhere(self, partition: Partition, marker: Marker, on_done: Done) -> GiveUp | None:
        cluster, placed = self._ports.cluster, self._ports.image.partition(*partition)
        if cluster is None or placed is None or placed.leader == self._ports.node_id:
            return self.write(*partition, marker, on_done)
        if placed.leader < 0:
            topic, index = partition
            on_done(error_for_code(ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader", topic=topic, partition=index))
        else:
            cluster.marker_sender.write(placed.leader, partition, marker, on_done)
        return None

    def _say(self, transactional_id: str, partition: Partition, outcome: str, error: KafkaError) -> None:
        now_ms = self._ports.monotonic_ms()
        if now_ms < self._quiet_until_ms:
            self._untold += 1
            return
        self._quiet_until_ms = now_ms + UNTOLD_MS
        more, self._untold = self._untold, 0
        logger.warning(
            "transactional id %r: no marker into %s-%d, %s: %s%s",
            transactional_id,
            *partition,
            outcome,
            error,
            f" ({more} times more, of any transaction, since this was last said)" if more else "",
        )

    def write(self, topic: str, partition: int, marker: Marker, on_done: Done) -> GiveUp | None:
        """Write one marker into a partition that this node leads; `on_done` when it is as durable as the log promises, on all in sync, or
        with the error. Answers what ends the wait for the others in sync, with REQUEST_TIMED_OUT, where there are any."""
        replica = self._ports.replicas.leader(topic, partition)
        if isinstance(replica, int):
            on_done(error_for_code(replica, "no marker can be written here", topic=topic, partition=partition))
            return None
        try:
            if replica.mirrored:
                _check_mirrored(replica, marker)
            if replica.under_min_isr:
                wanted = replica.min_insync_replicas
                detail = f"fewer replicas are in sync than min.insync.replicas, which is {wanted}"
                raise error_for_code(ErrorCode.NOT_ENOUGH_REPLICAS, detail, topic=topic, partition=partition)
            written = replica.log.append_transaction_marker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                commit=marker.committed,
                leader_epoch=replica.leader_epoch,
                now_ms=self._ports.clock(),
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            on_done(error)
            return None
        if self._ports.cluster is not None:
            self._ports.cluster.elsewhere.marker_written(marker.producer_id, (topic, partition))
        end = written.last_offset + 1
        if replica.internal:
            replica.wait_committed(end, partial(self._tell_coordinator, topic, partition, marker))
        waiting = replica.wait_committed(end, on_done)
        if waiting is None or replica.shared is None:
            return None
        return partial(replica.shared.give_up, waiting)

    def _tell_coordinator(self, topic: str, partition: int, marker: Marker, error: KafkaError | None) -> None:
        """However long that took: who wrote the marker may have given it up."""
        if error is None:
            for coordinator in (self._ports.groups, self._ports.transactions):
                if coordinator.runtime.topic == topic:
                    coordinator.runtime.marker_written(
                        partition, marker.producer_id, marker.producer_epoch, marker.committed
                    )


def give_up_later(loop: asyncio.AbstractEventLoop, unfollowed: Sequence[GiveUp]) -> asyncio.TimerHandle:
    """End these waits when their time is over, unless the timer is cancelled."""
    return loop.call_later(TIMEOUT_S, _give_up, unfollowed)


def _give_up(unfollowed: Sequence[GiveUp]) -> None:
    for give_up in unfollowed:
        failures.attempt("giving up the wait for the markers of transactions", give_up)


def _check_mirrored(replica: Replica, marker: Marker) -> NoReturn:
    """Raises InvalidProducerEpoch where a partition that a mirror writes has no transaction of the producer, PolicyViolation where it has
    one, KafkaStorageError."""
    log = replica.log
    if not log.loaded:
        log.load()
    entry = log.producers.get(marker.producer_id)
    if entry is None or entry.txn_first_offset < 0:
        code, words = ErrorCode.INVALID_PRODUCER_EPOCH, "a mirror of another cluster writes it, and has ended it"
    else:
        code = ErrorCode.POLICY_VIOLATION
        words = (
            f"a mirror of another cluster writes it: the transaction that is open since offset {entry.txn_first_offset} ends with what the "
            "mirror brings, or once the topic may be written to (fastq mirror fail-over)"
        )
    raise error_for_code(code, words, topic=replica.topic, partition=replica.partition)
