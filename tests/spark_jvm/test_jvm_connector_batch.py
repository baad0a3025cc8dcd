"""Spark's JVM connector, unchanged, against our broker: batch reads and batch writes.

The oracle is our producer (what it was told to send) and our consumer (what it reads).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spark_jvm import SparkFailed, SparkSession

from fastq import Admin, Consumer, Producer
from fastq.metadata import TopicPartition

pytestmark = [pytest.mark.spark_jvm, pytest.mark.timeout(300)]

MakeTopic = Callable[..., str]
JVM = "kafka"
PARTITIONS = 3
STAMP_MS = 1_600_000_000_000


def options(servers: str, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, **more}


def fill(servers: str, topic: str, count: int, compression: str = "none") -> list[list[Any]]:
    """Send records with and without key, value and headers, and with times of their own; what a read of them must give."""
    rows: list[list[Any]] = []
    with Producer(bootstrap_servers=servers, compression_type=compression) as producer:
        for number in range(count):
            partition, offset = number % PARTITIONS, number // PARTITIONS
            key = None if number % 4 == 0 else b"key-%d" % (number % 7)
            value = None if number % 5 == 0 else b"\x00\xffvalue %d" % number
            headers = [("trace", b"%d" % number), ("trace", b""), ("empty", None)] if number % 3 == 0 else None
            at = STAMP_MS + number
            producer.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=at)
            shown = headers and [[name, None if data is None else data.hex()] for name, data in headers]
            rows.append(
                [key and key.hex(), None if value is None else value.hex(), topic, partition, offset, at, 0, shown]
            )
    return sorted(rows, key=lambda row: row[2:5])


def consumed(servers: str, topic: str) -> Iterator[list[Any]]:
    """What our consumer reads: key, value, headers, partition."""
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        for record in consumer.read_to_end():
            headers = [[name, None if data is None else data.hex()] for name, data in record.headers]
            key, value = record.key, record.value
            yield [key and key.hex(), None if value is None else value.hex(), headers or None, record.partition]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_column_of_every_row(jvm: SparkSession, servers: str, make_topic: MakeTopic, compression: str) -> None:
    topic = make_topic(servers, PARTITIONS)
    expected = fill(servers, topic, 600, compression)
    assert jvm.call("read", format=JVM, options=options(servers, topic, includeHeaders="true")) == expected
    assert jvm.call("read", format=JVM, options=options(servers, topic)) == [row[:7] for row in expected]


def test_ranges_by_offset_and_by_time(jvm: SparkSession, servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers, PARTITIONS)
    expected = [row[:7] for row in fill(servers, topic, 300)]
    starts = json.dumps({topic: {"0": 10, "1": -2, "2": 90}})
    ends = json.dumps({topic: {"0": 20, "1": -1, "2": 100}})
    found = jvm.call("read", format=JVM, options=options(servers, topic, startingOffsets=starts, endingOffsets=ends))
    wanted = {0: range(10, 20), 1: range(100), 2: range(90, 100)}
    assert found == [row for row in expected if row[4] in wanted[row[3]]]

    times = {"startingTimestamp": str(STAMP_MS + 30), "endingTimestamp": str(STAMP_MS + 150)}
    found = jvm.call("read", format=JVM, options=options(servers, topic, **times))
    assert found == [row for row in expected if STAMP_MS + 30 <= row[5] < STAMP_MS + 150]


def test_assign_pattern_and_splitting(jvm: SparkSession, servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers, PARTITIONS)
    expected = [row[:7] for row in fill(servers, topic, 300)]
    by_name = {"kafka.bootstrap.servers": servers, "assign": json.dumps({topic: [0, 2]})}
    assert jvm.call("read", format=JVM, options=by_name) == [row for row in expected if row[3] != 1]
    by_pattern = {"kafka.bootstrap.servers": servers, "subscribePattern": topic[:-1] + "."}
    assert jvm.call("read", format=JVM, options=by_pattern) == expected
    split = jvm.call("tasks", format=JVM, options=options(servers, topic, minPartitions="6"))
    assert split == [[p, first, first + 49] for p in range(PARTITIONS) for first in (0, 50)]


def test_committed_transactions_only(jvm: SparkSession, servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, transactional_id=f"t-{topic}") as producer:
        for number in range(6):
            try:
                with producer.transaction():
                    producer.send_many(topic, [b"%d" % number] * 10)
                    producer.flush()  # what an aborted transaction has not sent yet is never sent
                    if number % 2:
                        raise InterruptedError
            except InterruptedError:
                pass
    found = jvm.call("read", format=JVM, options=options(servers, topic, **{"kafka.isolation.level": "read_committed"}))
    assert [bytes.fromhex(row[1]) for row in found] == [b"%d" % number for number in (0, 2, 4) for _ in range(10)]
    assert len(jvm.call("read", format=JVM, options=options(servers, topic))) == 60


def test_records_that_are_gone(jvm: SparkSession, servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(servers, PARTITIONS)
    expected = [row[:7] for row in fill(servers, topic, 300)]
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 1): 40})
    left = [row for row in expected if row[3] != 1 or row[4] >= 40]
    assert jvm.call("read", format=JVM, options=options(servers, topic)) == left
    lost = {"startingOffsets": json.dumps({topic: {"0": 0, "1": 5, "2": 0}})}
    with pytest.raises(SparkFailed, match="failOnDataLoss"):
        jvm.call("read", format=JVM, options=options(servers, topic, **lost))
    found = jvm.call("read", format=JVM, options=options(servers, topic, failOnDataLoss="false", **lost))
    assert found == left


def test_a_topic_that_is_not_there(jvm: SparkSession, servers: str, new_topic_name: Callable[[], str]) -> None:
    with pytest.raises(SparkFailed, match=r"UnknownTopicOrPartition|does not exist"):
        jvm.call(
            "read",
            format=JVM,
            options=options(servers, new_topic_name(), **{"kafka.allow.auto.create.topics": "false"}),
        )


def test_what_is_written_is_there(jvm: SparkSession, servers: str, make_topic: MakeTopic) -> None:
    first, second = make_topic(servers, PARTITIONS), make_topic(servers, PARTITIONS)
    rows = []
    for number in range(400):
        key = None if number % 3 == 0 else b"key-%d" % number
        value = None if number % 10 == 9 else b"\xfe%d" % number
        headers = [["h", b"x".hex()], ["none", None]] if number % 4 == 0 else None
        row = [key and key.hex(), None if value is None else value.hex(), headers]
        rows.append([*row, first if number % 2 else second, number % PARTITIONS])
    sink = {"kafka.bootstrap.servers": servers, "includeHeaders": "true"}
    jvm.call("write", format=JVM, options=sink, rows=rows)
    for topic in (first, second):
        expected = [[*row[:3], row[4]] for row in rows if row[3] == topic]
        assert sorted(consumed(servers, topic), key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_and_idempotent_writes(
    jvm: SparkSession, servers: str, make_topic: MakeTopic, compression: str
) -> None:
    topic = make_topic(servers, PARTITIONS)
    sink = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.compression.type": compression}
    sink |= {"kafka.enable.idempotence": "true", "kafka.acks": "all"}
    values = [f"line {number}" for number in range(500)]
    jvm.call("write_strings", format=JVM, options=sink, values=values)
    found = sorted(consumed(servers, topic), key=repr)
    assert [row[:2] for row in found] == sorted([[v.encode().hex()] * 2 for v in values], key=repr)
