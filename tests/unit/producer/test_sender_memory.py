"""The sender where there is no memory: every batch has its own fate, and what is in flight has a request."""

import contextlib
import itertools
from collections import deque
from random import Random

import pytest
from failing_allocations import AllocationsFail
from fake_cluster import FakeCore
from fake_coordinator import TransactionCore
from test_sender import Bench, values_of
from transaction_bench import Bench as TransactionBench
from transaction_bench import visible

from fastq.compression import compress
from fastq.errors import MessageTooLarge, ProtocolError
from fastq.producer import sender


def test_halving_goes_on_once_there_is_memory_and_whatever_a_compressor_does(monkeypatch, caplog):
    shortages, failures, tried_at = [1] * 3, [], []
    decompress = sender._decompress

    def short(codec, data):
        if shortages:
            shortages.pop()
            tried_at.append(core.now)
            raise MemoryError
        return decompress(codec, data)

    def failing(codec, data):
        if failures:
            failures.pop()
            raise ValueError("no")
        return compress(codec, data)

    monkeypatch.setattr(sender, "_decompress", short)
    core = FakeCore(max_bytes=700)
    bench = Bench(core, codec=4, batch_size=20000, compressor=failing, retry_backoff_ms=200, retry_backoff_max_ms=1000)
    values = [Random(i).randbytes(60) for i in range(50)]
    deliveries = [bench.send("t", value) for value in values]
    bench.accumulator.close_all()
    bench._attend()
    failures += [1] * 2
    bench.drain()
    assert not shortages and not failures
    assert all(later - earlier >= 0.16 for earlier, later in itertools.pairwise(tried_at)), "it pauses in between"
    assert values_of(core)[0] == values
    assert [d.result().offset for d in deliveries] == list(range(50))
    assert caplog.text.count("there is no memory to halve it") == 3


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_is_not_called_delivered_where_its_answer_fails_behind_the_split(monkeypatch, codec):
    core = FakeCore(max_bytes=700)
    bench = Bench(core, codec=codec, batch_size=20000, retries=0)
    deliveries = [bench.send("t", Random(i).randbytes(60)) for i in range(50)]
    was_split, tried = bench.sender.identity.was_split, []

    def failing(batch, halves):
        tried.append(batch)
        if len(tried) == 1:
            raise MemoryError
        assert not any(delivery.done() for delivery in deliveries)
        was_split(batch, halves)
        monkeypatch.undo()

    monkeypatch.setattr(bench.sender.identity, "was_split", failing)
    bench.drain()
    assert len(tried) == 2 and tried[0] is tried[1], "the window of a broker is told of the halves all the same"
    assert [d.result().offset for d in deliveries] == list(range(50))
    assert bench.accumulator.buffered_records == 0


def test_a_batch_that_cannot_be_halved_is_given_up_with_the_reason(monkeypatch):
    def failing(codec, data):
        raise ValueError("no")

    monkeypatch.setattr(sender, "_decompress", failing)
    core = FakeCore(max_bytes=700)
    bench = Bench(core, codec=4, batch_size=20000)
    deliveries = [bench.send("t", Random(i).randbytes(60)) for i in range(50)]
    bench.drain(seconds=1)
    errors = [delivery.exception() for delivery in deliveries]
    assert {type(error) for error in errors} == {MessageTooLarge}
    assert not errors[0].maybe_written and "the batch cannot be halved: ValueError('no')" in str(errors[0])
    later = bench.send("t", b"x")
    bench.drain()
    assert later.result().offset == 0


def test_a_batch_that_cannot_be_given_up_for_want_of_memory_goes_again_after_a_pause(monkeypatch):
    core = FakeCore()
    bench = Bench(core, retry_backoff_ms=1000, retry_backoff_max_ms=1000)
    core.refuse += [87, 87]

    def failing(batch, error):
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(bench.sender, "_give_up", failing)
    begun, delivery = core.now, bench.send("t", b"x")
    bench.drain()
    assert delivery.exception().code == 87
    assert core.now > begun + 0.8


class NoMemory:
    """An accumulator with no memory for its first `requeue`."""

    def __init__(self, accumulator):
        self._accumulator, self.failures = accumulator, [1]

    def __getattr__(self, name):
        return getattr(self._accumulator, name)

    def requeue(self, batch):
        if self.failures:
            self.failures.pop()
            raise MemoryError
        self._accumulator.requeue(batch)


def test_a_batch_that_cannot_be_put_back_to_be_halved_is_not_left_in_flight():
    core = FakeCore(max_bytes=700)
    bench = Bench(core, batch_size=20000)
    bench.sender.accumulator = short = NoMemory(bench.accumulator)
    deliveries = [bench.send("t", b"%d" % i * 20) for i in range(50)]
    bench.drain()
    assert not short.failures and not bench.accumulator.in_flight
    assert {type(d.exception()) for d in deliveries} == {ProtocolError}
    later = bench.send("t", b"x")
    bench.drain()
    assert later.result().offset == 0


