"""Spark: our format and `foreachPartition` producer against Spark's JVM connector, on one fastq broker.

    python benchmarks/compare/spark.py [--rounds 5] [--rows 5000000] [--quick] [--only read write ...]

Rules: a session of each side with two cores each, of which one works at a time; sides in turn, after rounds that only warm
them up; topics that are written are made anew each time and their records counted. `--quick` is for looking whether
it runs: fewer rows and rounds, and nothing is saved.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support import Target, fastq_broker, interleave, medians, save, session_cpu_seconds, touch_memory

# isort: split
from spark_jvm import SparkSession, fastq_session, jvm_session
from spark_runs import READ_TOPICS

from fastq import Admin, Producer
from fastq.admin import OffsetSpec
from fastq.metadata import TopicPartition
from fastq.spark.java import NEWEST_PYSPARK, session_defaults

SCRIPTS = Path(__file__).with_name("spark_runs.py")
PARTITIONS = 4
ROWS = int(os.environ.get("FASTQ_BENCH_ROWS", "5000000"))
QUICK_ROWS, QUICK_ROUNDS = 2_000_000, 2
FOREACH_SHARE = 5
"""foreachPartition runs on so many times fewer rows: it is that much slower, and no less exact."""
MICRO_ROWS, MICRO_BATCHES, MICRO_FIRST = 100, 16, 4
"""Rows of a micro-batch, batches of a run, and how many at its beginning do not count."""

# side -> (session, format)
SIDES = {
    "fastq": ("fastq", "fastq"),
    "fastq-best": ("fastq-best", "fastq"),
    "fastq-topics": ("fastq-best", READ_TOPICS),
    "jvm": ("jvm", "kafka"),
}
# What `fastq.spark.session` sets: Unix sockets to the workers in Python, and Arrow without checks of its own. The JVM connector has no
# use of either.
FASTQ_BEST = session_defaults(NEWEST_PYSPARK)
# What users of the JVM connector set for throughput, of its consumer and of its producer.
JVM_BEST = {
    "read": {
        "kafka.max.partition.fetch.bytes": str(10 << 20),
        "kafka.max.poll.records": "10000",
        "kafka.receive.buffer.bytes": str(1 << 20),
    },
    "write": {"kafka.batch.size": "1000000", "kafka.linger.ms": "20", "kafka.buffer.memory": str(128 << 20)},
}
JVM_BEST["parquet"] = JVM_BEST["micro-batch"] = JVM_BEST["read"]
WHAT = ("read", "parquet", "write", "foreach", "micro-batch")
# figure of the results table -> (figure, above the line, below the line: the better one of them counts)
RATIOS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "batch read, 7 columns": ("rows_per_s", "fastq-topics read", ("jvm read", "jvm-best read")),
    "batch read, 7 columns, by the format": ("rows_per_s", "fastq-best read", ("jvm read", "jvm-best read")),
    "batch read, 7 columns, Spark's defaults": ("rows_per_s", "fastq read", ("jvm read", "jvm-best read")),
    "batch read to Parquet": ("rows_per_s", "fastq-topics parquet", ("jvm parquet", "jvm-best parquet")),
    "batch read to Parquet, by the format": ("rows_per_s", "fastq-best parquet", ("jvm parquet", "jvm-best parquet")),
    "batch read to Parquet, Spark's defaults": ("rows_per_s", "fastq parquet", ("jvm parquet", "jvm-best parquet")),
    "batch write": ("rows_per_s", "fastq-best write", ("jvm write", "jvm-best write")),
    "batch write, Spark's defaults": ("rows_per_s", "fastq write", ("jvm write", "jvm-best write")),
    "foreachPartition": ("rows_per_s", "fastq foreach_producer", ("fastq foreach_empty",)),
    "foreach_partition_arrow": ("rows_per_s", "fastq foreach_arrow", ("fastq foreach_producer",)),
    "micro-batch of 100 rows": ("median_ms", "fastq micro-batch", ("jvm micro-batch", "jvm-best micro-batch")),
}
WARM_UPS = 2
"""Rounds that do not count: the JVMs still compile in the first ones."""

Side = Callable[[], dict[str, float]]


class Bench:
    """A broker, the two sessions, and the topics of the runs."""

    def __init__(
        self, target: Target, sessions: dict[str, SparkSession], admin: Admin, folder: Path, rows: int
    ) -> None:
        self.target, self.sessions, self.admin, self.folder, self.rows = target, sessions, admin, folder, rows
        self._numbers = itertools.count()

    def fill(self, topic: str) -> None:
        """A topic of `rows` records with keys, spread evenly, and a look at whether both sides see them."""
        self.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        share = self.rows // PARTITIONS
        with Producer(bootstrap_servers=self.target.bootstrap_servers) as producer:
            for partition in range(PARTITIONS):
                for first in range(0, share, 500_000):
                    numbers = range(first, min(first + 500_000, share))
                    keys = [b"%d" % number for number in numbers]
                    producer.send_many(topic, [b"%0100d" % number for number in numbers], keys, partition=partition)
        self.rows = share * PARTITIONS
        for side, (session, format) in SIDES.items():
            found = self.sessions[session].call(
                "count", format=format, servers=self.target.bootstrap_servers, topic=topic
            )
            if found != self.rows:
                raise RuntimeError(f"{side} counts {found} rows of {self.rows}")

    def call(self, side: str, run: str, rows: int, **arguments: Any) -> dict[str, float]:
        """One run of a side, with the CPU of all processes of its session."""
        session = self.sessions[SIDES[side][0]]
        before = session_cpu_seconds(session.pid)
        figures = session.call(run, servers=self.target.bootstrap_servers, rows=rows, **arguments, timeout_s=300.0)
        return {**figures, "cpu_us_per_row": (session_cpu_seconds(session.pid) - before) / rows * 1e6}

    def reading(self, side: str, run: str, **arguments: Any) -> Side:
        return lambda: self.call(side, run, self.rows, format=SIDES[side][1], **arguments)

    def writing(self, side: str, run: str, rows: int, **arguments: Any) -> Side:
        def once() -> dict[str, float]:
            topic = f"in-{next(self._numbers)}"
            self.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
            try:
                figures = self.call(side, run, rows, topic=topic, **arguments)
                written = self.records(topic)
                if written != (0 if run == "foreach_empty" else rows):
                    raise RuntimeError(f"{side} {run}: {written} records of {rows}")
                return figures
            finally:
                self.admin.delete_topics([topic])

        return once

    def records(self, topic: str) -> int:
        ends = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in range(PARTITIONS)}
        return sum(end.offset for end in self.admin.list_offsets(ends).results().values())

    def micro_batches(self, side: str, **arguments: Any) -> Side:
        """The median duration of micro-batches that find 100 rows each, as the query itself reports it, and the CPU of its session for
        each, what it looks for between them with it."""

        def once() -> dict[str, float]:
            (name, format), number = SIDES[side], next(self._numbers)
            session = self.sessions[name]
            topic, servers = f"few-{number}", self.target.bootstrap_servers
            self.admin.create_topic(topic, partitions=1, replication_factor=1)
            checkpoint = str(self.folder / f"checkpoint-{number}")
            session.call("follow", format=format, servers=servers, topic=topic, checkpoint=checkpoint, **arguments)
            cpu = 0.0
            with Producer(bootstrap_servers=servers) as producer:
                for batch in range(MICRO_BATCHES):
                    if batch == MICRO_FIRST:
                        cpu = session_cpu_seconds(session.pid)
                    producer.send_many(topic, [b"v" * 100] * MICRO_ROWS).result(10)
                    session.call("wait_for_rows", rows=(batch + 1) * MICRO_ROWS)
            cpu = (session_cpu_seconds(session.pid) - cpu) / (MICRO_BATCHES - MICRO_FIRST)
            found = session.call("durations")[MICRO_FIRST:]
            median_ms = statistics.median(ms for rows, ms in found if rows == MICRO_ROWS)
            return {"median_ms": median_ms, "cpu_ms_per_batch": cpu * 1e3}

        return once

    def sides_of(self, what: str) -> dict[str, Side]:
        best = {"settings": JVM_BEST[what]} if what in JVM_BEST else {}
        if what == "read":
            sides = {f"{side} read": self.reading(side, "read", topic="all") for side in SIDES}
            return sides | {"jvm-best read": self.reading("jvm", "read", topic="all", **best)}
        if what == "parquet":
            folder = self.folder / "parquet"
            sides = {
                f"{side} parquet": self.reading(side, "parquet", topic="all", folder=str(folder / side))
                for side in SIDES
            }
            fast = self.reading("jvm", "parquet", topic="all", folder=str(folder / "jvm"), **best)
            return sides | {"jvm-best parquet": fast}
        if what == "write":
            sides = {
                f"{side} write": self.writing(side, "write", self.rows, format=format)
                for side, (_, format) in SIDES.items()
                if format != READ_TOPICS
            }
            return sides | {"jvm-best write": self.writing("jvm", "write", self.rows, format=SIDES["jvm"][1], **best)}
        if what == "foreach":
            few = self.rows // FOREACH_SHARE
            counts = {"foreach_empty": few, "foreach_producer": few, "foreach_arrow": self.rows}
            return {f"fastq {run}": self.writing("fastq", run, rows) for run, rows in counts.items()}
        sides = {f"{side} micro-batch": self.micro_batches(side) for side in ("fastq", "jvm")}
        return sides | {"jvm-best micro-batch": self.micro_batches("jvm", **best)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Our Spark side against Spark's JVM connector on one fastq broker.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=WHAT, default=WHAT)
    options = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if options.quick else (options.rows, options.rounds)
    if not options.quick:
        touch_memory()
    found: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-")))
        target = stack.enter_context(fastq_broker(**{"log.segment.delete.delay.ms": 1000}))
        memory = {"spark.driver.memory": "2g"}
        sessions = {
            "fastq": stack.enter_context(fastq_session(SCRIPTS, memory)),
            "fastq-best": stack.enter_context(fastq_session(SCRIPTS, memory | FASTQ_BEST)),
            "jvm": stack.enter_context(jvm_session(SCRIPTS, memory)),
        }
        admin = stack.enter_context(Admin(bootstrap_servers=target.bootstrap_servers))
        bench = Bench(target, sessions, admin, folder, rows)
        bench.fill("all")
        for what in WHAT:
            if what in options.only:
                sides = bench.sides_of(what)
                print(f"{what}, to warm up")
                interleave(sides, WARM_UPS)
                found |= interleave(sides, rounds)
    middle = {run: medians(measured) for run, measured in found.items()}
    ratios = {}
    for title, (figure, ours, theirs) in RATIOS.items():
        against = [middle[run][figure] for run in theirs if run in middle]
        if ours in middle and against:
            ratios[title] = middle[ours][figure] / (min if figure == "median_ms" else max)(against)
    for title, ratio in ratios.items():
        print(f"{title:<38} {ratio:6.2f}x")
    if not options.quick and set(options.only) == set(WHAT):
        print(save("spark", {"rows": bench.rows, "medians": middle, "ratios": ratios, "rounds": found}))


if __name__ == "__main__":
    main()
