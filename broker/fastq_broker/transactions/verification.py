"""May a batch, or a commit of offsets, go into a partition? Only if the coordinator has it in the producer's open transaction (KIP-890).

Rules
- By the request's version: newer clients leave it to the broker to add the partition, older ones have added it themselves.
- What the log knows to be open needs no question: a partition is added once a transaction.
- A transaction that is just ending, or an addition that is not yet on disk, is waited for: the caller asks again when told.
- Where another node coordinates, it is asked (`elsewhere`), and who waits is told its answer.
Source: AddPartitionsToTxnManager, ReplicaManager.maybeSendPartitionsToTransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .transaction import VERSION_2, Partition, Transaction

if TYPE_CHECKING:
    from .shard import TransactionShard


class Operation(Enum):
    """What to do about a partition that is not in the transaction."""

    ADD = "add"
    """Add it: Produce 12, TxnOffsetCommit 5."""
    ABORTABLE = "abortable"
    """Refuse with TRANSACTION_ABORTABLE: Produce 11, TxnOffsetCommit 4."""
    INVALID_STATE = "invalid-state"
    """Refuse with INVALID_TXN_STATE, which older clients know."""


Refusals = Mapping[Partition, KafkaError]
NONE: Final[Refusals] = {}


class Answer(Protocol):
    """What the coordinator of another node has said."""

    @property
    def refused(self) -> Refusals:
        """The partitions that must not be appended to."""

    def holds_for(self, partitions: frozenset[Partition]) -> bool:
        """Whether it says something of all these partitions, and is good still: not once a transaction has ended there."""


def operation(version: int, first_adding: int) -> Operation:
    """The operation of a request's version; `first_adding` is its API's first version that leaves additions to the broker."""
    if version >= first_adding:
        return Operation.ADD
    return Operation.ABORTABLE if version == first_adding - 1 else Operation.INVALID_STATE


def admit(
    shard: TransactionShard,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: frozenset[Partition],
    wanted: Operation,
    retry: Callable[[], None],
) -> Refusals | None:
    """What is refused of `partitions`, and why; None when it is not known yet: `retry` is called when to ask again."""
    try:
        if wanted is Operation.ADD:
            return _add(shard, transactional_id, producer_id, epoch, partitions, retry)
        missing = shard.verify(transactional_id, producer_id, epoch, partitions)
    except KafkaError as error:
        if error.code == ErrorCode.CONCURRENT_TRANSACTIONS and shard.wait_settled(transactional_id, retry):
            return None
        return dict.fromkeys(partitions, refusal_for(error, wanted))
    return {partition: not_in_transaction(transactional_id, partition, wanted) for partition in missing}


def not_in_transaction(transactional_id: str, partition: Partition, wanted: Operation) -> KafkaError:
    """The refusal of a partition that the producer should have added, and has not."""
    return error_for_code(
        ErrorCode.TRANSACTION_ABORTABLE if wanted is Operation.ABORTABLE else ErrorCode.INVALID_TXN_STATE,
        f"the partition is not in the open transaction of transactional id {transactional_id!r}: abort it",
        topic=partition[0],
        partition=partition[1],
    )


def _add(
    shard: TransactionShard,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: frozenset[Partition],
    retry: Callable[[], None],
) -> Refusals | None:
    answer: Refusals | None = None
    asked = True

    def reply(txn: Transaction | None, error: KafkaError | None) -> None:
        nonlocal answer
        if not asked:
            retry()
        elif error is None:
            answer = NONE
        else:
            answer = dict.fromkeys(partitions, refusal_for(error, Operation.ADD))

    shard.add_partitions(transactional_id, producer_id, epoch, partitions, VERSION_2, reply)
    asked = False
    return answer


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


def refusal_for(error: KafkaError, wanted: Operation) -> KafkaError:
    """A coordinator's error in the words of a producer, which knows nothing of coordinators here."""
    code = ErrorCode(error.code)
    if code == ErrorCode.PRODUCER_FENCED:
        return error_for_code(ErrorCode.INVALID_PRODUCER_EPOCH, str(error))
    concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS and wanted is not Operation.ADD
    if concurrent or code in _RETRIABLE:
        return error_for_code(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction could not be verified: {error}")
    return error
