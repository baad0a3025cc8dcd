"""A range of offsets, read to its end: the consumer's `poll_batch(until=)`, and what Spark's workers make of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from fastq import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.errors import ClientClosed, RequestTimedOut
from fastq.spark import read
from fastq.spark.offsets import DataLoss
from fastq.spark.options import SourceOptions
from fastq.spark.planning import OffsetRange
from fastq.spark.source import planned

COLUMNS = ["value", "offset"]


@pytest.fixture
def servers(shared_broker: Any) -> str:
    return str(shared_broker.bootstrap_servers)


@pytest.fixture
def tp(servers: str, make_topic: Callable[..., str]) -> TopicPartition:
    """A partition, with another one beside it."""
    return TopicPartition(make_topic(servers, 2), 0)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> read.ConsumerCache:
    """A cache of this test's own."""
    found = read.ConsumerCache()
    monkeypatch.setattr(read, "_cache", found)
    return found


def fill(servers: str, tp: TopicPartition, count: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(tp.topic, values=[b"%d" % n for n in range(count)], partition=tp.partition)


def options(servers: str, tp: TopicPartition, **more: object) -> SourceOptions:
    given = {"kafka.bootstrap.servers": servers, "subscribe": tp.topic}
    return SourceOptions.parse({**given, **{name.replace("__", "."): str(value) for name, value in more.items()}})


def values(wanted: SourceOptions, part: OffsetRange) -> list[bytes]:
    return [value for batch in read.read_range(wanted, COLUMNS, part) for value in batch.column("value").to_pylist()]


# -- poll_batch(until=)


def test_only_what_lies_before_the_ends_is_handed_out(servers: str, tp: TopicPartition) -> None:
    other = TopicPartition(tp.topic, 1)
    fill(servers, tp, 100)
    fill(servers, other, 50)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp, other])
        found: list[tuple[int, int]] = []
        while batch := consumer.poll_batch(timeout=10, until={tp: 70}):
            found += zip(batch.partitions, batch.offsets, strict=True)
        assert found == [(0, offset) for offset in range(70)], "not the other partition, nor what lies behind"
        assert consumer.position(tp) == 70
        while batch := consumer.poll_batch(timeout=10, until={tp: 75, other: 5}):
            found += zip(batch.partitions, batch.offsets, strict=True)
        assert sorted(found) == [(0, n) for n in range(75)] + [(1, n) for n in range(5)]
        rest = 0
        while rest < 25 + 45:
            rest += len(consumer.poll_batch(timeout=10))
        assert rest == 25 + 45, "and without it on from there"


def test_the_asyncio_consumer_does_alike(servers: str, tp: TopicPartition) -> None:
    fill(servers, tp, 100)

    async def read_before() -> list[int]:
        async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            found: list[int] = []
            while batch := await consumer.poll_batch(timeout=10, until={tp: 70}):
                found += batch.offsets
            assert await consumer.position(tp) == 70
            assert not await consumer.poll_batch(timeout=10, until={tp: 70})
            while len(found) < 100:
                found += (await consumer.poll_batch(timeout=10)).offsets
            assert not await consumer.poll_batch(timeout=0.05, until={tp: 200})
            return found

    assert asyncio.run(read_before()) == list(range(100))


def test_offsets_without_records_are_passed(servers: str, tp: TopicPartition) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=f"{tp.topic}-id") as producer:
        for _ in range(3):
            producer.begin_transaction()
            producer.send(tp.topic, value=b"aborted", partition=tp.partition)
            producer.flush()
            producer.abort_transaction()
    with Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert not consumer.poll_batch(timeout=10, until={tp: 6})
        assert consumer.position(tp) == 6


def test_an_end_behind_the_log_is_waited_for(servers: str, tp: TopicPartition) -> None:
    fill(servers, tp, 3)
    with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert len(consumer.poll_batch(timeout=10, until={tp: 9})) == 3
        assert not consumer.poll_batch(timeout=0.05, until={tp: 9})
        assert consumer.position(tp) == 3


# -- read_range


def test_ranges_of_a_partition_make_up_the_whole(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 30_000)
    wanted = options(servers, tp, kafka__max__partition__fetch__bytes=20_000)
    cuts = [0, 1, 777, 15_000, 29_999, 30_000]
    parts = [OffsetRange(tp, start, end) for start, end in pairwise(cuts)]
    assert [value for part in parts for value in values(wanted, part)] == [b"%d" % n for n in range(30_000)]


def test_a_process_keeps_its_consumer(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 1000)
    wanted = options(servers, tp)
    first = cache.take(wanted)
    cache.give_back(wanted, first)
    assert len(values(wanted, OffsetRange(tp, 0, 1000))) == 1000
    for batch in read.read_range(wanted, COLUMNS, OffsetRange(tp, 5, 1000)):
        assert batch.column("offset")[0].as_py() == 5
        break  # as LIMIT does
    assert cache.take(wanted) is first
    assert first.assignment() == []
    assert cache.take(wanted) is not first, "while a task has it, another gets one of its own"
    assert cache.take(options(servers, tp, kafka__client__id="another")) is not first


