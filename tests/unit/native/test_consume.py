"""Records and the walk over fetched batches, against the general decoder and against damage."""

import copy
import gzip
import pickle
import random
import struct
import zlib

import pytest
from consume_support import T0, batch, batch_rows, drain, fetched, offsets
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import Record, RecordIterator
from fastq._native.crc32c import crc32c
from fastq._native.records import CONTROL_ABORT, CONTROL_COMMIT, build_batch, build_transaction_marker, decode_records
from fastq.errors import CorruptRecord, FastqError


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return bytes(
        build_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T0, base_offset=base
        )
    )


def transactional(base: int, producer_id: int, count: int = 3) -> bytes:
    return batch(base, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


@given(
    st.lists(st.tuples(batch_rows, st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4), st.integers(0, 100)
)
def test_walk_equals_the_general_decoder(batches: list, position: int) -> None:
    data, base, expected = b"", 5, []
    for content, codec, gap in batches:
        built = bytes(build_batch(content, base_offset=base, codec=codec, leader_epoch=2))
        expected += decode_records(built)
        data += built
        base += len(content) + gap
    expected = [row for row in expected if row.offset >= position]
    if base - gap <= position:
        for read in (drain, collected):
            with pytest.raises(CorruptRecord, match="all batches end before the offset asked for"):
                read(fetched(data, position))
        return
    for records in (drain(fetched(data, position)), list(collected(fetched(data, position)))):
        assert len(records) == len(expected)
        for record, row in zip(records, expected, strict=True):
            assert (record.topic, record.partition, record.leader_epoch, record.timestamp_type) == ("logs", 3, 2, 0)
            assert (record.offset, record.timestamp_ms) == (row.offset, row.timestamp_ms)
            assert (record.key, record.value, list(record.headers)) == (row.key, row.value, row.headers)


def collected(chunk: object) -> ConsumerBatch:
    result = ConsumerBatch()
    result.add(chunk)
    return result


def test_position_moves_with_every_record_and_over_gaps() -> None:
    chunk = fetched(batch(10) + batch(20, last_offset_delta=9), 11)
    assert (chunk.position, chunk.end_position, chunk.exhausted) == (11, 30, False)
    assert offsets(chunk.take(1)) == [11]
    assert chunk.position == 12
    assert offsets(chunk.take(2)) == [12, 20]
    assert chunk.position == 21
    assert offsets(drain(chunk)) == [21, 22]
    assert (chunk.position, chunk.exhausted) == (30, True)
    assert drain(chunk) == []


def test_limit_leaves_what_is_at_and_above_it() -> None:
    for limit, seen in (
        (12, [10, 11]),
        (15, [10, 11, 12]),
        (21, [10, 11, 12, 20]),
        (10, []),
        (23, [10, 11, 12, 20, 21, 22]),
    ):
        chunk = fetched(batch(10) + batch(20), 10)
        chunk.limit = limit
        assert offsets(drain(chunk)) == seen
        assert chunk.exhausted and chunk.position == limit
        chunk.limit = 2**63 - 1
        rest = [offset for offset in (10, 11, 12, 20, 21, 22) if offset not in seen]
        assert offsets(drain(chunk)) == rest
    chunk = fetched(batch(10) + batch(20), 10)
    chunk.limit = 21
    assert list(collected(chunk).offsets) == [10, 11, 12, 20]
    assert chunk.position == 21
    chunk.limit = 100
    assert list(collected(chunk).offsets) == [21, 22]


def test_timestamps_of_log_append_time_and_of_a_delete_horizon() -> None:
    appended = drain(fetched(batch(0, timestamp_type=1, max_timestamp=T0 + 99)))
    assert [(r.timestamp_ms, r.timestamp_type) for r in appended] == [(T0 + 99, 1)] * 3
    horizon = drain(fetched(batch(0, delete_horizon_ms=T0 + 5000)))
    assert [r.timestamp_ms for r in horizon] == [T0, T0 + 1, T0 + 2]


def test_control_batches_are_never_handed_out() -> None:
    data = transactional(0, 7) + marker(3, 7, CONTROL_COMMIT) + batch(4)
    for read_committed in (False, True):
        chunk = fetched(data, 0, aborted=[], read_committed=read_committed)
        assert offsets(drain(chunk)) == [0, 1, 2, 4, 5, 6]


def test_aborted_transactions_are_left_out_under_read_committed() -> None:
    data = (
        transactional(0, 7)  # aborted
        + transactional(3, 8)  # committed
        + batch(6)
        + transactional(9, 7)
        + marker(12, 7, CONTROL_ABORT)
        + transactional(13, 7)  # the next transaction of the same producer: committed
        + marker(16, 7, CONTROL_COMMIT)
        + marker(17, 8, CONTROL_COMMIT)
    )
    aborted = [(7, 0)]
    committed = [3, 4, 5, 6, 7, 8, 13, 14, 15]
    assert offsets(drain(fetched(data, 0, aborted=aborted, read_committed=True))) == committed
    assert list(collected(fetched(data, 0, aborted=aborted, read_committed=True)).offsets) == committed
    everything = [offset for offset in range(16) if offset != 12]
    assert offsets(drain(fetched(data, 0, aborted=aborted, read_committed=False))) == everything
    # From the middle: the list still names the transaction that began before.
    assert offsets(drain(fetched(data, 4, aborted=aborted, read_committed=True))) == [4, 5, 6, 7, 8, 13, 14, 15]
    chunk = fetched(data, 0, aborted=aborted, read_committed=True)
    drain(chunk)
    assert chunk.position == 18


def test_transform_leaves_out_and_raises_where_the_user_can_go_on() -> None:
    def transform(record: Record) -> Record | None:
        if record.offset == 1:
            return None
        if record.offset == 3:
            raise ValueError("bad")
        return record.replace(value=len(record.value))

    chunk = fetched(batch(0) + batch(3))
    assert offsets(chunk.take(10, transform)) == [0, 2]
    assert chunk.position == 3
    with pytest.raises(ValueError, match="bad"):
        chunk.take(10, transform)
    assert chunk.position == 4
    assert [record.value for record in chunk.take(10, transform)] == [7, 7]


@pytest.mark.parametrize("reader", [drain, collected])
def test_a_wrong_checksum_names_the_place_and_hands_out_what_came_before(reader: object) -> None:
    damaged = bytearray(batch(3))
    damaged[-1] ^= 1
    chunk = fetched(batch(0) + bytes(damaged))
    assert [record.offset for record in reader(chunk)] == [0, 1, 2]
    # Nothing more comes of it: it is to be fetched again, from the position.
    assert chunk.broken and chunk.position == 3
    chunk = fetched(bytes(damaged), 3)
    with pytest.raises(
        CorruptRecord, match=r"logs-3 at offset 3, fetched from fake:1: the checksum.*seek past"
    ) as caught:
        reader(chunk)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("logs", 3, 3)
    assert len(list(reader(fetched(bytes(damaged), 3, check_crcs=False)))) == 3


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """A batch with some bytes changed and the checksum right."""
    from fastq._native.crc32c import crc32c

    changed = bytearray(data)
    changed[at : at + len(new)] = new
    changed[17:21] = struct.pack(">I", crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (57, struct.pack(">i", 4), "record count 4"),
        (57, struct.pack(">i", 2), "follow the last record"),
        (57, struct.pack(">i", -1), "record count -1"),
        (57, struct.pack(">i", 2**31 - 1), "record count"),
        (61, b"\x7f", "malformed"),
        (23, struct.pack(">i", -5), "last offset delta -5"),
        (21, b"\x00\x05", "codec|5"),
        (21, b"\x00\x04", "decompress|zstd|frame"),
    ],
)
def test_damage_behind_a_right_checksum_is_corruption(at: int, new: bytes, reason: str) -> None:
    for reader in (drain, collected):
        with pytest.raises(CorruptRecord, match=reason):
            data = resealed(batch(0), at, new)
            chunk = fetched(data)
            list(reader(chunk))
            # Records before the damage were handed out: it is reported by the fetch from behind them.
            assert chunk.broken
            list(reader(fetched(data, chunk.position)))


def test_what_is_no_batch_is_corruption_and_not_the_end() -> None:
    for junk in (bytes(16) + b"\x07" + bytes(80), struct.pack(">qi", 0, 10) + bytes(4) + b"\x02" + bytes(90)):
        chunk = fetched(junk)
        assert not chunk.exhausted
        with pytest.raises(CorruptRecord):
            drain(chunk)


def test_a_decompression_bomb_is_refused() -> None:
    data = bytes(build_batch([(T0, None, bytes(3_000_000))], codec=4))
    with pytest.raises(CorruptRecord):
        drain(fetched(data, decompressed_bytes_max=1_000_000))
    assert len(drain(fetched(data))) == 1


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_message_sets(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=10_000)
    for n in range(5):
        builder.append(n, timestamp=T0 + n if magic else None, key=b"k%d" % n, value=None if n == 2 else b"v%d" % n)
    data = bytes(builder.build())
    if codec:
        data = struct.pack(">q", 4) + data[8:]  # a broker gives the wrapper the offset of its last message
    records = drain(fetched(data, 2))
    assert [(r.offset, r.key, r.value) for r in records] == [(2, b"k2", None), (3, b"k3", b"v3"), (4, b"k4", b"v4")]
    times = [(r.timestamp_ms, r.timestamp_type) for r in records]
    assert times == ([(T0 + n, 0) for n in (2, 3, 4)] if magic else [(-1, -1)] * 3)
    batches = collected(fetched(data + batch(5)))
    assert list(batches.offsets) == list(range(8))
    assert list(batches.timestamps[:5]) == ([T0 + n for n in range(5)] if magic else [-1] * 5)


def test_old_messages_with_a_wrong_checksum() -> None:
    body = struct.pack(">bb", 0, 0) + struct.pack(">i", -1) + struct.pack(">i", 2) + b"hi"
    good = struct.pack(">qi", 0, 4 + len(body)) + struct.pack(">I", zlib.crc32(body)) + body
    assert [record.value for record in drain(fetched(good))] == [b"hi"]
    with pytest.raises(CorruptRecord):
        drain(fetched(good[:-1] + b"!"))
    assert gzip.decompress(gzip.compress(good)) == good


def test_mutated_batches_never_crash() -> None:
    rng = random.Random(5)
    originals = [batch(0) + batch(3, codec=codec) for codec in range(5)] + [
        transactional(0, 7) + marker(3, 7, CONTROL_ABORT)
    ]
    for _ in range(6000):
        mutant = bytearray(rng.choice(originals))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(mutant))
            if rng.random() < 0.8:
                mutant[at] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            else:
                del mutant[at : at + rng.randrange(1, 5)]
        chunk = fetched(
            bytes(mutant), aborted=[(7, 0)], read_committed=True, check_crcs=False, decompressed_bytes_max=1 << 20
        )
        try:
            if rng.random() < 0.5:
                found = drain(chunk)
                assert offsets(found) == sorted(set(offsets(found)))
                assert all(isinstance(record.headers, tuple) for record in found)
            else:
                found = collected(chunk)
                assert len(found.values) == len(found)
                found.arrow(headers=True).__arrow_c_array__()
        except FastqError:
            continue


