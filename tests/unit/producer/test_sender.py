"""The sender against a cluster in memory: nothing lost, nothing twice, nothing out of order, whatever the network does."""

import contextlib
import itertools
import re
from random import Random

import pytest
from fake_cluster import FakeCore, failures_of

from fastq._native.accumulator import Accumulator
from fastq._native.producer_core import SyncProducerCore
from fastq._native.records import read_header
from fastq.compression import compress
from fastq.errors import DeliveryTimeout, InvalidTimestamp, MessageTooLarge
from fastq.producer.sender import Sender, SenderSettings
from fastq.protocol.messages import InitProducerIdResponse


class Bench(SyncProducerCore):
    """A producer without threads: the test decides when the sender runs."""

    def __init__(self, core, *, codec=0, batch_size=2000, grown=2000, buffer_memory=1 << 22, **settings):
        super().__init__(
            Accumulator(
                buffer_memory=buffer_memory,
                batch_size=batch_size,
                batch_size_max=grown,
                max_request_size=1 << 20,
                clock=core.clock,
                seed=3,
            )
        )
        values = {
            "acks": -1,
            "idempotent": True,
            "max_in_flight": 5,
            "max_request_size": 1 << 20,
            "request_timeout_s": 30.0,
            "delivery_timeout_s": 1e6,
            "retries": 2**31 - 1,
            "retry_backoff_ms": 5,
            "retry_backoff_max_ms": 50,
            "codec_of": lambda topic: codec,
        }
        self.compressor = settings.pop("compressor", compress)
        values.update(settings)
        self.core = core
        self.sender = Sender(core, self.accumulator, SenderSettings(**values))
        for name in {name for name, _ in core.logs}:
            self.sender.topic_ready(name)

    def _attend(self):
        while self.accumulator.to_compress:
            with contextlib.suppress(ValueError):
                self.accumulator.to_compress.popleft().compress(self.compressor)

    def turn(self, until=0.05):
        self.accumulator.close_due(self.core.now, 0.005)
        self._attend()
        due = self.sender.run(self.core.now)
        self.core.step(min(self.core.now + until, due if due is not None else 1e12))

    def drain(self, seconds=1e4):
        self.accumulator.close_all()
        self._attend()
        end = self.core.now + seconds
        while self.accumulator.incomplete:
            assert self.core.now < end, f"stuck: {list(self.accumulator.incomplete)}"
            self.turn()


def values_of(core, name="t"):
    return {index: [r[0] for r in log.records] for (n, index), log in core.logs.items() if n == name}


