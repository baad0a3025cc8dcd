"""What is not delivered is told, whether or not anybody holds the handle: once, with topic, partition, reason and count."""

import asyncio
import logging
import subprocess
import sys

import pytest
from fake_cluster import FakeCore
from test_sender import Bench, values_of

from fastq.admin import Admin, ConfigResource
from fastq.errors import BufferTimeout, InvalidTimestamp, UndeliveredRecords, UnknownTopicOrPartition
from fastq.net.troubles import GRACE_S
from fastq.producer import AsyncProducer, Producer
from fastq.producer.failures import EVERY_S, KINDS_MAX, Failures


@pytest.fixture
def strict(shared_broker, topic):
    """A topic that refuses old timestamps."""
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
        admin.set_config(ConfigResource.topic(topic), "message.timestamp.before.max.ms", "1000")
    return topic


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_one_line_for_each_kind_and_then_at_a_bounded_rate(caplog):
    failures = Failures()
    refused = InvalidTimestamp(topic="t", partition=1)
    for i in range(1000):
        failures.note(3, refused, i * 0.001)
    assert [line.split(":")[0] for line in told(caplog)] == ["3 records were not delivered"]
    assert "INVALID_TIMESTAMP" in told(caplog)[0] and "topic t, partition 1" in told(caplog)[0]
    failures.note(1, InvalidTimestamp(topic="t", partition=2), 1.0)
    assert len(told(caplog)) == 2
    failures.note(1, refused, EVERY_S + 0.5)
    assert told(caplog)[2].startswith("2998 records were not delivered")
    failures.note(1, refused, EVERY_S + 0.6)
    failures.tell_total(raises=False)
    assert [line.split(":")[0] for line in told(caplog)[3:]] == ["1 record was not delivered", "the producer is closed"]
    assert "3003 of its records" in told(caplog)[-1]
    with pytest.raises(UndeliveredRecords, match="3003 were not delivered") as caught:
        failures.tell_total(raises=True)
    assert caught.value.count == 3003


def test_kinds_are_bounded(caplog):
    failures = Failures()
    for i in range(KINDS_MAX + 500):
        failures.note(1, InvalidTimestamp(topic="t", partition=i), 0.0)
    assert failures.total == KINDS_MAX + 500
    assert len(told(caplog)) == KINDS_MAX + 1


def test_no_room_names_what_the_brokers_answer(fastq_broker, caplog):
    """A broker whose disk is full refuses each batch, and each time with what may pass: the buffer fills, and the error says why."""
    caplog.set_level(logging.INFO, "fastq.producer")
    broker, topic = fastq_broker, "stuck"
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    broker.fail("Produce", error="KAFKA_STORAGE_ERROR", times=None)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, buffer_memory=65536, max_block_ms=GRACE_S * 1000 + 2000
    ) as producer:
        with pytest.raises(BufferTimeout, match="KAFKA_STORAGE_ERROR"):
            for _ in range(100):
                producer.send(topic, bytes(4000))
        assert any(line.startswith("stuck-0 cannot be written to: KAFKA_STORAGE_ERROR") for line in told(caplog))
        broker.clear_faults()
        producer.flush(30)
    assert any("stuck-0 can be written to again, after " in record.getMessage() for record in caplog.records)


def test_refused_records_whose_handles_are_dropped(make, strict, caplog):
    producer = make(linger_ms=0)
    for _ in range(50):
        producer.send(strict, b"x", timestamp_ms=1)
    producer.flush(10)
    producer.send(strict, b"in time")
    producer.close()
    lines = told(caplog)
    assert "not delivered: INVALID_TIMESTAMP (32)" in lines[0] and f"topic {strict}, partition 0" in lines[0]
    assert lines[-1] == "the producer is closed: 50 of its records were not delivered"
    assert len(lines) <= 3


def test_a_compacted_topic_tells_of_records_without_key(make, topic, shared_broker, caplog):
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
        admin.set_config(ConfigResource.topic(topic), "cleanup.policy", "compact")
    producer = make(linger_ms=60_000)  # one batch, however long this thread is kept waiting between two records
    producer.send_many(topic, [b"x"] * 5)
    producer.close()
    assert "5 records were not delivered: INVALID_RECORD (87)" in told(caplog)[0]


def test_raise_on_close(make, strict):
    producer = make(raise_on_close=True)
    producer.send(strict, b"x", timestamp_ms=1)
    with pytest.raises(UndeliveredRecords, match=r"1 was not delivered.*INVALID_TIMESTAMP"):
        producer.close()
    producer.close()
    with pytest.raises(UndeliveredRecords), make(raise_on_close=True) as producer:
        producer.send(strict, b"x", timestamp_ms=1)
    with pytest.raises(ZeroDivisionError), make(raise_on_close=True) as producer:  # the block's own error is not hidden
        producer.send(strict, b"x", timestamp_ms=1)
        _ = 1 / 0
    with make(raise_on_close=True) as producer:
        producer.send(strict, b"x")


