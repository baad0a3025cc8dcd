"""Records of __transaction_state: against bytes as Apache Kafka writes them, and back."""

from __future__ import annotations

import struct

import pytest
from fastq_broker.transactions.records import decode_key, decode_value, encode_key, encode_value
from fastq_broker.transactions.states import TransactionState
from fastq_broker.transactions.transaction import Transaction

from fastq._native.wire import DecodeError

ONGOING = Transaction(
    "orders-1",
    4000,
    60_000,
    producer_epoch=3,
    state=TransactionState.ONGOING,
    partitions=frozenset({("bills", 0), ("bills", 2), ("__consumer_offsets", 17)}),
    started_ms=1_790_000_000_000,
    updated_ms=1_790_000_000_500,
    previous_producer_id=4000,
    version=2,
)


def test_the_key_is_a_version_and_a_string() -> None:
    assert encode_key("orders-1") == b"\x00\x00\x00\x08orders-1"
    assert decode_key(b"\x00\x00\x00\x08orders-1") == "orders-1"
    assert decode_key(b"\x00\x01whatever") is None


def test_a_value_of_version_1_byte_by_byte() -> None:
    expected = b"".join(
        [
            struct.pack(">hqhib", 1, 4000, 3, 60_000, 1),
            b"\x03" + b"\x13__consumer_offsets" + b"\x02" + struct.pack(">i", 17) + b"\x00",
            b"\x06bills" + b"\x03" + struct.pack(">ii", 0, 2) + b"\x00",
            struct.pack(">qq", 1_790_000_000_500, 1_790_000_000_000),
            b"\x02",
            b"\x00\x08" + struct.pack(">q", 4000),  # previous producer id
            b"\x02\x02" + struct.pack(">h", 2),  # client transaction version
        ]
    )
    assert encode_value(ONGOING) == expected
    assert decode_value("orders-1", expected) == ONGOING


def test_a_value_of_version_0_byte_by_byte() -> None:
    value = b"".join(
        [
            struct.pack(">hqhib", 0, 4000, 3, 60_000, 4),
            struct.pack(">i", 0),
            struct.pack(">qq", 5, 4),
        ]
    )
    found = decode_value("t", value)
    assert (found.state, found.partitions, found.updated_ms, found.started_ms) == (
        TransactionState.COMPLETE_COMMIT,
        frozenset(),
        5,
        4,
    )
    assert (found.previous_producer_id, found.next_producer_id, found.version) == (-1, -1, 0)


@pytest.mark.parametrize(
    "state",
    [s for s in TransactionState if s not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)],
)
def test_what_is_written_is_read(state: TransactionState) -> None:
    partitions = frozenset() if state == TransactionState.EMPTY else frozenset({("t", 5)})
    txn = Transaction("x", 1, 2, producer_epoch=3, state=state, partitions=partitions, next_producer_id=9, updated_ms=8)
    assert decode_value("x", encode_value(txn)) == txn


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        struct.pack(">h", 2) + encode_value(ONGOING)[2:],
        struct.pack(">h", -1) + encode_value(ONGOING)[2:],
        encode_value(ONGOING)[:-1],
        encode_value(ONGOING)[:16] + b"\x06" + encode_value(ONGOING)[17:],
        encode_value(ONGOING)[:16] + b"\x63" + encode_value(ONGOING)[17:],
    ],
)
def test_rubbish_is_named(value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value("orders-1", value)


def test_a_key_that_is_cut_off_is_named() -> None:
    for end in (0, 1, 3, 6):
        with pytest.raises(ValueError):
            decode_key(encode_key("orders-1")[:end])
