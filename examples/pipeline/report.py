"""The report of a run: printed, and saved as a text, a picture and a page that holds both.

Rules: the page is one file and asks the network for nothing. What is shown was measured in this run.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.monitor import Monitor, percentile
from pipeline.plots import Table, draw, plain
from pipeline.workload import GROUPS, Check, Results

SHARES = (0.5, 0.9, 0.99)
ALERTS_PRINTED = 8

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1150px; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.5em; }} h2 {{ font-size: 1.15em; margin-top: 1.8em; }}
img {{ width: 100%; height: auto; border: 1px solid #ddd; }}
table {{ border-collapse: collapse; font-size: 14px; width: 100%; }}
th, td {{ text-align: left; padding: 3px 10px; border-bottom: 1px solid #e4e4e4; vertical-align: top; overflow-wrap: anywhere; }}
td.number, th.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
.yes {{ color: #1b7f3b; font-weight: bold; }} .no {{ color: #c62828; font-weight: bold; }}
details summary {{ cursor: pointer; color: #1f6fb4; margin: .6em 0; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<h2>Do the totals agree?</h2>
{checks}
<h2>The run in pictures</h2>
<img src="data:image/png;base64,{picture}" alt="plots of the run: see the tables for the numbers">
{tables}
</body></html>
"""


def latency_table(monitor: Monitor) -> Table:
    """Percentiles of the latency and the largest lag of each group."""
    rows = []
    for group in GROUPS:
        found = monitor.latencies(group)
        most = max((lag for _, lag in monitor.lag(group)), default=0)
        rows.append((group, *(round(percentile(found, share), 1) for share in SHARES), most, monitor.lag(group)[-1][1]))
    heads = ("group", *(f"{share * 100:g} % within, s" for share in SHARES), "largest lag", "lag at the end")
    return Table("Latency and lag of the jobs", heads, rows)


def lines(title: str, summary: str, checks: Sequence[Check], monitor: Monitor, tables: Sequence[Table]) -> list[str]:
    """The report as text."""
    out = [title, "=" * len(title), summary, "", "Do the totals agree?"]
    width = max(len(check.name) for check in checks)
    out += [f"  {'yes' if check.holds else 'NO ':<4} {check.name:<{width}}  {check.detail}" for check in checks]
    for table in [latency_table(monitor), *tables]:
        out += ["", table.title, *_as_text(table)]
    return out


def _as_text(table: Table) -> list[str]:
    rows = [[plain(value) for value in row] for row in table.rows[:ALERTS_PRINTED]]
    widths = [min(78, max(len(row[place]) for row in [list(table.heads), *rows])) for place in range(len(table.heads))]
    numbers = _numbers(table)

    def line(cells: Sequence[str]) -> str:
        shown = [
            cell[:width].rjust(width) if n else cell[:width].ljust(width)
            for cell, width, n in zip(cells, widths, numbers, strict=True)
        ]
        return "  " + "  ".join(shown).rstrip()

    more = len(table.rows) - len(rows)
    return [line(table.heads), *map(line, rows), *([f"  ... and {more:,} more, on the page"] if more > 0 else [])]


def _numbers(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [all(isinstance(row[place], (int, float)) for row in table.rows) for place in range(len(table.heads))]


def _as_html(table: Table) -> str:
    numbers = _numbers(table)

    def row(tag: str, cells: Sequence[Any]) -> str:
        shown = (
            f"<{tag}{' class=number' if n else ''}>{escape(plain(c))}</{tag}>"
            for c, n in zip(cells, numbers, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(row("td", cells) for cells in table.rows)
    return f"<h2>{escape(table.title)}</h2>\n<table>{row('th', table.heads)}\n{body}</table>"


def _checks_as_html(checks: Sequence[Check]) -> str:
    rows = (
        f'<tr><td class="{"yes" if check.holds else "no"}">{"yes" if check.holds else "NO"}</td>'
        f"<td>{escape(check.name)}</td><td>{escape(check.detail)}</td></tr>"
        for check in checks
    )
    return f"<table>{''.join(rows)}</table>"


def save(
    folder: Path,
    workload: str,
    title: str,
    summary: str,
    checks: Sequence[Check],
    found: Results,
    monitor: Monitor,
    warehouse: Path,
) -> list[str]:
    """Write report.txt, report.png and report.html into `folder`; the lines of the text."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = import_module(f"pipeline.plots_{workload}")
    tables = shown.tables(found, warehouse)
    text = lines(title, summary, checks, monitor, tables)
    (folder / "report.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    picture = folder / "report.png"
    draw(picture, title, shown.panels(found, warehouse), monitor)
    page = PAGE.format(
        title=escape(title),
        summary=escape(summary),
        checks=_checks_as_html(checks),
        picture=base64.b64encode(picture.read_bytes()).decode(),
        tables="\n".join(_as_html(table) for table in [latency_table(monitor), *tables]),
    )
    (folder / "report.html").write_text(page, encoding="utf-8")
    return text
