"""What the three jobs share: their arguments, a Spark session, the source, and how a job ends.

Rules: a job commits its progress to the consumer group named after it. A streaming job says "running" once its query runs,
works until its standard input closes, finishes what is there by then, and ends with 0; so it ends too when whoever started
it dies. A query that fails ends the job with its error.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.spark import OffsetCommitListener, session
from pipeline.workload import Workload, workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FINISH_WITHIN_S = 120.0
CONFIG = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # a short life: compile quickly, not well
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.execution.arrow.maxRecordsPerBatch": 20_000,
    "spark.sql.streaming.minBatchesToRetain": 10,
}


class Job:
    """One of the three jobs, in its own process: what it was told, and its session."""

    def __init__(self, name: str, config: dict[str, object] | None = None) -> None:
        parser = argparse.ArgumentParser(
            prog=f"python -m pipeline.{name}", description=f"The job {name} of the pipeline."
        )
        parser.add_argument("--workload", choices=("lines", "flights"), default="lines")
        parser.add_argument("--servers", required=True, help="the broker to read from, and to write results to")
        parser.add_argument("--far-servers", help="the broker to copy to")
        parser.add_argument("--home", type=Path, required=True, help="the folder for checkpoints and stored data")
        options = parser.parse_args()
        self.name = name
        self.workload: Workload = workload(options.workload)
        self.servers: str = options.servers
        self.far_servers: str = options.far_servers or ""
        self.home: Path = options.home.resolve()
        self.spark: SparkSession = session(f"pipeline {name}", master="local[2]", config={**CONFIG, **(config or {})})
        self.listener = OffsetCommitListener(self.spark, name)
        self.spark.streams.addListener(self.listener)

    def source(self) -> DataFrame:
        """All topics with events, from the beginning; a restart goes on where the checkpoint is."""
        return (
            self.spark.readStream.format("fastq")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribePattern", self.workload.TOPICS)
            .option("startingOffsets", "earliest")
            .load()
        )

    def checkpoint(self) -> str:
        return str(self.home / "checkpoints" / self.name)

    def run(self, start: Callable[[], StreamingQuery]) -> None:
        """Work until standard input closes, then finish what is there."""
        query = start()
        print("running", flush=True)
        closed = threading.Event()
        threading.Thread(target=_wait_for_end_of_input, args=(closed,), daemon=True).start()
        while not closed.wait(0.2):
            if not query.isActive:
                query.awaitTermination()  # raises what it failed with
                sys.exit(f"{self.name}: the query ended")
        threading.Thread(target=_end_at_last, daemon=True).start()
        query.processAllAvailable()
        self.end(query)

    def end(self, query: StreamingQuery) -> None:
        """Commit what the query has read in the end, of which the listener may hear too late, and stop Spark."""
        self.listener.commit(query)
        query.stop()
        self.spark.stop()


def _wait_for_end_of_input(closed: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    closed.set()


def _end_at_last() -> None:
    """For a broker that has gone too: without it nothing is ever finished."""
    time.sleep(FINISH_WITHIN_S)
    print(f"not finished within {FINISH_WITHIN_S:g} s after the end", file=sys.stderr, flush=True)
    os._exit(1)
