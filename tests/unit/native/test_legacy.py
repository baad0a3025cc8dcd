"""v0 and v1 message sets: those of the peers' builders, and hand-made ones where the peers build none."""

import random
import struct
from zlib import crc32

import lz4.frame
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder as PeerBuilder

from fastq._native.legacy import decode_message_set
from fastq._native.records import build_batch, decode_records
from fastq._native.wire import DecodeError
from fastq.compression import compress, decompress

GZIP = 1
LZ4 = 3
LOG_APPEND_TIME = 8


def message(offset, key, value, *, magic=1, attributes=0, timestamp=1000, crc=None):
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    body = struct.pack(">I", crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(offset, messages, *, magic=1, attributes=GZIP, timestamp=5000):
    return message(
        offset, None, compress(GZIP, b"".join(messages)), magic=magic, attributes=attributes, timestamp=timestamp
    )


def rows(data, **options):
    records, end = decode_message_set(data, **options)
    assert end == len(data)
    return [(r.offset, r.timestamp_ms, r.timestamp_type, r.key, r.value) for r in records]


# v0 with LZ4 is left out: aiokafka writes none, kafka-python only with a library that it does not bring.
@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("builder", [PeerBuilder, AiokafkaBuilder], ids=["kafka-python", "aiokafka"])
def test_peers_message_sets(builder, magic, codec):
    made = builder(magic=magic, compression_type=codec, batch_size=1 << 20)
    fields = [(b"k%d" % i if i % 2 else None, None if i == 3 else b"v" * i * 100) for i in range(6)]
    for number, (key, value) in enumerate(fields):
        made.append(number, timestamp=1000 + number if magic else None, key=key, value=value)
    data = bytearray(made.build())
    if codec:
        struct.pack_into(">q", data, 0, 105)  # as the broker does: the offset of the last record, outside of the CRC
    base = 100 if codec and magic else 0
    expected = [
        (base + number, 1000 + number if magic else -1, 0 if magic else -1, key, value)
        for number, (key, value) in enumerate(fields)
    ]
    assert rows(bytes(data)) == expected


@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_in_v0_has_a_wrong_header_checksum(store_size):
    inner = b"".join(message(i, b"k", b"v%d" % i, magic=0) for i in range(3))
    frame = bytearray(lz4.frame.compress(inner, store_size=store_size))
    at = 14 if store_size else 6
    for wrong in (frame[at] ^ 0xFF, frame[at] ^ 1, frame[at]):  # the right one of later clients too
        frame[at] = wrong
        data = message(2, None, bytes(frame), magic=0, attributes=LZ4)
        assert [(row[0], row[4]) for row in rows(data)] == [(0, b"v0"), (1, b"v1"), (2, b"v2")]
    frame[at] ^= 1
    with pytest.raises(DecodeError, match="lz4"):
        decode_message_set(message(2, None, bytes(frame), magic=1, attributes=LZ4))
    for length in (0, 3, 6, 7, 14):
        with pytest.raises(DecodeError):
            decode_message_set(message(2, None, bytes(frame[:length]), magic=0, attributes=LZ4))


@pytest.mark.parametrize("block_size", range(4, 8))
@pytest.mark.parametrize("flags", range(16))
def test_the_header_checksum_of_a_descriptor_is_the_one_that_lz4_writes(block_size, flags):
    inner = message(0, b"k", b"v" * 1000, magic=0)
    frame = lz4.frame.compress(
        inner,
        block_size=block_size,
        block_linked=bool(flags & 1),
        store_size=bool(flags & 2),
        content_checksum=bool(flags & 4),
        block_checksum=bool(flags & 8),
    )
    taken = []

    def unpack(codec, data, limit_bytes):
        taken.append(bytes(data))
        return decompress(codec, data, limit_bytes)

    wrong = bytearray(frame)
    wrong[14 if flags & 2 else 6] ^= 0x55
    assert rows(message(0, None, bytes(wrong), magic=0, attributes=LZ4), decompress=unpack)[0][4] == b"v" * 1000
    assert taken == [frame]


def test_gaps_inside_of_a_v1_wrapper():
    data = wrapper(57, [message(2, b"a", b"1"), message(5, b"b", b"2"), message(7, b"c", b"3")])
    assert [row[0] for row in rows(data)] == [52, 55, 57]


def test_log_append_time():
    single = message(3, b"k", b"v", attributes=LOG_APPEND_TIME, timestamp=77)
    assert rows(single) == [(3, 77, 1, b"k", b"v")]
    inner = [message(0, None, b"1", timestamp=1), message(1, None, b"2", timestamp=2)]
    wrapped = wrapper(9, inner, attributes=GZIP | LOG_APPEND_TIME, timestamp=5000)
    assert rows(wrapped) == [(8, 5000, 1, None, b"1"), (9, 5000, 1, None, b"2")]
    assert [row[1] for row in rows(wrapper(9, inner))] == [1, 2]


def test_offsets_inside_of_a_v0_wrapper_are_absolute():
    data = wrapper(9, [message(8, b"", b"", magic=0), message(9, None, None, magic=0)], magic=0)
    assert rows(data) == [(8, -1, -1, b"", b""), (9, -1, -1, None, None)]


def test_a_truncated_tail_ends_the_set():
    whole = message(0, b"k", b"value") + message(1, b"k", b"value")
    half = len(whole) // 2
    for cut in range(half, len(whole)):
        records, end = decode_message_set(whole[:cut])
        assert ([r.offset for r in records], end) == ([0], half)
    records, end = decode_message_set(whole, half, len(whole))
    assert ([r.offset for r in records], end) == ([1], len(whole))
    assert decode_message_set(b"") == ([], 0)


def test_a_set_ends_where_record_batches_begin():
    old, new = message(0, b"k", b"v") * 2, build_batch([(1, b"k", b"v")], base_offset=2)
    records, end = decode_message_set(old + new)
    assert (len(records), end) == (2, len(old))
    assert decode_records(old + new, end)[0].offset == 2


NESTED = wrapper(1, [wrapper(1, [message(0, None, b"")])])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (message(0, b"k", b"v", crc=1), "CRC"),
        (wrapper(0, [message(0, b"k", b"v", crc=1)]), "CRC"),
        (NESTED, "compressed again"),
        (wrapper(0, []), "empty"),
        (wrapper(0, [message(0, b"k", b"v")[:-1]]), "left"),
        (wrapper(0, [message(0, b"k", b"v", magic=0)]), "version 1"),
        (message(0, None, None, attributes=GZIP), "no value"),
        (message(0, None, b"rubbish", attributes=GZIP), "gzip"),
        (message(0, None, b"rubbish", attributes=7), "codec"),
        (struct.pack(">qiIbb", 0, 21, 0, 1, 0) + bytes(15), "message size"),
        (struct.pack(">qiIbb", 0, -5, 0, 0, 0) + bytes(15), "message size"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -2, -1), "key and a value"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -2), "key and a value"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, 2**31 - 1, 0), "key and a value"),
        (struct.pack(">qiIbbiib", 0, 15, 0, 0, 0, -1, -1, 0), "key and a value"),
    ],
)
def test_malformed(data, match):
    with pytest.raises(DecodeError, match=match):
        decode_message_set(data)


def test_bounds():
    bomb = message(0, None, compress(GZIP, message(0, None, bytes(1 << 20))), attributes=GZIP)
    assert len(rows(bomb)) == 1
    with pytest.raises(DecodeError, match="unpacks to more"):
        decode_message_set(bomb, limit_bytes=1 << 20)
    with pytest.raises(ValueError, match="range"):
        decode_message_set(b"", 1)
    assert len(rows(message(0, b"k", b"v", crc=1), check_crc=False)) == 1


def test_random_damage_never_gets_further_than_an_error():
    random_ = random.Random(11)
    data = (
        message(0, b"key", b"value")
        + wrapper(3, [message(i, b"k", b"v") for i in range(3)])
        + message(4, None, b"x", magic=0)
    )
    outcomes = set()
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(random_.randrange(1, 4)):
            damaged[random_.randrange(len(damaged))] = random_.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            records, end = decode_message_set(bytes(damaged), check_crc=False)
        except DecodeError:
            outcomes.add("refused")
        else:
            outcomes.add("taken")
            assert 0 <= end <= len(damaged)
            assert len(records) <= 5
    assert outcomes == {"refused", "taken"}
