"""What a thread has to say to the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_PAUSE_S: Final = 0.05


def tell_loop(loop: Any, callback: Callable[..., object], *arguments: object) -> None:
    """Have an asyncio event loop call back in its next turn, once; one that is closed calls nobody. For a thread of its own: where there is
    no memory to say so it says it again, as whoever waits for the thread hears of it from nobody else."""
    said: Callable[[], None] | None = None
    while True:
        try:
            if said is None:
                said = partial(_call, [partial(callback, *arguments)])
            loop.call_soon_threadsafe(said)
            return
        except RuntimeError:
            return
        except MemoryError:  # it may have been heard all the same
            time.sleep(_PAUSE_S)


def _call(left: list[Callable[[], object]]) -> None:
    if left:
        left.pop()()
