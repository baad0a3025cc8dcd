"""Producer snapshots and windows."""

from __future__ import annotations

import struct

import pytest
from fastq_broker.log.producer_state import BatchMetadata, CorruptSnapshot, ProducerState
from log_support import START_MS, one_batch

from fastq._native.crc32c import crc32c
from fastq._native.records import read_header

INT32_MAX = (1 << 31) - 1


def fed(*batches: tuple[int, int, int, int]) -> ProducerState:
    """A state that took batches (producer id, epoch, first sequence, record count) at dense offsets."""
    state = ProducerState("t-0")
    offset = 0
    for producer_id, epoch, sequence, count in batches:
        header = read_header(one_batch([b"v"] * count, producer_id=producer_id, epoch=epoch, sequence=sequence))
        assert state.check(header) is None
        state.update(header, offset, offset + count - 1, START_MS, START_MS)
        offset += count
    return state


def test_snapshot_bytes() -> None:
    body = struct.pack(">i", 2) + struct.pack(">qhiqiqiq", 5, 1, 2, 2, 2, START_MS, -1, -1)
    body += struct.pack(">qhiqiqiq", 6, 0, 9, 3, 0, START_MS, -1, -1)
    assert fed((5, 1, 0, 3), (6, 0, 9, 1)).encode() == struct.pack(">hI", 1, crc32c(body)) + body


def test_snapshot_both_ways_keeps_the_last_batch() -> None:
    state = fed((5, 1, 0, 3), (5, 1, 3, 1), (6, 0, 9, 1))
    loaded = ProducerState("t-0")
    loaded.decode(state.encode(), 5, START_MS)
    assert loaded.encode() == state.encode()
    entry = loaded.get(5)
    assert entry is not None
    assert list(entry.batches) == [BatchMetadata(3, 3, 0, START_MS)]
    loaded.fill_window(5, 1, [BatchMetadata(2, 2, 2, START_MS), BatchMetadata(3, 3, 0, START_MS)])
    assert [batch.first_sequence for batch in entry.batches] == [0, 3]
    assert loaded.end_offset == 5


@pytest.mark.parametrize("change", [slice(0, 2), slice(2, 6), slice(6, 10), slice(20, 22)])
def test_damaged_snapshots_change_nothing(change: slice) -> None:
    data = bytearray(fed((5, 1, 0, 3)).encode())
    data[change] = bytes(byte ^ 0x55 for byte in data[change])
    state = fed((7, 0, 0, 1))
    for damaged in (bytes(data), bytes(data[:8]), b""):
        with pytest.raises(CorruptSnapshot):
            state.decode(damaged, 3, START_MS)
    assert state.get(7) is not None


def test_expired_producers_are_left_out() -> None:
    data = fed((5, 1, 0, 3)).encode()
    state = ProducerState("t-0", expiration_ms=1000)
    state.decode(data, 3, START_MS + 1000)
    assert len(state) == 0
    state.decode(data, 3, START_MS + 999)
    assert len(state) == 1


def test_first_sequence_of_a_batch_across_the_wrap() -> None:
    assert BatchMetadata(1, 10, 3, 0).first_sequence == INT32_MAX - 1
    assert BatchMetadata(INT32_MAX, 10, 3, 0).first_sequence == INT32_MAX - 3
    assert BatchMetadata(3, 10, 3, 0).first_sequence == 0
