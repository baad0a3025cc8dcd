"""What is written, before it is sent: the schema's check, Arrow batches and rows as columns of records, and the checks of a replay."""

from __future__ import annotations

import pickle
from collections import namedtuple
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastq.errors import ConfigError
from fastq.spark.exactly_once import Attempt, Content, NotTheSameBatch, check_current, check_same, check_tasks
from fastq.spark.foreach import ForeachPartitionProducer, as_bytes, as_milliseconds, columns_of, targets
from fastq.spark.options import SinkOptions
from fastq.spark.records import WrongSchema, batches_of_rows, columns_to_write, parts_of
from fastq.spark.sink import BatchSink, StreamSink, Written

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
ALL = {
    "value": BinaryType(),
    "key": StringType(),
    "topic": StringType(),
    "headers": HEADERS,
    "partition": IntegerType(),
    "timestamp": TimestampType(),
}


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"kafka.bootstrap.servers": "localhost:1", **given})


# -- the schema -----------------------------------------------------------------------------------------------------


def test_the_columns_of_records_are_taken_and_others_passed_over() -> None:
    found = columns_to_write(schema(offset=LongType(), **ALL, timestampType=IntegerType()), None)
    assert set(found) == set(ALL)
    assert "topic" not in columns_to_write(schema(**ALL), "elsewhere")
    assert columns_to_write(schema(value=StringType()), "t") == ("value",)


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        ({"key": StringType()}, "t", ["no column value", "key string"]),
        ({}, "t", ["no column value", "none"]),
        ({"value": StringType()}, None, ["neither the option topic nor a column topic"]),
        ({"value": IntegerType()}, "t", ["column value has the type int", "string or binary"]),
        ({"value": StringType(), "key": LongType()}, "t", ["column key has the type bigint"]),
        ({"value": StringType(), "topic": BinaryType()}, None, ["column topic has the type binary", "string"]),
        ({"value": StringType(), "partition": LongType()}, "t", ["column partition has the type bigint", "int"]),
        ({"value": StringType(), "timestamp": LongType()}, "t", ["column timestamp has the type bigint"]),
        ({"value": StringType(), "headers": ArrayType(StringType())}, "t", ["column headers", "array<struct<key"]),
    ],
)
def test_a_wrong_schema_is_named_on_the_driver(
    columns: dict[str, DataType], topic: str | None, words: list[str]
) -> None:
    with pytest.raises(WrongSchema) as raised:
        columns_to_write(schema(**columns), topic)
    for word in words:
        assert word in str(raised.value)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = StructType([StructField("value", StringType()), StructField("value", BinaryType())])
    with pytest.raises(WrongSchema, match="several columns value"):
        columns_to_write(twice, "t")


def test_a_sink_is_checked_when_it_is_made_and_pickles() -> None:
    good = schema(value=BinaryType())
    for sink in (
        BatchSink(options(topic="t"), good, overwrite=False),
        StreamSink(options(topic="t"), good, overwrite=True),
    ):
        again = pickle.loads(pickle.dumps(sink))
        assert again.sink.columns == ("value",) and again.sink.options.topic == "t"
    with pytest.raises(ConfigError, match="append"):
        BatchSink(options(topic="t"), good, overwrite=True)
    with pytest.raises(ConfigError, match="token"):
        BatchSink(options(topic="t", delivery="exactly-once"), good, overwrite=False)
    with pytest.raises(ConfigError, match="linger_ms"):
        BatchSink(options(**{"topic": "t", "kafka.linger": "5"}), good, overwrite=False)
    with pytest.raises(ConfigError, match="transactional_id"):
        BatchSink(options(**{"topic": "t", "kafka.transactional.id": "mine"}), good, overwrite=False)
    with pytest.raises(ConfigError, match="idempotence"):
        StreamSink(options(**{"topic": "t", "delivery": "exactly-once", "kafka.acks": "1"}), good, overwrite=False)


# -- Arrow batches --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "ccc", "d"]), st.binary(max_size=4) | st.none())))
def test_a_batch_is_split_by_topic_in_its_order(rows: list[tuple[str, bytes | None]]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "extra": pa.array(range(len(rows))),
            "topic": pa.array([topic for topic, _ in rows], pa.string()),
            "value": pa.array([value for _, value in rows], pa.binary()),
        }
    )
    expected: dict[str, list[bytes | None]] = {}
    for topic, value in rows:
        expected.setdefault(topic, []).append(value)
    parts = list(parts_of(batch, None, ("value", "topic")))
    assert {topic: part.column("value").to_pylist() for topic, part in parts} == expected
    assert len(parts) == len(expected)
    assert all(part.schema.names == ["value"] for _, part in parts)


