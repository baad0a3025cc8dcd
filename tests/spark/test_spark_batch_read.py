"""Batch queries: what arrives is what was sent, the range is what was asked for, and what cannot be is said on the driver.

Rule: what goes by `load` is asked of both ways to read a batch, the format and `read_topics`.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.errors import ConfigError, FastqError
from fastq.spark import read_topics

Load = Callable[..., DataFrame]
NewName = Callable[[], str]

SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)


def produce(servers: str, topic: str, values: list[bytes | None], partition: int = 0, **options: Any) -> None:
    with Producer(bootstrap_servers=servers, **options) as producer:
        for value in values:
            producer.send(topic, value=value, partition=partition)


def values_of(frame: DataFrame) -> list[bytes | None]:
    return [
        row.value if row.value is None else bytes(row.value) for row in frame.orderBy("partition", "offset").collect()
    ]


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises((PySparkException, FastqError)) as caught:
        action()
    return str(caught.value)


@pytest.fixture(params=["format", "read_topics"])
def load(request: pytest.FixtureRequest, load: Load, spark: SparkSession, bootstrap_servers: str) -> Load:
    """`load(schema, subscribe="topic", ...)`: a DataFrame of either way to read."""

    def frame(schema: str | None = None, **options: object) -> DataFrame:
        if request.param == "format":
            return load(schema, **options)
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        names = None if schema is None else [column.split()[0] for column in re.split(r", (?=\w+ )", schema)]
        return read_topics(spark, {"kafka.bootstrap.servers": bootstrap_servers, **given}, columns=names)

    return frame


@pytest.fixture
def topic(bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of two partitions."""
    return make_topic(bootstrap_servers, 2)


