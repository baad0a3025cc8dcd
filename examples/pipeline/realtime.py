"""The real-time job: counts by window and series, and alerts where a series leaves its baseline.

    python -m pipeline.realtime --servers 127.0.0.1:9092 --home pipeline-data

Rules: a window counts once the watermark has passed it, so what is written is final. Counts and alerts of a task go out in
one transaction, exactly once: a window that is worked on again after a crash writes the same records, or none. Their key
is the series and the window, so that a compacted topic keeps every one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pipeline.baseline import Baseline
from pipeline.jobs import Job
from pipeline.workload import ALERTS, COUNTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
JUDGED = "series string, start timestamp, measure long, facts string, expected double, limit double, anomalous boolean"
_SECONDS = {"1 minute": 60, "1 hour": 3600}
STATE = "last bigint, recent array<double>"


class Judge(StatefulProcessor):
    """Holds the baseline of each series in Spark's state, and compares every window with it."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("baseline", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        last, recent = (self.state.get() if self.state.exists() else None) or (None, [])
        for row in sorted(rows, key=attrgetter("number")):
            skipped = 0 if last is None else row.number - last - 1
            verdict, recent = self.baseline.follow(recent, skipped, row.measure)
            last = row.number
            expected, limit = (None if math.isnan(value) else value for value in (verdict.expected, verdict.limit))
            yield Row(
                series=key[0],
                start=row.start,
                measure=row.measure,
                facts=row.facts,
                expected=expected,
                limit=limit,
                anomalous=verdict.anomalous,
            )
        self.state.update((last, recent))

    def close(self) -> None:
        pass


def judged(windows: DataFrame, baseline: Baseline, window: str) -> DataFrame:
    """The windows with what was expected of them."""
    number = f.expr(f"unix_timestamp(start) div {_SECONDS[window]}").alias("number")
    numbered = windows.select("*", number)
    return numbered.groupBy("series").transformWithState(Judge(baseline), JUDGED, "append", "None")


def records(judged: DataFrame) -> DataFrame:
    """A record for COUNTS of each window, and one for ALERTS of those out of the ordinary."""
    key = f.concat_ws("@", "series", f.date_format("start", "yyyy-MM-dd'T'HH:mm'Z'")).cast("binary")
    alert = f.to_json(f.struct("series", "start", "measure", "expected", "limit"))
    count = f.struct(f.lit(COUNTS).alias("topic"), key.alias("key"), f.col("facts").cast("binary").alias("value"))
    extra = f.struct(f.lit(ALERTS).alias("topic"), key.alias("key"), alert.cast("binary").alias("value"))
    both = f.when(f.col("anomalous"), f.array(count, extra)).otherwise(f.array(count))
    return judged.select(f.inline(both))


def main() -> None:
    job = Job("realtime", {"spark.sql.streaming.stateStore.providerClass": ROCKSDB})

    def start() -> StreamingQuery:
        work = job.workload
        return (
            records(judged(work.windows(job.source()), work.BASELINE, work.WINDOW))
            .writeStream.format("fastq")
            .queryName("realtime")
            .option("kafka.bootstrap.servers", job.servers)
            .option("delivery", "exactly-once")
            .option("checkpointLocation", job.checkpoint())
            .outputMode("append")
            .start()
        )

    job.run(start)


if __name__ == "__main__":
    main()
