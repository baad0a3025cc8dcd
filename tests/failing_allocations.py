"""Allocations of the interpreter that fail, as Python's own tests have them fail.

Rule: no collection runs meanwhile. It would call what libraries of tests have in `gc.callbacks`, and finalizers of whoever made garbage:
what fails in there is told as unraisable, by a test that has nothing to do with it. Nor does another thread have its turn, but where this
one waits: the hooks are the process's, and what fails there may be the loop of whoever serves another test.
"""

from __future__ import annotations

import gc
import sys
import time
from types import TracebackType

import pytest

TURN_S = 1e-4
"""Who waits for the interpreter already waits as long as it was told then, and would have its turn within the block: it has it before."""


class AllocationsFail:
    """In its block the allocations from number `first` on fail, counted from 0: `count` of them, 0 for all."""

    def __init__(self, first: int, count: int = 1) -> None:
        self._hooks = pytest.importorskip(
            "_testcapi", reason="this Python lacks what its own tests have for failing allocations"
        )
        self._first, self._stop = first, first + count if count else 0
        self._collects, self._switches_s = gc.isenabled(), sys.getswitchinterval()

    def __enter__(self) -> AllocationsFail:
        gc.disable()
        sys.setswitchinterval(3600)
        time.sleep(TURN_S)
        self._hooks.set_nomemory(self._first, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.remove_mem_hooks()
        sys.setswitchinterval(self._switches_s)
        if self._collects:
            gc.enable()
