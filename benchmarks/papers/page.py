"""papers.md and its plots, out of papers.json: what was asked, what they had, what we have, why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment import Experiment

THEIRS = "#999999"
COLOURS = {
    "fastq": "#1f77b4",
    "Apache Kafka": "#ff7f0e",
    "Apache Kafka, fastq's client": "#ffbb78",
    "Jafka": "#8c564b",
    "RabbitMQ queue": "#2ca02c",
    "RabbitMQ stream": "#98df8a",
    "Artemis": "#9467bd",
    "RocketMQ": "#d62728",
}
HEAD = """# What the papers measured, here and now

Made by `make bench-papers` from papers.json: what the classic texts about Kafka measured, set up as they say, on one small machine, beside
what they had, and beside other brokers at the same durability. Sides are interleaved in one run; figures are medians of the rounds.
Their machines were others, and so a figure of theirs beside one of ours says how the times have changed and not who is faster; those
of one run on this machine can be compared.
"""
NOT_MEASURED = "Not measured on this machine yet: `python benchmarks/papers/run.py --only {name}`.\n"


def number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.3g}"


def _table(experiment: Experiment, medians: Mapping[str, Mapping[str, float]]) -> list[str]:
    columns = {**experiment.had, **medians}
    keys = [key for key in experiment.shown if any(key in found for found in columns.values())]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    lines += [
        f"| {experiment.shown[key]} | {' | '.join(number(found.get(key)) for found in columns.values())} |"
        for key in keys
    ]
    return lines


def _section(experiment: Experiment, document: Mapping[str, Any], folder: Path) -> list[str]:
    found = document.get("experiments", {}).get(experiment.name)
    lines = [f"## {experiment.title}", "", f"*{experiment.source}.*", "", f"**What was asked.** {experiment.asked}", ""]
    lines += [f"**What they had.** On {experiment.machine}: the grey column." if experiment.had else ""]
    if not experiment.had:
        lines[-1] = f"**What they had.** A plot, from {experiment.machine}."
    lines += ["", "**What is run here, and where it differs.**", "", *(f"- {each}" for each in experiment.here), ""]
    lines += [f"**How a figure is made.** {experiment.figure}", "", "**What we have.**", ""]
    if found is None:
        return [*lines, NOT_MEASURED.format(name=experiment.name)]
    told = f"Measured on {found['date']}; rounds: {found['count']}"
    told += "" if found["share"] == 1 else f"; {found['share']:g} of the records said above"
    lines += [f"{told}.", "", *_table(experiment, found["medians"]), ""]
    lines += [f"Left out: {side}: {reason}.\n" for side, reason in found["left_out"].items()]
    if plot(experiment, found["medians"], folder):
        lines += [f"![{experiment.title}]({_plot_name(experiment)})", ""]
    return [*lines, "**Why.**", "", *(f"- {each}" for each in experiment.why), ""]


def write(experiments: Sequence[Experiment], document: Mapping[str, Any], folder: Path) -> Path:
    """The page and a plot an experiment, in a folder."""
    machine = document.get("machine", {})
    lines = [HEAD, f"Machine: {', '.join(f'{key} {value}' for key, value in sorted(machine.items()))}.", ""]
    for experiment in experiments:
        lines += _section(experiment, document, folder)
    path = folder / "papers.md"
    path.write_text("\n".join(lines).rstrip() + "\n")
    return path


# -- plots


def _plot_name(experiment: Experiment) -> str:
    return f"papers-{experiment.name}.svg"


def plot(experiment: Experiment, medians: Mapping[str, Mapping[str, float]], folder: Path) -> bool:
    """The experiment's plot, as an SVG file; False where there is nothing to show."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = experiment.name
    from matplotlib import pyplot

    if experiment.name == "stored":
        figure = _stored(pyplot, medians)
    elif experiment.name == "message-size":
        figure = _message_size(pyplot, medians)
    else:
        figure = _bars(pyplot, experiment, medians)
    if figure is None:
        return False
    figure.tight_layout()
    figure.savefig(folder / _plot_name(experiment), metadata={"Date": None})
    pyplot.close(figure)
    return True


def _bars(pyplot: Any, experiment: Experiment, medians: Mapping[str, Mapping[str, float]]) -> Any:
    """A panel a rate, a bar a side, theirs in grey; each from zero on."""
    columns = {**experiment.had, **medians}
    keys = [
        key
        for key in experiment.shown
        if not key.endswith((" us", " batch", "value")) and any(key in found for found in medians.values())
    ]
    if not keys:
        return None
    across = min(len(keys), 2)
    rows = -(-len(keys) // across)
    height = (0.24 * len(columns) + 0.75) * rows
    figure, panels = pyplot.subplots(rows, across, figsize=(5.2 * across, height), squeeze=False)
    for panel in panels.flat[len(keys) :]:
        panel.axis("off")
    for key, panel in zip(keys, panels.flat, strict=False):
        sides = [side for side, found in columns.items() if key in found][::-1]
        values = [columns[side][key] for side in sides]
        bars = panel.barh(sides, values, color=[COLOURS.get(side, THEIRS) for side in sides])
        panel.bar_label(bars, [number(value) for value in values], fontsize=7, padding=2)
        panel.set_title(experiment.shown[key], fontsize=8)
        panel.set_xlim(0, max(values) * 1.2 or 1)
        panel.tick_params(labelsize=7)
        panel.xaxis.set_visible(False)
        for side in ("top", "right", "bottom"):
            panel.spines[side].set_visible(False)
    return figure


def _message_size(pyplot: Any, medians: Mapping[str, Mapping[str, float]]) -> Any:
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2))
    for panel, suffix, title in zip(panels, ("", " MB/s"), ("records/s", "MB/s"), strict=True):
        for side, found in medians.items():
            points = sorted(
                (int(told[1]), value)
                for key, value in found.items()
                if (told := re.fullmatch(rf"(\d+) B{suffix}", key)) is not None
            )
            panel.plot(*zip(*points, strict=True), marker="o", color=COLOURS[side], label=side)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("bytes of a message", fontsize=8)
        panel.tick_params(labelsize=7)
    panels[0].legend(fontsize=7)
    return figure


def _stored(pyplot: Any, medians: Mapping[str, Mapping[str, float]]) -> Any:
    figure, panel = pyplot.subplots(figsize=(9, 3.2))
    for side, found in medians.items():
        points = sorted((float(key.split()[1]), value) for key, value in found.items() if key.startswith("at "))
        panel.plot(*zip(*points, strict=True), color=COLOURS[side], label=side)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("GB stored", fontsize=8)
    panel.set_title("MB/s of one producer", fontsize=9)
    panel.tick_params(labelsize=7)
    panel.legend(fontsize=7)
    return figure
