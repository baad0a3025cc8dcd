"""Records and the walk over fetched batches, against the general decoder and against damage."""

import asyncio
import copy
import gzip
import pickle
import random
import struct
import zlib
from collections.abc import Awaitable

import pytest
from consume_support import batch_rows, drain, fetched
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import AsyncRecordIterator, Record, RecordIterator
from fastq._native.crc32c import crc32c
from fastq._native.records import CONTROL_ABORT, CONTROL_COMMIT, build_batch, build_transaction_marker, decode_records
from fastq.errors import ConcurrentModification, CorruptRecord, FastqError, LoadingWouldBlock

T0 = 1_700_000_000_000


def batch(base: int, count: int = 3, **options: object) -> bytes:
    rows = [(T0 + n, None if n % 3 else b"k%d" % n, b"value %d" % (base + n), [("h", b"%d" % n)]) for n in range(count)]
    return bytes(build_batch(rows, base_offset=base, **options))


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return bytes(
        build_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T0, base_offset=base
        )
    )


def transactional(base: int, producer_id: int, count: int = 3) -> bytes:
    return batch(base, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def offsets(records: list) -> list[int]:
    return [record.offset for record in records]


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


# -- iterators


def test_iterator_goes_from_chunk_to_chunk_and_may_be_detached() -> None:
    chunks = [fetched(batch(0)), fetched(batch(3))]
    asked = []

    def advance(chunk: object) -> object:
        asked.append(chunk)
        for candidate in chunks:
            if not candidate.exhausted:
                return candidate
        return None

    iterator = RecordIterator(advance)
    assert next(iterator).offset == 0
    iterator.detach()
    assert offsets(list(iterator)) == [1, 2, 3, 4, 5]
    assert asked == [None, None, chunks[0], chunks[1]]


def test_iterator_transform() -> None:
    iterator = RecordIterator(
        lambda chunk: fetched(batch(0)) if chunk is None else None,
        lambda record: None if record.offset == 1 else record.replace(value=1),
    )
    assert [(record.offset, record.value) for record in iterator] == [(0, 1), (2, 1)]


def async_iterator(chunks: list, delay_s: float = 0.0, transform: object = None) -> AsyncRecordIterator:
    async def advance(chunk: object) -> object:
        await asyncio.sleep(delay_s)
        return next((candidate for candidate in chunks if not candidate.exhausted), None)

    return AsyncRecordIterator(advance, transform)


def test_async_iterator_reads_all_and_lets_the_loop_run() -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen = [record.offset async for record in async_iterator([fetched(batch(0, 5000)), fetched(batch(5000, 10))])]
        task.cancel()
        assert seen == list(range(5010))
        assert turns >= 5

    asyncio.run(main())


def test_async_iterator_awaited_by_hand() -> None:
    async def main() -> None:
        iterator = async_iterator([fetched(batch(0))], 0.001)
        assert [(await anext(iterator)).offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
        # Through a task: the awaitable is driven by other code than `async for`.
        iterator = async_iterator([fetched(batch(0))], 0.001)
        record = await asyncio.wait_for(asyncio.ensure_future(wrapped(iterator)), 1)
        assert record.offset == 0

    async def wrapped(iterator: AsyncRecordIterator) -> Record:
        return await iterator.__anext__()

    asyncio.run(main())


def test_cancelling_an_await_takes_no_record() -> None:
    async def main() -> None:
        chunks: list = []
        iterator = async_iterator(chunks, 0.002)

        async def read(count: int) -> list[int]:
            return [(await anext(iterator)).offset for _ in range(count)]

        chunks.append(fetched(batch(0)))
        for _ in range(3):
            task = asyncio.create_task(read(1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await read(3) == [0, 1, 2]

    asyncio.run(main())


def test_async_iterator_errors() -> None:
    async def main() -> None:
        async def advance(chunk: object) -> object:
            await asyncio.sleep(0)
            raise ConnectionError("gone")

        iterator = AsyncRecordIterator(advance)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="gone"):
                await anext(iterator)

        def transform(record: Record) -> Record | None:
            if record.offset == 1:
                raise ValueError("bad")
            return record

        iterator = async_iterator([fetched(batch(0))], transform=transform)
        assert (await anext(iterator)).offset == 0
        with pytest.raises(ValueError, match="bad"):
            await anext(iterator)
        assert (await anext(iterator)).offset == 2

    asyncio.run(main())


@pytest.mark.parametrize("codec", [0, 4])
def test_what_detaches_an_iterator_while_a_record_is_read_harms_nothing(codec: int) -> None:
    """`stop` of a signal handler or another thread, a pause or a seek of the deserializer itself: then the record has to come again."""
    chunk = fetched(batch(0, codec=codec))
    raised: list[BaseException] = []

    def transform(record: Record) -> Record:
        if not raised:
            iterator.detach()
            raised.append(LoadingWouldBlock("not loaded yet") if asynchronous else KeyboardInterrupt())
            raise raised[0]
        return record

    asynchronous = False
    iterator = RecordIterator(lambda _: None if chunk.exhausted else chunk, transform)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert offsets(list(iterator)) == [0, 1, 2]

    async def main() -> None:
        assert [record.offset async for record in iterator] == [0, 1, 2]

    asynchronous = True
    raised.clear()
    chunk = fetched(batch(0, codec=codec))
    iterator = async_iterator([chunk], transform=transform)
    asyncio.run(main())


@pytest.mark.parametrize("codec", [0, 4])
def test_a_record_comes_not_again_behind_those_that_were_taken_since(codec: int) -> None:
    """A deserializer that takes records itself, up to the end of the batch, which is freed then."""
    chunk = fetched(batch(0, codec=codec))

    def transform(record: Record) -> Record:
        assert offsets(drain(chunk)) == [1, 2]
        raise KeyboardInterrupt

    iterator = RecordIterator(lambda _: None if chunk.exhausted else chunk, transform)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert drain(chunk) == [] and chunk.position == 3


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


def test_two_tasks_do_not_wait_for_one_iterator() -> None:
    async def run() -> None:
        waiting = asyncio.Event()

        async def advance(chunk: object) -> object:
            waiting.set()
            await asyncio.get_running_loop().create_future()

        iterator = AsyncRecordIterator(advance)
        first = asyncio.create_task(anext_of(iterator))
        await waiting.wait()
        for other in (anext_of(iterator), all_of(iterator)):
            with pytest.raises(ConcurrentModification, match="another task waits"):
                await other
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = asyncio.create_task(anext_of(iterator))
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()

    asyncio.run(run())


def test_anext_with_a_default_waits_over_several_turns() -> None:
    """The interpreter asks for the iterator of its awaitable at each of its resumptions."""

    async def run() -> None:
        chunks = [fetched(batch(0))]
        iterator = async_iterator(chunks, 0.001)
        seen = [await anext(iterator, None) for _ in range(4)]
        assert [None if record is None else record.offset for record in seen] == [0, 1, 2, None]
        waiting = asyncio.create_task(default_of(iterator))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentModification, match="another task waits"):
            await default_of(iterator)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        chunks.append(fetched(batch(3)))
        record = await anext(iterator, None)
        assert record is not None and record.offset == 3

    asyncio.run(run())


def test_two_awaitables_of_one_iterator_are_not_awaited_by_two_tasks() -> None:
    async def run() -> None:
        iterator = async_iterator([fetched(batch(0))], 0.001)
        both = [of(anext(iterator)) for _ in range(2)]
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(first, Record) and first.offset == 0
        assert isinstance(second, ConcurrentModification)
        assert (await anext(iterator)).offset == 1

    asyncio.run(run())


async def of(awaitable: Awaitable[object]) -> object:
    return await awaitable


async def default_of(iterator: AsyncRecordIterator) -> object:
    return await anext(iterator, None)


async def anext_of(iterator: AsyncRecordIterator) -> object:
    return await iterator.__anext__()


async def all_of(iterator: AsyncRecordIterator) -> list:
    return [record async for record in iterator]
