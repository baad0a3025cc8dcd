"""The accumulator against slow, obvious versions: what it encodes, what it holds, where records go."""

import itertools
import random
import threading
import time
import zlib

import pytest

from fastq._native.accumulator import Accumulator
from fastq._native.batch_validation import validate_batch
from fastq._native.hashing import partition_for_key
from fastq._native.producer_batch import READY, advance_sequence
from fastq._native.producer_core import AsyncDelivery, Delivery, SyncProducerCore, encode_headers
from fastq._native.records import decode_records, read_header, verify_crc
from fastq.compression import compress, decompress
from fastq.errors import MessageTooLarge, SerializationError


class Core(SyncProducerCore):
    """A send path whose hooks only count."""

    def __init__(self, partitions=1, codec=0, **options):
        self.now = 0.0
        values = {
            "buffer_memory": 1 << 20,
            "batch_size": 4096,
            "batch_size_max": 4096,
            "max_request_size": 1 << 18,
            "clock": lambda: self.now,
            "seed": 1,
        }
        super().__init__(Accumulator(**{**values, **options}))
        self.topic = self.accumulator.update_topic("t", partitions, codec=codec)
        self.rooms = 0

    def _attend(self):
        while self.accumulator.to_compress:
            self.accumulator.to_compress.popleft().compress(compress)

    def _wait_for_room(self, topic, wanted_bytes, deadline):
        self.rooms += 1
        self.accumulator.close_all()
        self.take_all()

    def take_all(self):
        """Close everything and acknowledge it; the batches as bytes, by partition."""
        self.accumulator.close_all()
        self._attend()
        taken = {}
        for partition in self.topic.partitions:
            while partition.queue:
                batch = self.accumulator.take_head(partition)
                batch.stamp(11, 2, 5)
                taken.setdefault(partition.index, []).append(b"".join(bytes(part) for part in batch.buffers()))
                self.accumulator.complete(batch, None, 100)
        self.accumulator.ready.clear()
        return taken


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("seed", range(5))
def test_batches_decode_to_what_was_sent(seed, codec):
    rng = random.Random(seed)
    core = Core(codec=codec)
    sent = []
    for _ in range(400):
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(300)), b"abc" * rng.randrange(100)])
        key = rng.choice([None, b"", b"k" * rng.randrange(200)])
        headers = [("h" * rng.randrange(5), rng.choice([None, b"", b"v" * 9])) for _ in range(rng.randrange(3))]
        timestamp = rng.randrange(1 << rng.randrange(1, 45))
        core.send("t", value, key, headers, None, timestamp)
        sent.append((timestamp, key, value, headers))
    got = []
    for data in core.take_all()[0]:
        assert verify_crc(data)
        header = validate_batch(data, 0, len(data), compacted=False)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 5)
        records = decode_records(data)
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        assert len(data) <= 4096 + 61 or len(records) == 1 or codec
        got.extend((r.timestamp_ms, r.key, r.value, list(r.headers)) for r in records)
    assert got == sent
    assert core.accumulator.pool.used_bytes == 0
    assert core.accumulator.buffered_records == 0


def test_headers_of_every_kind():
    assert encode_headers(None) == encode_headers([]) == b"\x00"
    assert encode_headers({"a": b"1"}) == encode_headers([("a", bytearray(b"1"))]) == b"\x02\x02a\x021"
    assert encode_headers([("é", None)]) == b"\x02\x04\xc3\xa9\x01"
    for bad, error, words in (
        ([("a", "b")], TypeError, "the value of header 'a' is a str"),
        ([(1, b"b")], TypeError, "the key of a header is a str, got 1"),
        (["abc"], TypeError, "headers are .* pairs, got 'abc'"),
        (3, TypeError, "headers are .* pairs, or a mapping of such, got 3"),
        ([("\ud800", b"")], ValueError, "the key of a header is Unicode text, got '.ud800'"),
        ([("a", 1)], SerializationError, "the value of header 'a' is int, .*; encode it$"),
    ):
        with pytest.raises(error, match=words):
            encode_headers(bad)


