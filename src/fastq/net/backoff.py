"""Pauses between attempts: exponential, bounded, with jitter (KIP-580), the randomness injected."""

from __future__ import annotations

from random import Random

JITTER = 0.2
"""Each pause is drawn from 80 to 120 % of its nominal length, so that clients that failed together do not return
together.
"""


def backoff_s(first_ms: float, max_ms: float, failures: int, random: Random) -> float:
    """Seconds to wait after `failures` failures in a row (0: no pause)."""
    if failures <= 0:
        return 0.0
    nominal = min(first_ms * 2.0 ** min(failures - 1, 40), max_ms)
    return nominal * random.uniform(1 - JITTER, 1 + JITTER) / 1000
