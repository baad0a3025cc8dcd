"""Fetched records made of batches, for the tests of the native consumer code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from fastq._native.consume import FetchedRecords, Record
from fastq._native.fetch import decode_fetch_response
from fastq._native.records import build_batch
from fastq.protocol.messages import FetchResponse

T0 = 1_700_000_000_000

# (timestamp, key, value, headers) of one batch
batch_rows = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def batch(base: int, count: int = 3, **options: Any) -> bytes:
    rows = [(T0 + n, None if n % 3 else b"k%d" % n, b"value %d" % (base + n), [("h", b"%d" % n)]) for n in range(count)]
    return bytes(build_batch(rows, base_offset=base, **options))


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def fetched(
    records: bytes,
    position: int = 0,
    *,
    topic: str = "logs",
    partition: int = 3,
    aborted: Iterable[tuple[int, int]] | None = None,
    **options: Any,
) -> FetchedRecords:
    """The chunk that a fetch of these bytes gives."""
    transactions = None
    if aborted is not None:
        transactions = [FetchResponse.AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted]
    part = FetchResponse.PartitionData(
        partition_index=partition,
        high_watermark=0,
        last_stable_offset=0,
        aborted_transactions=transactions,
        records=bytes(records),
    )
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic=topic, partitions=[part])])
    decoded = decode_fetch_response(bytearray(response.to_bytes(12)), 12)
    return FetchedRecords(decoded.partitions[0], topic, position, broker="fake:1", **options)


def drain(chunk: FetchedRecords) -> list[Record]:
    """All records that are left."""
    return chunk.take(1_000_000)
