"""What a chunk and a batch say of how far the application is: the offset to commit."""

from __future__ import annotations

import pytest
from consume_support import fetched

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import RecordIterator
from fastq._native.records import build_batch


def batches(codec: int = 0) -> bytes:
    """Offsets 10 to 12, 20 and 21, and 30, which a marker follows at 31."""
    rows = [(0, None, b"x")] * 3
    return bytes(
        build_batch(rows, base_offset=10, codec=codec)
        + build_batch(rows[:2], base_offset=20, codec=codec)
        + build_batch(rows[:1], base_offset=30, last_offset_delta=1, codec=codec)
    )


@pytest.mark.parametrize("codec", [0, 4])
def test_the_record_in_hand_is_not_finished(codec: int) -> None:
    chunk = fetched(batches(codec), 10)
    assert chunk.finished_position == 10
    records = RecordIterator(lambda ended: chunk if ended is None else None)
    places = [(record.offset, chunk.finished_position, chunk.position) for record in records]
    assert places == [(offset, offset, offset + 1) for offset in (10, 11, 12, 20, 21, 30)]
    # The end was asked for: all of it is finished, gaps included.
    assert chunk.finished_position == chunk.position == 32


def test_a_batch_knows_where_to_go_on() -> None:
    batch = ConsumerBatch()
    assert batch.next_offsets == {}
    batch.add(fetched(batches(), 11, topic="a", partition=1))
    batch.add(fetched(batches(), 10, topic="b", partition=0, read_committed=True))
    limited = fetched(batches(), 10, topic="b", partition=2)
    limited.limit = 12
    batch.add(limited)
    assert batch.next_offsets == {("a", 1): 32, ("b", 0): 32, ("b", 2): 12}
    assert len(batch) == 5 + 6 + 2
