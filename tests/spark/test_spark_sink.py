"""The sink against a broker, in batches and in streams: rows equal, topics by row, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastq import Consumer, Producer
from fastq._native.records import iter_headers
from fastq.compression import Codec
from fastq.testing import Broker

HEADERS = (
    "array(struct('id' as key, cast(cast(id as string) as binary) as value), "
    "struct('none' as key, cast(null as binary) as value))"
)


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """300 rows with every column of a record and others, nulls among them, in two partitions."""
    return spark.range(0, 300, 1, 2).select(
        F.col("id").alias("offset"),
        F.expr("if(id % 7 = 0, null, concat('value ', id))").alias("value"),
        F.expr("if(id % 10 = 0, null, cast(cast(id % 50 as string) as binary))").alias("key"),
        F.expr(f"if(id % 3 = 0, null, {HEADERS})").alias("headers"),
        F.expr("if(id % 5 = 0, null, cast(id % 3 as int))").alias("partition"),
        F.expr("timestamp_millis(1763000000000 + id)").alias("timestamp"),
        F.lit(0).alias("timestampType"),
    )


def records_of(bootstrap_servers: str, *topics: str) -> Iterator[Any]:
    """All records of topics."""
    with Consumer(*topics, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        yield from consumer.read_to_end()


def write(frame: DataFrame, bootstrap_servers: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers).mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def test_every_column_of_a_record_arrives(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    write(frame, bootstrap_servers, topic=topic)
    expected = {}
    for row in frame.collect():
        headers = [(key, bytes(value) if value is not None else None) for key, value in row.headers or []]
        key = bytes(row.key) if row.key is not None else None
        value = row.value.encode() if row.value is not None else None
        expected[1763000000000 + row.offset] = (key, value, headers, row.partition)
    found = {record.timestamp_ms: record for record in records_of(bootstrap_servers, topic)}
    assert found.keys() == expected.keys()
    for at, (key, value, headers, partition) in expected.items():
        record = found[at]
        assert (record.key, record.value, list(record.headers)) == (key, value, headers)
        assert partition is None or record.partition == partition


def test_what_is_read_can_be_written_as_it_is(
    load: Callable[..., DataFrame], bootstrap_servers: str, topic: str, make_topic: Callable[..., str]
) -> None:
    """A copy by source and sink has the partitions, timestamps, headers and nulls of the original."""
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(100):
            producer.send(
                topic,
                None if number % 9 == 0 else b"v%d" % number,
                key=None if number % 4 == 0 else b"k%d" % number,
                headers=[("h", None), ("n", b"%d" % number)] if number % 2 else None,
                timestamp_ms=1763000000000 + number,
            )
    copy = make_topic(bootstrap_servers, 3)
    write(load(subscribe=topic, includeHeaders="true"), bootstrap_servers, topic=copy)

    def content(name: str) -> Counter[Any]:
        return Counter(
            (record.partition, record.timestamp_ms, record.key, record.value, tuple(record.headers))
            for record in records_of(bootstrap_servers, name)
        )

    assert content(copy) == content(topic)
    assert content(topic).total() == 100


def test_options_of_the_client_reach_the_producer(
    spark: SparkSession, shared_broker: Broker, bootstrap_servers: str, topic: str
) -> None:
    frame = spark.range(0, 1000, 1, 1).select(F.lit("the same again and again").alias("value"))
    write(frame, bootstrap_servers, topic=topic, kafka__compression__type="zstd")
    batches = [
        header
        for log in sorted(Path(shared_broker.data_dir).glob(f"{topic}-*/*.log"))
        for _, header in iter_headers(log.read_bytes())
    ]
    assert sum(header.record_count for header in batches) == 1000
    assert {header.codec for header in batches} == {Codec.ZSTD}


def test_rows_go_to_the_topics_that_they_name(
    spark: SparkSession, bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    names = [make_topic(bootstrap_servers, 3) for _ in range(3)]
    choice = F.element_at(F.array(*(F.lit(name) for name in names)), (F.col("id") % 3 + 1).cast("int"))
    frame = spark.range(0, 90, 1, 2).select(F.col("id").cast("string").alias("value"), choice.alias("topic"))
    write(frame, bootstrap_servers)
    for remainder, name in enumerate(names):
        found = sorted(int(record.value) for record in records_of(bootstrap_servers, name))
        assert found == [number for number in range(90) if number % 3 == remainder]
    write(frame, bootstrap_servers, topic=names[0])
    assert sum(1 for _ in records_of(bootstrap_servers, names[0])) == 30 + 90
    with pytest.raises(PySparkException, match="column topic is null in row"):
        write(frame.withColumn("topic", F.expr("if(value = '7', null, topic)")), bootstrap_servers)


def test_a_stream_writes_and_a_complete_result_is_appended(
    load_stream: Callable[..., DataFrame],
    bootstrap_servers: str,
    topic: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    copy, totals = (make_topic(bootstrap_servers, 3) for _ in range(2))
    source = load_stream(subscribe=topic, startingOffsets="earliest")
    counts = source.groupBy(F.col("key").cast("string").alias("key")).agg(F.count("*").cast("string").alias("value"))
    for part in range(2):
        with Producer(bootstrap_servers=bootstrap_servers) as producer:
            for number in range(20):
                producer.send(topic, b"%d" % (20 * part + number), key=b"k%d" % (number % 2))
        for frame, mode, target in ((source, "append", copy), (counts, "complete", totals)):
            writer = frame.writeStream.format("fastq").outputMode(mode).trigger(availableNow=True)
            query = (
                writer.option("kafka.bootstrap.servers", bootstrap_servers)
                .option("topic", target)
                .option("checkpointLocation", str(tmp_path / target))
                .start()
            )
            assert query.awaitTermination(60)
    copied = sorted(int(record.value) for record in records_of(bootstrap_servers, copy))
    assert copied == list(range(40))
    found = Counter((record.key, record.value) for record in records_of(bootstrap_servers, totals))
    assert found == {(b"k0", b"10"): 1, (b"k1", b"10"): 1, (b"k0", b"20"): 1, (b"k1", b"20"): 1}


@pytest.mark.parametrize(
    ("change", "mode", "given", "words"),
    [
        (lambda frame: frame.drop("value"), "append", {"topic": "t"}, "no column value"),
        (lambda frame: frame, "append", {}, "neither the option topic nor a column topic"),
        (lambda frame: frame.withColumn("value", F.lit(1)), "append", {"topic": "t"}, "column value has the type int"),
        (lambda frame: frame, "overwrite", {"topic": "t"}, "append"),
        (lambda frame: frame, "append", {"topic": "t", "topik": "t"}, "did you mean topic"),
        (lambda frame: frame, "append", {"topic": "t", "kafka.lingerms": "5"}, "linger_ms"),
        (lambda frame: frame, "append", {"topic": "t", "delivery": "exactly-once"}, "needs the option token"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver(
    frame: DataFrame,
    bootstrap_servers: str,
    change: Callable[[DataFrame], DataFrame],
    mode: str,
    given: dict[str, str],
    words: str,
) -> None:
    with pytest.raises(PySparkException, match=words) as raised:
        write(change(frame), bootstrap_servers, mode, **given)
    assert "Job aborted" not in str(raised.value)


def test_a_partition_that_is_not_there_is_named(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    options = {"topic": topic, "kafka__max__block__ms": "1000"}
    with pytest.raises(PySparkException, match="partitions 0 to 2"):
        write(frame.withColumn("partition", F.lit(3)), bootstrap_servers, **options)


def test_refused_records_and_a_lost_broker_fail_the_write(frame: DataFrame, make_topic: Callable[..., str]) -> None:
    frame = frame.coalesce(1)  # of two tasks, the second may still be at it when the first one's failure is known
    with Broker(in_memory=True) as broker:
        servers = broker.bootstrap_servers
        topic = make_topic(servers, 3)
        broker.fail("Produce", error="TOPIC_AUTHORIZATION_FAILED", times=None)
        with pytest.raises(PySparkException, match="TOPIC_AUTHORIZATION_FAILED"):
            write(frame, servers, topic=topic)
        broker.clear_faults()
        broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
        write(frame, servers, topic=topic)
        assert sum(1 for _ in records_of(servers, topic)) == 300
        broker.kill()
        impatient = {
            "kafka.max.block.ms": "1000",
            "kafka.delivery.timeout.ms": "2000",
            "kafka.request.timeout.ms": "1000",
        }
        with pytest.raises(PySparkException, match=rf"topic {topic}|max_block_ms"):
            write(frame, servers, topic=topic, **impatient)
