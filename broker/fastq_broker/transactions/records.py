"""The records of `__transaction_state`: one key for each transactional id, its newest value is its state.

Key: version 2 bytes (0), then TransactionLogKey. Value: version 2 bytes (0 or 1; 1 has ids of rotation and the client's transaction
version as tagged fields), then TransactionLogValue; null forgets the id. Source: TransactionLog.
"""

from __future__ import annotations

from typing import Final

from fastq._native.wire import DecodeError
from fastq.protocol.messages import TransactionLogKey, TransactionLogValue
from fastq_broker.coordinator import records

from .states import TransactionState
from .transaction import Partition, Transaction

VALUE_VERSION: Final = 1

_IN_RECORDS: Final = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}


def encode_key(transactional_id: str) -> bytes:
    """The key of an id's records."""
    return records.encode_key(TransactionLogKey(transactional_id=transactional_id))


def encode_value(txn: Transaction) -> bytes:
    """The value that keeps a state."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=int(txn.state),
        transaction_partitions=None
        if txn.state == TransactionState.EMPTY
        else [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in topics.items()
        ],
        transaction_last_update_timestamp_ms=txn.updated_ms,
        transaction_start_timestamp_ms=txn.started_ms,
        client_transaction_version=txn.version,
    )
    return records.encode_value(value, VALUE_VERSION)


def decode_key(key: bytes) -> str | None:
    """The transactional id of a record; None for a key of a later version, which has to be passed over. Raises DecodeError."""
    if records.record_type(key) > TransactionLogKey.API_KEY:
        return None
    return records.decode_key(TransactionLogKey, key).transactional_id


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """The state that a value keeps. Raises DecodeError."""
    decoded = records.decode_value(TransactionLogValue, value)
    if decoded.transaction_status not in _IN_RECORDS:
        raise DecodeError("a transaction's status", 0, f"{decoded.transaction_status}", transactional_id)
    partitions: set[Partition] = {
        (topic.topic, partition) for topic in decoded.transaction_partitions or () for partition in topic.partition_ids
    }
    return Transaction(
        transactional_id,
        decoded.producer_id,
        decoded.transaction_timeout_ms,
        producer_epoch=decoded.producer_epoch,
        state=TransactionState(decoded.transaction_status),
        partitions=frozenset(partitions),
        started_ms=decoded.transaction_start_timestamp_ms,
        updated_ms=decoded.transaction_last_update_timestamp_ms,
        previous_producer_id=decoded.previous_producer_id,
        next_producer_id=decoded.next_producer_id,
        version=decoded.client_transaction_version,
    )
