"""Log lines as a workload: a topic for each source, counts per minute by level and component.

Rules: a source is the beginning of a file's name; the first SOURCES_MAX have topics of their own, later ones share one. A
record is the line as it is, keyed by its component. Its timestamp is the time of replay: logs that span years are laid over
the minutes before now, each source at an even pace. The time that the line tells is kept as a column, and so is its template.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from log_lines import LogLine, classify, line_time, log_files, read_lines

from pipeline.baseline import Baseline
from pipeline.templates import template
from pipeline.workload import CLOSING, Check, Event, Replay

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from pipeline.workload import Results

TITLE = "log lines"
TOPICS = r"logs\..+"
WINDOW = "1 minute"
WATERMARK = "1 minute"
BASELINE = Baseline(windows=20, warm_up=5, deviations=4.0, least=10)

PREFIX = "logs."
PARTITIONS = 2
SOURCES_MAX = 16
MINUTE_MS = 60_000
TICKS_A_MINUTE = 6


# -- what the front end sends ------------------------------------------------------------------------------------------------


def replay(options: argparse.Namespace) -> Replay:
    """The lines of `options.input`, laid over the last `options.minutes` whole minutes."""
    sources = read_sources(options.input, options.lines_max)
    if not sources:
        sys.exit(f"pipeline: no log lines in {options.input}: give a text file, or a folder that holds some")
    # A minute is left for the closing records, so that none of them is in the future.
    end_ms = (int(time.time() * 1000) // MINUTE_MS - 3) * MINUTE_MS
    start_ms = end_ms - options.minutes * MINUTE_MS
    events = merge(
        *(laid_out(*source, start_ms, end_ms) for source in sources.items()), key=lambda event: event.time_ms
    )
    return Replay(
        events=list(events),
        topics={PREFIX + source: PARTITIONS for source in sources},
        tick_ms=MINUTE_MS // TICKS_A_MINUTE,
        closing_ms=end_ms + 2 * MINUTE_MS,
    )


def read_sources(path: Path, lines_max: int) -> dict[str, list[LogLine]]:
    """The lines of each source, in the order of its files; at most `lines_max` in all, which is said where it cuts."""
    sources: dict[str, list[LogLine]] = {}
    room = lines_max
    for file in log_files(path):
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", file.name.split(".")[0]).strip("-") or "other"
        name = name if name in sources or len(sources) < SOURCES_MAX - 1 else "other"
        try:
            lines = list(read_lines(file))
        except OSError as error:
            print(f"  left out {file}: {error.strerror or error}", file=sys.stderr)
            continue
        if len(lines) > room:
            print(
                f"  {file}: {len(lines) - room:,} of its {len(lines):,} lines left out, see --lines-max",
                file=sys.stderr,
            )
        if lines[:room]:
            sources.setdefault(name, []).extend(lines[:room])
        room -= len(lines[:room])
    return sources


def laid_out(source: str, lines: list[LogLine], start_ms: int, end_ms: int) -> Iterator[Event]:
    """The lines of a source as events, at an even pace from `start_ms` to `end_ms`."""
    for index, line in enumerate(lines):
        moment = start_ms + (end_ms - start_ms) * (2 * index + 1) // (2 * len(lines))
        yield Event(PREFIX + source, line.component, line.text, moment)


def totals(replay: Replay) -> Counter[str]:
    """Lines by source and level."""
    found: Counter[str] = Counter()
    for event in replay.events:
        source = event.topic[len(PREFIX) :]
        found[f"{source} {classify(event.value, source.encode()).level}"] += 1
    return found


def counted(facts: dict[str, Any]) -> Counter[str]:
    return Counter({f"{facts['source']} {facts['level']}": facts["lines"]})


def findings(totals: Counter[str], found: Results, whole: bool) -> list[Check]:
    """Nothing is known of lines beforehand."""
    return []


# -- what the jobs do --------------------------------------------------------------------------------------------------------

KEPT = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
PARSED = ", source string, level string, component string"
KEPT_WITH_LINE = KEPT + PARSED + ", line_time timestamp, template string"


def windows(stream: DataFrame) -> DataFrame:
    """Lines per minute by source, level and component. The closing records stand in a minute that never closes."""
    from pyspark.sql import functions as f

    minutes = (
        stream.selectExpr("topic", "timestamp", "value")
        .mapInArrow(_with_level, "timestamp timestamp" + PARSED)
        .withWatermark("timestamp", WATERMARK)
        .groupBy(f.window("timestamp", WINDOW), "source", "level", "component")
        .agg(f.count("*").alias("lines"))
    )
    start = f.col("window.start").alias("start")
    facts = f.to_json(f.struct(start, "source", "level", "component", "lines")).alias("facts")
    return minutes.select(
        start, f.concat_ws("/", "source", "level", "component").alias("series"), f.col("lines").alias("measure"), facts
    )


def stored(stream: DataFrame) -> DataFrame:
    """Every line as it came, with what could be read of it."""
    from pyspark.sql import functions as f

    lines = stream.where(f.col("key") != CLOSING).selectExpr(
        "topic", "partition", "offset", "timestamp", "key", "value"
    )
    return lines.mapInArrow(_with_line, KEPT_WITH_LINE).withColumn("date", f.to_date("timestamp"))


def loaded(warehouse: Path) -> Counter[str]:
    """Lines by source and level, as stored."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(warehouse, partitioning="hive").to_table(columns=["source", "level"])
    rows = table.group_by(["source", "level"]).aggregate([([], "count_all")]).to_pylist()
    return Counter({f"{row['source']} {row['level']}": row["count_all"] for row in rows})


def _with_level(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """topic, timestamp, value -> timestamp, source, level, component."""
    import pyarrow as pa

    for batch in batches:
        columns = [batch.column("timestamp"), *_classified(batch)]
        yield pa.RecordBatch.from_arrays(columns, ["timestamp", "source", "level", "component"])


def _with_line(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The columns of KEPT -> those of KEPT_WITH_LINE."""
    import pyarrow as pa

    for batch in batches:
        texts = batch.column("value").to_pylist()
        read_at = batch.column("timestamp").to_pylist()
        times = [line_time(text, _in_utc(moment)) for text, moment in zip(texts, read_at, strict=True)]
        extra = [pa.array(times, pa.timestamp("us", "UTC")), pa.array(map(template, texts), pa.string())]
        names = [*batch.schema.names, "source", "level", "component", "line_time", "template"]
        yield pa.RecordBatch.from_arrays([*batch.columns, *_classified(batch), *extra], names)


def _classified(batch: pyarrow.RecordBatch) -> list[pyarrow.Array]:
    """Source, level and component of each line."""
    import pyarrow as pa

    sources = [topic[len(PREFIX) :] for topic in batch.column("topic").to_pylist()]
    values = batch.column("value").to_pylist()
    lines = [classify(value or b"", source.encode()) for value, source in zip(values, sources, strict=True)]
    return [
        pa.array(sources, pa.string()),
        pa.array([line.level for line in lines], pa.string()),
        pa.array([line.component.decode(errors="replace") for line in lines], pa.string()),
    ]


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
