"""What is measured inside a Spark session: the same functions for Spark's JVM connector and for ours, told apart by `format`.

Rules: run by `spark.py` through tools/spark_jvm.py; arguments and results are JSON. A figure is the time of one action,
its plan included; the session is warm when it counts. Generated rows have a key of a few bytes and a value of 100.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

TASKS = 2
READ_TOPICS = "read_topics"
"""In the place of a format: our function of this name."""


def timed(rows: int, action: Callable[[], object]) -> dict[str, float]:
    start = time.perf_counter()
    action()
    return {"rows_per_s": rows / (time.perf_counter() - start)}


def source(
    spark: SparkSession, format: str, servers: str, topic: str, settings: Mapping[str, str] | None = None
) -> DataFrame:
    options = {**(settings or {}), "kafka.bootstrap.servers": servers, "subscribe": topic}
    if format == READ_TOPICS:
        from fastq.spark import read_topics

        return read_topics(spark, options)
    return spark.read.format(format).options(**options).load()


def generated(spark: SparkSession, rows: int) -> DataFrame:
    """Rows that Spark makes by itself, in the JVM and for next to nothing."""
    number = "cast(id as string)"
    return spark.range(0, rows, 1, TASKS).selectExpr(
        f"cast({number} as binary) as key", f"cast(lpad({number}, 100, '0') as binary) as value"
    )


# -- batch ----------------------------------------------------------------------------------------------------------


def count(spark: SparkSession, *, format: str, servers: str, topic: str) -> int:
    return source(spark, format, servers, topic).count()


def read(
    spark: SparkSession, *, format: str, servers: str, topic: str, rows: int, settings: Mapping[str, str] | None = None
) -> dict[str, float]:
    """All seven columns, into nothing."""
    found = source(spark, format, servers, topic, settings)
    return timed(rows, lambda: found.write.format("noop").mode("overwrite").save())


def parquet(
    spark: SparkSession,
    *,
    format: str,
    servers: str,
    topic: str,
    rows: int,
    folder: str,
    settings: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """All seven columns, into Parquet files as Spark writes them by default."""
    found = source(spark, format, servers, topic, settings)
    return timed(rows, lambda: found.write.mode("overwrite").parquet(folder))


def write(
    spark: SparkSession, *, format: str, servers: str, topic: str, rows: int, settings: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Key, value and the column topic."""
    made = generated(spark, rows).selectExpr("key", "value", f"'{topic}' as topic")
    sink = made.write.format(format).options(**(settings or {})).option("kafka.bootstrap.servers", servers)
    sink = sink.mode("append")
    return timed(rows, sink.save)


# -- foreachPartition (ours only; fastq is imported where it is measured) ---------------------------


def add_bytes(total: Any, rows: Iterable[Row]) -> None:
    """Count, as cheaply as Python can: `row.key` alone would cost more than sending."""
    seen = 0
    for key, value in rows:
        seen += len(key) + len(value)
    total.add(seen)


def foreach_empty(spark: SparkSession, *, servers: str, topic: str, rows: int) -> dict[str, float]:
    """What foreachPartition costs by itself: rows arrive, their bytes are counted."""
    total = spark.sparkContext.accumulator(0)
    made = generated(spark, rows)
    figures = timed(rows, lambda: made.foreachPartition(partial(add_bytes, total)))
    if total.value < rows * 101:
        raise RuntimeError(f"{total.value} bytes in {rows} rows of at least 101")
    return figures


def foreach_producer(spark: SparkSession, *, servers: str, topic: str, rows: int) -> dict[str, float]:
    from fastq.spark import ForeachPartitionProducer

    made = generated(spark, rows)
    send = ForeachPartitionProducer(topic, bootstrap_servers=servers, key="key", value="value")
    return timed(rows, lambda: made.foreachPartition(send))


def foreach_arrow(spark: SparkSession, *, servers: str, topic: str, rows: int) -> dict[str, float]:
    from fastq.spark import foreach_partition_arrow

    made = generated(spark, rows)
    return timed(
        rows, lambda: foreach_partition_arrow(made, topic, bootstrap_servers=servers, key="key", value="value")
    )


# -- streaming ------------------------------------------------------------------------------------------------------

_queries: list[Any] = []


def follow(
    spark: SparkSession,
    *,
    format: str,
    servers: str,
    topic: str,
    checkpoint: str,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Start a query on what comes from now on, into nothing."""
    stream = spark.readStream.format(format).options(**(settings or {}))
    found = stream.option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    _queries.append(found.writeStream.format("noop").option("checkpointLocation", checkpoint).start())
    while not _queries[0].lastProgress:  # its first trigger has fixed where it begins
        time.sleep(0.02)


def wait_for_rows(spark: SparkSession, *, rows: int, within_s: float = 60.0) -> None:
    """Wait until the query has processed so many rows since it began."""
    query, deadline = _queries[0], time.monotonic() + within_s
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{rows} rows were not processed within {within_s:g} s: {query.lastProgress}")
        time.sleep(0.02)


def durations(spark: SparkSession) -> list[list[float]]:
    """Stop the query; rows and duration in ms of each of its micro-batches."""
    query = _queries.pop()
    query.stop()
    return [[p["numInputRows"], p["durationMs"]["triggerExecution"]] for p in query.recentProgress if p["numInputRows"]]
