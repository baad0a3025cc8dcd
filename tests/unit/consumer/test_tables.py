"""Topics as tables: all records up to an end that is fixed before, as Arrow streams that their takers pull."""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing, nullcontext
from datetime import datetime, timedelta, timezone
from itertools import chain
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas
import polars
import pyarrow
import pytest
from consumer_fakes import T0_MS, SocketCluster

from fastq import AsyncConsumer, Consumer, TopicPartition, read_topic
from fastq._native.batch_stream import make_stream
from fastq._native.columns import ConsumerBatch
from fastq.cli import consume
from fastq.consumer.tables import BatchStream
from fastq.errors import (
    ClientClosed,
    ConcurrentModification,
    ConfigError,
    CorruptRecord,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

PARTITIONS, ROWS = 3, 2000


@pytest.fixture
def cluster() -> Iterator[SocketCluster]:
    made = SocketCluster((1, 2))
    made.tells_epochs = True
    for log in made.create("logs", PARTITIONS):
        while log.end < ROWS:
            log.append([(b"k%d" % (log.end + n), b"v%d" % (log.end + n)) for n in range(10)])
    yield made
    made.close()


def options(cluster: SocketCluster, **more: Any) -> dict[str, Any]:
    # Little at a time, so that all of it is many batches.
    return {
        "bootstrap_servers": cluster.bootstrap,
        "max_partition_fetch_bytes": 5000,
        "prefetch_bytes_max": 20_000,
        **more,
    }


def places(table: Any) -> dict[int, list[int]]:
    """The offsets of each partition, in the order of the table."""
    found: dict[int, list[int]] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        found.setdefault(partition, []).append(offset)
    return found


def test_every_taker_gets_all_of_the_topic(cluster: SocketCluster) -> None:
    table = read_topic("logs", columns=["partition", "offset", "value"], **options(cluster))
    whole = {index: list(range(ROWS)) for index in range(PARTITIONS)}
    arrow = pyarrow.table(table)
    assert arrow.column_names == ["partition", "offset", "value"] and places(arrow) == whole
    assert arrow["value"].to_pylist()[:3] == [b"v%d" % offset for offset in arrow["offset"].to_pylist()[:3]]
    assert places(polars.DataFrame(table).to_arrow()) == whole
    assert places(pyarrow.table(table.to_arrow())) == whole
    assert len(pandas.DataFrame.from_arrow(table) if hasattr(pandas.DataFrame, "from_arrow") else table.to_arrow()) == (
        PARTITIONS * ROWS
    )
    logs = table  # noqa: F841  # the name in the query
    assert duckdb.sql("select count(*), count(distinct value) from logs").fetchall() == [(PARTITIONS * ROWS, ROWS)]
    assert sum(map(len, table)) == PARTITIONS * ROWS
    assert "3 partitions, 6,000 offsets" in repr(table)
    assert "(logs, 1 partition, 1 offset, " in repr(read_topic("logs", partitions=[0], end={0: 1}, **options(cluster)))


def test_one_partition_is_a_list_too(cluster: SocketCluster) -> None:
    with pytest.raises(TypeError, match=r"partitions is a list of numbers, got 0: write \[0\]"):
        read_topic("logs", partitions=0, **options(cluster))


def test_it_ends_where_the_topic_ended_when_it_was_asked_for(cluster: SocketCluster) -> None:
    table = read_topic("logs", **options(cluster))
    for log in cluster.logs.values():
        log.append([(b"late", b"late")])
    assert pyarrow.table(table).num_rows == PARTITIONS * ROWS
    assert pyarrow.table(read_topic("logs", **options(cluster))).num_rows == PARTITIONS * (ROWS + 1)


def test_bounds(cluster: SocketCluster) -> None:
    def read(**bounds: Any) -> dict[int, list[int]]:
        return places(pyarrow.table(read_topic("logs", **bounds, **options(cluster))))

    def at(offset: int) -> datetime:
        return datetime.fromtimestamp(T0_MS / 1000, timezone.utc) + timedelta(milliseconds=offset)

    assert read(start={0: 1990}, end={0: 1995, 1: 5, 2: 0}) == {0: list(range(1990, 1995)), 1: list(range(5))}
    assert read(start=at(100), end=at(105)) == {index: list(range(100, 105)) for index in range(PARTITIONS)}
    assert read(start=at(1998)) == {index: [1998, 1999] for index in range(PARTITIONS)}
    assert read(start=at(10_000)) == {}
    assert read(partitions=[2], end={2: 3}) == {2: [0, 1, 2]}
    assert read(partitions=[2], start={2: 5000}) == {} == read(start=at(5), end=at(5))
    assert read(partitions=[1], start={1: 1999}, end={1: 5000}) == {1: [1999]}
    for log in cluster.logs.values():
        log.start = 1998
    assert read(start={0: 0}, end={1: 5}) == {0: [1998, 1999], 2: [1998, 1999]}


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ({"start": 5}, "'earliest', a datetime with its time zone"),
        ({"end": "earliest"}, "'latest', a datetime"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),
        ({"start": {7: 1}}, "partition 7 is not read"),
        ({"end": {0: -1}}, "0 or more"),
        ({"columns": ["valeu"]}, "no column 'valeu'"),
    ],
)
def test_bounds_and_columns_that_mean_nothing(cluster: SocketCluster, bounds: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_topic("logs", **bounds, **options(cluster))


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"group_id": "g"}, "leave group_id out"),
        ({"key_deserializer": "str"}, "as bytes: leave key_deserializer out"),
        ({"value_deserializer": bytes.decode}, "as bytes: leave value_deserializer out"),
        ({"auto_offset_reset": "latest"}, "where `start` says"),
    ],
)
def test_an_option_without_effect_is_refused(cluster: SocketCluster, option: dict[str, Any], match: str) -> None:
    """All but those of a group had none, and nobody was told."""
    with pytest.raises(ConfigError, match=match):
        read_topic("logs", **option, **options(cluster))
    assert pyarrow.table(read_topic("logs", auto_offset_reset="earliest", **options(cluster))).num_rows