# -- Record


def sample() -> Record:
    return Record("logs", 1, 2, 3, 1, b"k", b"v", [("h", b"x"), ("h", None)], 5)


def test_record_is_a_value() -> None:
    record = sample()
    assert repr(record) == (
        "Record(topic='logs', partition=1, offset=2, timestamp_ms=3, timestamp_type=1, key=b'k', value=b'v', "
        "headers=(('h', b'x'), ('h', None)), leader_epoch=5)"
    )
    assert record == sample() and hash(record) == hash(sample())
    assert record != record.replace(value=b"w") and record != "record"
    assert record.replace(key=None).key is None and record.replace(value=b"w").value == b"w"
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert other == record and other.leader_epoch == 5 and other.headers == record.headers
    with pytest.raises(AttributeError):
        record.value = b"x"
    with pytest.raises(TypeError):
        record.__init__("other", 0, 0)
    with pytest.raises(TypeError):
        Record(None, 0, 0)


def test_headers_that_are_no_text_keep_their_bytes() -> None:
    data = bytes(build_batch([(T0, None, b"", [("\udcff", b"x")])]))
    record = drain(fetched(data))[0]
    assert record.headers == (("\udcff", b"x"),)
    assert pickle.loads(pickle.dumps(record)) == record


def framed(records: bytes, base: int = 0, last_delta: int = 0, count: int = 1) -> bytes:
    """A batch of `count` records, as another client may write it."""
    after = struct.pack(">hiqqqhii", 0, last_delta, T0, T0, -1, -1, -1, count) + records
    return struct.pack(">qi", base, len(after) + 9) + struct.pack(">ibI", 0, 2, crc32c(after)) + after


