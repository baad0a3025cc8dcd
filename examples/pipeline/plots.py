"""The picture of a run: what the workload shows of itself, then latency and lag, which every workload has.

Rules: every axis has a title and units; colours mean the same in all panels; nothing is drawn that was not measured in this
run. Matplotlib draws into a file, without a display.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pipeline.monitor import Monitor, percentile
from pipeline.workload import GROUPS

matplotlib.use("Agg")
from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JOB_COLOURS = {"realtime": "#1f6fb4", "offline": "#7a5aa6", "mirror": "#2a9d5c"}
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#eeca3b", "#ff9da6", "#bab0ac")
ALARM = "#c62828"
INK = "#333333"
MARKS_MAX = 3  # labels beside points; more would cover each other

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")


class Table(NamedTuple):
    """A table of the page."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]


def draw(path: Path, title: str, panels: Sequence[Callable[[Axes], None]], monitor: Monitor) -> None:
    """Save the picture: the first panel over the whole width, the two others of the workload, then latency and lag."""
    first, second, third = panels
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(15, 14), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12))
        figure.suptitle(title, fontsize=15, fontweight="bold", x=0.01, ha="left")
        grid = figure.add_gridspec(3, 2, height_ratios=(1.0, 1.15, 0.9))
        first(figure.add_subplot(grid[0, :]))
        second(figure.add_subplot(grid[1, 0]))
        third(figure.add_subplot(grid[1, 1]))
        latency(figure.add_subplot(grid[2, 0]), monitor)
        lag(figure.add_subplot(grid[2, 1]), monitor)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def latency(axes: Axes, monitor: Monitor) -> None:
    """The share of records that a job had committed within so many seconds."""
    for group in GROUPS:
        found = monitor.latencies(group)
        if not found:
            continue
        total = sum(count for _, count in found)
        xs, ys, seen = [], [], 0
        for seconds, count in found:
            seen += count
            xs.append(max(seconds, 0.05))
            ys.append(100 * seen / total)
        label = f"{group}: half within {percentile(found, 0.5):.1f} s, 99 % within {percentile(found, 0.99):.1f} s"
        axes.step(xs, ys, where="post", color=JOB_COLOURS[group], label=label, linewidth=2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 103)
    axes.set_yticks(range(0, 101, 25))
    axes.set_title("End-to-end latency: from the topic to the job's commit")
    axes.set_xlabel("seconds (logarithmic)")
    axes.set_ylabel("records committed, %")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))


def lag(axes: Axes, monitor: Monitor) -> None:
    """Records between the end of the topics and what each group has committed."""
    for group in GROUPS:
        points = monitor.lag(group)
        axes.plot(*zip(*points, strict=True), color=JOB_COLOURS[group], label=group, linewidth=2)
    produced = monitor.produced()
    axes.plot(*zip(*produced, strict=True), color="#aaaaaa", linestyle="--", label="in the topics", linewidth=1.5)
    axes.set_title("Lag of each consumer group")
    axes.set_xlabel("seconds since the front end began")
    axes.set_ylabel("records")
    axes.yaxis.set_major_formatter(thousands)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=4)


def bars_with_text(
    axes: Axes, rows: Sequence[tuple[str, float]], title: str, unit: str, colour: str = "#bcd3e8"
) -> None:
    """Horizontal bars, the largest on top, with their long names written on them."""
    top = max((value for _, value in rows), default=1)
    for place, (name, value) in enumerate(rows):
        axes.barh(place, value, color=colour, height=0.82)
        axes.text(top * 0.012, place, name, va="center", ha="left", fontsize=8.5, family="monospace", color="#111111")
        axes.text(
            1.09, place, f"{value:,.0f}", transform=axes.get_yaxis_transform(), va="center", ha="right", fontsize=9
        )
    axes.set_xlim(0, top)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(thousands)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(title)
    axes.set_xlabel(unit)


def shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def plain(value: Any) -> str:
    """A number or a text for a table."""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