def released():
    """Refuses with a ValueError, not a BufferError, as a numpy array does that is not contiguous."""
    view = memoryview(b"abc")
    view.release()
    return view


def test_a_buffer_that_cannot_be_had_is_a_serialization_error():
    core = Core()
    for bad in (released(), memoryview(b"abcdef")[::2]):
        for record in ((bad, None), (b"v", bad)):
            with pytest.raises(SerializationError, match="is memoryview, expected bytes or another contiguous buffer"):
                core.send("t", *record)


def test_keys_are_partitioned_as_kafka_does():
    core = Core(partitions=7)
    for i in range(300):
        key = b"key-%d" % i
        assert core.send("t", b"", key).partition == partition_for_key(key, 7)


def test_ignored_keys_stick():
    core = Core(partitions=7, key_hash=0)
    assert len({core.send("t", b"", b"%d" % i).partition for i in range(20)}) == 1


def test_keyless_records_stick_until_a_batch_is_full_and_prefer_short_queues():
    core = Core(partitions=4, buffer_memory=1 << 24)
    spots = [core.send("t", bytes(1000)).partition for _ in range(2000)]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(spots))
    assert 150 < runs <= 701
    assert {p: spots.count(p) > 300 for p in range(4)} == dict.fromkeys(range(4), True)
    core.topic.available = core.topic.partitions[:2]
    later = {core.send("t", bytes(3000)).partition for _ in range(50)}
    assert later - {spots[-1]} <= {0, 1}


def test_the_pool_is_a_bound_and_reuses():
    core = Core(buffer_memory=64 * 1024)
    for i in range(5000):
        core.send("t", bytes(i % 2000))
        pool = core.accumulator.pool
        assert pool.used_bytes + pool.free_bytes <= pool.limit_bytes
    assert core.rooms > 10
    core.take_all()
    assert core.accumulator.pool.used_bytes == 0


def test_batches_grow_on_demand_and_shrink_when_they_linger():
    core = Core(batch_size=4096, batch_size_max=32768, buffer_memory=1 << 22)
    partition = core.topic.partitions[0]
    for _ in range(400):
        core.send("t", bytes(1000))
    assert partition.batch_bytes_target == 32768
    core.take_all()
    for _ in range(6):
        core.send("t", b"x")
        core.now += 1
        assert core.accumulator.close_due(core.now, 0.5) is None
        core.take_all()
    assert partition.batch_bytes_target == 4096


def test_linger_closes_in_order_of_age():
    core = Core(partitions=3)
    for index in (2, 0, 1):
        core.send("t", b"x", partition=index)
        core.now += 1
    assert core.accumulator.close_due(2.5, 2.0) == 3.0
    assert [len(p.queue) for p in core.topic.partitions] == [0, 0, 1]
    assert core.accumulator.close_due(3.0, 2.0) == 4.0
    assert [len(p.queue) for p in core.topic.partitions] == [1, 0, 1]


def test_a_batch_fills_while_the_one_before_it_waits_to_be_sent():
    core = Core(partitions=2)
    accumulator, (partition, other) = core.accumulator, core.topic.partitions
    core.send("t", b"x", partition=0)
    assert accumulator.close_due(core.now, 0.0) is None
    assert not accumulator.held
    for _ in range(3):
        core.send("t", b"x", partition=0)
        assert accumulator.close_due(core.now, 0.0) is None
    assert accumulator.held
    core.send("t", b"x", partition=1)
    accumulator.close_due(core.now, 0.0)
    assert [len(p.queue) for p in (partition, other)] == [1, 1], "the other one does not wait"
    accumulator.take_head(partition)
    accumulator.close_due(core.now, 0.0)
    assert not accumulator.held
    assert [len(batch) for batch in partition.queue] == [3]
    core.send("t", b"x", partition=0)
    accumulator.close_due(core.now, 0.0)
    assert accumulator.held
    accumulator.close_all()
    assert [len(batch) for batch in partition.queue] == [3, 1], "a flush waits for nothing"


