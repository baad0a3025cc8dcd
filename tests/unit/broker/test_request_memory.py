"""The bound over the bytes of large requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastq_broker.request_memory import RequestMemory


class Waiting:
    def __init__(self) -> None:
        self.granted = 0

    def memory_granted(self) -> None:
        self.granted += 1

    def drop_spare(self) -> None: ...


class ShortOnce:
    """A loop that has no memory at first."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.short = True

    def call_soon(self, callback: Callable[[], None]) -> None:
        if self.short:
            self.short = False
            raise MemoryError
        self.asked.append(callback)


def test_a_turn_that_could_not_be_asked_for_is_asked_for_again() -> None:
    """Else whoever waits would wait for ever."""
    loop = ShortOnce()
    memory = RequestMemory(loop, 10)  # type: ignore[arg-type]
    waiting = Waiting()
    assert memory.take(Waiting(), 4) and memory.take(Waiting(), 6)
    assert not memory.take(waiting, 5)
    with pytest.raises(MemoryError):
        memory.release(4)
    memory.release(6)
    for callback in loop.asked:
        callback()
    assert waiting.granted == 1
