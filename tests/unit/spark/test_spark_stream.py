"""The stream reader without Spark: what it answers to the engine's questions, on logs that are a dictionary."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from test_spark_offsets import Cluster

from fastq.errors import ConfigError, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.spark import stream
from fastq.spark.offsets import DataLoss, read_offsets
from fastq.spark.options import SourceOptions
from fastq.spark.source import SCHEMA, RangePartition
from fastq.spark.stream import StreamReader

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


class Engine:
    """Asks a reader as Spark's micro-batch execution does: offsets go through text, and equal text is no batch."""

    def __init__(self, cluster: Cluster, **options: object) -> None:
        self.cluster = cluster
        self.now_s = 1000.0
        self.options = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a", "startingOffsets": "earliest"}
        self.options |= {name.replace("__", "."): str(value) for name, value in options.items()}
        self.committed: str | None = None
        self.batches: list[list[tuple[str, int, int]]] = []
        self.restart()

    def restart(self, available_now: bool = False) -> None:
        parsed = SourceOptions.parse(self.options, streaming=True)
        self.reader = StreamReader(parsed, SCHEMA, clock_s=lambda: self.now_s)
        self.reader._offsets.open_admin = lambda: self.cluster  # type: ignore[method-assign, assignment, return-value]
        self.start: str | None = self.committed
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def latest(self, limit: Any = None) -> str:
        """The end of the next micro-batch."""
        if self.start is None:
            self.start = json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return json.dumps(self.reader.latestOffset(json.loads(self.start), limit))

    def plan(self, start: str, end: str) -> list[tuple[str, int, int]]:
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        assert all(isinstance(task, RangePartition) for task in tasks)
        return [(str(task.wanted.tp), task.wanted.start, task.wanted.end) for task in tasks]  # type: ignore[attr-defined]

    def trigger(self, limit: Any = None) -> list[tuple[str, int, int]] | None:
        """One trigger: the tasks of its micro-batch, None when there is none."""
        end = self.latest(limit)
        assert self.start is not None
        if self.committed is not None and end == self.start:
            return None
        tasks = self.plan(self.start, end)
        self.start = self.committed = end
        self.batches.append(tasks)
        return tasks


def test_batches_follow_each_other_and_static_data_makes_none() -> None:
    cluster = Cluster({A: (0, 10), B: (2, 5)})
    engine = Engine(cluster)
    assert engine.trigger() == [("a-0", 0, 10), ("a-1", 2, 5)]
    assert [engine.trigger() for _ in range(3)] == [None, None, None]
    cluster.logs[B] = (2, 9)
    assert engine.trigger() == [("a-1", 5, 9)]
    assert engine.trigger() is None


def test_the_first_batch_of_a_query_on_empty_topics_is_the_only_one() -> None:
    engine = Engine(Cluster({A: (0, 0)}))
    assert [engine.trigger(), engine.trigger(), engine.trigger()] == [[], None, None]


def test_the_beginning_is_the_same_each_time_it_is_asked() -> None:
    cluster = Cluster({A: (0, 10)})
    engine = Engine(cluster, startingOffsets="latest")
    first = engine.reader.initialOffset()
    cluster.logs[A] = (0, 15)
    assert engine.reader.initialOffset() == first == {"a": {"0": 10}}


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_replay_of_the_first_batch_begins_where_it_began(starting: str) -> None:
    cluster = Cluster({A: (3, 10)})
    engine = Engine(cluster, startingOffsets=starting)
    engine.start = json.dumps(engine.reader.initialOffset())
    cluster.logs[A] = (3, 14)
    end = engine.latest()
    tasks = engine.plan(engine.start, end)
    # The driver dies before the batch is committed; more comes; retention takes what was first.
    cluster.logs[A] = (5, 30)
    engine.restart()
    again = json.dumps(engine.reader.initialOffset())
    assert engine.plan(again, end) == tasks == [("a-0", 10 if starting == "latest" else 3, 14)]
    engine.start = engine.committed = end
    assert engine.trigger() == [("a-0", 14, 30)]