def test_a_request_that_an_allocation_fails_for_leaves_nothing_in_flight():
    failures = []
    for at in range(200):
        core = FakeCore(topics={"t": 2}, nodes=1)
        bench = Bench(core)
        for index in (0, 1):
            bench.send("t", b"first", partition=index)
        bench.drain()
        deliveries = [bench.send("t", b"%d" % i, partition=i % 2) for i in range(4)]
        bench.accumulator.close_all()
        try:
            with AllocationsFail(at):
                bench.sender.run(core.now)
        except MemoryError:
            failures.append(at)
            sent = sum(len(entry[0].buffers) > 0 for entry in core.requests[0])
            assert bool(bench.accumulator.in_flight) <= bool(sent), at
        bench.drain()
        assert [d.result().offset for d in deliveries] == [1, 1, 2, 2]
        assert values_of(core) == {0: [b"first", b"0", b"2"], 1: [b"first", b"1", b"3"]}
    assert failures


def test_what_is_on_its_way_is_not_sent_again_whichever_allocation_fails():
    failures = []
    for at in range(200):
        core = FakeCore(topics={"t": 3}, nodes=1)
        bench = Bench(core, idempotent=False, max_request_size=250)
        deliveries = [bench.send("t", b"%d" % index * 30, partition=index) for index in range(3)]
        bench.accumulator.close_all()
        try:
            with AllocationsFail(at):
                bench.sender.run(core.now)
        except MemoryError:
            failures.append(at)
        bench.drain()
        assert {delivery.result().offset for delivery in deliveries} == {0}
        assert values_of(core) == {index: [b"%d" % index * 30] for index in range(3)}, at
    assert failures


def test_a_partition_that_waits_is_looked_at_whichever_allocation_fails():
    failures = []
    for at in range(60):
        core = FakeCore(topics={"t": 90}, nodes=1)
        bench = Bench(core)
        deliveries = [bench.send("t", b"x", partition=index) for index in range(90)]
        bench.accumulator.close_all()
        kept = [deque() for _ in range(100)]  # what Python keeps of queues that are gone
        try:
            with AllocationsFail(at, 0):
                bench.sender._drain(core.now)
        except MemoryError:
            failures.append(len(kept))
        assert len(bench.accumulator.ready) == 90, at
        bench.drain()
        assert {delivery.result().offset for delivery in deliveries} == {0}
    assert failures


@pytest.mark.parametrize("other", ["acknowledged", "to be tried again"])
def test_an_answer_that_fails_for_one_batch_counts_for_the_others(monkeypatch, other):
    core = FakeCore(topics={"t": 2}, nodes=1)
    bench = Bench(core)
    for index in (0, 1):
        bench.send("t", b"first", partition=index)
    bench.drain()
    failing, acknowledged = int(other != "acknowledged"), bench.sender.identity.acknowledged

    def acknowledge(batch):
        if batch.partition.index == failing:
            monkeypatch.undo()
            raise MemoryError
        acknowledged(batch)

    monkeypatch.setattr(bench.sender.identity, "acknowledged", acknowledge)
    if other == "to be tried again":
        core.refuse.append(6)
    deliveries = [bench.send("t", b"x", partition=index) for index in (0, 1)]
    bench.drain()
    assert isinstance(deliveries[failing].exception(), ProtocolError) and deliveries[failing].exception().maybe_written
    assert deliveries[1 - failing].result().offset == 1


def send_fails_at(core, monkeypatch, number):
    """No memory for one of the requests; the turn that fails is taken again."""
    numbers, send = itertools.count(), core.send

    def failing(*given, **options):
        if next(numbers) == number:
            raise MemoryError
        send(*given, **options)

    monkeypatch.setattr(core, "send", failing)
    return numbers


def test_a_producer_id_that_there_is_no_memory_to_ask_for_is_asked_for_again(monkeypatch):
    """It counted as asked for, and the producer sent nothing before delivery_timeout_ms."""
    core = FakeCore()
    bench = Bench(core)
    send_fails_at(core, monkeypatch, 0)
    delivery = bench.send("t", b"x")
    bench.accumulator.close_all()
    with pytest.raises(MemoryError):
        bench.sender.run(core.now)
    bench.drain(10)
    assert delivery.result().offset == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_goes_on_whichever_request_there_is_no_memory_for(monkeypatch, version):
    """Its coordinator counted as busy for good."""
    for number in range(30):
        core = TransactionCore(transaction_version=version)
        bench = TransactionBench(core)
        turn = bench.turn

        def turned(*given, turn=turn):
            with contextlib.suppress(MemoryError):
                turn(*given)

        bench.turn = turned
        numbers = send_fails_at(core, monkeypatch, number)
        bench.begin()
        delivery = bench.send("t", b"x")
        bench.commit()
        assert delivery.result().offset == 0 and visible(core) == {0: [b"x"]}
        if next(numbers) <= number:
            break
    assert 3 < number < 29