def test_a_view_keeps_the_memory_until_it_is_let_go():
    core = Core()
    core.send("t", b"x" * 50)
    core.accumulator.close_all()
    batch = core.accumulator.take_head(core.topic.partitions[0])
    batch.stamp(-1, -1, -1)
    view = batch.buffers()[0]
    before = bytes(view)
    core.accumulator.complete(batch, None, 0)
    assert core.accumulator.pool.used_bytes == 4096
    core.send("t", b"y" * 50)
    assert bytes(view) == before
    view.release()
    assert core.accumulator.pool.used_bytes == 4096  # the new open batch alone
    with pytest.raises(BufferError):
        memoryview(batch)


def test_too_large_a_record():
    core = Core(max_request_size=10_000)
    core.send("t", bytes(9_000))
    with pytest.raises(MessageTooLarge, match="max_request_size=10000"):
        core.send("t", bytes(10_000))
    with pytest.raises(MessageTooLarge, match="buffer_memory=8192"):
        Core(buffer_memory=8192).send("t", bytes(9_000))


def test_a_failing_compressor_leaves_the_batch_sendable():
    core = Core(codec=4)
    core.send("t", b"abc" * 100)
    core.accumulator.close_all()
    batch = core.accumulator.to_compress.popleft()

    def fail(codec, view):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        batch.compress(fail)
    assert batch.state == READY
    (data,) = core.take_all()[0]
    assert read_header(data).codec == 0
    assert decode_records(data)[0].value == b"abc" * 100


def test_a_batch_that_expires_while_it_is_compressed():
    """The compressor runs without the GIL: the memory stays until it is through, and the batch stays done."""
    core = Core(codec=4)
    core.send("t", b"abc" * 100)
    core.accumulator.close_all()
    batch = core.accumulator.to_compress.popleft()

    def expire_meanwhile(codec, view):
        core.accumulator.complete(batch, TimeoutError())
        return compress(codec, view)

    batch.compress(expire_meanwhile)
    assert batch.done
    assert core.accumulator.pool.used_bytes == 0


@pytest.mark.parametrize("codec", [0, 4])
def test_a_split_keeps_order_sequence_callbacks_and_waiters(codec):
    core = Core(codec=codec, batch_size=8192)
    deliveries = [core.send("t", b"%d" % i * 20, timestamp_ms=1000 + i) for i in range(50)]
    called, woken = [], []
    deliveries[49].add_done_callback(called.append)
    core.accumulator.close_all()
    core._attend()
    partition = core.topic.partitions[0]
    batch = core.accumulator.take_head(partition)
    batch.stamp(3, 0, 2**31 - 10)
    batch.add_waiter(lambda: woken.append(1))
    core.accumulator.requeue(batch)
    first, second = core.accumulator.split(batch, lambda codec, data: decompress(codec, data, 1 << 20))
    assert list(partition.queue) == [first, second]
    assert (first.base_sequence, second.base_sequence) == (2**31 - 10, advance_sequence(2**31 - 10, len(first)))
    assert abs(len(first) - len(second)) <= 5
    values = []
    for offset, child in ((500, first), (900, second)):
        child.compress(compress)
        assert core.accumulator.take_head(partition) is child
        child.stamp(3, 0, child.base_sequence)
        records = decode_records(b"".join(bytes(part) for part in child.buffers()))
        values.extend((r.value, r.timestamp_ms) for r in records)
        assert not woken
        core.accumulator.complete(child, None, offset)
    assert values == [(b"%d" % i * 20, 1000 + i) for i in range(50)]
    assert woken == [1] and batch.done
    assert [d.result().offset for d in deliveries] == [
        *range(500, 500 + len(first)),
        *range(900, 900 + len(second)),
    ]
    assert core.accumulator.pool.used_bytes == 0
    assert core.accumulator.buffered_records == 0


