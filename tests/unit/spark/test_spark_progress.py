"""Progress of queries as Spark words it, of both connectors, and a listener whose broker is away.

Rules: progress, plan and query are objects of the shape that PySpark hands over; no Java is started.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fastq.errors import ConfigError
from fastq.metadata import TopicPartition
from fastq.spark import OffsetCommitListener, QueryLag, lag
from fastq.spark.progress import earliest_of, kafka_sources

FASTQ = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@54ccac66"
JVM = "KafkaV2[Subscribe[logs]]"
LOGS = {TopicPartition("logs", 0): 3, TopicPartition("logs", 1): 5}
LOGS_JSON = '{"logs":{"0":3,"1":5}}'
NOWHERE = "127.0.0.1:1"


class Options(dict[str, str]):
    """Java's map."""

    def keySet(self) -> set[str]:
        return set(self)


class Leaf:
    """A source in the plan of a query; without options, a leaf of another kind."""

    def __init__(self, description: str, options: Mapping[str, str] | None) -> None:
        self.description = description
        self.options = options

    def getClass(self) -> Any:
        name = "LocalRelation" if self.options is None else "StreamingDataSourceV2ScanRelation"
        return SimpleNamespace(getSimpleName=lambda: name)

    def relation(self) -> Any:
        return SimpleNamespace(options=lambda: Options(self.options or {}))

    def stream(self) -> Any:
        return SimpleNamespace(toString=lambda: self.description)


def source(description: str, end: Any, latest: Any = None) -> Any:
    return SimpleNamespace(description=description, endOffset=end, latestOffset=latest)


def make_query(leaves: list[Leaf], *sources: Any, name: str | None = "job", classic: bool = True) -> Any:
    collected = SimpleNamespace(length=lambda: len(leaves), apply=leaves.__getitem__)
    execution = SimpleNamespace(logicalPlan=lambda: SimpleNamespace(collectLeaves=lambda: collected))
    progress = SimpleNamespace(id="q", runId="r", name=name, sources=list(sources))
    query = SimpleNamespace(lastProgress=progress)
    if classic:
        query._jsq = SimpleNamespace(streamingQuery=lambda: execution)
    return query


@pytest.mark.parametrize("description", [FASTQ, JVM])
@pytest.mark.parametrize("end", [LOGS_JSON, {"logs": {"0": 3, "1": 5}}, "{'logs': {'0': 3, '1': 5}}"])
def test_both_connectors_are_read(description: str, end: Any) -> None:
    given = {"kafka.bootstrap.servers": NOWHERE, "subscribe": "logs", "Kafka.Group.Id": "mine"}
    query = make_query([Leaf(description, given)], source(description, end, LOGS_JSON))
    (found,) = kafka_sources(query, query.lastProgress)
    assert (found.offsets, found.latest, found.group_id, found.read_committed) == (LOGS, LOGS, "mine", False)
    assert found.admin_config({}).bootstrap_servers == (NOWHERE,)


@pytest.mark.parametrize(
    "end", [None, "", "17", '{"logOffset": 3}', '{"reservoirVersion": 1, "index": -1}', "not JSON", "[1]", "{'a"]
)
def test_offsets_of_other_sources_are_passed_over(end: Any) -> None:
    query = make_query([Leaf("rate", {})], source("rate", end))
    assert kafka_sources(query, query.lastProgress) == []


def test_a_source_that_the_plan_has_under_another_name_has_the_options_of_all() -> None:
    given = {"kafka.bootstrap.servers": NOWHERE, "kafka.group.id": "mine"}
    query = make_query([Leaf("AvailableNowDataStreamWrapper@1", given)], source(FASTQ, LOGS_JSON))
    (found,) = kafka_sources(query, query.lastProgress)
    assert (found.offsets, found.group_id) == (LOGS, "mine")
    query = make_query(
        [Leaf("one", given), Leaf("two", {"kafka.bootstrap.servers": "other:1"})], source(FASTQ, LOGS_JSON)
    )
    assert kafka_sources(query, query.lastProgress) == []


def test_a_source_that_only_looks_like_one_is_passed_over() -> None:
    query = make_query([Leaf("other", {"path": "/data"}), Leaf("table", None)], source("other", LOGS_JSON))
    assert kafka_sources(query, query.lastProgress) == []


def test_what_only_a_consumer_needs_is_left_out() -> None:
    given = {"kafka.bootstrap.servers": NOWHERE, "kafka.max.poll.records": "7", "kafka.request.timeout.ms": "1234"}
    given |= {"kafka.isolation.level": "READ_COMMITTED", "kafka.fetch.max.bytes": "1"}
    query = make_query([Leaf(JVM, given)], source(JVM, LOGS_JSON))
    (found,) = kafka_sources(query, query.lastProgress)
    assert found.admin_config({}).request_timeout_ms == 1234
    assert found.read_committed
    assert found.admin_config({"request_timeout_ms": 99}).request_timeout_ms == 99


def test_where_two_sources_read_a_partition_the_one_behind_counts() -> None:
    sources = (source(FASTQ, LOGS_JSON), source(JVM, '{"logs":{"0":1,"1":9}}'))
    given = {"kafka.bootstrap.servers": NOWHERE}
    query = make_query([Leaf(FASTQ, given), Leaf(JVM, given)], *sources)
    found = earliest_of(kafka_sources(query, query.lastProgress))
    assert found == {TopicPartition("logs", 0): 1, TopicPartition("logs", 1): 5}


def test_without_a_plan_the_ends_are_those_of_the_last_trigger() -> None:
    query = make_query([], source(FASTQ, LOGS_JSON, '{"logs":{"0":4,"1":5}}'), classic=False)
    assert lag(query) == {TopicPartition("logs", 0): QueryLag(3, 4), TopicPartition("logs", 1): QueryLag(5, 5)}
    (found,) = kafka_sources(query, query.lastProgress)
    with pytest.raises(ConfigError, match="give bootstrap_servers"):
        found.admin_config({})


def test_no_progress_is_no_lag_yet() -> None:
    query = SimpleNamespace(lastProgress=None)
    assert lag(query) == {}  # type: ignore[arg-type]


def test_lag_is_never_below_zero() -> None:
    assert QueryLag(5, 3).lag == 0


def test_a_listener_whose_broker_is_away_says_so_once_and_hinders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    query = make_query([Leaf(FASTQ, {"kafka.bootstrap.servers": NOWHERE})], source(FASTQ, LOGS_JSON))
    session = SimpleNamespace(streams=SimpleNamespace(get=lambda _id: query))
    listener = OffsetCommitListener(session, timeout_s=0.3)  # type: ignore[arg-type]
    event: Any = SimpleNamespace(progress=query.lastProgress, id="q", runId="r")
    with caplog.at_level(logging.WARNING, "fastq.spark"):
        listener.onQueryStarted(event)
        for _ in range(3):
            listener.onQueryProgress(event)
        listener.onQueryIdle(event)
        listener.onQueryTerminated(event)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "fastq.spark"]
    assert len([record for record in caplog.records if record.name == "fastq.net"]) == 1, (
        "the network layer says it once too"
    )
    assert "query job" in line
    assert NOWHERE in line


def test_a_listener_refuses_a_bad_client_at_once() -> None:
    session: Any = SimpleNamespace(streams=None)
    with pytest.raises(ConfigError, match="request_timeout_ms"):
        OffsetCommitListener(session, request_timeout_ms=-5)
