"""The bound over the bytes of large requests, all connections together (Kafka's queued.max.request.bytes, its MemoryPool).

Rules
- A large frame is received once all of it fits; until then its connection holds nothing and is not read from. So who holds
  memory never waits for memory, and no two frames can wait for each other.
- A frame larger than the bound is let in alone.
- First come, first served: a large frame is not passed by smaller ones for ever.
- Buffers kept for a connection's next frame count too, and are given up before anybody waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Holder(Protocol):
    """A connection, as this sees it."""

    def memory_granted(self) -> None:
        """The bytes that were asked for are held now."""

    def drop_spare(self) -> None:
        """Give up the kept buffer, and release its bytes."""


class RequestMemory:
    """What the connections of a node hold. Loop thread only.

    Invariants: `held` is the sum of what is taken and not released; it exceeds `bytes_max` only while a single frame is held.
    Who waits holds nothing. `spares` are the holders whose bytes belong to a kept buffer.
    """

    __slots__ = ("_granting", "_loop", "_waiting", "bytes_max", "held", "spares")

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        """`bytes_max` of 0 or less is no bound."""
        self._loop = loop
        self.bytes_max = bytes_max if bytes_max > 0 else 2**62
        self.held = 0
        self.spares: set[Holder] = set()
        self._waiting: dict[Holder, int] = {}
        self._granting = False

    @property
    def short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def take(self, holder: Holder, size: int) -> bool:
        """Hold `size` bytes; False when `memory_granted` will say that they are held."""
        if not self._waiting and self._fits(size):
            self.held += size
            return True
        self._waiting[holder] = size
        return False

    def release(self, size: int) -> None:
        self.held -= size
        self._wake()

    def forget(self, holder: Holder) -> None:
        """The holder waits no more."""
        if self._waiting.pop(holder, None) is not None:
            self._wake()

    def _fits(self, size: int) -> bool:
        if self.held + size > self.bytes_max and self.spares:
            for holder in tuple(self.spares):
                holder.drop_spare()
        return self.held == 0 or self.held + size <= self.bytes_max

    def _wake(self) -> None:
        if self._waiting and not self._granting:
            self._loop.call_soon(self._grant)
            self._granting = True  # not before: what could not be begun would be waited for

    def _grant(self) -> None:
        self._granting = False
        while self._waiting:
            holder, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            del self._waiting[holder]
            self.held += size
            holder.memory_granted()