def test_what_is_not_there(cluster: SocketCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        read_topic("nothing", **options(cluster))
    with pytest.raises(UnknownTopicOrPartition):
        read_topic("logs", partitions=[9], **options(cluster))
    cluster.create("empty", 2)
    table = pyarrow.table(read_topic("empty", headers=True, **options(cluster)))
    assert table.num_rows == 0 and table.column_names[-1] == "headers"


def test_a_consumers_rest_by_batches(cluster: SocketCluster) -> None:
    """From where it stands to the end of this moment, whatever is made of it; records without rows at the end are no reason to wait."""
    for log in cluster.logs.values():
        log.transaction(1, [[(b"aborted", b"aborted")]], commit=False)
    given = options(cluster, auto_offset_reset="earliest", isolation_level="read_committed")
    with Consumer("logs", **given) as consumer:
        first = consumer.poll(max_records=7, timeout=10)
        rows = [record for batch in consumer.read_batches_to_end() for record in batch]
        assert len(first) + len(rows) == PARTITIONS * ROWS
        assert all(record.value != b"aborted" for record in rows)
        assert list(consumer.read_batches_to_end()) == []
        consumer.seek_to_beginning()
        stream = consumer.read_batches_to_end(columns=["offset", "partition"], headers=True)
        begun = next(stream)
        assert {len(batch) > 0 for batch in [begun]} == {True}
        table = pyarrow.table(stream)
        assert table.column_names == ["offset", "partition", "headers"]
        assert table.num_rows + len(begun) == PARTITIONS * ROWS
        with pytest.raises(RuntimeError, match="taken already"):
            pyarrow.table(stream)
        assert consumer.poll(timeout=0) == []


def test_memory_is_bounded(cluster: SocketCluster) -> None:
    with Consumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
        sizes = [batch.size_bytes for batch in consumer.read_batches_to_end()]
        assert max(sizes) < 2 * 20_000 and len(sizes) > 5
        assert consumer.metrics()["buffered_bytes"] < 20_000


def test_asyncio(cluster: SocketCluster) -> None:
    async def main() -> int:
        async with AsyncConsumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
            return sum([len(batch) async for batch in await consumer.read_batches_to_end()])

    assert asyncio.run(main()) == PARTITIONS * ROWS


def test_asyncio_batches_go_on_after_a_cancelled_await_and_are_one_tasks(cluster: SocketCluster) -> None:
    async def main() -> int:
        async with AsyncConsumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
            stream = await consumer.read_batches_to_end()
            poll_batch, held = consumer.poll_batch, asyncio.Event()

            async def held_up(**given: Any) -> ConsumerBatch:
                await held.wait()
                return await poll_batch(**given)

            consumer.poll_batch = held_up  # type: ignore[method-assign]
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentModification, match="another task waits for the next batch"):
                await anext(stream)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            held.set()
            return sum([len(batch) async for batch in stream])

    assert asyncio.run(main()) == PARTITIONS * ROWS