def test_headers_whose_count_takes_more_bytes_than_it_needs() -> None:
    body = bytes([0, 0, 0, 1, 2]) + b"v" + bytes([0x82, 0x00]) + bytes([2]) + b"h" + bytes([2]) + b"x"
    data = framed(bytes([2 * len(body)]) + body)
    (record,) = drain(fetched(data, 0))
    batch = collected(fetched(data, 0))
    assert record.headers == batch[0].headers == batch.headers[0] == (("h", b"x"),)


@pytest.mark.parametrize(("delta", "base"), [(-1, 0), (-5, 100), (-(2**31), 2**40)])
def test_a_batch_that_ends_before_it_begins_is_corruption_and_not_the_end(delta: int, base: int) -> None:
    body = bytes([0, 0, 0, 1, 2]) + b"v" + bytes([0])
    bad = framed(bytes([2 * len(body)]) + body, base, delta)
    chunk = fetched(bad, base)
    assert not chunk.exhausted
    with pytest.raises(CorruptRecord, match=f"last offset delta {delta}"):
        chunk.take(1)
    chunk = fetched(batch(base) + resealed(bad, 0, struct.pack(">q", base + 3)), base)
    assert (len(drain(chunk)), chunk.position, chunk.exhausted) == (3, base + 3, True), "the next fetch begins with it"