def test_every_kind_of_record_arrives_as_it_was_sent(
    load: Load, bootstrap_servers: str, topic: str, spark: SparkSession
) -> None:
    sent = [
        (b"k", b"v", [], 0, 1_000_000_000_123),
        (None, b"v", [("a", b"1"), ("a", b"2"), ("b", None)], 0, 1),
        (b"", b"", [("", b"")], 1, 1_700_000_000_000),
        (b"\x00\xff", None, [], 1, 1_700_000_000_001),
        ("grüße".encode(), b"x" * 300_000, [("schlüssel", b"\x00")], 1, 1_700_000_000_002),
    ]
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for key, value, headers, partition, timestamp_ms in sent:
            producer.send(topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
    frame = load(subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == SCHEMA[:-1] + ",headers:array<struct<key:string,value:binary>>>"
    found, stamps = [], []
    for row in frame.orderBy("partition", "offset").selectExpr("*", "unix_millis(timestamp) ms").collect():
        stamps.append(int(row.ms))
        key, value = (None if cell is None else bytes(cell) for cell in (row.key, row.value))
        headers = row.headers and [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers]
        found.append((key, value, headers, row.partition, row.offset, row.topic, row.timestampType))
    offsets = [0, 1, 0, 1, 2]
    assert found == [
        # As the JVM connector has it: no headers are null, not an empty list.
        (key, value, headers or None, partition, offset, topic, 0)
        for (key, value, headers, partition, _), offset in zip(sent, offsets, strict=True)
    ]
    assert stamps == [timestamp_ms for *_, timestamp_ms in sent]


def test_the_schema_without_headers(load: Load, topic: str) -> None:
    frame = load(subscribe=topic)
    assert frame.schema.simpleString() == SCHEMA
    assert all(field.nullable for field in frame.schema)
    assert frame.count() == 0, "an empty topic is an empty DataFrame"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_of_every_codec(load: Load, bootstrap_servers: str, topic: str, codec: str) -> None:
    rows = 60_000
    with Producer(bootstrap_servers=bootstrap_servers, compression_type=codec) as producer:
        for partition in (0, 1):
            producer.send_many(topic, values=[b"%d" % n for n in range(rows)], partition=partition)
    frame = load(subscribe=topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 4
    found = frame.selectExpr("partition", "offset", "cast(cast(value as string) as bigint) n")
    totals = found.groupBy("partition").agg(
        functions.sum("n"), functions.count("*"), functions.sum((found["n"] != found["offset"]).cast("int"))
    )
    assert sorted(tuple(row) for row in totals.collect()) == [(p, rows * (rows - 1) // 2, rows, 0) for p in (0, 1)]


def test_what_another_client_reads_is_what_spark_reads(load: Load, bootstrap_servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for n in range(2000):
            producer.send(topic, value=b"v%d" % n, key=None if n % 3 else b"k%d" % n)
    with Consumer(bootstrap_servers=bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.seek_to_beginning()
        want = sorted((r.partition, r.offset, r.key, r.value, r.timestamp_ms) for r in consumer.read_to_end())
    rows = load(subscribe=topic).selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert sorted((r.partition, r.offset, r.key and bytes(r.key), bytes(r.value), r.ms) for r in rows) == want


def test_a_schema_of_some_columns_is_all_that_is_made(load: Load, bootstrap_servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        producer.send(topic, value=b"v", headers=[("h", b"1")], partition=1)
    assert [tuple(row) for row in load("offset bigint, value binary", subscribe=topic).collect()] == [(0, b"v")]
    headers = load("headers array<struct<key:string,value:binary>>", subscribe=topic).collect()
    assert headers[0].headers[0].key == "h"


def test_where_a_batch_begins_and_ends(load: Load, bootstrap_servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for n in range(10):
            producer.send(topic, value=b"%d" % n, partition=0, timestamp_ms=1000 + n)
        producer.send(topic, value=b"other", partition=1, timestamp_ms=1004)

    def read(**options: object) -> list[bytes | None]:
        given = {name: json.dumps(o) if isinstance(o, dict) else o for name, o in options.items()}
        return values_of(load(subscribe=topic, **given))

    assert read(startingOffsets={topic: {"0": 3, "1": -2}}, endingOffsets={topic: {"0": 5, "1": 0}}) == [b"3", b"4"]
    assert read(startingOffsets={topic: {"0": 8, "1": -2}}, endingOffsets={topic: {"0": -1, "1": -1}}) == [
        b"8",
        b"9",
        b"other",
    ]
    assert read(startingTimestamp=1004, endingTimestamp=1006) == [b"4", b"5", b"other"]
    assert read(
        startingOffsetsByTimestamp={topic: {"0": 1009, "1": 2000}}, startingOffsetsByTimestampStrategy="latest"
    ) == [b"9"]
    assert values_of(load(assign=json.dumps({topic: [1]}))) == [b"other"]
    assert values_of(load(subscribePattern=topic[:-1] + "[" + topic[-1] + "]")) == read()


def test_a_frame_reads_the_same_however_often_it_is_asked(load: Load, bootstrap_servers: str, topic: str) -> None:
    produce(bootstrap_servers, topic, [b"%d" % n for n in range(10)])
    frame = load(subscribe=topic)
    assert frame.where("offset >= 8").count() == 2
    assert frame.count() == 10, "a filter of one query is not that of the next"
    assert frame.where("value = X'35'").count() == 1
    assert [row.offset for row in frame.limit(3).collect()] == [0, 1, 2]
    assert frame.count() == 10


def test_transactions(load: Load, bootstrap_servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap_servers, transactional_id=f"{topic}-id") as producer:
        for value, commit in ((b"one", True), (b"two", False), (b"three", True), (b"four", False)):
            producer.begin_transaction()
            producer.send(topic, value=value, partition=0)
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    committed = load(subscribe=topic, kafka__isolation__level="read_committed", minPartitions="3")
    assert values_of(committed) == [b"one", b"three"]
    assert values_of(load(subscribe=topic)) == [b"one", b"two", b"three", b"four"]
    # Ranges that are nothing but markers and aborted records end as well.
    for start, end in ((1, 2), (2, 4), (6, 8)):
        given = {"startingOffsets": {topic: {"0": start, "1": 0}}, "endingOffsets": {topic: {"0": end, "1": 0}}}
        options = {name: json.dumps(value) for name, value in given.items()}
        assert values_of(load(subscribe=topic, kafka__isolation__level="read_committed", **options)) == []


def test_what_an_open_transaction_holds_back_is_not_read(load: Load, bootstrap_servers: str, topic: str) -> None:
    produce(bootstrap_servers, topic, [b"before"])
    with Producer(bootstrap_servers=bootstrap_servers, transactional_id=f"{topic}-id") as producer:
        producer.begin_transaction()
        producer.send(topic, value=b"undecided", partition=0)
        producer.flush()
        assert values_of(load(subscribe=topic, kafka__isolation__level="read_committed")) == [b"before"]
        beyond = {"kafka__isolation__level": "read_committed", "endingOffsets": json.dumps({topic: {"0": 2, "1": 0}})}
        message = refusal(lambda: load(subscribe=topic, **beyond).count())
        assert "endingOffsets has 2, which is beyond the log" in message
        producer.abort_transaction()


def test_a_compacted_topic(load: Load, tmp_path: Any, spark: SparkSession) -> None:
    from fastq.testing import Broker

    count = 3000
    with Broker(tmp_path / "data", {"log.cleaner.backoff.ms": 100}) as broker:
        servers = broker.bootstrap_servers
        settings = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("compacted", 1, configs=settings)
        with Producer(bootstrap_servers=servers) as producer:
            for n in range(count):
                producer.send("compacted", value=b"%d" % n + bytes(1000), key=b"%d" % (n % 7))
                if n % 20 == 0:
                    producer.flush()
        tp = TopicPartition("compacted", 0)
        with Consumer(bootstrap_servers=servers) as consumer:

            def offsets() -> set[int]:
                consumer.assign([tp])
                consumer.seek_to_beginning()
                return {record.offset for record in consumer.read_to_end()}

            for _ in range(300):
                if len(there := offsets()) < count // 2:
                    break
                consumer.poll(timeout=0.1)
            assert len(there) < count // 2, "the log was compacted"
        reader = spark.read.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", "compacted")
        for parts in (1, 7):
            rows = reader.option("minPartitions", parts).load().select("offset", "key", "value").collect()
            found = {row.offset: (bytes(row.key), bytes(row.value)) for row in rows}
            # What is compacted meanwhile is only ever less; the last of every key stays.
            assert set(range(count - 7, count)) <= found.keys() <= there
            assert all(key == b"%d" % (n % 7) and value.startswith(b"%d\0" % n) for n, (key, value) in found.items())


@pytest.mark.parametrize("fail", [True, False])
def test_records_that_go_between_plan_and_read(load: Load, bootstrap_servers: str, topic: str, fail: bool) -> None:
    produce(bootstrap_servers, topic, [b"%d" % n for n in range(100)])
    frame = load(subscribe=topic, failOnDataLoss=str(fail).lower(), minPartitions="4")
    assert frame.count() == 100
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 60})
    if fail:
        message = refusal(frame.count)
        assert f"of {topic}-0" in message
        assert "is not in the log, which goes from 60 to 100" in message
        assert "set failOnDataLoss to false" in message
    else:
        assert values_of(frame) == [b"%d" % n for n in range(60, 100)]


def test_a_topic_that_goes_between_plan_and_read(load: Load, bootstrap_servers: str, topic: str) -> None:
    produce(bootstrap_servers, topic, [b"1"])
    strict, mild = load(subscribe=topic), load(subscribe=topic, failOnDataLoss="false")
    assert strict.count() == mild.count() == 1
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        admin.delete_topic(topic)
    assert "cannot be read" in refusal(strict.count)
    assert mild.count() == 0


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_made_anew_between_plan_and_read(
    load: Load, bootstrap_servers: str, topic: str, fail: bool
) -> None:
    produce(bootstrap_servers, topic, [b"before"] * 3)
    frame = load(subscribe=topic, failOnDataLoss=str(fail).lower())
    assert frame.count() == 3
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    produce(bootstrap_servers, topic, [b"after"] * 5)
    if fail:
        assert "the topic was deleted and made anew" in refusal(frame.count)
    else:
        assert frame.count() == 0, "nothing of what was planned is there, and what is there was not"


def test_an_end_that_never_comes_fails_the_task(spark: SparkSession, tmp_path: Any) -> None:
    from fastq.testing import Broker

    with Broker(tmp_path / "data") as broker:
        produce(broker.bootstrap_servers, "t", [b"1", b"2"])
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
        frame = spark.read.format("fastq").options(**options).option("kafkaConsumer.pollTimeoutMs", "500").load()
        assert frame.count() == 2
        broker.fail("Fetch", error="NOT_LEADER_OR_FOLLOWER", times=None)
        message = refusal(frame.count)
        assert "nothing of t-0 [0, 2) came within 500 ms" in message
        assert "kafkaConsumer.pollTimeoutMs" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, ["no such topic: no-such-topic", "Create it"]),
        ({"assign": '{"TOPIC":[0,2]}'}, ["TOPIC-2", "TOPIC has 2"]),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":0}}'}, ["startingOffsets", "TOPIC-1 missing"]),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":0,"1":0,"2":0}}'}, ["TOPIC-2 not among"]),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":11,"1":0}}'}, ["startingOffsets has 11", "0 to 10"]),
        ({"subscribe": "TOPIC", "endingOffsets": '{"TOPIC":{"0":11,"1":0}}'}, ["endingOffsets has 11", "0 to 10"]),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{0:1}}'}, ["startingOffsets", "Expecting property name"]),
        ({"subscribe": "TOPIC", "startingOffsets": "latest"}, ["startingOffsets cannot be latest"]),
        ({"subscribe": "TOPIC", "startingTimestamp": 4102444800000}, ["startingOffsetsByTimestampStrategy to latest"]),
        ({"subscribe": "TOPIC", "kafka.fetch.max.byte": 1}, ["fetch.max.byte", "did you mean fetch_max_bytes"]),
        ({"subscribe": "TOPIC", "kafka.auto.offset.reset": "earliest"}, ["use startingOffsets"]),
        ({"subscribe": "TOPIC", "startingOfsets": "earliest"}, ["did you mean startingOffsets?"]),
    ],
)
def test_what_cannot_be_is_said_by_the_driver(
    load: Load, bootstrap_servers: str, topic: str, options: dict[str, str], words: list[str]
) -> None:
    produce(bootstrap_servers, topic, [b"%d" % n for n in range(10)])
    produce(bootstrap_servers, topic, [b"x"], partition=1)
    given = {name: str(value).replace("TOPIC", topic) for name, value in options.items()}
    message = refusal(lambda: load(**given).count())
    for word in words:
        assert word.replace("TOPIC", topic) in message
    assert "Job aborted" not in message, "no task was started"


