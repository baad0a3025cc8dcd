"""Consumers that an error keeps alive after it was shown: the interpreter and notebooks keep the last one (sys.last_value), its traceback
keeps frames, and those of calls keep what they were called with. So an interrupted cell that is run again does not replace its consumer,
which goes on as a member of its group with its share of the partitions, for as long as max_poll_interval_ms.

Rule: looked at only where a consumer with a group is made, and there is such an error: in interactive programs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
OF_A_FUNCTION = 0x1
"""CO_OPTIMIZED of a code's flags. Their own module takes milliseconds to load."""


def kept_by_the_last_error(kind: type[T]) -> list[T]:
    """Objects of a kind that functions on the way of the error that was shown last have in their variables. What the variables of modules
    and cells have is replaced there."""
    found: dict[int, T] = {}
    for error in _chain(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)):
        step = error.__traceback__
        while step is not None:
            frame = step.tb_frame
            if frame.f_code.co_flags & OF_A_FUNCTION:
                found.update((id(value), value) for value in frame.f_locals.values() if isinstance(value, kind))
            step = step.tb_next
    return list(found.values())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came of."""
    waiting, seen = [error], set[int]()
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__, error.__context__]
