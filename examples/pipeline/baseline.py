"""The rolling baseline: what a series did in its last windows, and whether the next window is out of the ordinary.

Rules: pure and deterministic: the same windows in the same order give the same verdicts, whatever the batches they come in,
so that a batch that runs again writes the same alerts. A window without an event counts as zero. A window that is flagged
enters the baseline as the limit that it broke: a burst does not hide the next one, and what lasts becomes ordinary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Verdict(NamedTuple):
    """Of one window: the mean of the baseline, the limit, and whether the measure is above it."""

    expected: float
    limit: float
    anomalous: bool


@dataclass(frozen=True)
class Baseline:
    """`windows`: how many are remembered. `warm_up`: so many are needed for a verdict. `deviations`: the limit is the mean and
    so many standard deviations, each at least that of a Poisson process. `least`: a smaller measure is never anomalous."""

    windows: int
    warm_up: int
    deviations: float
    least: int

    def judge(self, recent: Sequence[float], measure: float) -> Verdict:
        """Against the windows before it, the oldest first."""
        if len(recent) < self.warm_up:
            return Verdict(math.nan, math.nan, False)
        mean = math.fsum(recent) / len(recent)
        variance = math.fsum((value - mean) ** 2 for value in recent) / len(recent)
        limit = mean + self.deviations * math.sqrt(max(variance, mean, 1.0))
        return Verdict(mean, limit, measure >= self.least and measure > limit)

    def follow(self, recent: Sequence[float], skipped: int, measure: float) -> tuple[Verdict, list[float]]:
        """The verdict on the next window, after `skipped` windows without an event, and the baseline for the one after it."""
        before = [*recent, *[0.0] * min(skipped, self.windows)][-self.windows :]
        verdict = self.judge(before, measure)
        enters = verdict.limit if verdict.anomalous else float(measure)
        return verdict, [*before, enters][-self.windows :]