def test_requeued_batches_go_back_to_their_place():
    core = Core(batch_size=200, batch_size_max=200)
    for _ in range(60):
        core.send("t", b"x" * 20)
    core.accumulator.close_all()
    partition = core.topic.partitions[0]
    batches = [core.accumulator.take_head(partition) for _ in range(5)]
    for number, batch in enumerate(batches):
        batch.stamp(1, 0, (2**31 - 6 + number * 4) % 2**31)  # across the wrap
    rng = random.Random(4)
    for batch in rng.sample(batches, 5):
        core.accumulator.requeue(batch)
    assert list(partition.queue)[:5] == batches
    again = [core.accumulator.take_head(partition) for _ in range(3)]
    core.accumulator.requeue(again[0])
    assert core.accumulator.take_head(partition) is again[0]
    assert partition.in_flight == again


def test_sequences_wrap_as_kafkas():
    assert advance_sequence(0, 5) == 5
    assert advance_sequence(2**31 - 1, 1) == 0
    assert advance_sequence(2**31 - 3, 10) == 7


def test_abort_fails_everything_once():
    core = Core(partitions=3)
    deliveries = [core.send("t", bytes(500)) for _ in range(50)]
    error = RuntimeError("over")
    assert core.accumulator.abort(error) == 50
    assert core.accumulator.abort(error) == 0
    for delivery in deliveries:
        assert delivery.done()
        with pytest.raises(RuntimeError, match="over"):
            delivery.result()


def test_threads_append_without_losing_a_record():
    core = Core(partitions=3, buffer_memory=1 << 24)

    def work(number):
        for i in range(5000):
            core.send("t", b"%d:%d" % (number, i), key=b"%d" % (i % 5))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [r.value for batches in core.take_all().values() for data in batches for r in decode_records(data)]
    assert sorted(values) == sorted(b"%d:%d" % (n, i) for n in range(4) for i in range(5000))


def test_a_buffer_whose_export_runs_python_code_cannot_tear_a_batch():
    """Sends from within the buffer protocol of a value (3.12's __buffer__, array subclasses) nest cleanly."""

    class Nested:
        def __init__(self, core):
            self.core = core

        def __iter__(self):
            self.core.send("t", b"inner")
            return iter([("h", b"1")])

    core = Core()
    core.send("t", b"outer", headers=Nested(core))
    (data,) = core.take_all()[0]
    assert [r.value for r in decode_records(data)] == [b"inner", b"outer"]


def test_a_send_from_within_the_beginning_of_a_batch_orphans_nothing():
    """What a __del__ does that a collection runs there; the clock stands for it, which is asked at that point."""
    core = Core(partitions=1, batch_size=300, batch_size_max=300)
    inner = []

    def clock():
        if len(inner) < 40:
            inner.append(b"inner-%d" % len(inner))
            core.send("t", inner[-1])
        return 0.0

    core = Core(partitions=1, batch_size=300, batch_size_max=300, clock=clock)
    outer = [b"outer-%d" % i for i in range(200)]
    for value in outer:
        core.send("t", value)
    batches = core.take_all()[0]
    stored = [record.value for data in batches for record in decode_records(data)]
    assert sorted(stored) == sorted(outer + inner)
    assert [value for value in stored if value.startswith(b"outer")] == outer
    assert not core.accumulator.incomplete and not core.accumulator.open_partitions
    assert core.accumulator.buffered_records == 0 and core.accumulator.pool.used_bytes == 0


def test_crc32_of_keys_is_zlibs():
    core = Core(partitions=7, key_hash=2)
    for size in range(1, 70):
        key = random.Random(size).randbytes(size)
        assert core.send("t", b"", key).partition == zlib.crc32(key) % 7


