"""Waiting fetches: when they end, that they end once, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.handlers import fetch as fetch_handler
from fastq_broker.purgatory import Purgatory, WaitingFetch


class World:
    """A purgatory with bytes per partition that a test moves."""

    def __init__(self) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.bytes: dict[Hashable, int] = {"a": 0, "b": 0}
        self.ended: list[str] = []

    def wait(self, name: str, keys: str, min_bytes: int, max_wait_s: float = 60.0) -> WaitingFetch:
        available = {key: self.bytes[key] for key in keys}
        fetch = WaitingFetch(available, min_bytes, self.bytes.__getitem__, lambda: self.ended.append(name))
        self.purgatory.wait(fetch, max_wait_s)
        return fetch

    def append(self, key: str, size: int) -> None:
        self.bytes[key] += size
        self.purgatory.advanced(key)

    async def turn(self) -> list[str]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended, self.ended = self.ended, []
        return ended


def run(scenario: Callable[[World], object]) -> None:
    async def main() -> None:
        world = World()
        await scenario(world)  # type: ignore[misc]
        assert len(world.purgatory) == 0
        assert world.purgatory._watchers == {}

    asyncio.run(main())


def test_one_byte_ends_a_fetch_that_wants_one() -> None:
    async def scenario(world: World) -> None:
        world.wait("first", "a", 1)
        world.wait("second", "ab", 1)
        world.wait("third", "b", 1)
        world.append("a", 10)
        assert world.ended == [], "not within the append"
        assert sorted(await world.turn()) == ["first", "second"]
        world.append("b", 10)
        assert await world.turn() == ["third"]

    run(scenario)


@pytest.mark.parametrize("min_bytes", [1, 20])
def test_an_advance_that_nobody_can_read_ends_no_fetch(min_bytes: int) -> None:
    async def scenario(world: World) -> None:
        world.wait("f", "ab", min_bytes)
        world.append("a", 0)
        world.append("b", 0)
        assert await world.turn() == []
        world.append("b", 20)
        assert await world.turn() == ["f"]

    run(scenario)


def test_bytes_add_up_over_appends_and_partitions() -> None:
    async def scenario(world: World) -> None:
        world.append("a", 30)
        world.wait("f", "ab", 100)
        for key, size in (("a", 30), ("b", 30)):
            world.append(key, size)
            assert await world.turn() == []
        world.append("b", 10)
        assert await world.turn() == ["f"]
        world.append("b", 10)
        assert await world.turn() == []

    run(scenario)


def test_time_ends_a_fetch_once() -> None:
    async def scenario(world: World) -> None:
        world.wait("f", "a", 1, max_wait_s=0.01)
        await asyncio.sleep(0.05)
        assert await world.turn() == ["f"]
        world.append("a", 1)
        assert await world.turn() == []

    run(scenario)


def test_a_change_of_the_partition_ends_a_fetch() -> None:
    async def scenario(world: World) -> None:
        world.wait("f", "ab", 1000)
        world.purgatory.changed("b")
        world.purgatory.changed("a")
        assert await world.turn() == ["f"]

    run(scenario)


@pytest.mark.parametrize("then", ["append", "expire"])
def test_a_cancelled_fetch_never_ends(then: str) -> None:
    async def scenario(world: World) -> None:
        fetch = world.wait("f", "a", 1, max_wait_s=0.01)
        world.purgatory.cancel(fetch)
        world.purgatory.cancel(fetch)
        if then == "append":
            world.append("a", 5)
        else:
            await asyncio.sleep(0.03)
        assert await world.turn() == []

    run(scenario)


def test_a_stop_ends_all() -> None:
    async def scenario(world: World) -> None:
        for name in "xyz":
            world.wait(name, "ab", 10**9)
        world.purgatory.end_all()
        assert sorted(await world.turn()) == ["x", "y", "z"]

    run(scenario)


def test_a_fetch_that_raises_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        def broken(*_: object) -> int:
            raise ValueError("broken fetch")

        for name, max_wait_s in (("before", 60.0), ("after", 60.0)):
            world.wait(name, "a", 1, max_wait_s)
            uncounted = WaitingFetch({"a": 0}, 1, broken, lambda: world.ended.append("uncounted"))
            unanswered = WaitingFetch({"a": 0}, 1, world.bytes.__getitem__, broken)  # type: ignore[arg-type]
            world.purgatory.wait(uncounted, 60.0)
            world.purgatory.wait(unanswered, 60.0)
        world.append("a", 1)
        assert sorted(await world.turn()) == ["after", "before", "uncounted", "uncounted"]
        assert len(world.purgatory) == 0

    run(scenario)
    assert "broken fetch" in caplog.text


class Timer:
    """One that a test runs."""

    def __init__(
        self, timers: list[Timer], delay_s: float, callback: Callable[..., object], *arguments: object
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False
        timers.append(self)

    def cancel(self) -> None:
        self.cancelled = True


@pytest.mark.parametrize("moment", ["advance", "turn"])
def test_each_fetch_ends_once_whichever_allocation_fails(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ended was answered by nobody, and after a turn that failed no fetch was any more."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    for first in range(60):
        soon: list[Callable[[], object]] = []
        timers: list[Timer] = []

        loop: Any = SimpleNamespace(call_soon=soon.append, call_later=partial(Timer, timers))
        purgatory, ended, size = Purgatory(loop), deque[int](), {"a": 0}
        for number in range(3):
            purgatory.wait(WaitingFetch({"a": 0}, 1, size.__getitem__, partial(ended.append, number)), 60)
        size["a"] = 1
        with suppress(MemoryError), AllocationsFail(first if moment == "advance" else 10**9):
            purgatory.advanced("a")
        if moment == "turn":
            with suppress(MemoryError), AllocationsFail(first):
                soon.pop(0)()
        for timer in timers:
            if not timer.cancelled:
                timer.callback(*timer.arguments)
        purgatory.wait(WaitingFetch({"a": 0}, 1, size.__getitem__, partial(ended.append, 3)), 60)
        purgatory.advanced("a")
        while soon:
            soon.pop(0)()
        assert sorted(ended) == [0, 1, 2, 3], f"allocation {first}"
        assert len(purgatory) == 0 and not purgatory._watchers


def test_a_fetch_that_cannot_be_looked_at_again_is_refused() -> None:
    """What its session had to look for was looked for outside of what its client hears of: it waited for good."""
    refused: list[str] = []

    def no_memory(*_: object) -> None:
        raise MemoryError("none left")

    waiting: Any = SimpleNamespace(
        _wait_no_more=lambda: None,
        context=SimpleNamespace(look=no_memory),
        body=SimpleNamespace(isolation_level=0, replica_id=-1, replica_epoch=-1),
    )
    deferred: Any = SimpleNamespace(refuse=refused.append)
    fetch_handler._Fetch._finish(waiting, deferred)
    assert refused == ["Fetch failed: none left"]


def test_a_fetch_for_whose_wait_there_is_no_memory_is_registered_nowhere() -> None:
    """Nothing ended it before one of its partitions moved, and until then it and what it was to answer stayed."""

    async def scenario(world: World) -> None:
        outcomes = []
        for at in range(30):
            available = {("partition", number): 0 for number in range(3)}
            fetch = WaitingFetch(available, 1, available.__getitem__, lambda: None)
            try:
                with AllocationsFail(at):
                    world.purgatory.wait(fetch, 60)
            except MemoryError:
                outcomes.append(False)
                assert fetch.done and fetch.timer is None
            else:
                outcomes.append(True)
                world.purgatory.cancel(fetch)
            assert (len(world.purgatory), world.purgatory._watchers) == (0, {})
        assert not all(outcomes) and outcomes[-1]

    run(scenario)
