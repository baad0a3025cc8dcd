"""Waiting for what others do in their own time. Only tests of processes wait by the clock on the wall: all else has a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], timeout_s: float = 60.0, what: str = "it did not come to that", pause_s: float = 0.02
) -> T:
    """What `condition` answers once that is true; fails with `what` when it has not been for that long, which is for a slow machine."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)
    return found
