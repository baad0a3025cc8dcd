"""When a machine's turns are taken: at once, one behind the other, on its timer, and no more once they are closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Any

import pytest
from fastq_broker.turns import AGAIN_S, NEVER, Repeated, Turns


class Timer:
    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due, self.call, self.cancelled = due, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop whose clock stands until it is moved."""

    def __init__(self) -> None:
        self.now = 10.0
        self.timers: list[Timer] = []
        self.calls: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        assert delay_s >= 0
        self.timers.append(Timer(self.now + delay_s, call))
        return self.timers[-1]

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        """One pass: what was called for, and the timers that are due."""
        calls, self.calls = self.calls, []
        due, self.timers = [each for each in self.timers if each.due <= self.now], self.waiting
        for call in [*calls, *(each.call for each in due if not each.cancelled)]:
            call()

    @property
    def waiting(self) -> list[Timer]:
        return [each for each in self.timers if not each.cancelled and each.due > self.now]


class Machine:
    """Something to do at given times; `then` is what happens during a turn."""

    def __init__(self) -> None:
        self.loop: Any = Loop()
        self.due = NEVER
        self.took: list[float] = []
        self.then: Callable[[], object] = lambda: None
        self.turns = Turns(self.loop, lambda: self.loop.now, self.work, lambda now: self.due)

    def work(self, now: float) -> None:
        self.took.append(now)
        self.then()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_turn_is_taken_at_once_and_the_next_one_when_the_machine_wants_it(machine: Machine) -> None:
    machine.due = 12.5
    machine.turns.turn()
    assert machine.took == [10.0] and [each.due for each in machine.loop.waiting] == [12.5]
    machine.loop.now, machine.due = 12.5, NEVER
    machine.loop.run()
    assert machine.took == [10.0, 12.5] and machine.loop.waiting == []


def test_one_timer_waits_whatever_happens_meanwhile(machine: Machine) -> None:
    for machine.due in (20.0, 15.0, 30.0):
        machine.turns.turn()
        assert [each.due for each in machine.loop.waiting] == [machine.due]


def test_what_was_due_before_is_due_now(machine: Machine) -> None:
    machine.due = 3.0
    machine.turns.turn()
    assert [each.due for each in machine.loop.timers] == [10.0]


def test_a_turn_that_is_wanted_in_a_turn_follows_it(machine: Machine) -> None:
    depth = 0

    def then() -> None:
        nonlocal depth
        depth += 1
        assert depth == 1  # never inside
        if len(machine.took) < 4:
            machine.turns.turn()
            machine.turns.turn()
        depth -= 1

    machine.then = then
    machine.turns.turn()
    assert len(machine.took) == 4 and machine.loop.timers == []


def test_soon_is_one_turn_in_the_next_pass(machine: Machine) -> None:
    machine.turns.soon()
    machine.turns.soon()
    assert machine.took == []
    machine.loop.run()
    assert machine.took == [10.0] and machine.loop.calls == []
    machine.turns.soon()
    machine.loop.run()
    assert machine.took == [10.0, 10.0]