def test_a_broker_that_cannot_be_reached(load: Load) -> None:
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": 500}
    message = refusal(lambda: load(subscribe="t", **nobody).count())
    assert "refused the connection" in message
    assert "127.0.0.1:1" in message
    message = refusal(lambda: load(subscribe="t", **{"kafka.bootstrap.servers": ""}))
    assert "kafka.bootstrap.servers is required" in message


@pytest.mark.parametrize(
    ("schema", "words"),
    [("value string", "the column value is binary, the schema says string"), ("body binary", "no column 'body'")],
)
@pytest.mark.parametrize("load", ["format"], indirect=True)
def test_a_schema_that_is_not_the_sources(load: Load, topic: str, schema: str, words: str) -> None:
    assert words in refusal(load(schema, subscribe=topic).collect)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["value", "body"], "no column 'body'; there are key, value"),
        (["value", "value"], "each once; got ['value', 'value']"),
        ([], "name one or more of key, value"),
        ("values", "no column 'values'"),
    ],
)
def test_columns_that_are_not_the_sources(
    spark: SparkSession, bootstrap_servers: str, columns: Any, words: str
) -> None:
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": "t"}
    assert words in refusal(lambda: read_topics(spark, options, columns=columns))


@pytest.mark.parametrize("options", ["logs", {1: "logs"}])
def test_options_that_are_no_mapping_of_names(spark: SparkSession, options: Any) -> None:
    with pytest.raises(TypeError, match="options are a mapping"):
        read_topics(spark, options)


