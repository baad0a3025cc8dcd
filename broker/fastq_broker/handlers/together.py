"""A request of several parts, of which some are answered later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def together(parts: Sequence[T | Awaitable[T]]) -> list[T]:
    """What each answers, in their order. None is left un-awaited where one fails, or who asks goes while another is waited for."""
    waiting = [part for part in parts if isinstance(part, Awaitable)]
    later = iter(await asyncio.gather(*waiting) if waiting else ())
    return [next(later) if isinstance(part, Awaitable) else part for part in parts]


async def together_in_time(parts: Sequence[T | Awaitable[T]], timeout_s: float) -> list[T | None]:
    """What each answers, in their order; None for those that have not by then, which are cancelled. So are all where who asks goes."""
    waiting = {at: asyncio.ensure_future(part) for at, part in enumerate(parts) if isinstance(part, Awaitable)}
    if not waiting:
        return [part for part in parts if not isinstance(part, Awaitable)]
    try:
        await asyncio.wait(waiting.values(), timeout=timeout_s)
    finally:
        for task in waiting.values():
            task.cancel()
    answers: list[T | None] = []
    for at, part in enumerate(parts):
        if isinstance(part, Awaitable):
            answers.append(waiting[at].result() if waiting[at].done() else None)
        else:
            answers.append(part)
    return answers
