"""Latencies of records as figures: average, percentiles, a histogram, and how they and the rate went over time.

Rules: numbers in, numbers out. A sample may stand for several records, which it counts for. A percentile is the smallest latency that so
many of the records stayed within; nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import NamedTuple

SHARES = (50.0, 95.0, 99.0, 99.9)
POINTS_MAX = 60


class Sample(NamedTuple):
    """`records` that were done at `at_s`, counted from the start, each after `took_s`."""

    at_s: float
    took_s: float
    records: int = 1


class Point(NamedTuple):
    """A stretch of time that ends at `at_s`: what was done in it. Latencies are None where nothing was."""

    at_s: float
    records_per_s: float
    p50_ms: float | None
    p99_ms: float | None


def percentile(ordered: Sequence[Sample], share: float) -> float:
    """In ms, of samples in the order of their latency, of which there is one or more."""
    wanted = share / 100 * sum(sample.records for sample in ordered)
    seen = 0
    for sample in ordered:
        seen += sample.records
        if seen >= wanted:
            break
    return sample.took_s * 1e3


def figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Average, percentiles and the most, in ms; nothing of nothing."""
    ordered = sorted(samples, key=lambda sample: sample.took_s)
    if not ordered:
        return {}
    average = sum(sample.took_s * sample.records for sample in ordered) / sum(sample.records for sample in ordered)
    shares = {f"p{share:g}_ms": percentile(ordered, share) for share in SHARES}
    found = {"average_ms": average * 1e3, **shares, "max_ms": ordered[-1].took_s * 1e3}
    return {name: round(value, 2) for name, value in found.items()}


def histogram(samples: Sequence[Sample]) -> list[tuple[float, int]]:
    """How many records took up to how many ms, and more than the line before: bounds of 1, 2 and 5 times powers of ten."""
    counts: dict[float, int] = {}
    for sample in samples:
        bound = 0.01
        steps = (2.0, 2.5, 2.0)
        at = 0
        while sample.took_s * 1e3 > bound * (1 + 1e-9):
            bound *= steps[at % 3]
            at += 1
        bound = float(f"{bound:.3g}")
        counts[bound] = counts.get(bound, 0) + sample.records
    return sorted(counts.items())


def over_time(samples: Sequence[Sample], most: int = POINTS_MAX) -> list[Point]:
    """The run in stretches of equal length, `most` or POINTS_MAX at most, and few where there is little."""
    if not samples:
        return []
    end = max(sample.at_s for sample in samples)
    count = max(1, min(POINTS_MAX, most, len(samples) // 3, int(end * 1e3)))
    step = max(end / count, 1e-9)

    def place(sample: Sample) -> int:
        return min(max(ceil(sample.at_s / step) - 1, 0), count - 1)

    found = {
        at: sorted(those, key=lambda sample: sample.took_s)
        for at, those in groupby(sorted(samples, key=lambda sample: sample.at_s), place)
    }
    points = []
    for at in range(count):
        those = found.get(at, [])
        rate = sum(sample.records for sample in those) / step
        shares = (percentile(those, 50), percentile(those, 99)) if those else (None, None)
        points.append(Point((at + 1) * step, rate, *shares))
    return points