@pytest.mark.parametrize("deltas", [(0, 5, 3, 6), (3, 2, 1, 0), (2, 2, 2), (0, 2, 1), (4, 0, 5, 1, 6)])
def test_records_whose_offsets_do_not_ascend_are_passed_over_by_every_reader(deltas: tuple[int, ...]) -> None:
    """As Apache Kafka's consumer does: what lies below the position is not handed out again."""
    rows = [bytes([0, 0, 2 * delta, 1, 2, ord("a") + n, 0]) for n, delta in enumerate(deltas)]
    data = framed(b"".join(bytes([2 * len(row)]) + row for row in rows), 10, max(deltas), len(rows))
    expected, position = [], 10
    for n, delta in enumerate(deltas):
        if 10 + delta >= position:
            expected.append((10 + delta, bytes([ord("a") + n])))
            position = 11 + delta
    following = batch(11 + max(deltas))
    chunks = [fetched(data + following, 10) for _ in range(3)]
    chunk = chunks[2]
    iterated = list(RecordIterator(lambda ended: chunk if ended is None else None))
    for found in (drain(chunks[0]), list(collected(chunks[1])), iterated):
        assert [(record.offset, record.value) for record in found[:-3]] == expected
        assert [record.offset for record in found[-3:]] == [11 + max(deltas) + n for n in range(3)]
    assert {chunk.position for chunk in chunks} == {14 + max(deltas)}


@pytest.mark.parametrize("delta", [4, 100, 2**31 - 1])
def test_offsets_that_pass_what_an_offset_can_be_are_told(delta: int) -> None:
    body = bytes([0, 0, 0, 1, 2]) + b"v" + bytes([0])
    chunk = fetched(framed(bytes([2 * len(body)]) + body, 2**63 - 5, delta), 0)
    with pytest.raises(CorruptRecord, match=f"last offset delta {delta}"):
        chunk.take(1)
