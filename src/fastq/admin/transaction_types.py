"""What the admin clients say about transactions and producers (KIP-664).

Rules of this file: as in `types.py`: names are Kafka's, a list is a tuple, what a broker does not say is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastq.metadata import Node, TopicPartition

__all__ = [
    "FencedProducer",
    "HangingTransaction",
    "ProducerState",
    "TransactionDescription",
    "TransactionListing",
]


TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id with its producer. `state` is one of TRANSACTION_STATES."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and what its transaction has touched. `start_ms` is None when none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: Node


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition remembers of an idempotent or transactional producer.

    `transaction_start_offset` is the first offset of its open transaction, None without one; `coordinator_epoch`, None before
    the first transaction's end; `last_timestamp_ms` is the time of its last batch.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition while no coordinator knows of it: nobody will end it.

    What `abort_transaction` takes.
    """

    topic_partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch that a fenced transactional id has now; a producer with a lower epoch is refused."""

    producer_id: int
    producer_epoch: int
