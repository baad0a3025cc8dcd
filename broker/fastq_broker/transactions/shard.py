"""The transactional ids of one partition of `__transaction_state`: what is written, what is under way, what has to end.

Rules
- A transition counts once it is in the log: requests are answered then, and not before. While it is being written, other requests
  for the id get CONCURRENT_TRANSACTIONS. Where that takes longer than a transaction may be open, or EXPIRY_S for an id that is being
  forgotten, it goes on, and all are told COORDINATOR_NOT_AVAILABLE until it has ended.
- EndTxn is answered when PREPARE_* is in the log. The markers follow in the next turn of the loop, before anything that the client
  can send after the answer; COMPLETE_* is written when all of them are. What cannot be reached is tried again.
- A PREPARE_* that is found when the partition is loaded gets its markers (again): a decided transaction ends as decided. What was
  loaded counts once all in sync have it, too, as the next coordinator may not else (Kafka's goes by it at once).
- Time-outs count on the monotonic clock. The log has wall-clock times: who loads an open transaction takes its age from them.
Source: TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq_broker.coordinator.errors import LED_ELSEWHERE, store_error
from fastq_broker.log import failures as reports

from . import transaction as rules
from .records import decode_key, decode_value, encode_key, encode_value
from .states import DECIDED, TransactionState
from .transaction import Partition, Transaction, concurrent, refusal, unknown_id

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1
"""Before markers, or the end of a transaction, are tried again after a failure; doubles up to the other."""
RETRY_MAX_S: Final = 2.0
EXPIRY_S: Final = 30.0
"""How long ids that are being forgotten are waited for: as long as Kafka waits for that (request.timeout.ms)."""
SPARE_BYTES: Final = 64
"""Left below the largest batch when partitions are added: the record that ends the transaction names them all, and is a little longer
(another producer id, a version). A transaction that could not be ended would never be."""
Reply = Callable[["Transaction | None", "KafkaError | None"], None]
"""Gets the state that has been written, or the error."""


class Handle(Protocol):
    """A timer."""

    def cancel(self) -> None: ...


class Context(Protocol):
    """What the coordinator's runtime does for a shard (see ShardContext)."""

    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        on_done: Callable[[KafkaError | None], None],
        *,
        spare_bytes: int = 0,
    ) -> None: ...
    def append_in_parts(
        self, records: Sequence[tuple[bytes, bytes | None]], on_done: Callable[[KafkaError | None], None]
    ) -> None: ...
    def when_durable(self, on_done: Callable[[KafkaError | None], None]) -> None: ...
    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle: ...


class World(Protocol):
    """What else a shard needs of its node."""

    @property
    def transaction_version(self) -> int:
        """The version of the transactions that the coordinator itself ends: the cluster's feature level."""
        ...

    def new_producer_id(self) -> int:
        """An id that will not be given away again. Raises NoProducerId when one has to be fetched first."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Call in the loop's next turn, before what arrives from now on."""
        ...

    def write_markers(
        self,
        coordinator_epoch: int,
        txn: Transaction,
        partitions: frozenset[Partition],
        on_done: Callable[[frozenset[Partition]], None],
    ) -> None:
        """Write the decision of `txn` into `partitions`; `on_done` gets those that have to be tried again."""
        ...


class _Waiter:
    """Who waits for a transition to be written: told once."""

    __slots__ = ("reply", "timer")

    def __init__(self, reply: Reply) -> None:
        self.reply: Reply | None = reply
        self.timer: Handle | None = None

    def tell(self, txn: Transaction | None, error: KafkaError | None) -> None:
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(txn, error)