def test_raise_on_close_of_the_asyncio_producer(strict, shared_broker):
    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, raise_on_close=True) as producer:
            await producer.send(strict, b"x", timestamp_ms=1)

    with pytest.raises(UndeliveredRecords, match="INVALID_TIMESTAMP"):
        asyncio.run(main())


# -- a transaction that nobody ends


@pytest.mark.parametrize("end", ["with", "close", "close at once", "by an error", "after a refusal"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_open_transaction_at_the_end_is_told(make, topic, strict, shared_broker, caplog, asynchronous, end):
    """Its records are dropped, also those that a broker has: nobody asked for that, but where the block ends by an error."""
    refuse = {"timestamp_ms": 1} if end == "after a refusal" else {}
    # Two fill a batch, which goes out; where they are refused all go at once, for nothing is taken after that.
    options = {"linger_ms": 60_000, "batch_size": 100_000 if refuse else 1500}
    options.update(transactional_id=f"id-{topic}", raise_on_close=True)

    async def fill(producer):
        await producer.begin_transaction()
        for _ in range(3):
            await producer.send(topic, bytes(600), **refuse)
        if refuse:
            await producer.flush(10)

    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, **options) as producer:
            await fill(producer)
            if end.startswith("close"):
                await producer.close(0 if "at once" in end else None)
            if end == "by an error":
                raise ZeroDivisionError

    def blocking():
        with make(**options) as producer:
            producer.begin_transaction()
            for _ in range(3):
                producer.send(topic, bytes(600), **refuse)
            if refuse:
                producer.flush(10)
            if end.startswith("close"):
                producer.close(0 if "at once" in end else None)
            if end == "by an error":
                raise ZeroDivisionError

    expected = ZeroDivisionError if end == "by an error" else UndeliveredRecords
    with pytest.raises(expected) as caught:
        asyncio.run(main()) if asynchronous else blocking()
    if end == "by an error":
        assert told(caplog) == []
        return
    assert caught.value.count == 3
    (line,) = told(caplog)
    assert line.startswith("3 records were not delivered: the producer was closed while its transaction was open")
    assert ("INVALID_TIMESTAMP" in line) == bool(refuse)


@pytest.mark.parametrize("ended", ["committed", "aborted", "empty", "before"])
def test_a_transaction_that_was_ended_leaves_nothing_to_tell(make, topic, caplog, ended):
    with make(transactional_id=f"id-{topic}", raise_on_close=True) as producer:
        producer.begin_transaction()
        if ended != "empty":
            producer.send(topic, b"x")
        if ended in ("committed", "before"):
            producer.commit_transaction()
        elif ended == "aborted":
            producer.abort_transaction()
        if ended == "before":
            producer.begin_transaction()
    assert told(caplog) == []


# -- a topic that is made anew


def test_a_topic_made_anew_with_fewer_partitions_takes_every_key(caplog):
    core = FakeCore(topics={"t": 20})
    bench = Bench(core, delivery_timeout_s=120.0)
    keys = [b"key-%d" % i for i in range(60)]
    for key in keys:
        bench.send("t", b"before", key=key)
    bench.drain()
    core.recreate("t", 6)
    lost = [bench.send("t", b"meanwhile", key=key) for key in keys]
    before = core.now
    bench.drain()
    assert core.now - before < 30
    after = [bench.send("t", b"after", key=key) for key in keys]
    bench.drain()
    assert all(delivery.exception() is None for delivery in after)
    stored = [value for values in values_of(core).values() for value in values]
    assert stored.count(b"after") == 60
    failed = [d.exception() for d in lost if d.exception() is not None]
    assert failed and all(isinstance(error, UnknownTopicOrPartition) for error in failed)
    assert "made anew with 6 partitions" in str(failed[0])
    assert stored.count(b"meanwhile") == 60 - len(failed)
    assert bench.accumulator.pool.used_bytes == 0


class ByName(FakeCore):
    """Produce as of before version 13, which names topics; metadata has their ids. `refused`: what next batches are answered, unseen."""

    refused = ()

    def api_version(self, node, key, *, min_version=None, max_version=None):
        return min(12, max_version)

    def _append(self, node, name, part, topic_id=None):
        if self.refused:
            return self.refused.pop(0), -1
        return super()._append(node, name, part, topic_id)


def test_nothing_is_sent_by_name_to_a_topic_made_anew_behind_what_may_be_refused_there():
    """Any sequence is the first one there: what came behind one that was refused for a moment was written before it."""
    core = ByName()
    bench = Bench(core)
    bench.send("t", b"before")
    bench.drain()
    deliveries = send_each(bench, [b"0"])
    core.recreate("t", 1)
    core.refused = [3, 6]  # as the topic is not there yet, and then who is to lead it does not know so yet
    while len(core.refused) > 1 or core.in_flight(0):
        core.step(core.now + 0.001)
    core.publish()
    core.now += 5
    bench.sender.run(core.now)
    assert core.in_flight(0)
    deliveries += send_each(bench, [b"1", b"2"])
    bench.drain()
    assert values_of(core)[0] == [b"0", b"1", b"2"]
    assert [delivery.result().offset for delivery in deliveries] == [0, 1, 2]
    assert bench.sender.identity.epoch_bumps == 0
    send_each(bench, [b"3", b"4", b"5"])
    assert core.in_flight(0) == 3


def send_each(bench, values):
    """In requests of their own, which are sent at once where they may be."""
    deliveries = []
    for value in values:
        deliveries.append(bench.send("t", value))
        bench.accumulator.close_all()
        bench.sender.run(bench.core.now)
    return deliveries


def test_partitions_that_are_missing_for_a_moment_go_on_where_they_were():
    """An answer of a broker that lags behind: the same topic, with fewer partitions than there are."""
    core = FakeCore(topics={"t": 4})
    bench = Bench(core)
    for i in range(4):
        bench.send("t", b"0", partition=i)
    bench.drain()
    bench.sender.accumulator.update_topic("t", 2)
    waiting = bench.accumulator.topic("t").gone[-1]
    assert [bench.send("t", b"1", key=b"%d" % i).partition < 2 for i in range(20)] == [True] * 20
    core.publish()
    bench.sender.run(core.now)
    assert bench.accumulator.topic("t").partitions[2] is waiting
    for i in range(4):
        bench.send("t", b"2", partition=i)
    bench.drain()
    assert [values[-1] for values in values_of(core).values()] == [b"2"] * 4
    assert bench.sender.identity.epoch_bumps == 0


def test_an_answer_names_the_topic_as_its_request_did():
    """The topic gets another id while a request is on its way."""
    core = FakeCore()
    bench = Bench(core)
    delivery = bench.send("t", b"x")
    bench.accumulator.close_all()
    while not core.in_flight(0):
        bench.turn(0.0001)
    bench.accumulator.topic("t").topic_id = bytes(15) + b"\1"
    bench.drain()
    assert delivery.result().offset == 0


def test_a_time_out_says_each_thing_once():
    core = FakeCore()
    bench = Bench(core, delivery_timeout_s=1.0)
    core.refuse.extend([19] * 1000)
    delivery = bench.send("t", b"x")
    bench.drain()
    text = str(delivery.exception())
    assert "NOT_ENOUGH_REPLICAS (19)" in text and "h:9000" in text and "delivery_timeout_ms=1000" in text
    assert text.count("t-0") + text.count("topic t") == 1 and text.count("partition 0") <= 1
    assert not delivery.exception().maybe_written


@pytest.mark.parametrize(
    ("log", "stderr", "stdout"),
    [
        ("pass", 1, 0),
        ("logging.basicConfig()", 1, 0),
        ("logging.getLogger('fastq').addHandler(logging.StreamHandler())", 1, 0),
        ("logging.basicConfig(stream=sys.stdout)", 1, 1),
        ("logging.basicConfig(stream=sys.stdout); os.dup2(1, 2)", 0, 1),  # 2>&1
        ("logging.basicConfig(stream=io.StringIO())", 1, 0),
        ("logging.basicConfig(); logging.root.handlers[0].setLevel('CRITICAL')", 1, 0),
        ("logging.basicConfig(); logging.getLogger('fastq').setLevel('CRITICAL')", 1, 0),
        ("logging.basicConfig(); logging.getLogger('fastq').propagate = False; logger.addHandler(FILE)", 1, 0),
        ("kept = warnings_as_lines(); kept.__enter__()", 1, 0),  # the command line's
    ],
)
def test_a_loss_at_the_end_is_on_stderr_once(log, stderr, stdout):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"""
import io, logging, os, sys
from fastq.cli.log_lines import warnings_as_lines
from fastq.producer.base import logger, report_lost
FILE = logging.StreamHandler(io.StringIO())
{log}
report_lost(2, "why")
""",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [text.count("2 records were not delivered: why") for text in (done.stderr, done.stdout)] == [stderr, stdout]
