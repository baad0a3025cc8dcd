"""Two million rows of every type, an eighth of them outside the soak, with nulls, empties and headers, written by the sink and read by the
source: the same rows.

Rules: both sides go to Parquet, and DuckDB compares them as multisets, column by column and nothing hashed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000 if os.environ.get("FASTQ_SOAK") == "1" else 60_000
PARTITIONS = 4
TOPICS = 3

# Bytes that are no text, texts of many scripts, empties and nulls; sizes from 0 to some hundred bytes.
KEY = """case id % 7 when 0 then null when 1 then cast('' as binary) when 2 then cast('schlüssel-キー-' || id as binary)
         else unhex(md5(cast(id as string))) end"""
VALUE = """case when id % 11 = 0 then null when id % 13 = 0 then cast('' as binary)
           when id % 17 = 0 then cast(repeat('grüße мир ', 1 + cast(id % 40 as int)) as binary)
           else unhex(sha2(cast(id as string), 512)) end"""
HEADER = "named_struct('key', {key}, 'value', {value})"
ONE = HEADER.format(key="'id'", value="cast(cast(id as string) as binary)")
EMPTY = HEADER.format(key="''", value="cast('' as binary)")
NULL = HEADER.format(key="'größe'", value="cast(null as binary)")
HEADERS = f"case id % 5 when 0 then null when 1 then array({ONE}) when 2 then array({ONE}, {EMPTY}, {ONE}) else array({NULL}) end"
# Milliseconds are what Kafka keeps; before 1970 there is no time.
TIMESTAMP = "timestamp_millis(1700000000000 + id * 37)"

COLUMNS = "key, value, topic, partition, timestamp, headers"


@pytest.fixture
def topics(bootstrap_servers: str, make_topic: Callable[..., str]) -> list[str]:
    """Topics whose records stay, however old they say they are."""
    return [make_topic(bootstrap_servers, PARTITIONS, retention_ms="-1") for _ in range(TOPICS)]


def different_rows(one: Path, other: Path) -> int:
    """How many rows are in one set of files and not in the other, either way."""
    left, right = (f"(select {COLUMNS} from read_parquet('{path}/*.parquet'))" for path in (one, other))
    query = (
        f"select count(*) from ((from {left} except all from {right}) union all (from {right} except all from {left}))"
    )
    return int(duckdb.sql(query).fetchall()[0][0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_rows_come_back_as_they_were(
    spark: SparkSession, load: Callable[..., DataFrame], topics: list[str], bootstrap_servers: str, tmp_path: Path
) -> None:
    names = ", ".join(f"'{name}'" for name in topics)
    spark.range(0, ROWS, numPartitions=4).selectExpr(
        f"{KEY} as key",
        f"{VALUE} as value",
        f"array({names})[cast(id % {TOPICS} as int)] as topic",
        f"cast(id div 5 % {PARTITIONS} as int) as partition",
        f"{TIMESTAMP} as timestamp",
        f"{HEADERS} as headers",
    ).write.parquet(str(tmp_path / "given"))
    given = spark.read.parquet(str(tmp_path / "given"))
    sink = given.write.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers)
    sink.option("includeHeaders", "true").mode("append").save()

    found = load(subscribe=",".join(topics), includeHeaders=True)
    found.write.parquet(str(tmp_path / "found"))
    assert different_rows(tmp_path / "given", tmp_path / "found") == 0
    files = f"read_parquet('{tmp_path}/found/*.parquet')"
    per_partition = duckdb.sql(
        f'select count(*), count(distinct "offset"), min("offset"), max("offset"), max(timestampType) from {files} '
        "group by topic, partition"
    ).fetchall()
    assert len(per_partition) == TOPICS * PARTITIONS
    assert all(
        (low, high, kind) == (0, count - 1, 0) and count == other for count, other, low, high, kind in per_partition
    )
    assert sum(count for count, *_ in per_partition) == ROWS


def test_strings_and_rows_for_the_partitioner_come_back_too(
    spark: SparkSession, load: Callable[..., DataFrame], topics: list[str], bootstrap_servers: str
) -> None:
    """Columns of strings, a partition that is null, a topic by option, and no headers."""
    given = spark.range(10_000).selectExpr(
        "if(id % 3 = 0, null, 'k' || id % 100) as key",
        "if(id % 5 = 0, null, 'grüße ' || id) as value",
        f"cast(if(id % 2 = 0, null, id % {PARTITIONS}) as int) as partition",
    )
    sink = given.write.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers)
    sink.option("topic", topics[0]).mode("append").save()
    found = load(subscribe=topics[0]).selectExpr("cast(key as string) key", "cast(value as string) value", "partition")
    rows = found.toArrow().to_pylist()
    want = given.toArrow().to_pylist()

    def pairs(rows: list[dict[str, object]]) -> list[str]:
        return sorted(repr((row["key"], row["value"])) for row in rows)

    assert pairs(rows) == pairs(want)
    wanted = {row["value"]: row["partition"] for row in want if row["value"] and row["partition"] is not None}
    assert {row["value"]: row["partition"] for row in rows if row["value"] in wanted} == wanted
    by_key: dict[str, set[int]] = {}
    for row in rows:
        if row["key"] and row["value"] and row["value"] not in wanted:
            by_key.setdefault(row["key"], set()).add(row["partition"])
    assert by_key
    assert all(len(partitions) == 1 for partitions in by_key.values())
