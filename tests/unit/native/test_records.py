"""Record batches: built, decoded and stamped, against a slow version and the peers' codecs."""

import mmap

import aiokafka.record.memory_records
import pytest
import record_oracle as oracle
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as PeerBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as PeerBuilder
from record_samples import CODECS, NOW_MS, SAMPLE, expected_of, plain

from fastq._native import records as native
from fastq._native.batch_validation import validate_batch
from fastq._native.crc32c import crc32c_table
from fastq._native.records import (
    BATCH_OVERHEAD,
    build_batch,
    build_transaction_marker,
    decode_control_record,
    decode_records,
    iter_headers,
    read_header,
    recompress,
    stamp,
    stamp_log_append_time,
    stamp_max_timestamp,
    verify_crc,
)
from fastq._native.wire import DecodeError
from fastq.compression import decompress

nullable = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), nullable), max_size=3)
rows = st.lists(st.tuples(st.integers(-1, 2**62), nullable, nullable, headers), min_size=1, max_size=8)


# --- building and decoding


@pytest.mark.parametrize("codec", CODECS)
def test_round_trip(codec):
    batch = build_batch(SAMPLE, base_offset=1000, codec=codec, producer_id=9, producer_epoch=2, base_sequence=7)
    header = read_header(batch)
    assert plain(decode_records(batch)) == expected_of(SAMPLE, 1000)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (1000, 1003, 1004, 4)
    assert (header.base_timestamp, header.max_timestamp, header.codec) == (NOW_MS, NOW_MS + 5, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 2, 7, 10)
    assert (header.magic, header.partition_leader_epoch, header.timestamp_type) == (2, -1, 0)
    assert header.size_bytes == len(batch) == header.batch_length + 12
    assert not (header.is_transactional or header.is_control or header.has_delete_horizon)
    assert verify_crc(batch) is True
    assert header.crc == crc32c_table(batch[21:])


@settings(max_examples=150)
@given(rows, st.integers(0, 2**62))
def test_bytes_are_those_of_the_slow_version(given_rows, base_offset):
    batch = build_batch(given_rows, base_offset=base_offset)
    base = given_rows[0][0]
    encoded = b"".join(
        oracle.encode_record(i, ts - base, key, value, [(name.encode(), content) for name, content in pairs])
        for i, (ts, key, value, pairs) in enumerate(given_rows)
    )
    assert batch[BATCH_OVERHEAD:] == encoded
    assert oracle.decode(batch) == plain(decode_records(batch)) == expected_of(given_rows, base_offset)
    assert verify_crc(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_peers_read_ours(codec):
    batch = bytes(build_batch(SAMPLE[:3], base_offset=50, codec=codec))
    expected = [row[:4] for row in expected_of(SAMPLE[:3], 50)]
    peer = PeerBatch(batch)
    assert peer.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in peer] == expected
    assert [list(r.headers) for r in PeerBatch(batch)] == [row[4] for row in expected_of(SAMPLE[:3], 50)]
    reader = aiokafka.record.memory_records.MemoryRecords(batch)
    theirs = reader.next_batch()
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == expected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("builder", [PeerBuilder, AiokafkaBuilder], ids=["kafka-python", "aiokafka"])
def test_we_read_the_peers(builder, codec):
    made = builder(
        magic=2, compression_type=codec, is_transactional=False, producer_id=5, producer_epoch=1, base_sequence=3,
        batch_size=1 << 20,
    )  # fmt: skip
    expected = [
        (number, NOW_MS + number, b"k%d" % number if number % 2 else None, b"v" * number * 50, [("h", b"%d" % number)])
        for number in range(40)
    ]
    for offset, timestamp, key, value, pairs in expected:
        assert made.append(offset, timestamp=timestamp, key=key, value=value, headers=pairs)
    batch = bytes(made.build())
    assert plain(decode_records(batch)) == expected
    assert validate_batch(batch, decompress=decompress).records_max_timestamp == NOW_MS + 39


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_recompress_changes_codec_and_crc_only(codec, target):
    batch = build_batch(SAMPLE, base_offset=7, leader_epoch=3, codec=codec, producer_id=1, producer_epoch=1)
    again = recompress(b"pad" + batch, 3, target)
    before, after = read_header(batch), read_header(again)
    assert verify_crc(again)
    assert after.codec == target
    assert after.attributes & ~7 == before.attributes & ~7
    assert plain(decode_records(again)) == expected_of(SAMPLE, 7)
    for name in ("base_offset", "partition_leader_epoch", "max_timestamp", "producer_id", "record_count"):
        assert getattr(after, name) == getattr(before, name)


