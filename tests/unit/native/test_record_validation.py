"""What a broker takes of record batches, and what not: Kafka's rules, damage, and batches changed at random."""

import random
import struct

import pytest
import record_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import CODECS, NOW_MS, SAMPLE, batch_of, plain, sealed

from fastq._native import records as native
from fastq._native.batch_validation import InvalidBatch, validate_batch
from fastq._native.records import (
    build_batch,
    decode_records,
    read_header,
    stamp_max_timestamp,
    verify_crc,
)
from fastq._native.wire import DecodeError
from fastq.compression import decompress

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]

# --- validation


def refused(batch, **options):
    with pytest.raises(InvalidBatch) as caught:
        validate_batch(batch, **options)
    return caught.value


def test_a_good_batch_is_taken_whatever_surrounds_it():
    batch = build_batch(SAMPLE)
    data = b"junk" + batch + b"more"
    header = validate_batch(data, 4, 4 + len(batch), now_ms=NOW_MS, before_max_ms=1000, after_max_ms=1000)
    assert (header.record_count, header.records_max_timestamp) == (4, NOW_MS + 5)
    assert validate_batch(build_batch(SAMPLE, codec=4)).records_max_timestamp == -1


@pytest.mark.parametrize(
    ("changes", "code", "match"),
    [
        ({"count": 0}, 87, "0 records"),
        ({"count": -1}, 87, "-1 records"),
        ({"count": 3}, 87, "does not fit"),
        ({"count": 3, "last_offset_delta": 2}, 87, "malformed"),
        ({"count": 1, "last_offset_delta": 0}, 87, "behind the last"),
        ({"count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, 87, "malformed"),
        ({"last_offset_delta": -1}, 87, "does not fit"),
        ({"last_offset_delta": 5}, 87, "does not fit"),
        ({"attributes": 0x20}, 87, "control"),
        ({"attributes": 0x08}, 32, "log-append"),
        ({"attributes": 0x10}, 87, "producer id"),
        ({"attributes": 5}, 76, "codec 5"),
        ({"attributes": 7}, 76, "codec 7"),
        ({"producer_id": 5, "producer_epoch": 0}, 87, "base sequence"),
        ({"producer_id": 5, "base_sequence": 0}, 87, "epoch"),
        ({"magic": 1}, 87, "magic"),
        ({"magic": 3}, 2, "magic"),
    ],
)
def test_bad_headers_are_refused(changes, code, match):
    payload = oracle.encode_record(0, 0, b"k", b"v") + oracle.encode_record(1, 0, b"k", b"v")
    error = refused(batch_of(payload, 2, **changes))
    assert error.error_code == code
    assert match in str(error)


def test_damage_is_a_corrupt_message():
    batch = build_batch(SAMPLE)
    for at in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x40
        assert refused(damaged).error_code == 2
    for cut in (0, 5, 16, 17, 60, 61, len(batch) - 1):
        assert refused(batch[:cut]).error_code == 87
    short = bytearray(batch)
    struct.pack_into(">i", short, 8, 48)
    assert refused(short).error_code == 2
    assert refused(batch + b"x").error_code == 87
    assert refused(batch + batch).error_code == 87


@pytest.mark.parametrize(
    "record",
    [
        oracle.encode_record(5, 0, b"k", b"v"),  # offset delta
        oracle.encode_record(-1, 0, b"k", b"v"),
        oracle.varint(-1),  # sizes
        oracle.varint(0),
        oracle.varint(100) + b"\0" * 50,
        oracle.varint(2**31 - 1) + b"\0" * 50,
        b"\xff" * 20,
        oracle.varint(5) + b"\0\0\0" + oracle.varint(-2) + b"\x01",  # key length below null
        oracle.varint(6) + b"\0\0\0" + oracle.varint(2**30)[:3] + b"\0",
        oracle.encode_record(0, 0, b"k", b"v")[:-1] + oracle.varint(-1),  # header counts
        oracle.encode_record(0, 0, b"k", b"v")[:-1] + oracle.varint(1),
        oracle.varint(12) + b"\0\0\0" + b"\x01\x01" + oracle.varint(2**31 - 1) + b"\0\0",
        oracle.encode_record(0, 0, b"k", b"v", [(None, b"x")]),  # null header key
        oracle.varint(8) + b"\0\0\0\x01\x01\0\0\0",  # bytes behind the headers
    ],
)
def test_bad_records_are_refused(record):
    batch = batch_of(record, 1)
    error = refused(batch)
    assert (error.error_code, error.record_index) == (87, 0)
    if record != oracle.encode_record(5, 0, b"k", b"v") and record != oracle.encode_record(-1, 0, b"k", b"v"):
        with pytest.raises(DecodeError):
            decode_records(batch)
        with pytest.raises(oracle.Refused):
            oracle.decode(bytes(batch))


def test_record_errors_name_each_record():
    rows_given = [(NOW_MS, b"k" if number % 2 else None, b"v") for number in range(5)]
    error = refused(build_batch(rows_given), compacted=True)
    assert (error.error_code, error.record_index) == (87, 0)
    assert [index for index, _ in error.record_errors] == [0, 2, 4]
    assert "key" in error.record_errors[0][1]
    assert len(refused(build_batch([(1, None, b"")] * 500), compacted=True).record_errors) == 100
    assert validate_batch(build_batch(rows_given)).record_count == 5


def test_timestamp_bounds():
    batch = build_batch([(NOW_MS - 100, None, b""), (NOW_MS, None, b""), (NOW_MS + 100, None, b""), (-1, None, b"")])
    validate_batch(batch, now_ms=NOW_MS, before_max_ms=100, after_max_ms=100)
    error = refused(batch, now_ms=NOW_MS, before_max_ms=99, after_max_ms=99)
    assert error.error_code == 32
    assert [index for index, _ in error.record_errors] == [0, 2]
    validate_batch(batch, now_ms=NOW_MS, before_max_ms=0, after_max_ms=0, timestamp_type=1)
    validate_batch(batch, now_ms=NOW_MS)


def test_a_timestamp_that_overflows_is_refused():
    error = refused(batch_of(oracle.encode_record(0, 2**63 - 1, None, b""), 1))
    assert (error.error_code, error.record_index) == (32, 0)
    error = refused(batch_of(oracle.encode_record(0, -(2**63), None, b""), 1, base_timestamp=-2))
    assert error.error_code == 32


def test_the_header_may_be_wrong_about_the_maximum_timestamp():
    batch = batch_of(oracle.encode_record(0, 55, None, b""), 1, max_timestamp=5)
    header = validate_batch(batch)
    assert (header.max_timestamp, header.records_max_timestamp) == (5, NOW_MS + 55)
    stamp_max_timestamp(batch, 0, header.records_max_timestamp)
    assert read_header(batch).max_timestamp == NOW_MS + 55
    assert verify_crc(batch)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_records_are_walked_on_request(codec):
    batch = build_batch([(1, None, b"v"), (2, b"k", b"v")], codec=codec)
    assert validate_batch(batch, compacted=True).codec == codec
    assert refused(batch, compacted=True, decompress=decompress).record_errors[0][0] == 0
    assert refused(batch, decompress=decompress, limit_bytes=4).error_code == 2
    assert validate_batch(batch, decompress=decompress).records_max_timestamp == 2
    rubbish = batch_of(b"\x01\x02\x03\x04", 2, attributes=codec)
    assert refused(rubbish, decompress=decompress).error_code == 2
    assert validate_batch(rubbish).record_count == 2
    with pytest.raises(DecodeError):
        decode_records(rubbish)


def test_what_a_log_may_hold_and_what_not():
    two = oracle.encode_record(3, 0, b"k", b"v") + oracle.encode_record(7, 0, b"k", b"v")
    assert validate_batch(batch_of(two, 2, last_offset_delta=9), from_client=False).next_offset == 10
    assert refused(batch_of(two, 2, last_offset_delta=6), from_client=False).record_index == 1
    assert refused(batch_of(two, 2, last_offset_delta=0), from_client=False).record_index == -1
    assert refused(batch_of(two, 2, last_offset_delta=-1), from_client=False).record_index == -1
    twice = oracle.encode_record(3, 0, b"k", b"v") * 2
    assert refused(batch_of(twice, 2, last_offset_delta=9), from_client=False).record_index == 1


def test_decoding_a_wrong_crc():
    batch = build_batch(SAMPLE)
    batch[-1] ^= 1
    assert verify_crc(batch) is False
    with pytest.raises(DecodeError, match="CRC"):
        decode_records(batch)
    assert len(decode_records(batch[:-1] + b"\0", check_crc=False)) == 4


def test_large_batches_are_checked_without_the_gil_too():
    batch = build_batch([(NOW_MS, b"%d" % number, b"v" * 1000) for number in range(300)])
    assert validate_batch(batch, now_ms=NOW_MS, before_max_ms=1, after_max_ms=1).record_count == 300
    batch[200_000] ^= 1
    assert refused(batch).error_code == 2
    assert refused(batch_of(bytes(100_000), 3)).error_code == 87


@pytest.mark.parametrize("value_bytes", [0, 1, 90, 5_000, 2**20])
def test_records_that_cross_the_pieces_of_the_walk(value_bytes):
    count = max(300_000 // (value_bytes + 20), 3)
    rows_given = [(NOW_MS + number % 7, b"key", bytes(value_bytes)) for number in range(count)]
    batch = build_batch(rows_given)
    assert validate_batch(batch, compacted=True).records_max_timestamp == NOW_MS + min(count - 1, 6)
    rows_given[-2] = (NOW_MS, None, b"")
    assert refused(build_batch(rows_given), compacted=True).record_errors == [
        (count - 2, "a compacted topic takes no record without a key")
    ]
    wrong = batch_of(bytes(batch[61:]) + oracle.encode_record(count + 1, 0, None, b""), count + 1)
    assert refused(wrong).record_index == count


def test_values_of_other_types():
    with pytest.raises(TypeError):
        native.BatchHeader()
    with pytest.raises(TypeError):
        native.DecodedRecord()
    record, other = decode_records(build_batch(SAMPLE))[:2]
    assert record == decode_records(build_batch(SAMPLE))[0]
    assert record != other
    assert record != 5
    assert "offset=0" in repr(record)
    assert "base_offset=0" in repr(read_header(build_batch(SAMPLE)))
    with pytest.raises(ValueError, match="range"):
        validate_batch(b"", 0, 5)


# --- fuzz


def mutate(random_, batch):
    """One to three changes: bits, bytes, counts, cuts, copies; the CRC is made right again half of the time."""
    data = bytearray(batch)
    for _ in range(random_.randrange(1, 4)):
        kind = random_.randrange(6)
        at = random_.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            data[at] = random_.choice([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF])
        elif kind == 2 and len(data) > 62:
            at = random_.randrange(61, len(data))
            data[at : at + 1] = oracle.varint(random_.choice([-2, -1, 0, 1, 63, 64, 2**31 - 1, -(2**31), 2**40]))
        elif kind == 3:
            del data[at : at + random_.randrange(1, 8)]
        elif kind == 4:
            data[at:at] = data[at : at + random_.randrange(1, 30)]
        else:
            struct.pack_into(">i", data, min(57, max(0, len(data) - 4)), random_.choice([-1, 0, 1, 5, 2**31 - 1]))
        if len(data) < 12:
            break
    if len(data) >= 61 and random_.random() < 0.9:
        return sealed(data)
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_batches_decode_as_the_slow_version_says(seed):
    random_ = random.Random(seed)
    taken = 0
    for number in range(25_000):
        count = random_.randrange(1, 5)
        batch = mutate(random_, build_batch(random_.choices(SAMPLE, k=count), base_offset=number))
        data = bytes(batch)  # its own allocation: a sanitizer sees a read past its end
        try:
            expected = oracle.decode(data)
        except oracle.Refused:
            expected = None
        try:
            got = plain(decode_records(data, check_crc=False, decompress=lambda *_: b"?"))
        except DecodeError:
            got = None
        assert got == expected
        taken += got is not None
        try:
            header = validate_batch(data)
        except InvalidBatch as error:
            assert error.error_code in (2, 32, 76, 87)
        else:
            assert header.codec or [row[0] for row in expected] == [
                oracle.wrap64(header.base_offset + delta) for delta in range(len(expected))
            ]
    assert 1_000 < taken < 24_000


def judged_slowly(data):
    """The largest timestamp of a client's batch, None when it must be refused."""
    try:
        rows_found = oracle.decode(data)
    except oracle.Refused:
        return None
    base_timestamp = struct.unpack_from(">q", data, 27)[0]
    deltas = [record.timestamp_delta for record in oracle.parse_records(data[61:], len(rows_found))]
    if [row[0] for row in rows_found] != list(range(len(rows_found))) or not rows_found:
        return None
    if any(not -(2**63) <= base_timestamp + delta < 2**63 for delta in deltas):
        return None
    return max(-1, *(base_timestamp + delta for delta in deltas))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_walk_judges_as_the_slow_version(seed):
    random_ = random.Random(seed)
    taken = 0
    for _ in range(2_000):
        count = random_.choice([1, 2, 3, 63, 66, 70])
        records = [
            oracle.encode_record(
                number,
                random_.choice([0, 5, -5, 63, 64, 8191, 8192, -(2**20), 2**20, 2**40]),
                random_.choice([None, b"", b"k", b"k" * 70]),
                random_.choice([None, b"", b"v", b"v" * 100]),
                [(b"h", b"x")] if random_.random() < 0.01 else [],
            )
            for number in range(count)
        ]
        payload = bytearray(b"".join(records))
        if random_.random() < 0.8:
            at = random_.randrange(len(payload))
            change = random_.randrange(3)
            if change == 0:
                payload[at] = random_.choice([0, 1, 2, 3, payload[at] ^ 1, payload[at] ^ 2, 0x80, 0xFF])
            elif change == 1:
                del payload[at]
            else:
                payload[at : at + 1] = bytes([payload[at] | 0x80, 0])  # where a number begins: the same one, longer
        data = bytes(batch_of(bytes(payload), count))
        expected = judged_slowly(data)
        try:
            got = validate_batch(data).records_max_timestamp
        except InvalidBatch:
            got = None
        assert got == expected
        taken += got is not None
    assert 400 < taken < 1_900


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_random_payloads(payload):
    batch = bytes(batch_of(payload, 1))
    try:
        expected = oracle.decode(batch)
    except oracle.Refused:
        with pytest.raises(DecodeError):
            decode_records(batch)
    else:
        assert plain(decode_records(batch)) == expected
