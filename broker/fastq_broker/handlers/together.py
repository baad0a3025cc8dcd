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
