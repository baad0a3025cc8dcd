"""Scenarios run in both kinds of event loop that the broker knows."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

both_loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def run_in(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run `main` to its end in a new loop of this kind."""
    new_loop = pytest.importorskip("uvloop").new_event_loop() if loop == "uvloop" else asyncio.new_event_loop()
    try:
        new_loop.run_until_complete(main)
    finally:
        new_loop.close()