def test_compacted_batches_keep_their_offsets():
    batch = build_batch(SAMPLE[:2], base_offset=10, offset_deltas=[2, 5], last_offset_delta=9)
    assert [r.offset for r in decode_records(batch)] == [12, 15]
    assert read_header(batch).next_offset == 20
    assert validate_batch(batch, from_client=False).record_count == 2
    empty = build_batch([], base_offset=10, last_offset_delta=4, max_timestamp=NOW_MS, base_timestamp=NOW_MS)
    assert decode_records(empty) == []
    assert validate_batch(empty, from_client=False).next_offset == 15


def test_delete_horizon_is_the_base_of_timestamps():
    batch = build_batch([(NOW_MS, b"k", None)], delete_horizon_ms=NOW_MS + 1000)
    header = read_header(batch)
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + 1000
    assert decode_records(batch)[0].timestamp_ms == NOW_MS


def test_log_append_time_is_everyones():
    batch = build_batch(SAMPLE, timestamp_type=1, max_timestamp=NOW_MS + 99)
    assert [(r.timestamp_ms, r.timestamp_type) for r in decode_records(batch)] == [(NOW_MS + 99, 1)] * 4


def test_header_keys_that_are_not_utf8_survive():
    batch = build_batch([(1, None, b"v", [(b"\xff\xfe", b"x")])])
    record = decode_records(batch)[0]
    assert build_batch([record.row()]) == batch


def test_transaction_markers():
    for control_type in (native.CONTROL_ABORT, native.CONTROL_COMMIT):
        batch = build_transaction_marker(
            control_type, producer_id=77, producer_epoch=3, coordinator_epoch=12, timestamp_ms=NOW_MS, base_offset=5
        )
        header = read_header(batch)
        assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
        assert (header.producer_id, header.producer_epoch, header.record_count) == (77, 3, 1)
        (record,) = decode_records(batch)
        assert decode_control_record(record.key, record.value) == (control_type, 0, 12)
        assert validate_batch(batch, from_client=False, compacted=True).base_offset == 5
        assert PeerBatch(bytes(batch)).is_control_batch
    with pytest.raises(ValueError, match="CONTROL_ABORT"):
        build_transaction_marker(
            native.CONTROL_LEADER_CHANGE, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", None), (b"\0\0\0\0", b"\0" * 5), (b"\xff\xff\0\2", b"")],
)
def test_bad_control_records(key, value):
    with pytest.raises(DecodeError):
        decode_control_record(key, value)


def test_other_control_records_have_no_epoch():
    key = native.encode_control_key(native.CONTROL_KRAFT_VOTERS)
    assert decode_control_record(key, None) == (native.CONTROL_KRAFT_VOTERS, 0, -1)


# --- what the format cannot hold


@pytest.mark.parametrize(
    ("given_rows", "options", "match"),
    [
        ([], {}, "last_offset_delta"),
        ([(1, None)], {}, "fields"),
        ([(-2, None, None)], {}, "timestamp_ms"),
        ([(-1, None, None), (2**63 - 1, None, None)], {}, "base timestamp"),
        ([(1, None, None)] * 2, {"offset_deltas": [1, 1]}, "offset delta"),
        ([(1, None, None)], {"offset_deltas": [2**31]}, "offset delta"),
        ([(1, None, None)], {"offset_deltas": [-1]}, "offset delta"),
        ([(1, None, None)] * 2, {"offset_deltas": [0]}, "offset deltas"),
        ([(1, None, None)], {"offset_deltas": [0, 1]}, "offset deltas"),
        ([(1, None, None)] * 2, {"last_offset_delta": 0}, "last_offset_delta"),
        ([(1, None, None)], {"codec": 5}, "codec"),
        ([(1, None, None)], {"codec": 9}, "codec"),
        ([(1, None, None)], {"timestamp_type": 2}, "timestamp_type"),
        ([(1, None, None)], {"base_timestamp": -2}, "base timestamp"),
    ],
)
def test_build_refuses(given_rows, options, match):
    with pytest.raises(ValueError, match=match):
        build_batch(given_rows, **options)