class _Untimed:
    """In the place of a timer that could not be had: what it was for is done with the next look at what is late."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    def cancel(self) -> None: ...


class NoProducerId(Exception):
    """No producer id is at hand: fetch some and ask again. Nothing has been changed."""


class TransactionShard:
    """The state of one partition. Loop thread only.

    Invariants: `transactions` is what the log holds, `_ongoing` those of its ids that are in state ONGOING, each with the monotonic time
    until which it may stay open. An id is in `_writing` from the append of a transition until it is as durable as the log promises, and
    then that transition is what `transactions` has, and who is told of it is in `_waiters`; the id is in `_given_up` too once nobody waits
    for that any more. It is in `_unkept` while what `transactions` has is in the log and not known to be kept, as another leader may not
    have it: with the partitions of the open transaction that was known to be. `_kept` tells whether what was loaded is known to be,
    `_loaded` is what of it is decided, while that is not asked.
    An id in a PREPARE_* state is in `_decided`, and either in `_writing`, or in `_ending` as its markers are being written, or a retry is
    in `_retries`; where there was no memory for any of them the next look at what is late begins anew. `_failures` counts the attempts
    that failed.
    """

    def __init__(self, context: Context, world: World) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._context = context
        self._world = world
        self._live = self._kept = False
        self._loaded: list[Transaction] | None = None
        self._ongoing: dict[str, int] = {}
        self._writing: dict[str, Transaction | None] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._given_up: set[str] = set()
        self._unkept: dict[str, frozenset[Partition]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._decided: dict[str, Transaction] = {}
        self._ending: set[str] = set()
        self._retries: dict[str, Handle] = {}
        self._failures: dict[str, int] = {}

    # -- the log

    def replay(
        self, key: bytes, value: bytes | None, timestamp_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Take in one record. Raises DecodeError."""
        transactional_id = decode_key(key)
        if transactional_id is None:
            logger.warning("a record of __transaction_state-%d has a key of a later version", self._context.partition)
        elif value is None:
            for known in (self.transactions, self._ongoing, self._decided, self._failures):
                known.pop(transactional_id, None)
            self._ending.discard(transactional_id)
        else:
            written = self._writing.get(transactional_id)  # knows more than the record holds
            txn = written or decode_value(transactional_id, value)
            before = self.transactions.get(transactional_id)
            if written is not None:
                was_open = before if before is not None and before.state == TransactionState.ONGOING else None
                self._unkept.setdefault(transactional_id, was_open.partitions if was_open else frozenset())
            self.transactions[transactional_id] = txn
            self._ending.discard(transactional_id)
            if txn.state in DECIDED:
                self._decided[transactional_id] = txn
            else:
                self._decided.pop(transactional_id, None)
                self._failures.pop(transactional_id, None)
            if txn.state != TransactionState.ONGOING:
                self._ongoing.pop(transactional_id, None)
            elif transactional_id not in self._ongoing or before is None or before.started_ms != txn.started_ms:
                # One that began in the future tells that the clock was set back: it has all of its time.
                age_ms = max(self._context.now_ms() - txn.started_ms, 0)
                self._ongoing[transactional_id] = self._context.monotonic_ms() - age_ms + txn.timeout_ms

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nothing is transactional in this topic."""

    def loaded(self) -> None:
        """Go on with what had been decided."""
        self._live = True
        self._loaded = list(self._decided.values())
        self._wait_kept()

    def _wait_kept(self) -> None:
        """Go by what was loaded once all in sync have it; where that is not known, it is asked with the next look at what is late."""
        decided, self._loaded = self._loaded, None
        if decided is not None:
            try:
                self._context.when_durable(partial(self._loaded_kept, decided))
            except Exception:
                self._loaded = decided
                raise

    def _loaded_kept(self, decided: list[Transaction], error: KafkaError | None) -> None:
        if error is not None:
            self._loaded = decided
            return
        self._kept = True
        for txn in decided:
            if self._is_current(txn) and not self._goes_on(txn.transactional_id):
                logger.info(
                    "%s: writing the markers of a transaction in state %s", txn.transactional_id, txn.state.label
                )
                self._begin_end(txn)

    def unloaded(self) -> None:
        """Another node goes on; who waits asks it."""
        self._live = False
        for handle in self._retries.values():
            handle.cancel()
        self._retries.clear()
        for transactional_id in list(self._waiters):
            reports.attempt("turning away who waits for a transaction", partial(self._turn_away, transactional_id))
        for transactional_id in list(self._waiting):
            self._wake(transactional_id)

    def _turn_away(self, transactional_id: str) -> None:
        """Who cannot be told that for a moment waits on, for what becomes of the write."""
        moved = refusal(transactional_id, ErrorCode.NOT_COORDINATOR, "its partition is coordinated elsewhere by now")
        self._waiters.pop(transactional_id).tell(None, moved)

    # -- requests

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, reply: Reply
    ) -> None:
        """InitProducerId. Replies with the new id and epoch, or ConcurrentTransactions once an open transaction is being aborted.

        Raises the refusals of `transaction.initialize`, and NoProducerId.
        """
        txn = self.transactions.get(transactional_id)
        self._check_idle(transactional_id)
        if txn is None:
            txn = Transaction(transactional_id, self._world.new_producer_id(), timeout_ms)
        now_ms, version = self._context.now_ms(), self._world.transaction_version
        changed = rules.initialize(txn, timeout_ms, expected, self._world.new_producer_id, now_ms, version)
        if changed.state == TransactionState.PREPARE_ABORT:
            reply = partial(_reply_concurrent, reply)
        self._write(changed, reply)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[Partition],
        version: int,
        reply: Reply,
    ) -> None:
        """AddPartitionsToTxn. Raises the refusals of `transaction.add_partitions`."""
        txn = self._known(transactional_id)
        self._check_idle(transactional_id)
        changed = rules.add_partitions(txn, producer_id, epoch, partitions, self._context.now_ms(), version)
        if changed is txn and self._kept and transactional_id not in self._unkept:
            reply(txn, None)
        else:
            self._write(changed, reply, SPARE_BYTES)

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition]
    ) -> frozenset[Partition]:
        """Those of `partitions` that are not in the open transaction. Raises the refusals of `transaction.verify`, and
        ConcurrentTransactions where one of the others is not known to be in it for good."""
        txn = self._known(transactional_id)
        missing = rules.verify(txn, producer_id, epoch, partitions)
        kept = self._unkept.get(transactional_id) if self._kept else frozenset()
        if kept is not None and not partitions - missing <= kept:
            raise concurrent(txn)
        return missing

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, version: int, reply: Reply
    ) -> None:
        """EndTxn. Replies with the state that has the producer's next id and epoch.

        Raises the refusals of `transaction.end`, and NoProducerId.
        """
        txn = self._known(transactional_id)
        now_ms = self._context.now_ms()
        self._check_idle(transactional_id)
        changed = rules.end(txn, producer_id, epoch, committed, self._world.new_producer_id, now_ms, version)
        if changed is txn:
            reply(txn, None)
        else:
            self._write(changed, reply)

    def describe(self, transactional_id: str) -> Transaction:
        """The state of an id. Raises TransactionalIdNotFound."""
        txn = self.transactions.get(transactional_id)
        if txn is None:
            raise refusal(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "it is not known here")
        return txn

    def wait_settled(self, transactional_id: str, callback: Callable[[], None]) -> bool:
        """Call back once the operation that goes on has ended; False when there is none, or none that ends by itself."""
        txn = self.transactions.get(transactional_id)
        ending = txn is not None and txn.state in DECIDED and self._kept and transactional_id not in self._retries
        if not self._live or transactional_id in self._given_up or not (transactional_id in self._writing or ending):
            return False
        self._waiting.setdefault(transactional_id, []).append(callback)
        return True

    # -- time

    def abort_timed_out(self) -> int:
        """Abort the transactions that have been open for too long; answers how many. Called now and then."""
        reports.attempt("going by what was loaded", self._wait_kept)
        for name, txn in list(self._decided.items()):
            if self._kept and not self._goes_on(name):
                self._begin_end(txn)
        for handle in list(self._retries.values()):
            if isinstance(handle, _Untimed):
                reports.attempt("ending a transaction without a timer", handle.run)
        now_ms, time_ms = self._context.now_ms(), self._context.monotonic_ms()
        due = [name for name, until_ms in self._ongoing.items() if until_ms < time_ms and name not in self._writing]
        late = [self.transactions[name] for name in due]
        for txn in late:
            logger.info(
                "%s: aborting the transaction of producer %d epoch %d, which has been open for more than its time-out of %d ms",
                *(txn.transactional_id, txn.producer_id, txn.producer_epoch, txn.timeout_ms),
            )
            self._write(txn.fenced(now_ms, self._world.transaction_version), _ignore)
        return len(late)

    def expire(self, expiration_ms: int) -> int:
        """Forget ids that nobody has used for `expiration_ms`; answers how many."""
        now_ms = self._context.now_ms()
        old = [
            name
            for name, txn in self.transactions.items()
            if txn.expired(now_ms, expiration_ms) and name not in self._writing
        ]
        records = [(encode_key(name), None) for name in old]
        count = len(old)
        self._writing.update(dict.fromkeys(old))
        try:
            self._context.append_in_parts(records, partial(self._expired, old))
            if old:
                self._context.call_later(EXPIRY_S, partial(self._expiry_overdue, old))
        except Exception as error:
            self._expired(old, error)
            raise
        return count

    def _expiry_overdue(self, transactional_ids: list[str]) -> None:
        """It is not known to be kept in time that these ids are forgotten: nobody waits for that here any more."""
        self._given_up.update(transactional_ids)
        for transactional_id in list(transactional_ids):
            self._wake(transactional_id)

    def _expired(self, transactional_ids: list[str], error: Exception | None) -> None:
        """These ids are forgotten, or not; the list has none of them any more, for what failed inside and is told once more later."""
        while transactional_ids:
            transactional_id = transactional_ids.pop()
            del self._writing[transactional_id]
            self._given_up.discard(transactional_id)
            if error is None:
                self._unkept.pop(transactional_id, None)
            self._wake(transactional_id)
        if isinstance(error, KafkaError) and error.code not in LED_ELSEWHERE:
            logger.warning("__transaction_state-%d: cannot forget expired ids: %s", self._context.partition, error)

    # -- transitions

    def _known(self, transactional_id: str) -> Transaction:
        txn = self.transactions.get(transactional_id)
        if txn is None:
            raise unknown_id(transactional_id)
        return txn

    def _check_idle(self, transactional_id: str) -> None:
        """Raises ConcurrentTransactions while a transition of the id is being written, CoordinatorNotAvailable once that takes too long."""
        if transactional_id in self._given_up:
            raise _not_in_time(transactional_id)
        if transactional_id in self._writing:
            raise refusal(
                transactional_id,
                ErrorCode.CONCURRENT_TRANSACTIONS,
                "an earlier operation is being written: try again",
            )

    def _write(self, txn: Transaction, reply: Reply, spare_bytes: int = 0) -> None:
        """Put a transition into the log; `reply` when it is there, or COORDINATOR_NOT_AVAILABLE when that takes longer than the transaction
        may be open: the transition goes on."""
        transactional_id = txn.transactional_id
        waiting = _Waiter(reply)
        try:
            self._waiters[transactional_id] = waiting
            self._writing[transactional_id] = txn
            records = [(encode_key(transactional_id), encode_value(txn))]
            self._context.append(records, partial(self._written, txn, waiting), spare_bytes=spare_bytes)
            if waiting.reply is not None:
                waiting.timer = self._context.call_later(txn.timeout_ms / 1000, partial(self._overdue, txn, waiting))
        except Exception as error:
            if self._waiters.get(transactional_id) is not waiting:
                # Not begun, or written, and who was told of it has raised.
                raise
            self._end_wait(transactional_id)
            reports.report(f"writing to __transaction_state-{self._context.partition}", error)
            failed = error_for_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"it could not be written: {error!r}")
            self._go_on(txn, waiting, failed)

    def _overdue(self, txn: Transaction, waiting: _Waiter) -> None:
        """A transition is not known to be kept in time: nobody waits for it here any more."""
        self._given_up.add(txn.transactional_id)
        try:
            waiting.tell(None, _not_in_time(txn.transactional_id))
        finally:
            self._wake(txn.transactional_id)

    def _written(self, txn: Transaction, waiting: _Waiter, error: KafkaError | None) -> None:
        if self._waiters.get(txn.transactional_id) is not waiting:
            return  # told already: the shard went, or it failed inside once it was in the log
        self._end_wait(txn.transactional_id)
        if error is None:
            self._unkept.pop(txn.transactional_id, None)
        self._go_on(txn, waiting, error)

    def _end_wait(self, transactional_id: str) -> None:
        del self._waiters[transactional_id]
        self._writing.pop(transactional_id, None)
        self._given_up.discard(transactional_id)

    def _go_on(self, txn: Transaction, waiting: _Waiter, error: KafkaError | None) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        try:
            if error is not None:
                waiting.tell(None, _append_error(txn, error))
            else:
                waiting.tell(txn, None)
        finally:  # whatever the reply raises, as where there is no memory for it
            if error is None and txn.state in DECIDED:
                self._begin_end(txn)
            elif txn.state in DECIDED and self._is_current(txn):
                # In the log, but not as safe as it has to be before a marker.
                self._later(txn, partial(self._write, txn, _ignore))
            else:
                self._wake(txn.transactional_id)

    def _begin_end(self, txn: Transaction) -> None:
        try:
            self._ending.add(txn.transactional_id)
            self._world.soon(partial(self._take, txn, partial(self._end_partitions, txn, txn.partitions)))
        except Exception as error:
            self._ending.discard(txn.transactional_id)
            reports.report(f"ending transactions of __transaction_state-{self._context.partition}", error)
            self._later(txn, partial(self._end_partitions, txn, txn.partitions))

    def _take(self, txn: Transaction, step: Callable[[], None]) -> None:
        """Take a step to the end of a decided transaction. One that raises is tried again: nobody else would end it."""
        try:
            step()
        except Exception as error:
            self._ending.discard(txn.transactional_id)
            reports.report(f"ending transactions of __transaction_state-{self._context.partition}", error)
            under_way = txn.transactional_id in self._writing or txn.transactional_id in self._retries
            if self._is_current(txn) and not under_way:
                self._later(txn, step)

    def _end_partitions(self, txn: Transaction, partitions: frozenset[Partition]) -> None:
        """Write the markers of a decided transaction into these partitions."""
        if self._is_current(txn):
            self._ending.add(txn.transactional_id)
            self._world.write_markers(self._context.leader_epoch, txn, partitions, partial(self._ended, txn))

    def _ended(self, txn: Transaction, left: frozenset[Partition]) -> None:
        """The markers are written, but for those of `left`."""
        if not self._is_current(txn):
            return
        self._ending.discard(txn.transactional_id)
        if left:
            self._later(txn, partial(self._end_partitions, txn, left))
        else:
            self._take(txn, partial(self._complete, txn))

    def _complete(self, txn: Transaction) -> None:
        if self._is_current(txn):
            self._write(txn.completed(self._context.now_ms()), partial(self._completed, txn))

    def _completed(self, prepared: Transaction, txn: Transaction | None, error: KafkaError | None) -> None:
        if error is not None and self._is_current(prepared):
            place = f"ending transactions of partition {self._context.partition}"
            reports.say(logger.warning, place, "the end of a transaction could not be written: %s", error)
            self._later(prepared, partial(self._complete, prepared))

    def _later(self, txn: Transaction, step: Callable[[], None]) -> None:
        """Try a step again after a while; who waits for the end is told to come back."""
        transactional_id = txn.transactional_id

        def run() -> None:
            del self._retries[transactional_id]
            self._take(txn, step)

        failures = self._failures.get(transactional_id, 0)
        self._failures[transactional_id] = failures + 1
        delay_s = min(RETRY_S * 2 ** min(failures, 10), RETRY_MAX_S)
        before = self._retries.get(transactional_id)
        try:
            self._retries[transactional_id] = self._context.call_later(delay_s, run)
        except Exception as error:
            self._retries[transactional_id] = _Untimed(run)
            reports.report(f"waiting to end transactions of __transaction_state-{self._context.partition}", error)
        if before is not None:  # of markers that were half asked for, and have ended all the same
            before.cancel()
        self._wake(transactional_id)

    def _goes_on(self, transactional_id: str) -> bool:
        """Whether something is under way that ends a decided transaction: begun twice, its markers might come behind its end."""
        return any(transactional_id in each for each in (self._ending, self._writing, self._retries))

    def _is_current(self, txn: Transaction) -> bool:
        """Whether the partition is still here and nothing has happened to the transaction."""
        return self._live and self.transactions.get(txn.transactional_id) is txn

    def _wake(self, transactional_id: str) -> None:
        for callback in self._waiting.pop(transactional_id, ()):
            reports.attempt("going on after the end of a transaction", callback)


def _ignore(txn: Transaction | None, error: KafkaError | None) -> None:
    if error is not None and error.code not in LED_ELSEWHERE:
        place = "transitions of transactions"
        reports.say(logger.warning, place, "a transition could not be written: %s", error)


def _reply_concurrent(reply: Reply, txn: Transaction | None, error: KafkaError | None) -> None:
    """The open transaction is being aborted: the client asks again, and gets its epoch then."""
    if txn is None:
        reply(None, error)
    else:
        reply(None, concurrent(txn))


def _not_in_time(transactional_id: str) -> KafkaError:
    return refusal(
        transactional_id,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "an earlier operation was written, and not all in sync had it in time: look for the coordinator anew",
    )


def _append_error(txn: Transaction, error: KafkaError) -> KafkaError:
    return error_for_code(store_error(error), f"transactional id {txn.transactional_id!r}: {error}")
