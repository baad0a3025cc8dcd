"""What the picture of log lines shows: lines per minute with the alerts, lines by level, the top templates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
from log_lines import LEVELS
from matplotlib import dates

from pipeline.plots import ALARM, MARKS_MAX, PALETTE, Table, bars_with_text, shortened, thousands
from pipeline.workload import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVEL_COLOURS = {
    "FATAL": "#7f0000",
    "ERROR": "#d33a2c",
    "WARN": "#f2a33a",
    "INFO": "#4c78a8",
    "DEBUG": "#86a9c9",
    "TRACE": "#b9cde0",
    "-": "#c4c4c4",
}
TEMPLATES_SHOWN = 14


def moment(text: str) -> datetime:
    """A window's start, as Spark writes it into JSON."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def per_minute(axes: Axes, found: Results) -> None:
    """Stacked bars by source, and a mark on every minute with alerts."""
    minutes: dict[str, Counter[str]] = defaultdict(Counter)
    for facts in found.facts:
        minutes[facts["start"]][facts["source"]] += facts["lines"]
    starts = sorted(minutes)
    xs = [float(dates.date2num(moment(start))) for start in starts]
    bottoms = [0] * len(starts)
    sources = sorted({source for counts in minutes.values() for source in counts})
    for place, source in enumerate(sources):
        heights = [minutes[start][source] for start in starts]
        colour = PALETTE[place % len(PALETTE)]
        hatch = "//" if place >= len(PALETTE) else None
        axes.bar(xs, heights, bottom=bottoms, width=0.86 / 1440, align="edge", color=colour, label=source, hatch=hatch)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    top = max(bottoms, default=1)
    _mark_alerts(axes, found.alerts, dict(zip(starts, zip(xs, bottoms, strict=True), strict=True)), top)
    axes.set_ylim(0, top * 1.38)
    axes.set_xlim(xs[0] - 0.3 / 1440, xs[-1] + 1.3 / 1440)
    axes.xaxis.set_major_locator(dates.MinuteLocator(byminute=range(0, 60, 5)))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.yaxis.set_major_formatter(thousands)
    axes.set_title("Lines per minute of replay, by source, and the largest alerts")
    axes.set_xlabel("time of replay, UTC")
    axes.set_ylabel("lines a minute")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _mark_alerts(axes: Axes, alerts: list[dict[str, Any]], tops: dict[str, tuple[float, int]], top: int) -> None:
    by_minute: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for alert in alerts:
        by_minute[alert["start"]].append(alert)
    if not by_minute:
        return
    xs = [tops[start][0] + 0.43 / 1440 for start in by_minute]
    ys = [tops[start][1] + top * 0.05 for start in by_minute]
    axes.scatter(xs, ys, marker="v", color=ALARM, s=46, zorder=5, label="alerts")
    for place, (start, found) in enumerate(_worst(by_minute)):
        first = max(found, key=_excess)
        text = f"{shortened(first['series'], 52)}: {first['measure']:,} lines, {first['expected']:.1f} expected"
        text += f", and {len(found) - 1} more" if len(found) > 1 else ""
        axes.annotate(
            f"{moment(start):%H:%M}  {text}",
            (0.004, 0.955 - 0.065 * place),
            xycoords="axes fraction",
            fontsize=9,
            color=ALARM,
        )


def _excess(alert: dict[str, Any]) -> float:
    return float(alert["measure"] / max(alert["limit"], 1))


def _worst(by_minute: dict[str, list[dict[str, Any]]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The minutes with the largest alerts, as many as are to be named, in the order of time."""
    return sorted(sorted(by_minute.items(), key=lambda item: -max(map(_excess, item[1])))[:MARKS_MAX])


def levels(axes: Axes, found: Results) -> None:
    """Lines by level, a bar a source."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for facts in found.facts:
        counts[facts["source"]][facts["level"]] += facts["lines"]
    sources = sorted(counts, key=lambda source: counts[source].total())
    lefts = [0] * len(sources)
    for level in LEVELS:
        widths = [counts[source][level] for source in sources]
        if any(widths):
            label = "no level" if level == "-" else level
            axes.barh(sources, widths, left=lefts, color=LEVEL_COLOURS[level], label=label, height=0.7)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    top = max(lefts, default=1)
    for place, total in enumerate(lefts):
        axes.text(total + top * 0.01, place, f"{total:,}", va="center", fontsize=9)
    axes.set_xlim(0, top * 1.13)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(thousands)
    axes.set_title("Lines by source and level")
    axes.set_xlabel("lines")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=7)


def top_templates(warehouse: Path, count: int) -> list[tuple[str, str, int]]:
    """The templates that most lines have: (source, template, lines)."""
    table = pyarrow.dataset.dataset(warehouse, partitioning="hive").to_table(columns=["source", "template"])
    rows = table.group_by(["source", "template"]).aggregate([([], "count_all")]).to_pylist()
    rows.sort(key=lambda row: (-row["count_all"], row["template"]))
    return [(row["source"], row["template"], row["count_all"]) for row in rows[:count]]


def templates(axes: Axes, warehouse: Path) -> None:
    """The top templates, written on their bars."""
    rows = [
        (shortened(f"{source}: {text}", 70), float(lines))
        for source, text, lines in top_templates(warehouse, TEMPLATES_SHOWN)
    ]
    bars_with_text(axes, rows, "Top templates: lines that differ only in what is masked as <*>", "lines")


def panels(found: Results, warehouse: Path) -> list[Callable[[Axes], None]]:
    """The three panels of the picture."""
    return [
        lambda axes: per_minute(axes, found),
        lambda axes: levels(axes, found),
        lambda axes: templates(axes, warehouse),
    ]


def tables(found: Results, warehouse: Path) -> list[Table]:
    """The tables of the page."""
    alerts = [
        (alert["start"][:16].replace("T", " "), alert["series"], alert["measure"], alert["expected"], alert["limit"])
        for alert in found.alerts
    ]
    return [
        Table("Alerts", ("minute, UTC", "source/level/component", "lines", "expected", "limit"), alerts),
        Table("Top templates", ("source", "template", "lines"), top_templates(warehouse, 25)),
    ]
