"""Streaming queries: what arrives, in which micro-batches, across restarts, and what ends a query."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from fastq import Admin, Producer, TopicPartition
from fastq.spark.offsets import ID_MARK, read_offsets

LoadStream = Callable[..., DataFrame]
PATIENCE_S = 90


def send(servers: str, topic: str, values: list[int], partition: int = 0) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            producer.send(topic, value=b"%d" % value, partition=partition)


class Collected:
    """The micro-batches of a query: {batch id: values}."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fail_in: int | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        values = sorted(int(row.value) for row in frame.selectExpr("cast(value as string) value").collect())
        if batch_id == self.fail_in:
            raise RuntimeError(f"batch {batch_id} fails after it was read")
        self.batches[batch_id] = values

    @property
    def values(self) -> list[int]:
        return [value for _, values in sorted(self.batches.items()) for value in values]


@contextlib.contextmanager
def running(frame: DataFrame, checkpoint: Path, collected: Collected) -> Iterator[StreamingQuery]:
    query = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def run_available(frame: DataFrame, checkpoint: Path) -> Collected:
    """One run with AvailableNow."""
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_S)
        error = query.exception()
        if error is not None:
            raise error
    finally:
        query.stop()
    return collected


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert query.exception() is None
        assert time.monotonic() < deadline, query.recentProgress
        time.sleep(0.05)