@pytest.mark.parametrize(
    "row", [(1, "text", b""), (1, b"", 5), (1, b"", b"", [(None, b"")]), (1, b"", b"", [("h", "text")])]
)
def test_build_refuses_what_is_not_bytes(row):
    with pytest.raises(TypeError):
        build_batch([row])


def test_widest_timestamps():
    for stamps in ([0, 2**63 - 1], [2**63 - 1, -1], [2**63 - 2, 0, 2**63 - 1]):
        batch = build_batch([(timestamp, None, b"v") for timestamp in stamps])
        assert [r.timestamp_ms for r in decode_records(batch)] == stamps
    with pytest.raises(OverflowError):
        build_batch([(2**63, None, None)])


def test_two_gibibytes_are_refused_before_anything_is_copied():
    with mmap.mmap(-1, 2**31) as huge, memoryview(huge) as view:  # pages nobody touches cost nothing
        with view[: 2**31 - 1 - 30] as almost, pytest.raises(ValueError, match="a record batch takes"):
            build_batch([(1, None, almost)])
        with view[: 2**31 - 1] as field, pytest.raises(ValueError, match="a record takes"):
            build_batch([(1, None, field)])
        with view[: 2**30] as half, pytest.raises(ValueError, match="a record takes"):
            build_batch([(1, half, half)])
        with pytest.raises(ValueError, match="a key or value takes"):
            build_batch([(1, view, None)])


# --- headers, stamps


def test_iterating_stops_before_a_truncated_tail():
    first, second = build_batch(SAMPLE), build_batch(SAMPLE[:1], base_offset=4)
    whole = bytes(first + second)
    assert [(position, h.base_offset) for position, h in iter_headers(whole)] == [(0, 0), (len(first), 4)]
    for cut in range(len(first), len(whole)):
        assert [position for position, _ in iter_headers(whole[:cut])] == [0]
    assert [position for position, _ in iter_headers(whole, len(first))] == [len(first)]
    assert list(iter_headers(whole, len(whole), strict=True)) == []
    with pytest.raises(DecodeError, match="only"):
        list(iter_headers(whole[:-1], strict=True))
    with pytest.raises(DecodeError, match="position"):
        list(iter_headers(whole, len(whole) + 1))


@pytest.mark.parametrize(
    ("at", "value", "match"), [(16, 1, "v1 message set"), (16, 3, "got 3"), (8, 0xFF, "batch length")]
)
def test_iterating_raises_at_what_is_no_batch(at, value, match):
    batch = build_batch(SAMPLE)
    batch[at] = value
    with pytest.raises(DecodeError, match=match):
        list(iter_headers(batch))
    with pytest.raises(DecodeError, match=match):
        read_header(batch)


def test_stamping_in_place():
    data = bytearray(b"xx") + build_batch(SAMPLE)
    before = bytes(data)
    stamp(data, 2, 2**40, 17)
    header = read_header(data, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 17)
    assert verify_crc(data, 2)
    assert data[:2] + data[18:] == before[:2] + before[18:]
    stamp_log_append_time(data, 2, NOW_MS + 1)
    header = read_header(data, 2)
    assert (header.timestamp_type, header.max_timestamp) == (1, NOW_MS + 1)
    assert verify_crc(data, 2)
    stamp_max_timestamp(data, 2, NOW_MS + 5)
    header = read_header(data, 2)
    assert (header.timestamp_type, header.max_timestamp) == (0, NOW_MS + 5)
    assert data[18:] == before[18:]


def test_stamping_needs_a_writable_whole_batch():
    batch = build_batch(SAMPLE)
    with pytest.raises(BufferError):
        stamp(bytes(batch), 0, 1, 1)
    for position in (-1, 1, len(batch) + 1):
        with pytest.raises(DecodeError):
            stamp(batch, position, 1, 1)
    with pytest.raises(DecodeError):
        stamp_log_append_time(batch[:-1], 0, 1)


def test_sequence_numbers_wrap():
    batch = build_batch(SAMPLE, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 1
    assert read_header(build_batch(SAMPLE)).last_sequence == -1
