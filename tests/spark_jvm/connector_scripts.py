"""What the tests do in a Spark session: the same function for Spark's JVM connector and for ours, told apart by `format`.

Rules: arguments and results are JSON (bytes in hexadecimal); runs with each PySpark, imports nothing of fastq.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

OUT = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Options = Mapping[str, str]


def hexed(data: bytes | bytearray | None) -> str | None:
    return None if data is None else bytes(data).hex()


def unhexed(text: str | None) -> bytearray | None:
    return None if text is None else bytearray.fromhex(text)


def plain(row: Row) -> list[Any]:
    """A row of the source: key, value, topic, partition, offset, timestamp in ms, timestamp type[, headers]."""
    stamp = row.timestamp.astimezone(timezone.utc) - EPOCH
    fields = [hexed(row.key), hexed(row.value), row.topic, row.partition, row.offset]
    fields += [round(stamp.total_seconds() * 1000), row.timestampType]
    if "headers" in row:
        fields.append(row.headers and [[header.key, hexed(header.value)] for header in row.headers])
    return fields


def load(spark: SparkSession, format: str, options: Options) -> DataFrame:
    return spark.read.format(format).options(**options).load()


def read(spark: SparkSession, *, format: str, options: Options) -> list[list[Any]]:
    """Batch: all rows, ordered by topic, partition, offset."""
    return sorted([plain(row) for row in load(spark, format, options).collect()], key=lambda row: row[2:5])


def schema(spark: SparkSession, *, format: str, options: Options) -> str:
    return load(spark, format, options).schema.simpleString()


def count(spark: SparkSession, *, format: str, options: Options) -> int:
    return load(spark, format, options).count()


def tasks(spark: SparkSession, *, format: str, options: Options) -> list[list[int]]:
    """Batch: the rows of each task, as (partition, first offset, last offset)."""
    found = load(spark, format, options).selectExpr("spark_partition_id() as task", "partition", "offset")
    grouped = found.groupBy("task", "partition").agg({"offset": "min"}).collect()
    last = found.groupBy("task", "partition").agg({"offset": "max"}).collect()
    ends = {(row[0], row[1]): row[2] for row in last}
    return sorted([row[1], row[2], ends[row[0], row[1]]] for row in grouped)


def digest(spark: SparkSession, *, format: str, options: Options) -> list[Any]:
    """Batch: how many rows, and the sum of a hash over all columns (equal for the same rows in any order)."""
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    row = (
        load(spark, format, options)
        .selectExpr(f"xxhash64({', '.join(columns)}) % 1000000007 as hash")
        .selectExpr("count(*)", "sum(hash)")
    )
    return list(row.collect()[0])


def write(spark: SparkSession, *, format: str, options: Options, rows: Sequence[Sequence[Any]]) -> None:
    """Batch: write rows of (key, value, headers, topic, partition)."""
    made = [
        (unhexed(key), unhexed(value), headers and [(name, unhexed(data)) for name, data in headers], topic, partition)
        for key, value, headers, topic, partition in rows
    ]
    spark.createDataFrame(made, OUT).write.format(format).options(**options).mode("append").save()


def write_strings(spark: SparkSession, *, format: str, options: Options, values: Sequence[str]) -> None:
    """Batch: string columns key and value, the topic from the option."""
    frame = spark.createDataFrame([(value, value) for value in values], "key string, value string")
    frame.write.format(format).options(**options).mode("append").save()


def copy(
    spark: SparkSession, *, format: str, source: Options, sink: Options, checkpoint: str, **columns: str
) -> list[int]:
    """Stream all there is (AvailableNow) from topics to a topic; the rows of each micro-batch."""
    found = spark.readStream.format(format).options(**source).load()
    query = (
        found.selectExpr("key", "value", *[f"{name} as {column}" for column, name in columns.items()])
        .writeStream.format(format)
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    return finished(query)


def stream(spark: SparkSession, *, format: str, options: Options, checkpoint: str, folder: str) -> list[int]:
    """Stream all there is (AvailableNow) into JSON files in `folder`; the rows of each micro-batch."""
    found = spark.readStream.format(format).options(**options).load()
    query = (
        found.selectExpr("hex(value) as value", "topic", "partition", "offset")
        .writeStream.format("json")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(folder)
    )
    return finished(query)


def finished(query: Any) -> list[int]:
    try:
        query.awaitTermination()
        if query.exception() is not None:
            raise query.exception()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()


def streamed(spark: SparkSession, *, folder: str) -> list[list[Any]]:
    """What `stream` and `follow` have written: (value, topic, partition, offset) in order."""
    rows = spark.read.schema("value string, topic string, partition int, offset long").json(folder).collect()
    return sorted([[row.value, row.topic, row.partition, row.offset] for row in rows], key=lambda row: row[1:])


_running: dict[str, Any] = {}


def follow(spark: SparkSession, *, format: str, options: Options, name: str, checkpoint: str, folder: str) -> None:
    """Start a query that goes on, into JSON files."""
    found = spark.readStream.format(format).options(**options).load()
    _running[name] = (
        found.selectExpr("hex(value) as value", "topic", "partition", "offset")
        .writeStream.format("json")
        .option("checkpointLocation", checkpoint)
        .start(folder)
    )


def wait_for_rows(spark: SparkSession, *, name: str, rows: int, within_s: float) -> int:
    """Wait until a query that goes on has processed so many rows since it was started; how many it has."""
    query = _running[name]

    def processed() -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    _wait(lambda: processed() >= rows or not query.isActive, within_s)
    if query.exception() is not None:
        raise query.exception()
    return processed()


def stop(spark: SparkSession, *, name: str) -> list[int]:
    """Stop a query that goes on; the rows of its micro-batches."""
    query = _running.pop(name)
    query.stop()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def _wait(done: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
