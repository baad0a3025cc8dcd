"""What a workload is: the records that the front end replays, and how the three jobs look at them.

Rules: event times are milliseconds since 1970 and become the records' timestamps: they are the time that windows and
watermarks go by. Events come in the order of their times. After the last event every partition gets one closing record
(key CLOSING, no value), so late that the watermark passes the last window; it is in no total.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline.baseline import Baseline

CLOSING = b"pipeline.closing"
COUNTS = "pipeline.counts"  # one record a window and series: what was counted
ALERTS = "pipeline.alerts"  # one record a window and series that is out of the ordinary
GROUPS = ("realtime", "offline", "mirror")


class Event(NamedTuple):
    """One record to be: where it goes, what it holds, and when it happened."""

    topic: str
    key: bytes
    value: bytes
    time_ms: int


@dataclass(frozen=True)
class Replay:
    """All events of a run, in the order of their times, and the topics they go to, with their numbers of partitions."""

    events: list[Event]
    topics: Mapping[str, int]
    tick_ms: int  # events of one tick are all acknowledged before the next tick begins
    closing_ms: int

    def ticks(self) -> Iterator[list[Event]]:
        for _, events in groupby(self.events, key=lambda event: event.time_ms // self.tick_ms):
            yield list(events)


class Check(NamedTuple):
    """One comparison: what it is about, whether it holds, and the numbers."""

    name: str
    holds: bool
    detail: str


class Results(NamedTuple):
    """What the real-time job wrote: the facts of all windows, and the alerts, both in the order of their windows."""

    facts: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    doubled: int  # records whose key came before: none, when each is written once


class Workload(Protocol):
    """The interface of `lines` and `flights`, which are modules."""

    TITLE: str
    TOPICS: str  # a regular expression of the topics with events
    WATERMARK: str  # a partition may be behind another by one tick: the watermark waits longer than that
    WINDOW: str
    BASELINE: Baseline

    def replay(self, options: argparse.Namespace) -> Replay:
        """The events, read from the input."""

    def totals(self, replay: Replay) -> Counter[str]:
        """What the events add up to, by names that are this workload's own."""

    def counted(self, facts: dict[str, Any]) -> Counter[str]:
        """The same names, from the facts of one record of the topic COUNTS."""

    def findings(self, totals: Counter[str], found: Results, whole: bool) -> list[Check]:
        """What is known of the events beforehand, compared; `whole`: all of them were replayed."""

    def windows(self, stream: DataFrame) -> DataFrame:
        """Of the source's rows: closed windows as (start, series, measure, facts), one row a window and series.

        measure is what the baseline judges, facts a JSON object for the topic COUNTS.
        """

    def stored(self, stream: DataFrame) -> DataFrame:
        """Of the source's rows: those to keep, with `date` and `source`, and with topic, partition and offset."""

    def loaded(self, warehouse: Path) -> Counter[str]:
        """The same names as `totals`, from what the offline job has stored."""


def workload(name: str) -> Workload:
    """The module of that name."""
    found: Any = import_module(f"pipeline.{name}")
    return found  # type: ignore[no-any-return]
