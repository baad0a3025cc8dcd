"""The broker is killed while a sink writes: the write raises, or all its rows are there.

Rules: the broker is killed and, in some runs, started again on the same data and port; when, is a seed's choice and in the name of
the test. What was written is read when the broker is back.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fastq import Admin, Consumer, TopicPartition
from fastq.spark import ForeachPartitionProducer, foreach_partition_arrow
from fastq.testing import Broker

ROWS = 200_000
IMPATIENT = {"delivery.timeout.ms": "6000", "request.timeout.ms": "2000", "linger.ms": "5", "max.block.ms": "6000"}
TOPIC = "written"
Write = Callable[[DataFrame, str], None]


def by_sink(frame: DataFrame, servers: str, **options: str) -> None:
    writer = frame.write.format("fastq").option("kafka.bootstrap.servers", servers).option("topic", TOPIC)
    for name, value in {**{f"kafka.{name}": value for name, value in IMPATIENT.items()}, **options}.items():
        writer = writer.option(name, value)
    writer.mode("append").save()


def by_exactly_once(frame: DataFrame, servers: str) -> None:
    by_sink(frame, servers, delivery="exactly-once", token="one write")


def by_foreach(frame: DataFrame, servers: str) -> None:
    options = {name.replace(".", "_"): int(value) for name, value in IMPATIENT.items()}
    frame.foreachPartition(ForeachPartitionProducer(TOPIC, bootstrap_servers=servers, value="value", **options))  # type: ignore[arg-type]


def by_arrow(frame: DataFrame, servers: str) -> None:
    options = {name.replace(".", "_"): int(value) for name, value in IMPATIENT.items()}
    foreach_partition_arrow(frame, TOPIC, bootstrap_servers=servers, value="value", **options)  # type: ignore[arg-type]


def values(servers: str) -> list[bytes]:
    """All committed records of the topic."""
    tp = TopicPartition(TOPIC, 0)
    found: list[bytes] = []
    with Admin(bootstrap_servers=servers) as admin:
        end = admin.list_offsets({tp: -1}, read_committed=True)[tp].result().offset
    with Consumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])
        while consumer.position(tp) < end:
            found += (record.value or b"" for record in consumer.poll(timeout=1.0))
    return found


# All of them under `make soak`; some elsewhere.
RUNS = [(by_sink, None), (by_exactly_once, 0.5), (by_arrow, None), (by_foreach, 0.5)]
if os.environ.get("FASTQ_SOAK") == "1":
    RUNS += [(by_sink, 0.5), (by_exactly_once, None), (by_arrow, 0.5), (by_foreach, None)]


class Killer(threading.Thread):
    """Kills the broker when the topic has grown to a size, and starts it again after a pause, if there is one."""

    def __init__(self, broker: Broker, size_bytes: int, pause_s: float | None) -> None:
        super().__init__(daemon=True)
        self.broker, self.size_bytes, self.pause_s = broker, size_bytes, pause_s
        self.killed, self.stopped = False, threading.Event()

    def run(self) -> None:
        folder = Path(self.broker.data_dir) / f"{TOPIC}-0"
        while not self.stopped.wait(0.001):
            if sum(file.stat().st_size for file in folder.glob("*.log")) >= self.size_bytes:
                self.broker.kill()
                self.killed = True
                if self.pause_s is not None:
                    time.sleep(self.pause_s)
                    self.broker.start()
                return


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("write", "pause_s"), RUNS)
def test_a_write_raises_or_has_all_its_rows(
    spark: SparkSession, write: Write, pause_s: float | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(request.node.name)
    with Broker(data_dir=tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, 1)
        frame = spark.range(0, ROWS, numPartitions=2).selectExpr("cast(lpad(id, 50, '0') as binary) as value")
        killer = Killer(broker, rng.randrange(1, ROWS * 10), pause_s)
        killer.start()
        failed = None
        try:
            write(frame, broker.bootstrap_servers)
        except PySparkException as error:
            failed = str(error)
        finally:
            killer.stopped.set()
            killer.join()
        assert killer.killed
        if not broker.running:
            assert failed, "the broker went away for good, and the write says that all went well"
            assert broker.bootstrap_servers in failed or TOPIC in failed, failed
            broker.start()
        found = values(broker.bootstrap_servers)
        wanted = {b"%050d" % number for number in range(ROWS)}
        assert set(found) <= wanted
        if failed is None:
            assert set(found) == wanted
        if write is by_exactly_once:
            assert len(found) == len(set(found))
