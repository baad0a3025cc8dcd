"""Plots of a run over time: for the terminal, in characters, and as an SVG file.

Rules: made by hand, for two small plots are no reason for a dependency. Values are 0 or more; each plot begins at 0 and ends at a round
number. An SVG file needs nothing beside it, and is readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple
from xml.sax.saxutils import escape

HEIGHT = 8
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", "   ..::##"
"""Of nothing up to all of a line; the latter where the terminal's encoding has none of the former."""
LABEL_MAX = 16
"""Characters beside the bars: an axis' longest label, and the axis."""
_COLOURS = ("#2a7ab8", "#c8553d", "#4f9d69")
_WIDTH_PX, _PANEL_PX, _LEFT_PX, _RIGHT_PX, _TOP_PX, _GAP_PX = 760, 180, 90, 20, 40, 56


class Line(NamedTuple):
    """A name and a value for each point of time, None where there is none."""

    name: str
    values: Sequence[float | None]


class Panel(NamedTuple):
    """Lines that share an axis."""

    title: str
    lines: Sequence[Line]


def as_text(panels: Sequence[Panel], end_s: float, bars: str = BARS) -> str:
    """Each line of each panel as bars, one below the other."""
    blocks = []
    for panel in panels:
        top = round_above(panel)
        for line in panel.lines:
            heights = [min(1.0, (value or 0.0) / top) * HEIGHT for value in line.values]
            width = len(shown(top))
            rows = [f"{panel.title}: {line.name}" if line.name else panel.title]
            for row in range(HEIGHT, 0, -1):
                label = shown(top) if row == HEIGHT else "0" if row == 1 else ""
                drawn = "".join(bars[min(8, max(0, round((height - row + 1) * 8)))] for height in heights)
                rows.append(f"{label:>{width}} |{drawn}".rstrip())
            rows.append(f"{'':>{width}} +{'-' * len(heights)}")
            end = f"{end_s:.3g} s"
            rows.append(f"{'':>{width}}  0 s {end:>{max(len(heights) - 4, 0)}}")
            blocks.append("\n".join(rows))
    return "\n\n".join(blocks)


def as_svg(title: str, panels: Sequence[Panel], end_s: float) -> str:
    """A document with the panels one below the other."""
    height = _TOP_PX + len(panels) * (_PANEL_PX + _GAP_PX)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#555}.axis{stroke:#888;fill:none}.grid{stroke:#8884;fill:none}"
        "@media (prefers-color-scheme: dark){text{fill:#bbb}}</style>",
        f"<title>{escape(title)}</title>",
        f'<text x="{_LEFT_PX}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for at, panel in enumerate(panels):
        parts += _panel(panel, _TOP_PX + at * (_PANEL_PX + _GAP_PX), end_s)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top_px: int, end_s: float) -> list[str]:
    top, bottom, right = round_above(panel), top_px + _PANEL_PX, _WIDTH_PX - _RIGHT_PX
    parts = [f'<text x="{_LEFT_PX}" y="{top_px - 6}">{escape(panel.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _PANEL_PX
        kind = "axis" if share == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT_PX} {y:g}H{right}"/>')
        parts.append(f'<text x="{_LEFT_PX - 8}" y="{y + 4:g}" text-anchor="end">{shown(share * top)}</text>')
    for share in (0.0, 0.5, 1.0):
        x = _LEFT_PX + share * (right - _LEFT_PX)
        parts.append(f'<text x="{x:g}" y="{bottom + 16}" text-anchor="middle">{share * end_s:.3g} s</text>')
    for number, line in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        step = (right - _LEFT_PX) / max(len(line.values), 1)
        places = [
            f"{_LEFT_PX + (at + 0.5) * step:.1f},{bottom - min(1.0, value / top) * _PANEL_PX:.1f}"
            for at, value in enumerate(line.values)
            if value is not None
        ]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(places)}"/>')
        if line.name:
            parts.append(
                f'<text x="{right - 60 * (len(panel.lines) - 1 - number)}" y="{top_px - 6}" text-anchor="end" '
                f'style="fill:{colour}">{escape(line.name)}</text>'
            )
    return parts


def round_above(panel: Panel) -> float:
    """Where the axis ends: 1, 2 or 5 times a power of ten, at or above every value."""
    most = max((value for line in panel.lines for value in line.values if value is not None), default=0.0)
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(float(f"{step * power:.6g}") for step in (1, 2, 5, 10) if step * power >= most * (1 - 1e-9))


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:g}"