def test_an_option_that_is_none_is_left_out(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    options: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "minPartitions": None}
    assert spark.read.format("fastq").options(**options).load().count() == 0
    assert read_topics(spark, options).count() == 0


def test_a_session_without_a_jvm_of_its_own_is_told_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"use spark\.read\.format"):
        read_topics(object(), {"subscribe": "t"})  # type: ignore[arg-type]


def test_a_frame_of_unknown_size_is_sent_to_no_worker_whole(
    load: Load, spark: SparkSession, bootstrap_servers: str, topic: str
) -> None:
    """A join sends the side that it thinks small to all; what Spark cannot know the size of it must not think small."""
    produce(bootstrap_servers, topic, [b"%d" % n for n in range(10)])
    numbers = spark.range(0, 5_000_000).withColumnRenamed("id", "offset")
    joined = numbers.join(load(subscribe=topic), "offset")
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "SortMergeJoin" in plan
    assert joined.count() == 10


def test_timestamps_of_the_broker(load: Load, bootstrap_servers: str, make_topic: Callable[..., str]) -> None:
    name = make_topic(bootstrap_servers, message_timestamp_type="LogAppendTime")
    before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=1)
    produce(bootstrap_servers, name, [b"1"])
    row = load(subscribe=name).selectExpr("timestampType", "unix_millis(timestamp) ms").collect()[0]
    assert row.timestampType == 1
    assert before.timestamp() * 1000 <= row.ms <= dt.datetime.now(dt.timezone.utc).timestamp() * 1000