def test_a_topic_that_is_given_beats_the_column() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["a", "b"]})
    ((topic, part),) = parts_of(batch, "c", ("value",))
    assert topic == "c" and part.column("value").to_pylist() == [b"1", b"2"]


def test_a_null_topic_is_an_error_that_says_where() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["a", None]})
    with pytest.raises(WrongSchema, match="null in row 1"):
        list(parts_of(batch, None, ("value", "topic")))


def test_seconds_become_milliseconds() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"], "timestamp": [1.5, None, 1763000000.123]})
    ((_, part),) = parts_of(batch, "t", ("value", "timestamp"))
    assert part.column("timestamp").to_pylist() == [1500, None, 1763000000123]


def test_rows_become_the_batches_that_spark_would_have_given() -> None:
    at = datetime(2026, 11, 21, 12, 30, 0, 123000, tzinfo=timezone.utc)
    make = Row("offset", "value", "headers", "partition", "timestamp", "key")
    header = Row("key", "value")
    rows = [
        make(7, b"v", [header("h", b"1"), header("n", None)], 3, at, "schlüssel"),
        make(8, None, None, None, None, None),
        make(9, bytearray(b"w"), [], 0, at, ""),
    ]
    kinds = {
        "offset": LongType(),
        **{name: ALL[name] for name in ("value", "headers", "partition", "timestamp", "key")},
    }
    columns = ("value", "key", "headers", "partition", "timestamp")
    (batch,) = batches_of_rows(iter(rows), schema(**kinds), columns)
    assert batch.to_pylist() == [
        {
            "value": b"v",
            "key": "schlüssel",
            "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
            "partition": 3,
            "timestamp": at,
        },
        {"value": None, "key": None, "headers": None, "partition": None, "timestamp": None},
        {"value": b"w", "key": "", "headers": [], "partition": 0, "timestamp": at},
    ]
    assert list(batches_of_rows(iter([]), schema(**kinds), columns)) == []


# -- rows of foreachPartition ---------------------------------------------------------------------------------------

Named = namedtuple("Named", ["key", "value"])


