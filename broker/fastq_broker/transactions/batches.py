"""The batches of one Produce request, as the transaction coordinator has to be asked about them.

Rules
- Asked is only for a transactional batch whose producer has no open transaction in the log yet: once a transaction and partition.
- Nothing is judged here but the header's place: a batch that is too short, or in an unknown partition, is left to who appends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq.values import NamedTuple

from .transaction import Partition
from .verification import Operation, Refusals

if TYPE_CHECKING:
    from fastq_broker.replicas import Replica

    from .coordinator import TransactionCoordinator
    from .verification import Answer

_PRODUCER = struct.Struct(">qh")
_ATTRIBUTES_AT: Final = 22
"""The byte of the attributes that has the transactional bit."""
_TRANSACTIONAL: Final = 0x10
_PRODUCER_AT: Final = 43
_OVERHEAD: Final = 61


class BatchProducer(NamedTuple):
    """A batch to ask about."""

    key: tuple[bytes, int]
    """Topic name or id as the request has it, and partition."""
    partition: Partition
    producer_id: int
    epoch: int


def unverified_batches(
    table: Mapping[bytes, Mapping[int, Replica]], view: memoryview, partitions: Iterable[tuple[bytes, int, int, int]]
) -> list[BatchProducer]:
    """The transactional batches that the log does not know to be in an open transaction."""
    found = []
    for topic, index, start, end in partitions:
        hosted = table.get(topic)
        replica = None if hosted is None else hosted.get(index)
        if replica is None or start < 0 or end - start < _OVERHEAD or not view[start + _ATTRIBUTES_AT] & _TRANSACTIONAL:
            continue
        producer_id, epoch = _PRODUCER.unpack_from(view, start + _PRODUCER_AT)
        if not _is_open(replica, producer_id, epoch):
            found.append(BatchProducer((topic, index), (replica.topic, index), producer_id, epoch))
    return found


def _is_open(replica: Replica, producer_id: int, epoch: int) -> bool:
    """Whether the log has an open transaction of this producer."""
    try:
        entry = replica.log.producers.get(producer_id)
    except KafkaError:  # the log cannot be read: the append will say so
        return True
    return entry is not None and entry.epoch == epoch and entry.txn_first_offset >= 0


def admit_batches(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    batches: list[BatchProducer],
    wanted: Operation,
    retry: Callable[[Answer | None], None],
    answer: Answer | None = None,
) -> dict[tuple[bytes, int], KafkaError] | None:
    """The batches that must not be appended; None when `retry` will be called to ask again, with the `answer` if there is one."""
    if not batches:
        return {}
    first = batches[0]
    if any((batch.producer_id, batch.epoch) != (first.producer_id, first.epoch) for batch in batches):
        error = error_for_code(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {transactional_id!r}: the request has batches of more than one producer",
        )
        return {batch.key: error for batch in batches}
    partitions = frozenset(batch.partition for batch in batches)
    if answer is not None and answer.holds_for(partitions):
        refused: Refusals | None = answer.refused
    else:
        refused = coordinator.admit(transactional_id, first.producer_id, first.epoch, partitions, wanted, retry)
    if refused is None:
        return None
    return {batch.key: refused[batch.partition] for batch in batches if batch.partition in refused}
