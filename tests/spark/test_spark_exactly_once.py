"""Exactly-once writing: tasks that are tried again, replayed, run twice or come too late write nothing twice and lose nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.errors import TransactionFenced
from fastq.spark import NotTheSameBatch
from fastq.spark.exactly_once import PARTITIONS_AT_FIRST, PROGRESS_TOPIC, Progress, checked_config
from fastq.spark.options import SinkOptions
from fastq.spark.sink import StreamSink, Written
from fastq.testing import Broker

VALUE = StructType([StructField("value", StringType())])


def values_of(bootstrap_servers: str, topic: str, isolation_level: str = "read_committed") -> Counter[str]:
    """How often each value is in a topic."""
    with Consumer(
        topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        return Counter(record.value.decode() for record in consumer.read_to_end())


def committed_of(bootstrap_servers: str, name: str) -> dict[int, tuple[int, int]]:
    """By partition, the batch id and the number of rows that a query's tasks have committed."""
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        outcomes = admin.list_group_offsets(f"fastq-spark-{name}", require_stable=True)
    found = {}
    for tp, outcome in outcomes.items():
        offset = outcome.result()
        assert tp.topic == PROGRESS_TOPIC and offset is not None
        found[tp.partition] = offset.offset, json.loads(offset.metadata)["rows"]
    return found


# -- batches of a DataFrame -----------------------------------------------------------------------------------------


def write(frame: DataFrame, bootstrap_servers: str, topic: str, token: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, "delivery": "exactly-once", "token": token}
    frame.write.format("fastq").options(**options).mode("append").save()


