"""The rolling baseline, and what the monitor makes of its samples, against slow and obvious versions."""

from __future__ import annotations

import math
import random
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from pipeline.baseline import Baseline
from pipeline.monitor import distances, percentile


def verdicts(baseline: Baseline, measures: list[int]) -> list[bool]:
    recent: list[float] = []
    found = []
    for measure in measures:
        verdict, recent = baseline.follow(recent, 0, measure)
        found.append(verdict.anomalous)
    return found


def test_a_burst_is_flagged_and_the_next_one_too() -> None:
    baseline = Baseline(windows=20, warm_up=5, deviations=4.0, least=10)
    measures = [10, 12, 9, 11, 10, 12, 60, 10, 11, 60, 10]
    assert [place for place, flagged in enumerate(verdicts(baseline, measures)) if flagged] == [6, 9]


def test_what_lasts_becomes_ordinary() -> None:
    found = verdicts(Baseline(windows=10, warm_up=5, deviations=4.0, least=10), [10] * 10 + [100] * 30)
    assert found[10] and not any(found[-10:])


def test_nothing_is_flagged_before_the_warm_up_or_below_the_least() -> None:
    baseline = Baseline(windows=20, warm_up=5, deviations=1.0, least=10)
    assert not any(verdicts(baseline, [1, 500, 1, 500, 1]))
    assert not any(verdicts(baseline, [0] * 10 + [9]))


def test_windows_without_events_count_as_zero() -> None:
    baseline = Baseline(windows=6, warm_up=3, deviations=4.0, least=1)
    _, recent = baseline.follow([5.0, 5.0], 3, 7)
    assert recent == [5.0, 5.0, 0.0, 0.0, 0.0, 7.0]
    _, recent = baseline.follow(recent, 10**9, 3)
    assert recent == [0.0] * 5 + [3.0]


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_is_that_of_the_statistics_module(seed: int) -> None:
    random_numbers = random.Random(seed)
    baseline = Baseline(windows=30, warm_up=2, deviations=3.0, least=0)
    recent = [float(random_numbers.randrange(200)) for _ in range(random_numbers.randrange(2, 30))]
    verdict = baseline.judge(recent, 100)
    mean, deviation = statistics.fmean(recent), statistics.pstdev(recent)
    assert verdict.expected == pytest.approx(mean)
    assert verdict.limit == pytest.approx(mean + 3 * max(deviation, math.sqrt(mean), 1))
    assert verdict.anomalous == (verdict.limit < 100)


def test_the_state_is_floats_only() -> None:
    """Spark makes nulls of the integers in an array of doubles."""
    _, recent = Baseline(windows=5, warm_up=1, deviations=4.0, least=1).follow([], 2, 3)
    assert [type(value) for value in recent] == [float] * 3


@pytest.mark.parametrize("seed", range(20))
def test_distances_between_two_curves(seed: int) -> None:
    random_numbers = random.Random(seed)
    ends, reached, end, level = [], [], 0, 0
    for second in range(60):
        end += random_numbers.choice((0, 0, 3, 50))
        level = max(level, random_numbers.choice((0, level, end)))
        ends.append((float(second), end))
        reached.append((float(second), level))
    expected = []
    for offset in range(ends[0][1], end):
        since = next(second for second, value in ends if value > offset)
        until = next((second for second, value in reached if value > offset), None)
        if until is not None:
            expected.append(until - since)
    found = [latency for latency, count in distances(ends, reached) for _ in range(count)]
    assert sorted(found) == sorted(expected)
    if expected:
        weighed = sorted(distances(ends, reached))
        assert percentile(weighed, 0.5) == sorted(expected)[math.ceil(len(expected) / 2) - 1]


def test_no_latency_of_nothing() -> None:
    assert math.isnan(percentile([], 0.5))