def test_one_record_arrives_whole():
    core = FakeCore()
    bench = Bench(core)
    delivery = bench.send("t", b"value", key=b"key", headers=[("h", b"1"), ("n", None)], timestamp_ms=1234)
    assert not delivery.done()
    bench.drain()
    assert core.logs["t", 0].records == [(b"value", b"key", [("h", b"1"), ("n", None)], 1234)]
    metadata = delivery.result()
    assert metadata == ("t", 0, 0, 1234, 3, 5)
    assert bench.accumulator.pool.used_bytes == 0
    assert bench.accumulator.buffered_records == 0


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 12, 13])
def test_every_version_of_produce(version):
    core = FakeCore(version=version, topics={"t": 3})
    bench = Bench(core)
    deliveries = [bench.send("t", b"%d" % i, partition=i % 3) for i in range(300)]
    bench.drain()
    assert values_of(core) == {p: [b"%d" % i for i in range(p, 300, 3)] for p in range(3)}
    assert [d.result().offset for d in deliveries] == [i // 3 for i in range(300)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_codecs_and_incompressible_values(codec):
    core = FakeCore()
    bench = Bench(core, codec=codec)
    random = Random(codec)
    values = [random.randbytes(90) if i % 2 else b"abc" * 30 for i in range(500)]
    for value in values:
        bench.send("t", value)
    bench.drain()
    assert values_of(core)[0] == values


@pytest.mark.parametrize("seed", range(30))
def test_idempotent_through_a_lossy_network(seed):
    """Every value once and in order, with connections that break before or after the append, and moving leaders."""
    core = FakeCore(seed, topics={"t": 4}, nodes=3, trouble=0.15)
    bench = Bench(core, codec=seed % 2 * 4)
    random = Random(seed)
    sent = {p: [] for p in range(4)}
    deliveries = []
    for i in range(3000):
        p = random.randrange(4)
        value = b"%d-%d" % (p, i)
        sent[p].append(value)
        deliveries.append((value, bench.send("t", value, partition=p)))
        if random.random() < 0.05:
            bench.turn(random.random() * 0.01)
        if random.random() < 0.002:
            core.move_leaders()
    bench.drain()
    assert values_of(core) == sent
    for value, delivery in deliveries:
        metadata = delivery.result()
        assert core.logs["t", metadata.partition].records[metadata.offset][0] == value
    assert bench.accumulator.pool.used_bytes == 0


@pytest.mark.parametrize("seed", range(10))
def test_refused_batches_leave_no_gap(seed):
    """A batch that the broker refuses for good fails alone: what follows it is numbered anew and arrives in order."""
    core = FakeCore(seed, trouble=0.05)
    bench = Bench(core)
    random = Random(seed)
    deliveries = []
    for i in range(1500):
        deliveries.append((b"%d" % i, bench.send("t", b"%d" % i)))
        if random.random() < 0.05:
            bench.turn(0.003)
        if random.random() < 0.005:
            core.refuse.append(32)
    bench.drain()
    failed = [value for value, d in deliveries if d.exception() is not None]
    assert all(isinstance(d.exception(), InvalidTimestamp) for _, d in deliveries if d.exception() is not None)
    delivered = [value for value, d in deliveries if d.exception() is None]
    assert failed
    assert values_of(core)[0] == delivered
    assert bench.sender.identity.epoch_bumps > 0


@pytest.mark.parametrize("seed", range(10))
def test_expiry_is_never_a_duplicate(seed):
    """With a delivery time-out in the order of the outages: what was acknowledged is there once and in order, and
    what expired is there at most once."""
    core = FakeCore(seed, trouble=0.3)
    bench = Bench(core, delivery_timeout_s=0.25)
    deliveries = []
    for i in range(1500):
        deliveries.append((b"%d" % i, bench.send("t", b"%d" % i)))
        if i % 20 == 0:
            bench.turn(0.01)
    bench.drain()
    stored = values_of(core)[0]
    acknowledged = [value for value, d in deliveries if d.exception() is None]
    assert len(set(stored)) == len(stored)
    assert [value for value in stored if value in set(acknowledged)] == acknowledged
    assert all(isinstance(d.exception(), DeliveryTimeout) for _, d in deliveries if d.exception() is not None)
    assert stored == sorted(stored, key=int)


@pytest.mark.parametrize("seed", range(60))
def test_finite_retries_neither_double_nor_reorder(seed):
    """Brokers that append and refuse, lost answers, requests that arrive after their time-out, records that are refused for good,
    and 0 to 5 retries: no value twice, all in order, and what a delivery says is so."""
    core = FakeCore(seed, topics={"t": 2}, nodes=3, trouble=0.1, after_append=0.15, late=0.02)
    bench = Bench(core, retries=seed % 6, delivery_timeout_s=1.0 if seed % 7 == 0 else 1e6, codec=seed % 5 and 4)
    random = Random(seed)
    deliveries = {0: [], 1: []}
    for i in range(2000):
        p = random.randrange(2)
        value = b"%d" % i
        deliveries[p].append((value, bench.send("t", value, partition=p)))
        if random.random() < 0.05:
            bench.turn(random.random() * 0.01)
        if random.random() < 0.004:
            core.refuse.append(32)
        if random.random() < 0.002:
            core.move_leaders()
    bench.drain()
    while core.events:
        core.step(1e12)
    assert sum(failures_of(deliveries[p], stored) for p, stored in values_of(core).items()) or seed % 6 > 2


@pytest.mark.parametrize(("code", "retries"), [(20, 0), (20, 1), (7, 0), (7, 2), (6, 1), (56, 1)])
def test_what_was_appended_and_refused_is_not_sent_again_under_new_numbers(code, retries):
    """The first batch is written and answered with an error until its retries are over, while others are on their way."""
    core = FakeCore()
    bench = Bench(core, retries=retries, batch_size=200, grown=200)
    first = bench.send("t", b"0")
    bench.drain()
    log = core.logs["t", 0]
    append, appended = log.append, {}

    def append_and_refuse(data, max_bytes, refuse):
        error, offset = append(data, max_bytes, refuse)
        appended.setdefault(read_header(data).base_sequence, None)
        return (code, -1) if read_header(data).base_sequence == next(iter(appended)) else (error, offset)

    log.append = append_and_refuse
    deliveries = [bench.send("t", b"%d" % i) for i in range(1, 100)]
    bench.drain()
    assert values_of(core)[0] == [b"%d" % i for i in range(100)]
    assert first.exception() is None
    failed = [d for d in deliveries if d.exception() is not None]
    assert failed == deliveries[: len(failed)] and 0 < len(failed) < 99
    assert all(d.exception().maybe_written and d.exception().code == code for d in failed)
    assert "may have been written" in str(failed[0].exception())


@pytest.mark.parametrize("doubt", [20, 7, None])
def test_a_refusal_behind_a_batch_in_doubt_waits_for_its_fate(doubt):
    """The second batch is refused for good while the first, which is written, is in doubt and goes again: once is enough."""
    core = FakeCore()
    bench = Bench(core, batch_size=200, grown=200)
    bench.send("t", b"first")
    bench.drain()
    log = core.logs["t", 0]
    append, calls = log.append, []

    def answer(data, max_bytes, refuse):
        calls.append(data)
        if len(calls) == 2:
            if doubt is None:  # the answer to the first one is lost too
                core.at(0.0001, lambda: core._drop(0))
            return 32, -1
        error, offset = append(data, max_bytes, refuse)
        return (doubt or 20, -1) if len(calls) == 1 else (error, offset)

    log.append = answer
    deliveries = [bench.send("t", b"%d" % i) for i in range(40)]
    bench.drain()
    refused = [d for d in deliveries if d.exception() is not None]
    stored = values_of(core)[0]
    assert len(set(stored)) == len(stored)
    assert stored == [b"first", *[b"%d" % i for i, d in enumerate(deliveries) if d.exception() is None]]
    assert (len(refused) > 0) == (doubt is not None) and not any(d.exception().maybe_written for d in refused)


def test_a_batch_in_doubt_is_not_split():
    """Written, answered with 20, and too large when it comes again, because the topic's limit was lowered meanwhile."""
    core = FakeCore()
    bench = Bench(core, retries=3)
    log = core.logs["t", 0]
    append = log.append

    def append_once(data, max_bytes, refuse):
        error, _ = append(data, max_bytes, refuse)
        log.append = append
        core.max_bytes = 100
        return error or 20, -1

    log.append = append_once
    deliveries = [bench.send("t", b"%d" % i) for i in range(50)]
    bench.drain()
    assert values_of(core)[0] == [b"%d" % i for i in range(50)]
    assert {type(d.exception()) for d in deliveries} == {MessageTooLarge}
    assert all(d.exception().maybe_written for d in deliveries)


def test_without_idempotence_nothing_is_lost():
    core = FakeCore(5, trouble=0.1)
    bench = Bench(core, idempotent=False, max_in_flight=1)
    for i in range(1000):
        bench.send("t", b"%d" % i)
    bench.drain()
    stored = values_of(core)[0]
    assert sorted(set(stored), key=int) == [b"%d" % i for i in range(1000)]


def test_too_large_a_batch_is_halved_until_it_fits():
    core = FakeCore(max_bytes=700)
    for codec in (0, 4):
        core.logs["t", 0].__init__()
        bench = Bench(core, codec=codec, batch_size=20000)
        random = Random(1)
        values = [random.randbytes(60) for _ in range(200)]
        deliveries = [bench.send("t", value) for value in values]
        called = []
        deliveries[150].add_done_callback(called.append)
        bench.drain()
        assert values_of(core)[0] == values
        assert [d.result().offset for d in deliveries] == list(range(200))
        assert [b.take_callbacks() for b in bench.accumulator.callbacks] == [[(150, called.append, deliveries[150])]]
        assert bench.accumulator.pool.used_bytes == 0


def test_one_record_too_large_for_the_topic_fails():
    core = FakeCore(max_bytes=700)
    bench = Bench(core)
    delivery = bench.send("t", bytes(1000))
    bench.drain()
    with pytest.raises(MessageTooLarge, match="h:9000"):
        delivery.result()


def test_a_new_leader_in_the_answer_is_followed():
    core = FakeCore(topics={"t": 1}, nodes=2)
    bench = Bench(core)
    core.leaders["t", 0] = 1
    delivery = bench.send("t", b"x")
    bench.drain()
    assert delivery.result().offset == 0
    assert core.updates > 0


@pytest.mark.parametrize("named", [True, False], ids=["in the answer", "in the metadata"])
def test_a_new_leader_is_sent_to_without_a_pause(named):
    core = FakeCore(topics={"t": 1}, nodes=2)
    core.names_leaders = named
    bench = Bench(core, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
    bench.send("t", b"before")
    bench.drain()
    core.leaders["t", 0] = 1
    for i in range(3):
        bench.send("t", b"%d" % i)
        bench.accumulator.close_all()
        bench.turn(0.0)  # several are on their way when it moves
    began = core.now
    bench.drain()
    assert values_of(core)[0] == [b"before", b"0", b"1", b"2"]
    assert core.now - began < 1


def test_a_new_leader_that_has_not_heard_of_it_is_asked_again_soon_then_later():
    core = FakeCore(topics={"t": 1}, nodes=2)
    bench = Bench(core, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
    core.leaders["t", 0] = 1
    core.refuse.extend([6] * 5)
    pauses = {}
    delivery = bench.send("t", b"x")
    bench.accumulator.close_all()
    while not delivery.done():
        bench.turn()
        for batch in bench.accumulator.incomplete:
            if batch.retry_at_s > core.now:
                pauses.setdefault(batch.attempts, batch.retry_at_s - core.now)
    assert delivery.result().offset == 0
    assert [pauses[attempts] for attempts in range(2, 7)] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32], rel=0.21)


def test_a_quota_that_comes_with_a_producer_id_is_kept():
    core = FakeCore()
    core._init_producer_id = lambda: InitProducerIdResponse(
        throttle_time_ms=5000, error_code=0, producer_id=next(core.producer_ids), producer_epoch=0
    )
    bench = Bench(core)
    began, delivery = core.now, bench.send("t", b"value")
    bench.drain()
    assert delivery.exception() is None
    assert [until >= began + 5.0 for until in core.down_until.values()] == [True]


def test_acks_zero_completes_without_an_answer():
    core = FakeCore()
    bench = Bench(core, acks=0, idempotent=False)
    delivery = bench.send("t", b"x")
    bench.drain()
    assert delivery.result().offset == -1


def test_sequence_wraps_at_two_to_the_31():
    core = FakeCore()
    bench = Bench(core)
    bench.send("t", b"first")
    bench.drain()
    partition = bench.accumulator.topic("t").partitions[0]
    start = 2**31 - 150
    partition.next_sequence, partition.last_acked_sequence = start, start - 1
    state = core.logs["t", 0].producers[bench.sender.identity.producer_id]
    state[1][-1] = (start - 1, start - 1, 0)
    for i in range(400):
        bench.send("t", b"%d" % i)
        if i % 30 == 0:
            bench.turn(0.001)
    bench.drain()
    assert values_of(core)[0] == [b"first", *[b"%d" % i for i in range(400)]]
    assert partition.next_sequence == 250
    assert bench.sender.identity.epoch_bumps == 0


def test_last_epoch_leads_to_a_new_producer_id():
    core = FakeCore()
    bench = Bench(core)
    bench.send("t", b"a")
    bench.drain()
    old = bench.sender.identity.producer_id
    bench.sender.identity.epoch = bench.accumulator.topic("t").partitions[0].producer_epoch = 2**15 - 1
    core.logs["t", 0].producers[old][0] = 2**15 - 1
    core.refuse.append(32)
    failed, delivery = bench.send("t", b"b"), None
    bench.drain()
    delivery = bench.send("t", b"c")
    bench.drain()
    assert isinstance(failed.exception(), InvalidTimestamp)
    assert delivery.result().offset == 1
    assert bench.sender.identity.producer_id != old


def test_in_flight_bounds():
    core = FakeCore(topics={"t": 1})
    bench = Bench(core, max_in_flight=2)
    for i in range(2000):
        bench.send("t", b"%d" % i)
    most = 0
    bench.accumulator.close_all()
    while bench.accumulator.incomplete:
        bench.turn()
        most = max(most, core.in_flight(0), len(bench.accumulator.topic("t").partitions[0].in_flight))
    assert most == 2
    assert values_of(core)[0] == [b"%d" % i for i in range(2000)]


@pytest.mark.parametrize("late", [[1], [2, 1], [1, 2, 3]])
def test_a_partition_that_is_always_full_leaves_turns_to_the_others(late):
    """Two heads never fit into one request."""
    core = FakeCore(topics={"t": 4}, nodes=1)
    bench = Bench(core, batch_size=900_000, grown=900_000, buffer_memory=64 << 20)
    busy = bench.accumulator.topic("t").partitions[0]
    deliveries = []
    for turn in range(40):
        while len(busy.queue) < 10:
            bench.send("t", bytes(890_000), partition=0)
        if turn == 1:
            deliveries = [bench.send("t", bytes(890_000), partition=index) for index in late]
        bench.turn()
    assert [delivery.done() for delivery in deliveries] == [True] * len(late)


def test_keyless_records_spread_over_partitions():
    core = FakeCore(topics={"t": 4})
    bench = Bench(core, batch_size=1000, grown=1000)
    for i in itertools.count():
        bench.send("t", bytes(100))
        if i % 50 == 0:
            bench.turn()
        if i == 4000:
            break
    bench.drain()
    counts = [len(values) for values in values_of(core).values()]
    assert sum(counts) == 4001
    assert min(counts) > 500


def test_a_partition_that_nobody_writes_to_any_more_is_no_trouble():
    """Its records had no time left. That it has not had a leader since is not known when the next ones come, hours later."""
    core = FakeCore()
    bench = Bench(core, delivery_timeout_s=10.0)
    for hour in (0, 1):
        core.now += hour * 3600.0
        core.leaders["t", 0] = -1
        core.publish()
        late = bench.send("t", b"value")
        bench.turn()
        bench.drain()
        waited = re.search(r"no leader of it has been known for ([0-9.]+) s", str(late.exception()))
        assert waited is not None and float(waited[1]) <= 11.0
        assert str(late.exception()).startswith(
            "1 record for t-0 was not acknowledged within delivery_timeout_ms=10000: "
        )
        core.leaders["t", 0] = 0
        core.publish()
        assert bench.sender.why() is None


def test_a_producer_id_that_nobody_needs_any_more_is_no_trouble(monkeypatch):
    core = FakeCore()
    bench = Bench(core, delivery_timeout_s=10.0)
    with monkeypatch.context() as patch:
        patch.setattr(core, "_init_producer_id", lambda: InitProducerIdResponse(error_code=15))
        late = bench.send("t", b"value")
        bench.drain()
    assert "there is no producer id: COORDINATOR_NOT_AVAILABLE (15)" in str(late.exception())
    assert bench.sender.why() is None