@pytest.fixture
def topic(bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of one partition."""
    return make_topic(bootstrap_servers)


def test_a_query_follows_its_topic_and_rests_when_nothing_comes(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap_servers, topic, list(range(10)))
    collected = Collected()
    with running(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path, collected) as query:
        query.processAllAvailable()
        assert collected.batches == {0: list(range(10))}
        with Admin(bootstrap_servers=bootstrap_servers) as admin:
            admin.create_partitions({topic: 2})
        send(bootstrap_servers, topic, [10, 11])
        wait_until(lambda: 11 in collected.values, query)
        send(bootstrap_servers, topic, [12], partition=1)
        wait_until(lambda: 12 in collected.values, query)
        last = max(collected.batches)
        query.processAllAvailable()
        time.sleep(1)
        progress = query.lastProgress
    assert collected.values == list(range(13))
    assert max(collected.batches) == last, "what does not change makes no micro-batch"
    assert read_offsets(progress["sources"][0]["endOffset"]) == {
        TopicPartition(topic, 0): 12,
        TopicPartition(topic, 1): 1,
    }


def test_latest_is_what_comes_after_the_start(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap_servers, topic, [1, 2, 3])
    collected = Collected()
    with running(load_stream(subscribe=topic), tmp_path, collected) as query:
        query.processAllAvailable()
        send(bootstrap_servers, topic, [4])
        wait_until(lambda: 4 in collected.values, query)
    assert collected.values == [4]


def test_available_now_takes_what_is_there_in_batches_and_goes_on_later(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    frame = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    send(bootstrap_servers, topic, list(range(100)))
    first = run_available(frame, tmp_path)
    assert [len(values) for _, values in sorted(first.batches.items())] == [40, 40, 20]
    assert run_available(frame, tmp_path).batches == {}, "nothing new is no micro-batch"
    send(bootstrap_servers, topic, list(range(100, 110)))
    again = run_available(frame, tmp_path)
    assert first.values + again.values == list(range(110))


def test_a_checkpoint_of_the_jvm_connector_is_gone_on_from(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    frame = load_stream(subscribe=topic, startingOffsets="earliest")
    send(bootstrap_servers, topic, list(range(20)))
    run_available(frame, tmp_path)
    (offsets,) = (tmp_path / "offsets").glob("[0-9]*")
    lines = offsets.read_text().splitlines()
    lines[-1] = json.dumps({topic: {"0": 12}}, separators=(",", ":"))
    offsets.write_text("\n".join(lines))
    for checksum in (tmp_path / "offsets").glob(".*.crc"):
        checksum.unlink()
    assert run_available(frame, tmp_path).values == list(range(12, 20))


def test_a_first_batch_that_is_replayed_loses_nothing(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    """The driver dies after the first micro-batch was planned: "latest" is later when it is asked for again."""
    send(bootstrap_servers, topic, [1, 2])
    collected = Collected()
    frame = load_stream(subscribe=topic, startingOffsets="latest")
    with running(frame, tmp_path, collected) as query:
        query.processAllAvailable()  # the first micro-batch is empty
        send(bootstrap_servers, topic, [3, 4])
        wait_until(lambda: collected.values == [3, 4], query)
    # As if the query had begun when 3 and 4 were there, and had died in its first micro-batch.
    first, second = tmp_path / "offsets" / "0", tmp_path / "offsets" / "1"
    start, end = (path.read_text().splitlines() for path in (first, second))
    offsets = {name: places for name, places in json.loads(start[-1]).items() if ID_MARK not in name}
    assert offsets == {topic: {"0": 2}, f"{topic}@start": {"0": 2}}
    merged = {**json.loads(start[-1]), **json.loads(end[-1])}
    first.write_text("\n".join([*start[:-1], json.dumps(merged)]))
    second.unlink()
    for rest in (*tmp_path.glob("offsets/.*.crc"), *tmp_path.glob("commits/*"), *tmp_path.glob("commits/.*")):
        rest.unlink(missing_ok=True)
    send(bootstrap_servers, topic, [5])
    again = Collected()
    with running(frame, tmp_path, again) as query:
        wait_until(lambda: 5 in again.values, query)
    assert again.batches == {0: [3, 4], 1: [5]}


def test_a_batch_that_fails_is_read_again_the_same(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap_servers, topic, list(range(5)))
    frame = load_stream(subscribe=topic, startingOffsets="earliest", minPartitions=3)
    collected = Collected()
    collected.fail_in = 0
    with running(frame, tmp_path, collected) as query, pytest.raises(StreamingQueryException):
        query.awaitTermination(PATIENCE_S)
    send(bootstrap_servers, topic, [5, 6])
    again = run_available(frame, tmp_path)
    assert again.batches == {0: list(range(5)), 1: [5, 6]}


def test_topics_of_a_pattern_come_and_go(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap_servers, topic, [1])
    frame = load_stream(subscribePattern=f"{topic}.*", startingOffsets="earliest", failOnDataLoss="false")
    collected = Collected()
    with running(frame, tmp_path, collected) as query, Admin(bootstrap_servers=bootstrap_servers) as admin:
        wait_until(lambda: collected.values == [1], query)
        admin.create_topic(f"{topic}-more", 1)
        send(bootstrap_servers, f"{topic}-more", [2])
        wait_until(lambda: 2 in collected.values, query)
        admin.delete_topic(f"{topic}-more")
        send(bootstrap_servers, topic, [3])
        wait_until(lambda: 3 in collected.values, query)
    assert collected.values == [1, 2, 3]


def test_a_deleted_topic_ends_a_query(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap_servers, topic, [1])
    collected = Collected()
    with running(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path, collected) as query:
        wait_until(lambda: collected.values == [1], query)
        with Admin(bootstrap_servers=bootstrap_servers) as admin:
            admin.delete_topic(topic)
        with pytest.raises(StreamingQueryException, match="are not there any more"):
            query.awaitTermination(PATIENCE_S)


def test_retention_overtakes_a_query_that_was_stopped(
    load_stream: LoadStream, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    def frame(fail: str) -> DataFrame:
        return load_stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=fail)

    send(bootstrap_servers, topic, [0, 1, 2])
    assert run_available(frame("true"), tmp_path / "one").values == [0, 1, 2]
    send(bootstrap_servers, topic, [3, 4, 5, 6])
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(StreamingQueryException, match="is not in the log, which goes from 5 to 7"):
        run_available(frame("true"), tmp_path / "one")
    assert run_available(frame("false"), tmp_path / "two").values == [5, 6]


def test_a_query_lives_through_a_restart_of_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    from fastq.testing import Broker

    with Broker(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        send(servers, "t", [1])
        options = {"kafka.bootstrap.servers": servers, "subscribe": "t", "startingOffsets": "earliest"}
        collected = Collected()
        frame = spark.readStream.format("fastq").options(**options).load()
        with running(frame, tmp_path / "checkpoint", collected) as query:
            wait_until(lambda: collected.values == [1], query)
            broker.kill()
            broker.start()
            send(servers, "t", [2])
            wait_until(lambda: 2 in collected.values, query)
    assert collected.values == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, ["no such topic: no-such-topic"]),
        ({"assign": '{"TOPIC":[0,3]}'}, ["TOPIC-3", "TOPIC has 1"]),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":0,"1":5}}'}, ["TOPIC-1 not among what is read"]),
        (
            {"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":50}}'},
            ["has 50, which is beyond the log", "0 to 0"],
        ),
        ({"subscribe": "TOPIC", "endingOffsets": "latest"}, ["endingOffsets is for batch queries only"]),
        ({"subscribe": "TOPIC", "minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, ["above maxOffsetsPerTrigger"]),
    ],
)
def test_what_cannot_be_ends_the_query_with_one_clear_error(
    load_stream: LoadStream, topic: str, tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    given = {name: str(value).replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        run_available(load_stream(**given), tmp_path)
    for word in words:
        assert word.replace("TOPIC", topic) in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value), "Spark's own error does not bury it"