def test_a_restarted_query_goes_on_where_it_was() -> None:
    cluster = Cluster({A: (0, 10)})
    engine = Engine(cluster)
    engine.trigger()
    cluster.logs[A] = (0, 12)
    engine.restart()
    assert engine.trigger() == [("a-0", 10, 12)]
    engine.restart()
    assert engine.trigger() is None


def test_offsets_of_the_jvm_connector_are_gone_on_from() -> None:
    engine = Engine(Cluster({A: (0, 10), B: (0, 5)}))
    engine.start = engine.committed = '{"a":{"1":5,"0":7}}'
    assert engine.trigger() == [("a-0", 7, 10)]


def test_a_batch_has_no_more_than_its_limit() -> None:
    engine = Engine(Cluster({A: (0, 90), B: (0, 10)}), maxOffsetsPerTrigger=50)
    assert engine.reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert engine.trigger() == [("a-0", 0, 45), ("a-1", 0, 5)]
    assert engine.trigger() == [("a-0", 45, 90), ("a-1", 5, 10)]
    assert engine.trigger() is None


def test_read_all_available_beats_the_limits() -> None:
    engine = Engine(Cluster({A: (0, 90)}), maxOffsetsPerTrigger=50, minOffsetsPerTrigger=10)
    assert engine.trigger(ReadAllAvailable()) == [("a-0", 0, 90)]


def test_a_batch_waits_until_there_is_enough_or_it_took_too_long() -> None:
    cluster = Cluster({A: (0, 5)})
    engine = Engine(cluster, minOffsetsPerTrigger=10, maxTriggerDelay="30s")
    assert engine.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert engine.trigger() == [("a-0", 0, 5)], "the first does not wait"
    cluster.logs[A] = (0, 14)
    assert engine.trigger() is None, "nine are not enough"
    cluster.logs[A] = (0, 15)
    assert engine.trigger() == [("a-0", 5, 15)]
    cluster.logs[A] = (0, 16)
    engine.now_s += 29
    assert engine.trigger() is None
    engine.now_s += 1
    assert engine.trigger() == [("a-0", 15, 16)]


def test_both_limits_at_once() -> None:
    cluster = Cluster({A: (0, 100)})
    engine = Engine(cluster, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=40, maxTriggerDelay="1h")
    assert [engine.trigger() for _ in range(4)] == [
        [("a-0", 0, 40)],
        [("a-0", 40, 80)],
        [("a-0", 80, 100)],
        None,
    ]
    cluster.logs[A] = (0, 109)
    assert engine.trigger() is None


def test_available_now_reads_what_was_there_and_no_more() -> None:
    cluster = Cluster({A: (0, 25)})
    engine = Engine(cluster, maxOffsetsPerTrigger=10, minOffsetsPerTrigger=8, maxTriggerDelay="1h")
    engine.restart(available_now=True)
    assert isinstance(engine.reader, SupportsTriggerAvailableNow)
    assert engine.trigger() == [("a-0", 0, 10)]
    cluster.logs[A] = (0, 1000)
    cluster.logs[B] = (0, 7)
    assert engine.trigger() == [("a-0", 10, 20)]
    assert engine.trigger() == [("a-0", 20, 25)], "minOffsetsPerTrigger does not hold back the last of it"
    assert engine.trigger() is None
    engine.restart(available_now=True)
    engine.trigger()
    assert engine.trigger() is not None, "the next run has the rest"


def test_new_partitions_are_read_from_their_first_record() -> None:
    cluster = Cluster({A: (0, 10)})
    engine = Engine(cluster, startingOffsets="latest")
    assert engine.trigger() == []
    cluster.logs[B] = (0, 4)
    assert engine.trigger() == [("a-1", 0, 4)]
    limited = Engine(Cluster({A: (0, 10)}), maxOffsetsPerTrigger=6)
    limited.trigger()
    limited.trigger()
    limited.cluster.logs[B] = (0, 60)
    assert limited.trigger() == [("a-1", 0, 6)]