@pytest.mark.parametrize(
    "rows",
    [
        [Row(key="a", n=1, value=b"1"), Row(key="b", n=2, value=None)],
        [Named("a", b"1"), Named("b", None)],
        [{"key": "a", "value": b"1"}, {"value": None, "key": "b", "more": 1}],
    ],
    ids=["row", "namedtuple", "mapping"],
)
def test_columns_are_found_by_name_and_made_by_functions(rows: list[Any]) -> None:
    found = columns_of(rows, {"value": "value", "key": "key", "headers": lambda row: len(row), "partition": 3})
    assert found == {"value": [b"1", None], "key": ["a", "b"], "headers": [len(row) for row in rows], "partition": 3}


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([Row(key=b"k")], KeyError, "no column 'value', it has key"),
        ([Row("value", "value")(b"1", b"2")], KeyError, "several columns 'value'"),
        ([(b"1",), (b"2",)], TypeError, "tuple and has no names of columns"),
        ([Row(value=b"1"), "text"], TypeError, "str and has no names"),
        ([Row(value=b"1"), Row(other=b"2", value=b"1")], TypeError, "rows differ in their columns: value and other"),
        ([Row(a=b"1", value=b"2"), Row(value=b"1", a=b"1")], TypeError, "rows differ in their columns"),
        ([Row("value", "a")(b"1")], TypeError, "not as many items as columns"),
        ([{"key": b"k"}], KeyError, "value"),
    ],
)
def test_rows_that_do_not_have_the_columns_are_named(rows: list[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        columns_of(rows, {"value": "value"})


def test_rows_that_differ_in_their_columns_cannot_hide_behind_their_number() -> None:
    """Laid end to end, a row too long and one too short would shift the columns between them."""
    names = Row("a", "value")
    rows = [names(b"1", b"2"), Row(b"3"), Row(b"4", b"5", b"6")]
    with pytest.raises(TypeError):
        columns_of(rows, {"value": "value"})


def test_keys_and_values_are_bytes_of_any_kind_or_text() -> None:
    same = [b"1", bytearray(b"2"), memoryview(b"3"), None]
    assert as_bytes(same, "value", "value") is same
    assert as_bytes(["ä", None, b"2"], "value", "value") == ["ä".encode(), None, b"2"]
    with pytest.raises(TypeError, match="value: column 'n' gives int, expected bytes"):
        as_bytes([b"1", 7], "n", "value")
    with pytest.raises(TypeError, match="key: the function for key gives float"):
        as_bytes([1.5], lambda row: row, "key")


def test_timestamps_are_milliseconds() -> None:
    at = datetime(2026, 11, 21, 12, 30, 0, 123999, tzinfo=timezone(timedelta(hours=2)))
    naive = datetime(2026, 3, 1, 1, 2, 3, 4000)
    assert as_milliseconds([at, 17, None, naive]) == [
        1795257000123,
        17,
        None,
        int(naive.timestamp() * 1000),
    ]


def test_records_are_grouped_by_topic_and_partition_in_their_order() -> None:
    found = {target: pick([10, 11, 12, 13]) for target, pick in targets(["a", "b", "a", "a"], [0, 0, None, 0])}
    assert found == {("a", 0): [10, 13], ("b", 0): [11], ("a", None): [12]}


def test_arguments_are_checked_on_the_driver() -> None:
    servers = "localhost:1"
    for wrong, words in (
        ({"value": None}, "value is the name of a column"),
        ({"key": 7}, "key is the name"),
        ({"partition": 1.5}, "partition is a number"),
    ):
        with pytest.raises(TypeError, match=words):
            ForeachPartitionProducer("t", bootstrap_servers=servers, **wrong)
    with pytest.raises(TypeError, match="topic is a name"):
        ForeachPartitionProducer("", bootstrap_servers=servers)
    with pytest.raises(ConfigError, match="linger_ms"):
        ForeachPartitionProducer("t", bootstrap_servers=servers, linger_m=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="exactly-once"):
        ForeachPartitionProducer("t", bootstrap_servers=servers, transactional_id="x")
    with pytest.raises(TypeError, match="pickle"):
        ForeachPartitionProducer("t", bootstrap_servers=servers, partitioner=lambda *_: 0)


def test_a_foreach_producer_pickles() -> None:
    again = pickle.loads(pickle.dumps(ForeachPartitionProducer("t", bootstrap_servers="localhost:1", key="key")))
    assert again.topic == "t" and again.columns == {"value": "value", "key": "key"}


# -- what a replay is checked against -------------------------------------------------------------------------------


def test_the_content_of_a_task_is_its_rows_and_bytes() -> None:
    content = Content()
    for batch in (
        pa.RecordBatch.from_pydict({"value": [b"123", None], "key": ["ä", "b"]}),
        pa.RecordBatch.from_pydict({"value": [b"", b"1"], "key": pa.array([None, None], pa.string())}),
    ):
        content.add(batch)
    assert content == Content(4, 7)


def test_a_batch_that_comes_again_must_be_the_same() -> None:
    attempt = Attempt("q", 5, 2)
    check_same(attempt, Content(3, 30), Content(3, 30))
    with pytest.raises(
        NotTheSameBatch, match=r"partition 2 of fastq-spark-q has committed batch 5 with 3 rows.*4 rows"
    ):
        check_same(attempt, Content(3, 30), Content(4, 30))


def test_a_batch_is_over_when_a_later_one_has_begun() -> None:
    attempt = Attempt("q", 5, 2)
    check_current(attempt, {})
    check_current(attempt, {0: (4, Content()), 1: (5, Content()), 2: (4, Content())})
    with pytest.raises(
        NotTheSameBatch, match="partition 1 of fastq-spark-q has committed batch 6, and this is batch 5"
    ):
        check_current(attempt, {0: (4, Content()), 1: (6, Content())})


def test_an_earlier_attempt_with_other_tasks_is_noticed() -> None:
    check_tasks([Written(1, 4, committed=(0, 1)), Written(2, 0), Written(0, 1, skipped=True, committed=(0,))], 7)
    check_tasks([], 7)
    with pytest.raises(
        NotTheSameBatch, match=r"batch 7 has rows in 2 of 2 tasks.*committed rows of partition 3, which has none"
    ):
        check_tasks([Written(0, 1, committed=(0, 3)), Written(1, 1)], 7)
    with pytest.raises(
        NotTheSameBatch, match=r"batch 7 has rows in 1 of 2 tasks.*committed rows of partition 0, which has none"
    ):
        check_tasks([Written(0, 0), Written(1, 1, committed=(0,))], 7)
