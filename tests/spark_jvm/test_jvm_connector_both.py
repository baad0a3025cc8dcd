"""Both connectors on the same topics: what one writes the other reads, both read the same, and queries move between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_jvm import SparkSession

from fastq import Producer

pytestmark = [pytest.mark.spark_jvm, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]
JVM, OURS = "kafka", "fastq"
PARTITIONS = 3
STAMP_MS = 1_600_000_000_000


@pytest.fixture
def sessions(jvm: SparkSession, ours: SparkSession) -> dict[str, SparkSession]:
    return {JVM: jvm, OURS: ours}


def options(servers: str, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, **more}


def fill(servers: str, topic: str, first: int, count: int, compression: str = "none") -> None:
    with Producer(bootstrap_servers=servers, compression_type=compression) as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                None if number % 5 == 0 else b"\x00\xff%d" % number,
                None if number % 4 == 0 else b"key-%d" % number,
                headers=[("h", b"%d" % number), ("none", None)] if number % 3 == 0 else None,
                partition=number % PARTITIONS,
                timestamp_ms=STAMP_MS + number,
            )


def test_both_read_the_same(sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers, PARTITIONS)
    for turn, compression in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        fill(servers, topic, turn * 400, 400, compression)
    for more in (
        {"includeHeaders": "true"},
        {"startingOffsets": json.dumps({topic: {"0": 100, "1": -2, "2": 3}})},
        {"startingTimestamp": str(STAMP_MS + 500), "endingTimestamp": str(STAMP_MS + 900)},
        {"startingTimestamp": str(STAMP_MS + 10**9), "startingOffsetsByTimestampStrategy": "latest"},
        {"endingOffsets": json.dumps({topic: {"0": -1, "1": 7, "2": 0}}), "minPartitions": "7"},
    ):
        read = {
            format: session.call("read", format=format, options=options(servers, topic, **more))
            for format, session in sessions.items()
        }
        assert read[OURS] == read[JVM]


@pytest.mark.parametrize(("sizes", "parts"), [((21, 45), 11), ((7, 11, 3), 5), ((1, 100), 4), ((5, 10, 15), 20)])
def test_both_make_the_same_tasks(
    sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic, sizes: tuple[int, ...], parts: int
) -> None:
    """Shares of a half, which double precision rounds down now and then, among them."""
    topic = make_topic(servers, len(sizes))
    with Producer(bootstrap_servers=servers) as producer:
        for partition, size in enumerate(sizes):
            producer.send_many(topic, [b"v"] * size, partition=partition).result(30)
    tasks = {
        format: sorted(session.call("tasks", format=format, options=options(servers, topic, minPartitions=str(parts))))
        for format, session in sessions.items()
    }
    assert tasks[OURS] == tasks[JVM]


def test_both_have_the_same_schema(sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers)
    for headers in ("true", "false"):
        told = options(servers, topic, includeHeaders=headers)
        assert sessions[OURS].call("schema", format=OURS, options=told) == sessions[JVM].call(
            "schema", format=JVM, options=told
        )


def test_many_rows_are_the_same(sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic) -> None:
    topic, count = make_topic(servers, PARTITIONS), 200_000
    with Producer(bootstrap_servers=servers) as producer:
        values = [b"%0100d" % number for number in range(count)]
        producer.send_many(topic, values, keys=values).result()
    read = {
        format: session.call("digest", format=format, options=options(servers, topic))
        for format, session in sessions.items()
    }
    assert read[OURS] == read[JVM]
    assert read[JVM][0] == count


@pytest.mark.parametrize(("writer", "reader"), [(JVM, OURS), (OURS, JVM)])
def test_what_one_writes_the_other_reads(
    sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic, writer: str, reader: str
) -> None:
    topic = make_topic(servers, PARTITIONS)
    rows: list[list[Any]] = []
    for number in range(300):
        key = None if number % 3 == 0 else (b"key-%d" % number).hex()
        value = None if number % 10 == 9 else (b"\xfe%d" % number).hex()
        headers = [["h", b"x".hex()], ["none", None]] if number % 4 == 0 else None
        rows.append([key, value, headers, topic, number % PARTITIONS])
    sink = {"kafka.bootstrap.servers": servers, "includeHeaders": "true"}
    sessions[writer].call("write", format=writer, options=sink, rows=rows)
    found = sessions[reader].call("read", format=reader, options=options(servers, topic, includeHeaders="true"))
    assert sorted([[row[0], row[1], row[7], row[2], row[3]] for row in found], key=repr) == sorted(rows, key=repr)


def test_both_put_a_key_into_the_same_partition(
    sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic
) -> None:
    values = [f"key {number}" for number in range(500)]
    placed = {}
    for format, session in sessions.items():
        topic = make_topic(servers, PARTITIONS)
        session.call(
            "write_strings", format=format, options={"kafka.bootstrap.servers": servers, "topic": topic}, values=values
        )
        placed[format] = {
            row[0]: row[3] for row in sessions[JVM].call("read", format=JVM, options=options(servers, topic))
        }
    assert placed[OURS] == placed[JVM]
    assert len(placed[JVM]) == len(values)


@pytest.mark.parametrize(("first", "second"), [(JVM, OURS), (OURS, JVM)])
def test_a_query_goes_on_from_the_checkpoint_of_the_other(
    sessions: dict[str, SparkSession], servers: str, make_topic: MakeTopic, tmp_path: Path, first: str, second: str
) -> None:
    """Moving over, and back: another session, another format's name, the same checkpoint; no row is lost or read twice."""
    topic, checkpoint, folder = make_topic(servers, PARTITIONS), str(tmp_path / "checkpoint"), str(tmp_path / "rows")
    told = options(servers, topic, startingOffsets="earliest")
    filled = 0

    # Two micro-batches of the first: the line of our very first one tells more than the JVM connector takes.
    for format, count in ((first, 90), (first, 30), (second, 60)):
        fill(servers, topic, filled, count)
        filled += count
        found = sessions[format].call("stream", format=format, options=told, checkpoint=checkpoint, folder=folder)
        assert found == [count]
    rows = sessions[JVM].call("read", format=JVM, options=options(servers, topic))
    assert len(rows) == filled
    streamed = sessions[JVM].call("streamed", folder=folder)
    assert [[row[0] and row[0].lower(), *row[1:]] for row in streamed] == [row[1:5] for row in rows]
