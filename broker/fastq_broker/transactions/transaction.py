"""One transactional id, and what each request makes of it: values in, the next value out.

Rules
- A `Transaction` never changes; a transition makes another one, and only along the table in `states`.
- A refusal is a KafkaError that names the id, what was expected and what came. Nothing is written here, nothing waits.
- Epochs end at 32767, which no client ever holds: 32766 is the last one given away, so that its holder can still be fenced.
- With transaction version 2 (KIP-890) every end bumps the epoch, so an epoch is one transaction, and a late request of an earlier
  transaction is told apart from one of the next. A retry comes with the epoch before the bump.
Source: TransactionCoordinator, TransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq.values import Value, replace

from .states import COMPLETED, DECIDED, NEXT, SETTLED, TransactionState

NO_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 32767
EPOCH_LAST_GIVEN: Final = EPOCH_MAX - 1
VERSION_2: Final = 2
"""The transaction version from which on an end bumps the epoch."""

Partition = tuple[str, int]


class IllegalTransition(RuntimeError):
    """A transition that the table does not have: a mistake of the coordinator, never of a client."""


class Transaction(Value):
    """The state of a transactional id.

    `partitions`: those of the open transaction, or those that still need a marker. Times are ms since 1970, -1 for none.
    `previous_producer_id` is the id before the last transition, `next_producer_id` the one that takes over when the transaction has
    ended (-1: the same goes on). `last_epoch` is known until a restart only. `version` is the transaction version of the client
    that made the last transition.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    producer_epoch: int = NO_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[Partition] = frozenset()
    started_ms: int = -1
    updated_ms: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    last_epoch: int = NO_EPOCH
    version: int = 0

    def to(self, state: TransactionState, **changes: Any) -> Transaction:
        """The transaction in another state. Raises IllegalTransition."""
        if state not in NEXT[self.state]:
            raise IllegalTransition(f"{self.transactional_id}: {self.state.label} cannot become {state.label}")
        changes.setdefault("previous_producer_id", self.producer_id)
        return replace(self, state=state, **changes)

    @property
    def exhausted(self) -> bool:
        """Whether no epoch of this producer id is left to give away."""
        return self.producer_epoch >= EPOCH_LAST_GIVEN

    @property
    def next_producer(self) -> tuple[int, int]:
        """The id and epoch of the producer's next transaction."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def completed(self, now_ms: int) -> Transaction:
        """The transaction once all its markers are written."""
        committed = self.state == TransactionState.PREPARE_COMMIT
        producer_id, epoch = self.next_producer
        return self.to(
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def fenced(self, now_ms: int, version: int) -> Transaction:
        """The open transaction aborted by the coordinator: its producer's epoch is of the past.

        The epoch moves by two under version 2, so that the fenced producer does not look like one that repeats its EndTxn.
        """
        step = 2 if version >= VERSION_2 else 1
        between = self.to(TransactionState.PREPARE_EPOCH_FENCE)
        return between.to(
            TransactionState.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + step, EPOCH_MAX),
            last_epoch=NO_EPOCH,
            updated_ms=now_ms,
            version=version,
        )

    def expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether nobody has used the id for `expiration_ms`."""
        return self.state in SETTLED and self.updated_ms <= now_ms - expiration_ms


def refusal(txn: Transaction | str, code: ErrorCode, message: str) -> KafkaError:
    """The error of a request for a transactional id."""
    name = txn if isinstance(txn, str) else txn.transactional_id
    return error_for_code(code, f"transactional id {name!r}: {message}")


def unknown_id(transactional_id: str) -> KafkaError:
    """The error for an id that has not been initialized, or has expired."""
    return refusal(
        transactional_id,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "it is not known here (never initialized, or expired): begin with InitProducerId",
    )


# -- InitProducerId