def test_soon_that_the_loop_cannot_take_is_wanted_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as taken for good, and no turn came of it any more."""

    def no_memory(call: Callable[[], None]) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(machine.loop, "call_soon", no_memory)
        with pytest.raises(MemoryError):
            machine.turns.soon()
    machine.turns.soon()
    machine.loop.run()
    assert machine.took == [10.0]


def test_soon_in_a_turn_is_not_before_the_next_pass(machine: Machine) -> None:
    machine.then = lambda: machine.turns.soon() if len(machine.took) == 1 else None
    machine.turns.soon()
    machine.loop.run()
    assert len(machine.took) == 1
    machine.loop.run()
    assert len(machine.took) == 2 and machine.loop.calls == []


def test_after_the_close_nothing_is_done(machine: Machine) -> None:
    machine.due = 11.0
    machine.turns.turn()
    machine.turns.soon()
    machine.turns.close()
    machine.turns.close()
    machine.loop.now = 11.0
    machine.loop.run()
    machine.turns.turn()
    assert machine.took == [10.0] and machine.turns.closed and machine.loop.waiting == []


def test_a_turn_that_closes_is_the_last_one(machine: Machine) -> None:
    machine.due = 11.0

    def then() -> None:
        machine.turns.turn()
        machine.turns.close()

    machine.then = then
    machine.turns.turn()
    assert machine.took == [10.0] and machine.loop.timers == []


def test_an_error_goes_to_who_wanted_the_turn_and_others_follow(machine: Machine) -> None:
    def fail() -> None:
        raise ValueError("a turn's")

    machine.due = 12.0
    machine.turns.turn()
    machine.then = fail
    with pytest.raises(ValueError, match="a turn's"):
        machine.turns.turn()
    assert [each.due for each in machine.loop.waiting] == [12.0]
    machine.then = lambda: None
    machine.turns.turn()
    assert len(machine.took) == 3


def test_a_turn_of_the_timer_that_fails_is_not_the_last_one(machine: Machine) -> None:
    """Nobody else may ever want one."""

    def fail() -> None:
        raise ValueError("a turn's")

    machine.due = 12.0
    machine.turns.turn()
    machine.then = fail
    for at in (12.0, 13.0, 14.0):
        machine.loop.now = at
        with pytest.raises(ValueError, match="a turn's"):
            machine.loop.run()
        assert [each.due for each in machine.loop.waiting] == [at + AGAIN_S]
    machine.then, machine.due = lambda: None, NEVER
    machine.loop.now = 15.0
    machine.loop.run()
    assert len(machine.took) == 5 and machine.loop.waiting == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_timer_that_cannot_be_had_leaves_one(machine: Machine, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    if waits:
        machine.due = 20.0
        machine.turns.turn()
    call_later = machine.loop.call_later

    def once(*_: Any) -> None:
        monkeypatch.setattr(machine.loop, "call_later", call_later)
        raise MemoryError("none left")

    monkeypatch.setattr(machine.loop, "call_later", once)
    machine.due = 12.0
    with pytest.raises(MemoryError):
        machine.turns.turn()
    assert [each.due for each in machine.loop.waiting] == [20.0 if waits else 10.0 + AGAIN_S]


def test_without_a_loop_there_are_no_timers() -> None:
    took: list[float] = []
    turns = Turns(None, lambda: 1.0, took.append, lambda now: 2.0)
    turns.turn()
    turns.close()
    assert took == [1.0]


@pytest.mark.parametrize("what", ["the timer before it", "the work", "both timers"])
def test_what_is_repeated_goes_on_whatever_fails(what: str) -> None:
    """Where there was no memory for its timer, once, it was never done again."""
    loop: Any = Loop()
    done: list[float] = []
    failing = 0
    call_later = loop.call_later

    def timer(delay_s: float, call: Callable[[], None]) -> Timer:
        nonlocal failing
        if failing:
            failing -= 1
            raise MemoryError("none left")
        made: Timer = call_later(delay_s, call)
        return made

    def work() -> None:
        done.append(loop.now)
        if what == "the work":
            raise ValueError("a mistake")

    loop.call_later = timer
    repeated = Repeated(loop, 1.5, work)
    repeated.start()
    repeated.start()
    assert [each.due for each in loop.waiting] == [11.5, 12.25]
    failing = {"the timer before it": 1, "the work": 0, "both timers": 2}[what]
    loop.now = 11.5
    with nullcontext() if what == "the timer before it" else pytest.raises((MemoryError, ValueError)):
        loop.run()
    assert done == [11.5]
    while loop.now < 20:
        loop.now = min(each.due for each in loop.waiting)
        with suppress(ValueError):
            loop.run()
    assert len(done) >= 6 and all(later - before <= 1.5 for before, later in pairwise(done))
    repeated.close()
    repeated.start()
    assert not loop.waiting
