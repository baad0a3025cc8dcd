"""Lag of streaming queries, and what they have consumed as offsets of groups.

Rules: a query runs until it has read what is there; events of Spark come when they come, so a test waits for what they bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.errors import UnknownTopicOrPartition
from fastq.spark import OffsetCommitListener, QueryLag, lag

DEADLINE_S = 60.0
LoadStream = Callable[..., DataFrame]


@pytest.fixture
def admin(bootstrap_servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic with ten records in partition 0 and five in partition 1."""
    name = make_topic(bootstrap_servers, 2)
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(15):
            producer.send(name, b"%d" % number, partition=number // 10)
    return name


def offsets_of(admin: Admin, group: str) -> dict[TopicPartition, int]:
    found = admin.list_group_offsets(group).results()
    return {tp: committed.offset for tp, committed in found.items() if committed is not None}


def run(frame: DataFrame, checkpoint: Path, name: str | None = None) -> Any:
    """A query that has read all there is and was stopped."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = (writer.queryName(name) if name else writer).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def test_lag_is_counted_to_the_end_of_now(
    load_stream: LoadStream, topic: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    query = run(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path)
    assert lag(query) == {TopicPartition(topic, 0): QueryLag(10, 10), TopicPartition(topic, 1): QueryLag(5, 5)}
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for _ in range(7):
            producer.send(topic, b"more", partition=1)
    found = lag(query, bootstrap_servers=bootstrap_servers)
    assert {tp.partition: behind.lag for tp, behind in found.items()} == {0: 0, 1: 7}


def test_lag_under_read_committed_ends_at_the_open_transaction(
    load_stream: LoadStream, topic: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    producer = Producer(bootstrap_servers=bootstrap_servers, transactional_id=f"{topic}-open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0).result()
    query = run(load_stream(**options), tmp_path)
    assert lag(query)[TopicPartition(topic, 0)] == QueryLag(10, 10)
    producer.commit_transaction()
    producer.close()
    assert lag(query)[TopicPartition(topic, 0)] == QueryLag(10, 12)  # the record and the marker


def test_lag_of_a_topic_that_is_gone(load_stream: LoadStream, topic: str, admin: Admin, tmp_path: Path) -> None:
    query = run(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path)
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopicOrPartition):
        lag(query, timeout=2)


def test_sources_that_are_not_topics_are_passed_over(
    spark: SparkSession, load_stream: LoadStream, topic: str, tmp_path: Path
) -> None:
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 1).load().selectExpr("cast(value as string) v")
    both = load_stream(subscribe=topic, startingOffsets="earliest").selectExpr("cast(value as string) v").union(numbers)
    query = both.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    until(lambda: query.lastProgress is not None)
    query.stop()
    assert {tp.topic for tp in lag(query)} == {topic}


def test_a_group_named_as_the_query_gets_its_offsets_and_no_member(
    spark: SparkSession, load_stream: LoadStream, topic: str, admin: Admin, tmp_path: Path
) -> None:
    listener = OffsetCommitListener(spark)
    spark.streams.addListener(listener)
    wanted = {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 5}
    try:
        run(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path, f"{topic}-query")
        until(lambda: offsets_of(admin, f"{topic}-query") == wanted)
    finally:
        spark.streams.removeListener(listener)
    described = admin.describe_group(f"{topic}-query")
    assert (described.state, described.members) == ("Empty", ())
    assert {tp: found.lag for tp, found in admin.group_lag(f"{topic}-query").results().items()} == dict.fromkeys(
        wanted, 0
    )


def test_groups_by_name_leave_other_queries_alone(
    spark: SparkSession, load_stream: LoadStream, topic: str, admin: Admin, tmp_path: Path
) -> None:
    listener = OffsetCommitListener(spark, {f"{topic}-a": f"{topic}-group"})
    spark.streams.addListener(listener)
    try:
        frame = load_stream(subscribe=topic, startingOffsets="earliest")
        run(frame, tmp_path / "b", f"{topic}-b")
        run(frame, tmp_path / "a", f"{topic}-a")
        until(lambda: len(offsets_of(admin, f"{topic}-group")) == 2)
    finally:
        spark.streams.removeListener(listener)
    assert [name for name in admin.list_groups() if name.startswith(topic)] == [f"{topic}-group"]


def test_the_group_of_the_source_beats_the_name_of_the_query(
    spark: SparkSession, load_stream: LoadStream, topic: str, admin: Admin, tmp_path: Path
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": f"{topic}-own"}
    query = run(load_stream(**options), tmp_path, f"{topic}-query")
    listener = OffsetCommitListener(spark)
    wanted = {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 5}
    assert listener.commit(query) == {f"{topic}-own": wanted}
    assert offsets_of(admin, f"{topic}-own") == wanted


def test_a_query_without_name_and_group_commits_nothing(
    spark: SparkSession, load_stream: LoadStream, topic: str, tmp_path: Path
) -> None:
    query = run(load_stream(subscribe=topic, startingOffsets="earliest"), tmp_path)
    assert OffsetCommitListener(spark).commit(query) == {}
    assert list(OffsetCommitListener(spark, f"{topic}-all").commit(query)) == [f"{topic}-all"]
