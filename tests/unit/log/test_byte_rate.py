"""A rate and its bound, against a slow and obvious count of the same windows."""

from __future__ import annotations

import random

import pytest
from fastq_broker.log.byte_rate import UNBOUNDED, ByteRate


def obvious(moved: list[tuple[float, int]], now: float, windows: int, window_s: float) -> float:
    """Bytes a second: a window begins with the first bytes after the one before is over, and counts as long as it is not too old."""
    begun: list[list[float]] = []
    for at, size in moved:
        if begun and at < begun[-1][0] + window_s:
            begun[-1][1] += size
        else:
            begun.append([at, size])
    young = [(at, size) for at, size in begun if now < at + windows * window_s]
    return sum(size for _, size in young) / max(window_s, now - young[0][0]) if young else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_the_windows_hold(seed: int) -> None:
    chance = random.Random(seed)
    windows, window_s = chance.choice([(11, 1.0), (2, 0.25), (1, 4.0)])
    rate, moved, now = ByteRate(windows=windows, window_s=window_s), [], 100.0
    for _ in range(300):
        now += chance.choice([0.0, 0.125, 0.25, 1.0, 20.0])
        if chance.random() < 0.7:
            moved.append((now, chance.randrange(10_000)))
            rate.record(moved[-1][1], now)
        assert rate.rate(now) == obvious(moved, now, windows, window_s)
        rate.bytes_per_s_max = chance.choice([0, 1, 100, 5000, UNBOUNDED])
        assert rate.exceeded(now) == (rate.rate(now) > rate.bytes_per_s_max)


@pytest.mark.parametrize("bound", [0, 1, 1000, 1 << 20])
@pytest.mark.parametrize("size", [1, 5000, 10 << 20])
def test_after_the_wait_it_is_not_exceeded(bound: int, size: int) -> None:
    rate, now = ByteRate(), 7.3
    rate.bytes_per_s_max = bound
    for _ in range(20):
        rate.record(size, now)
        for _ in range(20):
            wait_s = rate.wait_s(now)
            if not wait_s:
                break
            assert rate.exceeded(now) and 0 < wait_s <= 11
            now += wait_s
        assert not rate.exceeded(now)


def test_what_is_moved_as_soon_as_it_may_keeps_to_the_bound() -> None:
    rate, now, total = ByteRate(), 0.0, 0
    rate.bytes_per_s_max = 10_000
    while now < 100:
        now += rate.wait_s(now)
        rate.record(3000, now)
        total += 3000
    assert 0.95 < total / now / 10_000 < 1.05


def test_a_bound_that_changes_counts_at_once() -> None:
    rate = ByteRate()
    rate.record(100_000, 5.0)
    assert not rate.exceeded(6.0) and rate.wait_s(6.0) == 0.0
    rate.bytes_per_s_max = 10_000
    assert rate.exceeded(6.0) and rate.wait_s(6.0) == 9.0
    rate.bytes_per_s_max = 20_000
    assert rate.wait_s(6.0) == 4.0
    rate.bytes_per_s_max = UNBOUNDED
    assert not rate.exceeded(6.0)
