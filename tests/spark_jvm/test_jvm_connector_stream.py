"""Spark's JVM connector, unchanged, against our broker: Structured Streaming, source and sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_jvm import SparkSession

from fastq import Admin, Consumer, Producer

pytestmark = [pytest.mark.spark_jvm, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]
JVM = "kafka"
PARTITIONS = 3
PATIENCE_S = 60.0


def options(servers: str, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **more}


def send(servers: str, topic: str, first: int, count: int, partitions: int = PARTITIONS) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def numbers(rows: list[list[Any]]) -> list[int]:
    return sorted(int(bytes.fromhex(row[0])) for row in rows)


def test_all_there_is_and_then_what_came_since(
    jvm: SparkSession, servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, sink = make_topic(servers, PARTITIONS), make_topic(servers, PARTITIONS)
    run = {
        "format": JVM,
        "source": options(servers, source, maxOffsetsPerTrigger="120"),
        "sink": {"kafka.bootstrap.servers": servers, "topic": sink},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    send(servers, source, 0, 300)
    batches = jvm.call("copy", **run)
    assert (sum(batches), len(batches)) == (300, 3)
    assert jvm.call("copy", **run) == []
    send(servers, source, 300, 60)
    assert jvm.call("copy", **run) == [60]
    with Consumer(sink, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert sorted(int(record.value) for record in consumer.read_to_end()) == list(range(360))


def test_a_query_that_goes_on_and_a_topic_that_grows(
    jvm: SparkSession, servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, folder = make_topic(servers), str(tmp_path / "rows")
    source = options(servers, topic, **{"kafka.metadata.max.age.ms": "200"})
    checkpoint = str(tmp_path / "checkpoint")
    send(servers, topic, 0, 50, partitions=1)
    jvm.call("follow", format=JVM, options=source, name="grows", checkpoint=checkpoint, folder=folder)
    try:
        assert jvm.call("wait_for_rows", name="grows", rows=50, within_s=PATIENCE_S) == 50
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_partitions({topic: PARTITIONS})
        send(servers, topic, 50, 100)
        assert jvm.call("wait_for_rows", name="grows", rows=150, within_s=PATIENCE_S) == 150
    finally:
        jvm.call("stop", name="grows")
    assert numbers(jvm.call("streamed", folder=folder)) == list(range(150))


def test_offsets_are_kept_in_the_checkpoint(
    jvm: SparkSession, servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The line that our source must be able to go on from: see test_jvm_connector_both."""
    topic, checkpoint = make_topic(servers, PARTITIONS), tmp_path / "checkpoint"
    send(servers, topic, 0, 30)
    jvm.call(
        "stream", format=JVM, options=options(servers, topic), checkpoint=str(checkpoint), folder=str(tmp_path / "rows")
    )
    line = (checkpoint / "offsets" / "0").read_text().splitlines()[2]
    assert json.loads(line) == {topic: {"0": 10, "1": 10, "2": 10}}
