"""The native half of compaction: batches, one rule at a time."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from fastq._native.cleaned_segment import SegmentWriter
from fastq._native.compaction import BatchFilter, OldFormat, TransactionFilter, index_batches
from fastq._native.crc32c import crc32c
from fastq._native.offset_map import OffsetMap
from fastq._native.records import build_batch, build_transaction_marker, decode_records, iter_headers, verify_crc
from fastq._native.wire import DecodeError

NOW_MS = 1_700_000_000_000


Rows = Sequence[tuple[bytes | None, bytes | None]]


def batch_of(rows: Rows, base_offset: int = 0, **settings: object) -> bytes:
    stamped = [(NOW_MS + number, key, value, []) for number, (key, value) in enumerate(rows)]
    return bytes(build_batch(stamped, base_offset=base_offset, **settings))  # type: ignore[arg-type]


def cleaned(
    data: bytes,
    *,
    indexed: bytes | None = None,
    now_ms: int = NOW_MS,
    aborted: Sequence[tuple[int, int, int, int]] = (),
    last_offsets: dict[int, tuple[int, int]] | None = None,
    upper_offset: int = 1 << 40,
    delete_retention_ms: int = 1000,
) -> bytes:
    """The bytes that a round leaves of `data`."""
    offsets = OffsetMap(1 << 20)
    whole = data if indexed is None else indexed
    assert index_batches(offsets, TransactionFilter(aborted), whole, 0, 0) == (len(whole), False)
    batches = BatchFilter(
        offsets,
        TransactionFilter(aborted),
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        upper_offset=upper_offset,
        last_offsets=last_offsets or {},
    )
    out = SegmentWriter(0, 4096)
    assert batches.feed(data, 0, out) == len(data)
    left = out.take()
    assert len(left) == out.size
    for position, _ in iter_headers(left, strict=True):
        assert verify_crc(left, position)
    return left


def rows_in(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (r.offset, r.timestamp_ms, r.key, r.value)
        for position, _ in iter_headers(data, strict=True)
        for r in decode_records(data, position)
    ]


def test_a_batch_that_keeps_all_its_records_keeps_its_bytes() -> None:
    data = batch_of([(b"a", b"1"), (b"b", b"2")], codec=4) + batch_of([(b"c", b"3")], 2)
    assert cleaned(data) == data


@pytest.mark.parametrize("codec", range(5))
def test_the_latest_record_of_a_key_stays_where_it_was(codec: int) -> None:
    data = batch_of([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], codec=codec) + batch_of([(b"b", b"4")], 3, codec=codec)
    left = cleaned(data)
    (_, first), (_, second) = iter_headers(left, strict=True)
    assert rows_in(left) == [(2, NOW_MS + 2, b"a", b"3"), (3, NOW_MS, b"b", b"4")]
    assert (first.base_offset, first.last_offset, first.codec, first.record_count) == (0, 2, codec, 1)
    assert (first.base_timestamp, first.max_timestamp) == (NOW_MS, NOW_MS + 2)
    assert (second.base_offset, second.last_offset) == (3, 3)


def test_a_batch_goes_when_nothing_of_it_stays() -> None:
    data = batch_of([(b"a", b"1")]) + batch_of([(b"a", b"2")], 1)
    assert rows_in(cleaned(data)) == [(1, NOW_MS, b"a", b"2")]


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    mine = batch_of([(b"a", b"1"), (b"a", b"2")], producer_id=7, producer_epoch=3, base_sequence=40, codec=3)
    data = mine + batch_of([(b"a", b"3")], 2)
    (_, empty), (_, full) = iter_headers(cleaned(data, last_offsets={7: (1, 3)}), strict=True)
    assert (empty.record_count, empty.size_bytes, empty.codec) == (0, 61, 0)
    assert (empty.base_offset, empty.last_offset, empty.max_timestamp) == (0, 1, NOW_MS + 1)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (7, 3, 40, 41)
    assert full.record_count == 1
    assert len(list(iter_headers(cleaned(data, last_offsets={7: (9, 3)})))) == 1


def test_the_batch_before_the_rounds_end_stays_without_its_records() -> None:
    data = batch_of([(b"a", b"1")])
    after = batch_of([(b"a", b"2")], 1)
    ((_, header),) = iter_headers(cleaned(data, indexed=data + after, upper_offset=1), strict=True)
    assert (header.base_offset, header.record_count) == (0, 0)


def test_a_tombstone_stays_for_its_time() -> None:
    data = batch_of([(b"a", b"1"), (b"b", b"2")], codec=1) + batch_of([(b"a", None), (b"c", b"4")], 2, codec=1)
    first = cleaned(data, now_ms=NOW_MS, delete_retention_ms=500)
    expected = [(1, NOW_MS + 1, b"b", b"2"), (2, NOW_MS, b"a", None), (3, NOW_MS + 1, b"c", b"4")]
    assert rows_in(first) == expected
    header = [header for _, header in iter_headers(first)][1]
    assert (header.has_delete_horizon, header.base_timestamp) == (True, NOW_MS + 500)
    assert header.max_timestamp == NOW_MS + 1
    assert cleaned(first, now_ms=NOW_MS + 499) == first, "the horizon is set once"
    gone = cleaned(first, now_ms=NOW_MS + 500)
    assert rows_in(gone) == [expected[0], expected[2]]
    assert [header.has_delete_horizon for _, header in iter_headers(gone)] == [False, True]


def test_log_append_time_stays_the_time_of_all_records() -> None:
    data = batch_of([(b"a", None), (b"b", b"1"), (b"b", b"2")], timestamp_type=1, max_timestamp=NOW_MS + 77)
    left = cleaned(data)
    assert rows_in(left) == [(0, NOW_MS + 77, b"a", None), (2, NOW_MS + 77, b"b", b"2")]


def test_aborted_records_go_and_their_marker_stays_until_its_horizon() -> None:
    txn = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    marker = {"producer_id": 5, "producer_epoch": 0, "coordinator_epoch": 1, "timestamp_ms": NOW_MS}
    data = (
        batch_of([(b"a", b"0")])
        + batch_of([(b"a", b"1")], 1, base_sequence=0, **txn)
        + bytes(build_transaction_marker(0, base_offset=2, **marker))
        + batch_of([(b"b", b"2")], 3, base_sequence=1, **txn)
        + bytes(build_transaction_marker(1, base_offset=4, **marker))
        + batch_of([(b"b", b"3")], 5)
    )
    aborted = [(5, 1, 2, 3)]
    first = cleaned(data, aborted=aborted)
    assert [(h.base_offset, h.is_control, h.has_delete_horizon) for _, h in iter_headers(first, strict=True)] == [
        (0, False, False),
        (2, True, False),  # a batch of it was there, in this round
        (4, True, False),
        (5, False, False),
    ]
    second = cleaned(first, delete_retention_ms=500)
    assert [(h.base_offset, h.has_delete_horizon) for _, h in iter_headers(second)] == [
        (0, False),
        (2, True),
        (4, True),
        (5, False),
    ]
    assert cleaned(second, now_ms=NOW_MS + 499) == second
    assert [h.base_offset for _, h in iter_headers(cleaned(second, now_ms=NOW_MS + 500))] == [0, 5]


def test_records_above_the_map_stay_and_those_without_a_key_go() -> None:
    data = batch_of([(None, b"1"), (b"a", b"2")])
    above = batch_of([(None, b"3"), (b"a", b"4")], 2)
    assert rows_in(cleaned(data + above, indexed=data)) == [
        (1, NOW_MS + 1, b"a", b"2"),
        (2, NOW_MS, None, b"3"),
        (3, NOW_MS + 1, b"a", b"4"),
    ]


def test_a_full_map_stops_inside_a_batch() -> None:
    data = batch_of([(b"%d" % number, b"v") for number in range(10)])
    offsets = OffsetMap(24 * 5, 1.0)
    assert index_batches(offsets, TransactionFilter([]), data, 0, 0) == (0, True)
    assert (len(offsets), offsets.latest_offset) == (4, 3)


def test_a_batch_that_is_cut_off_is_left_for_the_next_read() -> None:
    first, second = batch_of([(b"a", b"1")]), batch_of([(b"b", b"2")], 1)
    for size in range(len(first), len(first) + len(second)):
        offsets = OffsetMap(1 << 16)
        assert index_batches(offsets, TransactionFilter([]), (first + second)[:size], 0, 0) == (len(first), False)
        assert len(offsets) == 1


def test_damage_is_found_before_anything_is_written_under_a_new_checksum() -> None:
    data = bytearray(batch_of([(b"a", b"1"), (b"a", b"2")]))
    for position in range(21, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        batches = BatchFilter(
            OffsetMap(1 << 16),
            TransactionFilter([]),
            now_ms=0,
            delete_retention_ms=0,
            upper_offset=9,
            last_offsets={},
        )
        with pytest.raises(DecodeError):
            batches.feed(damaged, 0, SegmentWriter(0, 100))
        with pytest.raises(DecodeError):
            index_batches(OffsetMap(1 << 16), TransactionFilter([]), damaged, 0, 0)


def test_a_right_checksum_over_wrong_records_is_found_too() -> None:
    data = bytearray(batch_of([(b"a", b"1"), (b"b", b"2")]))
    struct.pack_into(">i", data, 57, 3)  # one record more than there is
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    with pytest.raises(DecodeError, match="record"):
        index_batches(OffsetMap(1 << 16), TransactionFilter([]), data, 0, 0)


def test_an_old_format_is_told_apart_from_damage() -> None:
    old = struct.pack(">qiIbbq", 0, 22, 0, 1, 0, NOW_MS) + struct.pack(">ii", -1, -1) + bytes(40)
    with pytest.raises(OldFormat, match="magic 1"):
        index_batches(OffsetMap(1 << 16), TransactionFilter([]), old, 0, 0)


def test_a_segment_that_an_index_could_not_address_is_refused() -> None:
    batches = BatchFilter(
        OffsetMap(1 << 16), TransactionFilter([]), now_ms=0, delete_retention_ms=0, upper_offset=9, last_offsets={}
    )
    with pytest.raises(OverflowError):
        batches.feed(batch_of([(b"a", b"1")], 1 << 31), 0, SegmentWriter(0, 100))


def test_whatever_the_bytes_say_nothing_is_read_or_written_past_them() -> None:
    """Batches damaged at random, under right checksums: cleaned, or refused with the one error; what is written can be read."""
    source = random.Random(11)
    outcomes = {"cleaned": 0, "refused": 0}
    for _ in range(3000):
        rows = [(b"%d" % source.randrange(4), source.choice([None, b"v" * 9])) for _ in range(source.randint(1, 6))]
        flags = {"transactional": source.random() < 0.3, "control": source.random() < 0.2}
        data = bytearray(batch_of(rows, codec=source.choice([0, 0, 0, 2]), producer_id=1, **flags))
        for _ in range(source.randint(1, 3)):
            data[source.choice([22, *range(23, len(data))])] = source.randrange(256)
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
        offsets, out = OffsetMap(1 << 12), SegmentWriter(0, 10)
        batches = BatchFilter(
            offsets,
            TransactionFilter([(1, 0, 1, 2)] if source.random() < 0.3 else []),
            now_ms=NOW_MS,
            delete_retention_ms=1000,
            upper_offset=source.choice([1, 3, 1 << 40]),
            last_offsets={1: (source.randrange(6), -1)},
        )
        try:
            assert index_batches(offsets, TransactionFilter([]), data, 0, 0)[0] in (0, len(data))
            assert batches.feed(data, 0, out) == len(data)
        except DecodeError:
            outcomes["refused"] += 1
            continue
        outcomes["cleaned"] += 1
        left = out.take()
        assert all(verify_crc(left, position) for position, _ in iter_headers(left, strict=True))
        out.finish()
    assert min(outcomes.values()) > 300, outcomes