def test_a_new_partition_that_does_not_begin_at_zero_has_lost_records() -> None:
    cluster = Cluster({A: (0, 10)})
    for fail in ("true", "false"):
        engine = Engine(cluster, failOnDataLoss=fail)
        cluster.logs.pop(B, None)
        engine.trigger()
        cluster.logs[B] = (3, 4)
        if fail == "true":
            with pytest.raises(DataLoss, match="new partition a-1 begins at offset 3"):
                engine.trigger()
        else:
            assert engine.trigger() == [("a-1", 3, 4)]


def test_topics_that_match_later_and_topics_that_go() -> None:
    cluster = Cluster({A: (0, 1)})
    engine = Engine(cluster, failOnDataLoss="false")
    del engine.options["subscribe"]
    engine.options["subscribePattern"] = "a|b"
    engine.restart()
    assert engine.trigger() == [("a-0", 0, 1)]
    cluster.logs[TopicPartition("b", 0)] = (0, 2)
    assert engine.trigger() == [("b-0", 0, 2)]
    del cluster.logs[A]
    assert engine.trigger() == [], "its offsets go from the checkpoint"
    assert engine.trigger() is None


@pytest.mark.parametrize(
    "selection", [{"subscribe": "a,b"}, {"subscribePattern": "a|b"}, {"assign": '{"a":[0],"b":[0]}'}]
)
def test_a_topic_that_is_deleted_is_data_loss(selection: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    for fail in ("true", "false"):
        cluster = Cluster({A: (0, 1), TopicPartition("b", 0): (0, 2)})
        engine = Engine(cluster, failOnDataLoss=fail)
        del engine.options["subscribe"]
        engine.options |= selection
        engine.restart()
        assert engine.trigger() == [("a-0", 0, 1), ("b-0", 0, 2)]
        del cluster.logs[TopicPartition("b", 0)]
        if fail == "true":
            with pytest.raises(DataLoss, match="b-0 are not there any more"):
                engine.trigger()
        else:
            assert engine.trigger() == []
            assert "b-0 are not there any more" in caplog.text


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("end", [4, 10, 25])
def test_a_topic_that_was_made_anew_is_data_loss_however_long_it_is(
    end: int, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for fail in ("true", "false"):
        cluster = Cluster({A: (0, 10)})
        cluster.ids["a"] = b"1" * 16
        engine = Engine(cluster, failOnDataLoss=fail, fetchOffset__retryIntervalMs=0)
        assert engine.trigger() == [("a-0", 0, 10)]
        assert engine.trigger() is None
        cluster.ids["a"], cluster.logs[A] = b"2" * 16, (0, end)
        if restarted:
            engine.restart()
        if fail == "true":
            with pytest.raises(DataLoss, match="the topic a was deleted and made anew"):
                engine.trigger()
        else:
            assert engine.trigger() == [("a-0", 0, end)]
            assert "the topic a was deleted and made anew" in caplog.text
            assert engine.trigger() is None
            cluster.logs[A] = (0, end + 1)
            assert engine.trigger() == [("a-0", end, end + 1)]


def test_a_micro_batch_that_is_replayed_on_a_topic_made_anew_has_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster({A: (0, 10)})
    cluster.ids["a"] = b"1" * 16
    engine = Engine(cluster, failOnDataLoss="false")
    engine.trigger()
    cluster.logs[A] = (0, 20)
    start, end = engine.start, engine.latest()
    assert start is not None
    cluster.ids["a"] = b"2" * 16
    engine.restart()
    assert engine.plan(start, end) == []
    assert "the topic a was deleted and made anew" in caplog.text
    engine.start = engine.committed = end
    assert engine.trigger() == [("a-0", 0, 20)]


def test_offsets_without_ids_are_gone_on_from() -> None:
    cluster = Cluster({A: (0, 10)})
    engine = Engine(cluster)
    engine.trigger()
    cluster.ids["a"] = b"1" * 16
    assert engine.trigger() is None
    cluster.logs[A] = (0, 11)
    assert engine.trigger() == [("a-0", 10, 11)]


def test_an_end_that_goes_back_is_data_loss() -> None:
    cluster = Cluster({A: (0, 10)})
    strict, mild = Engine(cluster), Engine(cluster, failOnDataLoss="false", fetchOffset__retryIntervalMs=0)
    strict.trigger()
    mild.trigger()
    cluster.logs[A] = (0, 4)
    with pytest.raises(DataLoss, match="the end of a-0 went back from offset 10 to 4"):
        strict.trigger()
    assert mild.trigger() == []
    cluster.logs[A] = (0, 6)
    assert mild.trigger() == [("a-0", 4, 6)]


def test_a_new_query_on_a_topic_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="no such topic: a"):
        Engine(Cluster({})).trigger()


@pytest.mark.parametrize(
    ("offset", "words", "begins"),
    [
        (30, "startingOffsets has 30, which is beyond the log: a-0 goes from 5 to 20", 20),
        (2, "has 2, which is gone", 5),
    ],
)
def test_a_beginning_that_is_not_in_the_log(offset: int, words: str, begins: int) -> None:
    starting = json.dumps({"a": {"0": offset}})
    with pytest.raises(DataLoss, match=words):
        Engine(Cluster({A: (5, 20)}), startingOffsets=starting).trigger()
    mild = Engine(Cluster({A: (5, 20)}), startingOffsets=starting, failOnDataLoss="false")
    mild.trigger()
    assert mild.reader.initialOffset() == {"a": {"0": begins}}


def test_tasks_are_split_as_the_options_say() -> None:
    assert Engine(Cluster({A: (0, 9)}), minPartitions=3).trigger() == [("a-0", 0, 3), ("a-0", 3, 6), ("a-0", 6, 9)]
    assert Engine(Cluster({A: (0, 5)}), maxRecordsPerPartition=3).trigger() == [("a-0", 0, 2), ("a-0", 2, 5)]


def test_progress_reports_the_ends_of_the_logs() -> None:
    engine = Engine(Cluster({A: (0, 90)}), maxOffsetsPerTrigger=50)
    assert engine.reader.reportLatestOffset() is None
    engine.trigger()
    found = engine.reader.reportLatestOffset()
    assert found is not None
    assert read_offsets(found) == {A: 90}


def test_questions_cost_one_request_for_topics_and_one_for_offsets() -> None:
    cluster = Cluster({TopicPartition("a", i): (0, 10) for i in range(40)})
    engine = Engine(cluster)
    engine.trigger()
    cluster.asked.clear()
    assert engine.trigger() is None
    assert cluster.asked == ["topics", "offsets"]


def test_the_copy_for_the_workers_has_no_client() -> None:
    engine = Engine(Cluster({A: (0, 1)}))
    options = SourceOptions.parse(engine.options, streaming=True)
    copy = pickle.loads(pickle.dumps(StreamReader(options, SCHEMA)))
    assert copy.options == options
    assert copy.columns == SCHEMA.fieldNames()


def test_an_older_spark_asks_without_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 and 4.1 call latestOffset() without arguments, and know no limits."""
    monkeypatch.setattr(stream, "HAS_LIMITS", False)
    cluster = Cluster({A: (0, 10)})
    engine = Engine(cluster)
    start, end = engine.reader.initialOffset(), engine.reader.latestOffset()
    assert engine.plan(json.dumps(start), json.dumps(end)) == [("a-0", 0, 10)]
    assert engine.reader.latestOffset() == end, "static data makes no batch"
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(ConfigError, match=f"{name} needs Spark 4.2"):
            Engine(cluster, **{name: 5})


def test_spark_sees_that_limits_are_understood() -> None:
    # Spark 4.2 and newer look at how many parameters there are.
    assert len(inspect.signature(Engine(Cluster({})).reader.latestOffset).parameters) == 2