def test_a_stream_looks_seldom_while_something_is_in_flight():
    """The more of it, the seldomer; what comes in between is held back, and noticed by who rests beside the stream."""
    core = Core(partitions=1)
    accumulator, (partition,) = core.accumulator, core.topic.partitions
    accumulator.looked(core.now)
    assert accumulator.look_at_s == 0.0, "nothing is in flight: the next record goes at once"
    gaps = []
    for _ in range(6):
        core.send("t", b"x", partition=0)
        accumulator.close_due(core.now, 0.0)
        accumulator.take_head(partition)
        accumulator.looked(core.now)
        gaps.append(accumulator.look_at_s - core.now)
        core.now = accumulator.look_at_s
    assert accumulator.in_flight == 6
    assert [gap / gaps[0] for gap in gaps] == pytest.approx([1, 2, 4, 4, 4, 4], rel=0.01)
    assert not accumulator.rest(0.001), "nothing waits"
    accumulator.looked(core.now)
    core.send("t", b"x", partition=0)
    accumulator.close_due(core.now, 0.0)
    assert accumulator.held
    assert accumulator.rest(30), "the clock of the test is long past"
    accumulator.close_due(accumulator.look_at_s, 0.0)
    assert not accumulator.held
    assert not accumulator.rest(0.001)
    while partition.in_flight:
        accumulator.complete(partition.in_flight[0])
    assert (accumulator.in_flight, accumulator.look_at_s) == (0, 0.0)


def test_a_batch_that_was_split_has_the_fate_of_its_halves_alone():
    core = Core()
    deliveries = [core.send("t", b"x" * 50) for _ in range(10)]
    core.accumulator.close_all()
    batch = core.accumulator.take_head(core.topic.partitions[0])
    core.accumulator.requeue(batch)
    first, second = core.accumulator.split(batch, None)
    core.accumulator.complete(batch, ValueError("the answer could not be handled"))
    assert not batch.done and core.accumulator.buffered_records == 10
    core.accumulator.complete(first, None, 40)
    core.accumulator.complete(second, ValueError("refused"))
    found = [each.exception(0) for each in deliveries]
    assert found[: len(first)] == [None] * len(first) and {str(error) for error in found[len(first) :]} == {"refused"}


def test_a_record_without_a_time_is_of_now_whatever_time_its_batch_begins_with():
    core = Core()
    now = time.time_ns() // 1_000_000
    for first in (now + 10**9, now - 10**9, 5):
        core.send("t", b"", timestamp_ms=first)
        core.send("t", b"")
        core.send("t", b"")
        ((data,),) = core.take_all().values()
        given, *others = (record.timestamp_ms for record in decode_records(data))
        assert given == first
        assert all(now - 100 <= other <= time.time_ns() // 1_000_000 for other in others)


def test_a_compressor_that_fails_leaves_nobody_a_view_of_memory_that_is_given_back():
    core, kept = Core(codec=1), []
    core.send("t", b"x" * 100)
    core.accumulator.close_all()

    def fail(codec, view):
        kept.append(view)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        core.accumulator.to_compress.popleft().compress(fail)
    with pytest.raises(ValueError, match="released"):
        kept[0][0]


def test_one_who_cannot_be_woken_keeps_no_other_waiting(caplog):
    core, woken = Core(), []
    core.send("t", b"x")
    core.accumulator.close_all()
    batch = core.accumulator.take_head(core.topic.partitions[0])

    def closed():
        raise RuntimeError("Event loop is closed")

    batch.add_waiter(closed)
    batch.add_waiter(lambda: woken.append(1))
    core.accumulator.complete(batch, None, 3)
    assert woken == [1] and batch.done
    assert "t-0 cannot be told" in caplog.text


@pytest.mark.parametrize("kind", [Delivery, AsyncDelivery])
def test_nobody_else_makes_a_delivery(kind):
    with pytest.raises(TypeError, match="nobody else makes one"):
        kind()
    empty = kind.__new__(kind)
    for use in (
        repr,
        lambda each: each.topic,
        lambda each: each.partition,
        lambda each: each.done(),
        lambda each: each.result(),
    ):
        with pytest.raises(AttributeError):
            use(empty)
    with pytest.raises(AttributeError):
        empty.add_done_callback(print)