def test_only_so_many_consumers_are_kept(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    wanted = [options(servers, tp, kafka__client__id=f"client-{n}") for n in range(read.IDLE_MAX + 1)]
    taken = [cache.take(each) for each in wanted]
    for each, consumer in zip(wanted, taken, strict=True):
        cache.give_back(each, consumer)
    with pytest.raises(ClientClosed):
        taken[0].poll(timeout=0)
    assert [cache.take(each) is consumer for each, consumer in zip(wanted[1:], taken[1:], strict=True)] == [True] * 4


def test_a_topic_that_was_made_anew_is_read_anew(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 10)
    wanted = options(servers, tp)
    assert len(values(wanted, OffsetRange(tp, 0, 10))) == 10
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(tp.topic)
        admin.create_topic(tp.topic, 1)
    fill(servers, tp, 5)
    assert values(wanted, OffsetRange(tp, 0, 5)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("count", [0, 5, 10, 20])
def test_a_topic_made_anew_is_not_the_one_that_was_planned(
    servers: str,
    tp: TopicPartition,
    cache: read.ConsumerCache,
    warm: bool,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(servers, tp, 10)
    strict, mild = options(servers, tp), options(servers, tp, failOnDataLoss="false")
    (part,) = planned(strict)
    if warm:
        assert len(values(strict, part)) == 10
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(tp.topic)
        admin.create_topic(tp.topic, 1)
    if count:
        fill(servers, tp, count)
    with pytest.raises(DataLoss, match=r"-0 \[0, 10\) cannot be read: the topic was deleted and made anew"):
        values(strict, part)
    assert values(mild, part) == []
    assert "made anew since its end was asked for" in caplog.text


def test_a_topic_made_anew_in_the_middle_of_a_read(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 10_000)
    small = {"kafka__prefetch__bytes__max": 20_000, "kafka__max__partition__fetch__bytes": 10_000}
    for loss in ("true", "false"):
        wanted = options(servers, tp, failOnDataLoss=loss, **small)
        (part,) = planned(wanted)
        batches = read.read_range(wanted, COLUMNS, part)
        found = next(batches).column("offset").to_pylist()
        with Admin(bootstrap_servers=servers) as admin:
            admin.delete_topic(tp.topic)
            admin.create_topic(tp.topic, 1)
        fill(servers, tp, 10_000)
        if loss == "true":
            with pytest.raises(DataLoss, match="made anew"):
                list(batches)
        else:
            found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
            assert found == list(range(len(found)))
            assert len(found) < 10_000, "what had come, and nothing of the new topic"


def test_a_log_that_ends_before_its_range(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 10)
    short = {"kafkaConsumer__pollTimeoutMs": 100}
    with pytest.raises(DataLoss, match=r"-0 \[0, 20\) is not all in the log, which ends at 10"):
        values(options(servers, tp, **short), OffsetRange(tp, 0, 20))
    mild = options(servers, tp, failOnDataLoss="false", **short)
    assert values(mild, OffsetRange(tp, 0, 20)) == [b"%d" % n for n in range(10)]
    assert values(mild, OffsetRange(tp, 10, 20)) == []


def test_what_an_open_transaction_holds_back_is_not_lost(
    servers: str, tp: TopicPartition, cache: read.ConsumerCache
) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=f"{tp.topic}-id") as producer:
        producer.begin_transaction()
        producer.send(tp.topic, value=b"undecided", partition=0)
        producer.flush()
        mild = options(
            servers,
            tp,
            failOnDataLoss="false",
            kafkaConsumer__pollTimeoutMs=100,
            kafka__isolation__level="read_committed",
        )
        with pytest.raises(RequestTimedOut, match="nothing of"):
            values(mild, OffsetRange(tp, 0, 1))
        producer.commit_transaction()
        assert values(mild, OffsetRange(tp, 0, 1)) == [b"undecided"]


def test_a_consumer_that_failed_is_not_kept(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    fill(servers, tp, 10)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({tp: 4})
    wanted = options(servers, tp)
    first = cache.take(wanted)
    cache.give_back(wanted, first)
    with pytest.raises(DataLoss, match=r"offset 0 of .*-0 \[0, 10\) is not in the log, which goes from 4 to 10"):
        values(wanted, OffsetRange(tp, 0, 10))
    assert cache.take(wanted) is not first


def test_what_is_left_of_a_range_when_loss_is_let_pass(
    servers: str, tp: TopicPartition, cache: read.ConsumerCache, caplog: pytest.LogCaptureFixture
) -> None:
    fill(servers, tp, 10)
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({tp: 4})
    mild = options(servers, tp, failOnDataLoss="false")
    assert values(mild, OffsetRange(tp, 0, 6)) == [b"4", b"5"]
    assert values(mild, OffsetRange(tp, 0, 4)) == [], "all of it is gone"
    assert values(mild, OffsetRange(tp, 20, 30)) == [], "the log was made anew, and is shorter"
    assert "goes from 4 to 10; going on" in caplog.text


def test_headers_are_null_where_there_are_none(servers: str, tp: TopicPartition, cache: read.ConsumerCache) -> None:
    sent: list[list[tuple[str, bytes | None]]] = [[], [("a", b"1"), ("b", None)], [], [("c", b"")]]
    with Producer(bootstrap_servers=servers) as producer:
        for headers in sent:
            producer.send(tp.topic, value=b"", headers=headers, partition=0)
    (batch,) = read.read_range(options(servers, tp), ["headers", "offset"], OffsetRange(tp, 0, 4))
    assert batch.schema.names == ["headers", "offset"]
    batch.validate(full=True)
    found = [
        row and [(header["key"], header["value"]) for header in row] for row in batch.column("headers").to_pylist()
    ]
    assert found == [headers or None for headers in sent]


def test_a_fork_has_consumers_of_its_own(servers: str, tp: TopicPartition) -> None:
    fill(servers, tp, 10)
    wanted = options(servers, tp)
    assert len(values(wanted, OffsetRange(tp, 0, 10))) == 10
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if len(values(wanted, OffsetRange(tp, 2, 10))) == 8 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(values(wanted, OffsetRange(tp, 0, 10))) == 10
