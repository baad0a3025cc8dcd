"""Values as the pages show them: filters of the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fastq.words import counted


def size(value: int | None) -> str:
    """Bytes in powers of 1024; a dash for None."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} PiB"


def count(value: int | None) -> str:
    """A number with its thousands apart; a dash for None."""
    return "–" if value is None else f"{value:,}"


def when(ms: int | None) -> str:
    """A time in UTC; a dash for None and for times before 1970."""
    if ms is None or ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") + f".{ms % 1000:03d}"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def seconds(value: float | None) -> str:
    """How long, in one unit; a dash for None."""
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.1f} s"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * length:
            return f"{value / length:,.0f} {unit}"
    return f"{value:.0f} s"


FILTERS: dict[str, Callable[..., Any]] = {
    "size": size,
    "count": count,
    "when": when,
    "counted": counted,
    "seconds": seconds,
}