def initialize(
    txn: Transaction,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    new_producer_id: Callable[[], int],
    now_ms: int,
    version: int,
) -> Transaction:
    """What InitProducerId makes of a transaction: EMPTY with the id and epoch to answer, or PREPARE_ABORT when one was open.

    `expected` (id, epoch) is what a producer goes on from (KIP-360); it is fenced when another has come since.
    Raises ProducerFenced, ConcurrentTransactions, and what `new_producer_id` raises.
    """
    _check_settled(txn)
    if expected is not None and not _may_go_on(txn, *expected):
        raise _fenced(txn, *expected)
    if txn.state == TransactionState.ONGOING:
        if expected is not None and expected[1] != txn.producer_epoch:
            raise _fenced(txn, *expected)  # Kafka would abort the transaction of the producer that came later
        return txn.fenced(now_ms, version)
    fresh = {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_ms": -1, "updated_ms": now_ms}
    if expected is None or expected[1] == txn.producer_epoch or txn.producer_epoch == NO_EPOCH:
        last = NO_EPOCH if expected is None else txn.producer_epoch
        if txn.exhausted:
            rotated: dict[str, Any] = {"producer_id": new_producer_id(), "producer_epoch": 0}
        else:
            rotated = {"producer_epoch": txn.producer_epoch + 1}
        return txn.to(TransactionState.EMPTY, last_epoch=last, **rotated, **fresh)
    if expected[1] == txn.last_epoch:  # the answer to the same request was lost
        return txn.to(TransactionState.EMPTY, previous_producer_id=txn.previous_producer_id, **fresh)
    raise _fenced(txn, *expected)


def _may_go_on(txn: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer that names its id may be the present one; its epoch is judged later.

    The previous id is right for a producer that was moved to a new id, and has not heard of it.
    """
    if txn.producer_epoch == NO_EPOCH or producer_id == txn.producer_id:
        return True
    return producer_id == txn.previous_producer_id and epoch >= EPOCH_LAST_GIVEN


# -- AddPartitionsToTxn


def add_partitions(
    txn: Transaction, producer_id: int, epoch: int, partitions: frozenset[Partition], now_ms: int, version: int
) -> Transaction:
    """The transaction with these partitions in it: the same object when nothing has to be written.

    Raises InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions.
    """
    _check_settled(txn)
    _check_producer(txn, producer_id, epoch)
    ongoing = txn.state == TransactionState.ONGOING
    if ongoing and partitions <= txn.partitions:
        return txn
    return txn.to(
        TransactionState.ONGOING,
        partitions=txn.partitions | partitions,
        started_ms=txn.started_ms if ongoing else now_ms,
        updated_ms=now_ms,
        version=version,
    )


def verify(txn: Transaction, producer_id: int, epoch: int, partitions: frozenset[Partition]) -> frozenset[Partition]:
    """Those of `partitions` that are not in the open transaction.

    Raises InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions.
    """
    _check_producer(txn, producer_id, epoch)
    if txn.state in DECIDED:
        raise concurrent(txn)
    return partitions - txn.partitions


# -- EndTxn


def end(
    txn: Transaction,
    producer_id: int,
    epoch: int,
    committed: bool,
    new_producer_id: Callable[[], int],
    now_ms: int,
    version: int,
) -> Transaction:
    """What EndTxn makes of a transaction: PREPARE_*, or the same object when it has ended this way already.

    Raises InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions, InvalidTxnState, and what `new_producer_id` raises.
    """
    if version >= VERSION_2:
        return _end_version_2(txn, producer_id, epoch, committed, new_producer_id, now_ms, version)
    _check_producer(txn, producer_id, epoch)
    if _end_of_same_kind(txn, committed):
        return txn
    if txn.state != TransactionState.ONGOING:
        raise _cannot_end(txn, committed)
    return txn.to(_decision(committed), updated_ms=now_ms, version=0)


def _end_version_2(
    txn: Transaction,
    producer_id: int,
    epoch: int,
    committed: bool,
    new_producer_id: Callable[[], int],
    now_ms: int,
    version: int,
) -> Transaction:
    _check_settled(txn)
    rotated = (
        producer_id == txn.previous_producer_id != txn.producer_id
        and epoch == EPOCH_LAST_GIVEN
        and txn.producer_epoch == 0
    )
    # A fenced producer's epoch ends at the maximum: that is not a retry.
    bumped = txn.producer_epoch == epoch + 1 < EPOCH_MAX
    if producer_id != txn.producer_id and not rotated:
        raise _other_producer(txn, producer_id)
    if txn.state in COMPLETED and (rotated or bumped):
        if _end_of_same_kind(txn, committed):
            return txn
        raise _cannot_end(txn, committed)
    if epoch != txn.producer_epoch:
        raise _fenced(txn, producer_id, epoch)
    if committed and txn.state != TransactionState.ONGOING:
        raise _cannot_end(txn, committed)
    return txn.to(
        _decision(committed),
        producer_epoch=epoch + 1,
        last_epoch=epoch,
        next_producer_id=new_producer_id() if txn.exhausted else NO_ID,
        started_ms=txn.started_ms if txn.state == TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        version=version,
    )


def _decision(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _end_of_same_kind(txn: Transaction, committed: bool) -> bool:
    """Whether the transaction has ended as asked for; raises ConcurrentTransactions while its markers are being written."""
    if txn.state == _decision(committed):
        raise concurrent(txn)
    return txn.state == (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT)


# -- refusals


def _check_settled(txn: Transaction) -> None:
    """Raises ConcurrentTransactions while the end of a transaction goes on. Asked first: its producer may already use the id and epoch
    that are in force only when it is over."""
    if txn.state in DECIDED:
        raise concurrent(txn)


def _check_producer(txn: Transaction, producer_id: int, epoch: int) -> None:
    if txn.producer_id != producer_id:
        raise _other_producer(txn, producer_id)
    if txn.producer_epoch != epoch:
        raise _fenced(txn, producer_id, epoch)


def _other_producer(txn: Transaction, producer_id: int) -> KafkaError:
    return refusal(
        txn,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"it belongs to producer {txn.producer_id}, the request came from producer {producer_id}",
    )


def _fenced(txn: Transaction, producer_id: int, epoch: int) -> KafkaError:
    return refusal(
        txn,
        ErrorCode.PRODUCER_FENCED,
        f"producer {producer_id} came with epoch {epoch}, now is producer {txn.producer_id} epoch {txn.producer_epoch}: "
        "another producer has taken the id over, or the transaction timed out",
    )


def concurrent(txn: Transaction) -> KafkaError:
    """The error while an earlier operation of the id goes on."""
    return refusal(
        txn, ErrorCode.CONCURRENT_TRANSACTIONS, f"an earlier operation goes on (state {txn.state.label}): try again"
    )


def _cannot_end(txn: Transaction, committed: bool) -> KafkaError:
    return refusal(
        txn,
        ErrorCode.INVALID_TXN_STATE,
        f"it cannot be {'committed' if committed else 'aborted'} in state {txn.state.label}",
    )
