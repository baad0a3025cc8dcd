"""Allocations of the interpreter that fail, as Python's own tests have them fail.

Rule: no collection runs meanwhile. It would call what libraries of tests have in `gc.callbacks`, and finalizers of whoever made garbage:
what fails in there is told as unraisable, by a test that has nothing to do with it.
"""

from __future__ import annotations

import gc
from types import TracebackType

import pytest


class AllocationsFail:
    """In its block the allocations from number `first` on fail, counted from 0: `count` of them, 0 for all."""

    def __init__(self, first: int, count: int = 1) -> None:
        self._hooks = pytest.importorskip(
            "_testcapi", reason="this Python lacks what its own tests have for failing allocations"
        )
        self._first, self._stop = first, first + count if count else 0
        self._collects = gc.isenabled()

    def __enter__(self) -> AllocationsFail:
        gc.disable()
        self._hooks.set_nomemory(self._first, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.remove_mem_hooks()
        if self._collects:
            gc.enable()
