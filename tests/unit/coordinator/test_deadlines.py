"""Many deadlines on one timer, against a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from fastq_broker.coordinator.deadlines import Deadlines


class Clock:
    """Time, and the timers that somebody has set."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.timers: list[tuple[int, Callable[[], None], list[bool]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Clock.Handle:
        alive = [True]
        self.timers.append((self.now_ms + round(delay_s * 1000), callback, alive))
        return Clock.Handle(alive)

    class Handle:
        def __init__(self, alive: list[bool]) -> None:
            self.alive = alive

        def cancel(self) -> None:
            self.alive[0] = False

    @property
    def running(self) -> int:
        return sum(alive[0] for _, _, alive in self.timers)

    def advance(self, ms: int) -> None:
        for _ in range(ms):
            self.now_ms += 1
            due = [timer for timer in self.timers if timer[0] <= self.now_ms and timer[2][0]]
            self.timers = [timer for timer in self.timers if timer[0] > self.now_ms and timer[2][0]]
            for _, callback, _ in due:
                callback()


def test_each_is_woken_once_and_in_order_with_one_timer() -> None:
    clock = Clock()
    woken: list[tuple[int, int]] = []
    deadlines: Deadlines[int] = Deadlines(
        lambda: clock.now_ms, clock.call_later, lambda at, now: woken.append((at, now))
    )
    rng = random.Random(1)
    times = [rng.randrange(1, 300) for _ in range(200)]
    for at_ms in times:
        deadlines.add(at_ms, at_ms)
        assert clock.running == 1
    clock.advance(300)
    assert woken == [(at_ms, at_ms) for at_ms in sorted(times)]
    assert (len(deadlines), clock.running) == (0, 0)


def test_who_is_woken_may_ask_again_and_an_error_stops_nobody_else() -> None:
    clock = Clock()
    woken: list[str] = []

    def wake(item: str, now_ms: int) -> None:
        woken.append(item)
        if item == "again" and now_ms < 30:
            deadlines.add(now_ms + 10, item)
        if item == "bad":
            raise ValueError(item)

    deadlines: Deadlines[str] = Deadlines(lambda: clock.now_ms, clock.call_later, wake)
    deadlines.add(10, "again")
    deadlines.add(10, "bad")
    deadlines.add(10, "good")
    for _ in range(40):
        try:
            clock.advance(1)
        except ValueError:
            woken.append("raised")
    assert woken == ["again", "bad", "raised", "good", "again", "again"]


def test_one_for_whom_no_timer_can_be_had_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was woken any more."""
    clock = Clock()
    woken: list[int] = []
    deadlines: Deadlines[int] = Deadlines(
        lambda: clock.now_ms, lambda *given: clock.call_later(*given), lambda at, now: woken.append(at)
    )
    deadlines.add(60, 60)

    def no_memory(*_: Any) -> Any:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(clock, "call_later", no_memory)
        with pytest.raises(MemoryError):
            deadlines.add(5, 5)
    deadlines.add(6, 6)
    assert clock.running == 1
    clock.advance(60)
    assert woken == [5, 6, 60] and clock.running == 0


def test_after_clear_nobody_is_woken() -> None:
    clock = Clock()
    woken: list[int] = []
    deadlines: Deadlines[int] = Deadlines(lambda: clock.now_ms, clock.call_later, lambda at, now: woken.append(at))
    deadlines.add(5, 5)
    deadlines.clear()
    assert clock.running == 0
    clock.advance(10)
    assert woken == []


def test_who_could_not_look_for_want_of_memory_is_woken_again() -> None:
    """A member that had died held its group for good."""
    clock, woken, short = Clock(), list[str](), [True, True]

    def wake(item: str, now_ms: int) -> None:
        if item == "a" and short:
            short.pop()
            raise MemoryError("none left")
        woken.append(item)

    deadlines: Deadlines[str] = Deadlines(lambda: clock.now_ms, clock.call_later, wake)
    for item in "ab":
        deadlines.add(10, item)
    for _ in range(20):
        with suppress(MemoryError):
            clock.advance(1)
    assert woken == ["a", "b"] and len(deadlines) == 0