def test_asyncio_batches_go_on_behind_an_error(cluster: SocketCluster) -> None:
    log = cluster.logs[TopicPartition("logs", 0)]
    whole = log.entries[1].data

    async def main() -> int:
        async with AsyncConsumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
            rows, failed = 0, 0
            stream = await consumer.read_batches_to_end()
            while True:
                try:
                    batch = await anext(stream, None)
                except CorruptRecord:
                    failed += 1
                    log.entries[1].data = whole  # it was the wire, not the disk
                    continue
                if batch is None:
                    assert failed == 1
                    return rows
                rows += len(batch)

    log.entries[1].data = whole[:-1] + bytes([whole[-1] ^ 1])
    assert asyncio.run(main()) == PARTITIONS * ROWS


def test_a_table_goes_on_behind_an_error(cluster: SocketCluster) -> None:
    """Who caught it and went on was told the end: the rest was missing without a word."""
    log = cluster.logs[TopicPartition("logs", 0)]
    whole = log.entries[1].data
    log.entries[1].data = whole[:-1] + bytes([whole[-1] ^ 1])
    rows, failed = 0, 0
    batches = iter(read_topic("logs", **options(cluster)))
    while True:
        try:
            batch = next(batches, None)
        except CorruptRecord:
            failed += 1
            log.entries[1].data = whole
            continue
        if batch is None:
            break
        rows += len(batch)
    assert (rows, failed) == (PARTITIONS * ROWS, 1)
    assert next(batches, None) is None, "the end stays the end"


@pytest.mark.parametrize("how", ["close", "del"])
def test_a_table_that_is_not_read_to_its_end_leaves_no_connection(cluster: SocketCluster, how: str) -> None:
    batches = iter(read_topic("logs", **options(cluster)))
    assert len(next(batches))
    reader = batches._done.__self__  # type: ignore[union-attr]  # of a bound method
    assert not reader._closed
    if how == "close":
        batches.close()
        assert next(batches, None) is None
    else:
        del batches
    assert reader._closed


def test_the_end_of_asyncio_batches_is_final(cluster: SocketCluster) -> None:
    async def main() -> None:
        async with AsyncConsumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
            stream = await consumer.read_batches_to_end()
            assert sum([len(batch) async for batch in stream]) == PARTITIONS * ROWS
            consumer.seek_to_beginning()
            assert await anext(stream, None) is None
            async with aclosing(await consumer.read_batches_to_end()) as stream:
                begun = await anext(stream)
                assert len(begun)
            assert await anext(stream, None) is None
            rest = await consumer.read_batches_to_end()
            assert len(begun) + sum([len(batch) async for batch in rest]) == PARTITIONS * ROWS

    asyncio.run(main())


def test_the_end_of_batches_is_final_for_who_takes_arrow(cluster: SocketCluster) -> None:
    with Consumer("logs", **options(cluster, auto_offset_reset="earliest")) as consumer:
        stream = consumer.read_batches_to_end()
        assert sum(map(len, stream)) == PARTITIONS * ROWS
        consumer.seek_to_beginning()
        assert stream.to_arrow().num_rows == 0
        stream = consumer.read_batches_to_end()
        begun = len(next(stream))
        taker = pyarrow.RecordBatchReader.from_stream(stream)
        begun += taker.read_next_batch().num_rows
        stream.close()
        assert taker.read_all().num_rows == 0
        stream = consumer.read_batches_to_end()
        stream.close()
        assert stream.to_arrow().num_rows == 0
        assert begun + consumer.read_batches_to_end().to_arrow().num_rows == PARTITIONS * ROWS
    batches = iter(read_topic("logs", **options(cluster)))
    batches.close()
    assert batches.to_arrow().num_rows == 0


ANEW = "the topic was deleted and made anew"


def make_anew(cluster: SocketCluster, rows: int) -> None:
    """Another topic of that name, with fewer partitions."""
    for log in cluster.make_anew("logs", 1):
        while log.end < rows:
            log.append([(b"new", b"new")] * 10)