def test_a_write_that_is_done_again_is_passed_over(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    frame = spark.range(0, 200, 1, 4).select(F.col("id").cast("string").alias("value"))
    for _ in range(2):
        write(frame, bootstrap_servers, topic, token=topic)
    once = {str(number): 1 for number in range(200)}
    assert values_of(bootstrap_servers, topic) == once
    assert committed_of(bootstrap_servers, topic) == dict.fromkeys(range(4), (0, 50))
    with pytest.raises(PySparkException, match="came again with"):
        write(frame.repartition(2), bootstrap_servers, topic, token=topic)
    assert values_of(bootstrap_servers, topic) == once
    write(frame, bootstrap_servers, topic, token=f"{topic}-again")
    assert values_of(bootstrap_servers, topic) == dict.fromkeys(once, 2)


def test_a_write_that_failed_in_the_middle_is_completed(
    spark: SparkSession, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    """One of two tasks fails after it has sent rows; the next time, only its rows are written, and once."""
    flag = tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if number == 2 and TaskContext.get().partitionId() == 1 and not flag.exists():
                flag.touch()
                raise RuntimeError("failed on purpose")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        frame = spark.range(0, 100, 1, 2).select(F.col("id").cast("string").alias("value"))
        frame = frame.mapInArrow(fails_once, "value string")
        with pytest.raises(PySparkException, match="failed on purpose"):
            write(frame, bootstrap_servers, topic, token=topic)
        assert 1 not in committed_of(bootstrap_servers, topic)
        write(frame, bootstrap_servers, topic, token=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values_of(bootstrap_servers, topic) == {str(number): 1 for number in range(100)}
    assert committed_of(bootstrap_servers, topic) == {0: (0, 50), 1: (0, 50)}


RETRIED = """
    import os, signal, sys
    from pyspark import TaskContext
    from pyspark.sql import SparkSession, functions as F

    servers, topic = sys.argv[1:]
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    spark = builder.getOrCreate()

    def killed(batches):
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 + context.attemptNumber() and context.attemptNumber() + context.partitionId() < 2:
                os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.range(0, 100, 1, 2).select(F.col("id").cast("string").alias("value"))
    frame = frame.mapInArrow(killed, "value string")
    writer = frame.write.format("fastq").option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer.option("delivery", "exactly-once").option("token", topic).mode("append").save()
    spark.stop()
"""


@pytest.mark.slow
def test_tasks_that_spark_tries_again_write_once(
    bootstrap_servers: str, topic: str, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    """One task loses its worker twice and the other once, in the middle of its rows."""
    import os

    script = tmp_path / "retried.py"
    script.write_text(textwrap.dedent(RETRIED))
    done = subprocess.run(
        [sys.executable, str(script), bootstrap_servers, topic],
        env={**os.environ, **spark_environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert values_of(bootstrap_servers, topic) == {str(number): 1 for number in range(100)}


# -- streams --------------------------------------------------------------------------------------------------------


def test_a_batch_that_spark_replays_is_passed_over(
    load_stream: Callable[..., DataFrame],
    bootstrap_servers: str,
    topic: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Spark forgets that a batch was committed, as after a crash between the tasks' end and its own note."""
    copy = make_topic(bootstrap_servers, 2)
    checkpoint = tmp_path / "checkpoint"

    def run() -> Any:
        writer = load_stream(subscribe=topic, startingOffsets="earliest").select("value").writeStream.format("fastq")
        options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": copy, "delivery": "exactly-once"}
        writer = writer.options(checkpointLocation=str(checkpoint), **options).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(60)
        return query

    for part in range(2):
        with Producer(bootstrap_servers=bootstrap_servers) as producer:
            for number in range(30):
                producer.send(topic, b"%d" % (30 * part + number))
        query = run()
    everything = {str(number): 1 for number in range(60)}
    assert values_of(bootstrap_servers, copy) == everything
    last = max(batch for batch, _ in committed_of(bootstrap_servers, query.id).values())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    again = run()
    assert again.id == query.id and again.lastProgress["batchId"] >= last
    assert values_of(bootstrap_servers, copy) == everything
    assert values_of(bootstrap_servers, copy, "read_uncommitted") == everything
    # Back to the start, with the same id: batches that are long committed are not written again either.
    for folder in ("commits", "offsets"):
        shutil.rmtree(checkpoint / folder)
    with pytest.raises(PySparkException, match="has committed batch"):
        run()
    assert values_of(bootstrap_servers, copy) == everything


# -- attempts at the same time, without Spark -----------------------------------------------------------------------


class FakeTask:
    """What a task can ask Spark about itself."""

    def __init__(self, query: str, batch_id: int, partition: int = 0) -> None:
        self.properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch_id)}
        self.partition = partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return 0


class Attempts:
    """Runs attempts at a query's tasks in this process, one inside of the other where a test wants that."""

    def __init__(self, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, "delivery": "exactly-once", **options}
        self.sink = StreamSink(SinkOptions.parse(given, streaming=True), VALUE, False)
        self.query = topic
        self.monkeypatch = monkeypatch

    def run(self, batch_id: int, batches: Iterator[pa.RecordBatch], partition: int = 0) -> Written:
        task = FakeTask(self.query, batch_id, partition)
        before = TaskContext.get
        self.monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: task))
        try:
            return self.sink.write(batches)
        finally:
            self.monkeypatch.setattr(TaskContext, "get", before)


@pytest.fixture
def attempts(bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(bootstrap_servers, topic, monkeypatch)


def batch_of(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def test_a_later_attempt_fences_the_one_that_is_at_it(attempts: Attempts, bootstrap_servers: str, topic: str) -> None:
    """The first attempt is at its second batch when a second one (speculation, or a retry while it is a zombie) does all."""
    inner = []

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch_of("a", "b")
        inner.append(attempts.run(3, iter([batch_of("a", "b"), batch_of("c")])))
        yield batch_of("c")

    with pytest.raises(TransactionFenced):
        attempts.run(3, overtaken())
    assert [(task.rows, task.skipped) for task in inner] == [(3, False)]
    assert values_of(bootstrap_servers, topic) == {"a": 1, "b": 1, "c": 1}
    assert committed_of(bootstrap_servers, topic) == {0: (3, 3)}
    late = attempts.run(3, iter([batch_of("a", "b", "c")]))
    assert (late.rows, late.skipped, late.committed) == (3, True, (0,))
    assert values_of(bootstrap_servers, topic, "read_uncommitted")["c"] <= 2


def test_a_zombie_of_an_old_batch_is_refused(attempts: Attempts, bootstrap_servers: str, topic: str) -> None:
    attempts.run(3, iter([batch_of("a")]))
    attempts.run(4, iter([batch_of("b")]))
    with pytest.raises(NotTheSameBatch, match="has committed batch 4, and this is batch 3"):
        attempts.run(3, iter([batch_of("a")]))
    assert values_of(bootstrap_servers, topic) == {"a": 1, "b": 1}


def test_what_a_failed_attempt_sent_is_not_seen(attempts: Attempts, bootstrap_servers: str, topic: str) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(*(str(number) for number in range(100)))
        raise RuntimeError("the input broke")

    with pytest.raises(RuntimeError, match="the input broke"):
        attempts.run(0, failing())
    assert values_of(bootstrap_servers, topic) == {}
    assert committed_of(bootstrap_servers, topic) == {}
    attempts.run(0, iter([batch_of("1", "2")]))
    assert values_of(bootstrap_servers, topic) == {"1": 1, "2": 1}


def test_a_batch_that_comes_with_other_rows_or_tasks_is_refused(
    attempts: Attempts, bootstrap_servers: str, topic: str
) -> None:
    first = [attempts.run(7, iter([batch_of(str(number))]), partition=number) for number in range(3)]
    assert all(task.rows == 1 and not task.skipped for task in first)
    attempts.sink.commit(list(first), 7)
    with pytest.raises(
        NotTheSameBatch, match="committed batch 7 with 1 rows with 1 bytes, and it came again with 2 rows"
    ):
        attempts.run(7, iter([batch_of("0", "1")]))
    fewer = [attempts.run(7, iter([batch_of(str(number))]), partition=number) for number in range(2)]
    with pytest.raises(
        NotTheSameBatch,
        match="rows in 2 of 2 tasks now, and an earlier attempt at it has committed rows of partition 2",
    ):
        attempts.sink.commit(list(fewer), 7)
    assert values_of(bootstrap_servers, topic) == {"0": 1, "1": 1, "2": 1}


def test_a_task_without_rows_leaves_no_trace(attempts: Attempts, bootstrap_servers: str, topic: str) -> None:
    assert attempts.run(0, iter([])) == Written(0, 0)
    assert attempts.run(0, iter([batch_of()])) == Written(0, 0)
    assert committed_of(bootstrap_servers, topic) == {}


def test_more_tasks_than_the_progress_topic_has_partitions(
    attempts: Attempts, bootstrap_servers: str, topic: str
) -> None:
    many = PARTITIONS_AT_FIRST + 9
    attempts.run(0, iter([batch_of("x")]), partition=many)
    assert committed_of(bootstrap_servers, topic) == {many: (0, 1)}
    with Progress(checked_config({"bootstrap.servers": bootstrap_servers}, "t"), "g") as progress:
        progress.make_room(many)
        assert progress.committed() == {}
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        assert len(admin.describe_topic(PROGRESS_TOPIC).partitions) == 2 * PARTITIONS_AT_FIRST


@pytest.mark.parametrize(
    ("api", "error", "passing"),
    [
        ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS", True),
        ("Produce", "NOT_LEADER_OR_FOLLOWER", True),
        ("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", True),
        ("EndTxn", "COORDINATOR_NOT_AVAILABLE", True),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS", True),
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", False),
        ("TxnOffsetCommit", "GROUP_AUTHORIZATION_FAILED", False),
        ("EndTxn", "INVALID_TXN_STATE", True),
        ("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False),
        ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False),
    ],
)
def test_errors_of_the_broker(
    faulty_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    make_topic: Callable[..., str],
    api: str,
    error: str,
    passing: bool,
) -> None:
    """What passes is waited for; what does not fails the task, and the next attempt writes each row once."""
    servers = faulty_broker.bootstrap_servers
    topic = make_topic(servers)
    attempts = Attempts(servers, topic, monkeypatch)
    attempts.run(0, iter([batch_of("before")]))
    faulty_broker.fail(api, error=error, times=2 if passing else 1)
    try:
        if passing:
            attempts.run(1, iter([batch_of("a", "b")]))
        else:
            with pytest.raises(Exception, match=error):
                attempts.run(1, iter([batch_of("a", "b")]))
    finally:
        faulty_broker.clear_faults()
    again = attempts.run(1, iter([batch_of("a", "b")]))
    assert again.skipped == passing
    assert values_of(servers, topic) == {"before": 1, "a": 1, "b": 1}


@pytest.fixture(scope="module")
def faulty_broker() -> Iterator[Broker]:
    with Broker(in_memory=True) as broker:
        yield broker


def test_a_commit_whose_answer_is_lost_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    """The broker dies when the commit has been asked for: whatever became of it, the next attempt ends with each row once."""
    topic = new_topic_name()
    with Broker(data_dir=tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, 1)
        attempts = Attempts(servers, topic, monkeypatch, **{"kafka.max.block.ms": "2000"})

        def dying() -> Iterator[pa.RecordBatch]:
            yield batch_of("a", "b")
            broker.kill()

        with pytest.raises(Exception, match=r"did not finish|not delivered|refused|max_block_ms"):
            attempts.run(0, dying())
        broker.start()
        done = attempts.run(0, iter([batch_of("a", "b")]))
        assert done.rows == 2
        assert values_of(servers, topic) == {"a": 1, "b": 1}
        with Admin(bootstrap_servers=servers) as admin:
            assert TopicPartition(PROGRESS_TOPIC, 0) in admin.list_group_offsets(f"fastq-spark-{topic}")
