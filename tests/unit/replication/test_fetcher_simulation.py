"""Followers whose leaders change, vanish and come back: nothing that was committed is ever cut off, and in the end all logs are one."""

from __future__ import annotations

import pytest
from fetcher_cluster import troubled


@pytest.mark.parametrize("seed", range(8))
def test_followers_end_with_their_leaders_logs(seed: int) -> None:
    cluster = troubled(seed)
    assert cluster.cuts > 0, "the seed is too kind: no log ever diverged"


@pytest.mark.soak
def test_followers_end_with_their_leaders_logs_for_long(soak: bool) -> None:
    for seed in range(1000, 1400 if soak else 1004):
        try:
            troubled(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
