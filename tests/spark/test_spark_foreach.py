"""`foreachPartition` and `foreach_partition_arrow` against a broker: what is in the topic equals what was in the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastq import Admin, Consumer
from fastq.errors import ConfigError
from fastq.spark import ForeachPartitionProducer, WrongSchema, foreach_partition_arrow
from fastq.spark.producers import borrowed
from fastq.testing import Broker

HEADERS = "array(struct('id' as key, cast(cast(id as string) as binary) as value), struct('none' as key, cast(null as binary) as value))"
TIMES = "timestamp_millis(1763000000000 + id)"


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """500 rows with every column of a record, nulls among them, in three partitions."""
    return spark.range(0, 500, 1, 3).select(
        F.expr("if(id % 10 = 0, null, cast(id % 50 as string))").alias("key"),
        F.expr("if(id % 7 = 0, null, cast(concat('value ', id) as binary))").alias("value"),
        F.expr(f"if(id % 3 = 0, null, {HEADERS})").alias("headers"),
        F.expr("if(id % 5 = 0, null, cast(id % 3 as int))").alias("partition"),
        F.expr(TIMES).alias("timestamp"),
        F.col("id"),
    )


def records_of(bootstrap_servers: str, *topics: str) -> Iterator[Any]:
    """All records of topics."""
    with Consumer(*topics, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        yield from consumer.read_to_end()


def expected_of(frame: DataFrame) -> Counter[Any]:
    """The rows as (key, value, headers, partition, timestamp); the partition is None where the key was to decide."""
    return Counter(
        (
            row.key.encode() if row.key is not None else None,
            bytes(row.value) if row.value is not None else None,
            tuple((key, bytes(value) if value is not None else None) for key, value in row.headers or []),
            row.partition,
            1763000000000 + row.id,
        )
        for row in frame.collect()
    )


def found_in(bootstrap_servers: str, topic: str, expected: Counter[Any]) -> Counter[Any]:
    """The same of a topic, where the partition counts only for rows that asked for it."""
    asked = {row[4]: row[3] for row in expected}
    return Counter(
        (
            record.key,
            record.value,
            tuple(record.headers),
            record.partition if asked[record.timestamp_ms] is not None else None,
            record.timestamp_ms,
        )
        for record in records_of(bootstrap_servers, topic)
    )


ALL = {"key": "key", "headers": "headers", "partition": "partition", "timestamp": "timestamp"}


def test_rows_of_a_data_frame_arrive_whole(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    expected = expected_of(frame)
    frame.foreachPartition(ForeachPartitionProducer(topic, bootstrap_servers=bootstrap_servers, **ALL))
    assert found_in(bootstrap_servers, topic, expected) == expected


def test_arrow_batches_arrive_whole(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    expected = expected_of(frame)
    assert foreach_partition_arrow(frame, topic, bootstrap_servers=bootstrap_servers, **ALL) == 500
    assert found_in(bootstrap_servers, topic, expected) == expected


def test_the_key_decides_the_partition_as_everywhere(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    """Binary keys come to Python as bytearray; rows, Arrow, text and bytes of a key go to one partition."""
    binary = frame.select(F.col("key").cast("binary").alias("key"), "value").where("key is not null")
    producer = ForeachPartitionProducer(topic, bootstrap_servers=bootstrap_servers, key="key", value="value")
    binary.foreachPartition(producer)
    frame.where("key is not null").foreachPartition(producer)
    foreach_partition_arrow(binary, topic, bootstrap_servers=bootstrap_servers, key="key")
    foreach_partition_arrow(frame.where("key is not null"), topic, bootstrap_servers=bootstrap_servers, key="key")
    places: dict[bytes, set[int]] = {}
    counts: Counter[bytes] = Counter()
    for record in records_of(bootstrap_servers, topic):
        places.setdefault(record.key, set()).add(record.partition)
        counts[record.key] += 1
    assert len(places) == 45 and all(len(found) == 1 for found in places.values())
    assert set(counts.values()) == {40}
    assert set().union(*places.values()) == {0, 1, 2}


def test_rows_of_an_rdd_by_functions(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    rdd = spark.sparkContext.parallelize([f"line {i}" for i in range(100)], 4)
    rdd.foreachPartition(
        ForeachPartitionProducer(
            topic,
            bootstrap_servers=bootstrap_servers,
            value=lambda row: row.encode(),
            key=lambda row: row[-1],
            headers=lambda row: {"length": str(len(row)).encode()},
            partition=lambda row: len(row) % 3,
            timestamp=lambda row: datetime(2026, 1, 1, tzinfo=timezone.utc),
        )
    )
    found = list(records_of(bootstrap_servers, topic))
    assert sorted(record.value.decode() for record in found) == sorted(f"line {i}" for i in range(100))
    for record in found:
        line = record.value.decode()
        assert record.key == line[-1].encode() and record.partition == len(line) % 3
        assert list(record.headers) == [("length", str(len(line)).encode())]
        assert record.timestamp_ms == 1767225600000


def test_each_row_may_name_its_topic(
    spark: SparkSession, bootstrap_servers: str, new_topic_name: Callable[[], str]
) -> None:
    names = [new_topic_name(), new_topic_name()]
    frame = spark.range(60).select(
        F.expr("cast(id as string)").alias("value"), F.expr(f"if(id % 2 = 0, '{names[0]}', '{names[1]}')").alias("to")
    )
    frame.foreachPartition(
        ForeachPartitionProducer(lambda row: row.to, bootstrap_servers=bootstrap_servers, value="value", partition=0)
    )
    assert foreach_partition_arrow(frame, F.col("to"), bootstrap_servers=bootstrap_servers, partition=0) == 60
    for remainder, name in enumerate(names):
        found = Counter(int(record.value) for record in records_of(bootstrap_servers, name))
        assert found == {number: 2 for number in range(60) if number % 2 == remainder}


def test_a_worker_has_one_producer_for_all_of_its_tasks(
    spark: SparkSession, bootstrap_servers: str, topic: str
) -> None:
    options = {"bootstrap_servers": bootstrap_servers}

    def which(rows: Iterator[Any]) -> Iterator[tuple[int, int]]:
        import os

        for row in rows:
            with borrowed(options) as producer:
                producer.send(topic, str(row).encode())
                yield os.getpid(), id(producer)

    found = set(spark.sparkContext.parallelize(range(40), 8).mapPartitions(which).collect())
    assert len(found) == len({process for process, _ in found}) <= 8


def test_a_record_that_cannot_be_delivered_fails_its_task(spark: SparkSession) -> None:
    frame = spark.range(0, 50, 1, 2).select(F.expr("cast(id as string)").alias("value"))
    with Broker(in_memory=True) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic("refused", 1)
        producer = ForeachPartitionProducer("refused", bootstrap_servers=broker.bootstrap_servers)
        for send in (
            lambda: frame.foreachPartition(producer),
            lambda: foreach_partition_arrow(frame, "refused", bootstrap_servers=broker.bootstrap_servers),
        ):
            broker.fail("Produce", error="TOPIC_AUTHORIZATION_FAILED", times=None)
            with pytest.raises(PySparkException) as raised:
                send()
            assert "NotDelivered" in str(raised.value) and "TOPIC_AUTHORIZATION_FAILED" in str(raised.value)
            broker.clear_faults()
            send()
        # A passing fault is the producer's own business.
        broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
        frame.foreachPartition(producer)
        assert sum(1 for _ in records_of(broker.bootstrap_servers, "refused")) >= 150


def test_a_broker_that_dies_in_the_middle_fails_the_tasks(spark: SparkSession) -> None:
    """The broker is killed by a row in the middle: the job raises, and does not believe that all is delivered."""
    with Broker(in_memory=True) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("dying", 1)
        pid = broker.pid

        def value_of(row: Any) -> bytes:
            if row.id == 9_000:
                import os
                import signal

                os.kill(pid, signal.SIGKILL)
            return b"x" * 100

        producer = ForeachPartitionProducer(
            "dying",
            bootstrap_servers=broker.bootstrap_servers,
            value=value_of,
            delivery_timeout_ms=3000,
            request_timeout_ms=1000,
        )
        with pytest.raises(PySparkException, match="NotDelivered"):
            spark.range(0, 10_000, 1, 1).foreachPartition(producer)
        broker.kill()


def test_what_is_wrong_is_said_on_the_driver(frame: DataFrame, bootstrap_servers: str) -> None:
    with pytest.raises(WrongSchema, match="column value has the type bigint"):
        foreach_partition_arrow(frame, "t", bootstrap_servers=bootstrap_servers, value="id")
    with pytest.raises(ConfigError, match="compression_type"):
        foreach_partition_arrow(frame, "t", bootstrap_servers=bootstrap_servers, compression_type="best")
    with pytest.raises(PySparkException, match="nothing_of_the_kind"):
        foreach_partition_arrow(frame, "t", bootstrap_servers=bootstrap_servers, key="nothing_of_the_kind")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key": "nothing"}, "no column 'nothing', it has key, value"),
        ({"value": "id"}, "column 'id' gives int, expected bytes of any kind"),
        ({"partition": 99}, "partitions 0 to 2"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_by_its_task(
    frame: DataFrame, bootstrap_servers: str, topic: str, arguments: dict[str, Any], words: str
) -> None:
    producer = ForeachPartitionProducer(topic, bootstrap_servers=bootstrap_servers, max_block_ms=2000, **arguments)
    with pytest.raises(PySparkException, match=words):
        frame.foreachPartition(producer)


def test_empty_partitions_need_no_broker(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "value string").repartition(3)
    nothing.foreachPartition(ForeachPartitionProducer("t", bootstrap_servers="127.0.0.1:1", max_block_ms=1))
    assert foreach_partition_arrow(nothing, "t", bootstrap_servers="127.0.0.1:1", max_block_ms=1) == 0
