"""The producer ids that this node gives away, from blocks that the controller gives to it alone.

Rules: an id is given away once its block is committed, and once only. Who comes while a block is being asked for waits for it.
Source: RPCProducerIdManager (KIP-730).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIdPool:
    """One node's blocks. Loop thread only. Invariant: no id of [`_next`, `_end`) has been given away."""

    def __init__(self, allocate: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`allocate()` has a block committed: its first id, and how many there are. What it raises, `take` raises."""
        self._allocate = allocate
        self._next = self._end = 0
        self._allocating: asyncio.Lock | None = None

    async def take(self, count: int = 1) -> list[int]:
        """So many ids, 1 or more. Raises KafkaError when there is no block to be had: then none is used up."""
        if self._end - self._next >= count:
            self._next += count
            return list(range(self._next - count, self._next))
        if self._allocating is None:
            self._allocating = asyncio.Lock()
        async with self._allocating:
            while self._end - self._next < count:  # what is left of the block before is given up
                first, length = await self._allocate()
                self._next, self._end = first, first + length
            self._next += count
            return list(range(self._next - count, self._next))