@pytest.mark.parametrize("rows", [0, ROWS // 2, ROWS * 2])
def test_a_topic_that_is_made_anew_is_not_read_for_the_one_before(cluster: SocketCluster, rows: int) -> None:
    """It would give records of another topic, and wait for ever where they are fewer."""
    table = read_topic("logs", **options(cluster))
    begun = iter(table)
    next(begun)
    make_anew(cluster, rows)
    with pytest.raises(UnknownTopicId, match=ANEW):
        list(begun)
    with pytest.raises(UnknownTopicId, match=ANEW):
        list(table)
    with pytest.raises(OSError, match=ANEW):
        pyarrow.table(table)


@pytest.mark.parametrize("call", ["read_to_end", "read_batches_to_end"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_is_read_to_an_end_is_one_topic(cluster: SocketCluster, call: str, by_hand: bool) -> None:
    """The consumer itself goes on with the new topic, whose end is asked for by the next call."""
    given = options(cluster, auto_offset_reset="earliest")
    topics = () if by_hand else ("logs",)

    async def main() -> None:
        async with AsyncConsumer(*topics, **given) as consumer:
            if by_hand:
                consumer.assign([("logs", 0)])
            found: Any = await getattr(consumer, call)()
            await anext(found)
            make_anew(cluster, ROWS)
            with pytest.raises(UnknownTopicId, match=ANEW):
                async for _ in found:
                    pass
            assert [record.value async for record in await consumer.read_to_end()] == [b"new"] * ROWS

    asyncio.run(main())
    with Consumer(*topics, **given) as consumer:
        if by_hand:
            consumer.assign([("logs", 0)])
        found = iter(getattr(consumer, call)())
        next(found)
        make_anew(cluster, ROWS)
        with pytest.raises(UnknownTopicId, match=ANEW):
            list(found)
        assert [record.value for record in consumer.read_to_end()] == [b"new"] * ROWS


def elect_without_all(cluster: SocketCluster, kept: int, rows: int) -> None:
    """Another leader of partition 0, which has lost all from `kept` on, and gets other records up to `rows`."""
    log = cluster.logs[TopicPartition("logs", 0)]
    log.entries = [entry for entry in log.entries if entry.last < kept]
    log.end = kept
    log.leader, log.epoch = 3 - log.leader, log.epoch + 1
    while log.end < rows:
        log.append([(b"other", b"other")] * 10)


LESS = "the log ended at offset 2000 when its end was asked for, and the leader of now has it up to offset"


@pytest.mark.parametrize("rows", [0, ROWS // 2, ROWS * 2])
@pytest.mark.parametrize("kept", [50, ROWS - 50])
def test_a_leader_that_has_less_is_no_end_and_no_other_history(cluster: SocketCluster, kept: int, rows: int) -> None:
    """After an unclean election the end would not come, or come behind records of another history."""
    table = read_topic("logs", partitions=[0], **options(cluster))
    begun = iter(table)
    seen = [bytes(value) for value in next(begun).to_arrow()["value"].to_pylist()]
    elect_without_all(cluster, kept, rows)
    with pytest.raises(OffsetOutOfRange, match=f"{LESS} {kept} only"):
        for batch in begun:
            seen += batch.to_arrow()["value"].to_pylist()
    assert b"other" not in seen
    with pytest.raises(OffsetOutOfRange, match=LESS):
        list(table)
    with pytest.raises(OSError, match=LESS):
        pyarrow.table(table)


def test_a_leader_that_has_all_is_read_to_the_end(cluster: SocketCluster) -> None:
    table = read_topic("logs", partitions=[0], columns=["partition", "offset"], **options(cluster))
    begun = iter(table)
    count = len(next(begun))
    elect_without_all(cluster, ROWS, ROWS + 100)
    assert count + sum(map(len, begun)) == ROWS
    assert places(pyarrow.table(table)) == {0: list(range(ROWS))}


def test_a_broker_that_knows_no_epochs_is_believed(cluster: SocketCluster) -> None:
    all_versions = cluster._versions

    def without_epochs(node: int, request: Any, version: int) -> Any:
        answer = all_versions(node, request, version)
        answer.api_keys = [api for api in answer.api_keys if api.api_key != 23]
        return answer

    cluster._versions = without_epochs  # type: ignore[method-assign]
    table = read_topic("logs", partitions=[0], **options(cluster))
    elect_without_all(cluster, ROWS, ROWS + 100)
    assert sum(map(len, table)) == ROWS


@pytest.mark.parametrize("call", ["read_to_end", "read_batches_to_end"])
def test_what_is_read_to_an_end_is_one_history(cluster: SocketCluster, call: str) -> None:
    given = options(cluster, auto_offset_reset="earliest")

    async def main() -> None:
        async with AsyncConsumer(**given) as consumer:
            consumer.assign([("logs", 0)])
            found: Any = await getattr(consumer, call)()
            await anext(found)
            elect_without_all(cluster, 50, 0)
            with pytest.raises(OffsetOutOfRange, match=LESS):
                async for _ in found:
                    pass

    asyncio.run(main())
    for log in cluster.logs.values():
        while log.end < ROWS:
            log.append([(b"k", b"v")] * 10)
    with Consumer(**given) as consumer:
        consumer.assign([("logs", 0)])
        found = iter(getattr(consumer, call)())
        next(found)
        elect_without_all(cluster, 50, ROWS * 2)
        with pytest.raises(OffsetOutOfRange, match=LESS):
            list(found)


def test_a_stream_that_fails_says_why_and_lets_go() -> None:
    told: list[str] = []
    steps = iter([ConsumerBatch()])

    def advance() -> ConsumerBatch | None:
        for batch in steps:
            return batch
        raise ClientClosed("the consumer is closed")

    stream = BatchStream(advance, ["value"], lambda: told.append("done"))
    with pytest.raises(OSError, match="the consumer is closed"):
        pyarrow.table(stream)
    assert told == ["done"]


def test_a_stream_that_nobody_reads_lets_go() -> None:
    told: list[str] = []
    capsule = make_stream(lambda: None, ["value"], lambda: told.append("done"))
    del capsule
    assert told == ["done"]


def test_a_taker_in_another_thread(cluster: SocketCluster) -> None:
    table = read_topic("logs", **options(cluster))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(pyarrow.table(table).num_rows)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [PARTITIONS * ROWS] * 2


def test_the_consumers_of_a_table_are_closed(cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Consumer] = []
    close = Consumer.close
    monkeypatch.setattr(Consumer, "close", lambda self, timeout=None: (closed.append(self), close(self, timeout))[1])
    table = read_topic("logs", **options(cluster))
    assert len(closed) == 1
    for count, use in enumerate(
        (
            pyarrow.table,
            list,
            lambda table: next(iter(table)),
            lambda table: pyarrow.RecordBatchReader.from_stream(table).close(),
        )
    ):
        use(table)
        assert len(closed) == count + 2
    assert TopicPartition("logs", 0) in table.ends


def up_to_a_time(monkeypatch: pytest.MonkeyPatch, stop: str) -> argparse.Namespace:
    """The options of `fastq consume logs --from-beginning --partition 0 --to STOP`."""
    topic = SimpleNamespace(partitions=[SimpleNamespace(index=0)])
    monkeypatch.setattr(consume, "opened_admin", lambda options: nullcontext())
    monkeypatch.setattr(consume, "described", lambda admin, names: {"logs": topic})
    asked: dict[str, Any] = dict.fromkeys(("start", "tail", "offset", "include", "partition", "timeout", "group"))
    asked |= {"topics": ["logs"], "stop": stop, "from_beginning": True, "last_of_each_key": False}
    return argparse.Namespace(exit_at_end=False, **asked)


def test_what_a_command_reads_up_to_a_time_is_one_history(
    cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fastq consume --to` waited for an end that did not come, or printed records of another history before it."""
    wanted = up_to_a_time(monkeypatch, "2100-01-01")
    with Consumer(**options(cluster, auto_offset_reset="earliest")) as consumer:
        records = chain.from_iterable(
            consume._records(consumer, wanted, consume._place(consumer, wanted), consume._Left(None))
        )
        seen = [next(records).value]
        elect_without_all(cluster, 50, ROWS * 2)
        with pytest.raises(OffsetOutOfRange, match=LESS):
            seen += [record.value for record in records]
    assert b"other" not in seen


def test_what_comes_while_a_command_asks_for_a_time_is_behind_the_end(
    cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a leader's first records, which came between the look-ups of the end and of the time, it was said that the log had been cut."""
    log = cluster.logs[TopicPartition("logs", 0)]
    look = Consumer.offsets_for_times

    def later(self: Consumer, times: Any, timeout: float | None = None) -> Any:
        log.leader, log.epoch = 3 - log.leader, log.epoch + 1
        log.append([(b"later", b"later")] * 10)
        return look(self, times, timeout)

    monkeypatch.setattr(Consumer, "offsets_for_times", later)
    wanted = up_to_a_time(monkeypatch, str(T0_MS + ROWS + 5))
    with Consumer(**options(cluster, auto_offset_reset="earliest")) as consumer:
        stops = consume._place(consumer, wanted)
        records = chain.from_iterable(consume._records(consumer, wanted, stops, consume._Left(None)))
        assert [record.offset for record in records] == list(range(ROWS))
