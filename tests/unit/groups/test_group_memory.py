"""Where there is no memory for a moment, whichever, a classic group goes on: nobody waits for good."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.groups.classic_effects import carry_out
from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_member import JoinRequest, JoinResult, SyncResult
from fastq_broker.groups.classic_state import Answer, State, Wake
from fastq_broker.groups.commit_patience import Patience, Readers
from fastq_broker.groups.group import Committer
from group_world import SlowWorld

from fastq.errors import NotCoordinator

ALLOCATIONS = 120
"""More than an assignment takes."""
NONE = 10**9


@pytest.mark.parametrize("moment", ["asked", "kept"])
def test_who_waits_for_an_assignment_is_told_whichever_allocation_fails(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader counted as one that waits, or nothing told the group what had become of its record: the others waited for good."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    for first in range(ALLOCATIONS):
        world = SlowWorld()
        joined: list[JoinResult] = []
        for _ in range(2):
            request = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False, True)
            world.shard.join("g", request, joined.append)
        world.advance(0)
        world.replicate()
        leader, follower = sorted(joined, key=lambda result: result.member_id != result.leader)
        committers = [Committer(each.member_id, each.generation) for each in (leader, follower)]
        told: list[SyncResult] = []
        world.shard.sync("g", committers[1], None, None, {}, told.append)
        with suppress(MemoryError), AllocationsFail(first if moment == "asked" else NONE):
            world.shard.sync("g", committers[0], None, None, {}, lambda _: None)
        waiting, world.waiting = world.waiting, []
        for on_done in waiting:
            with suppress(MemoryError), AllocationsFail(first + 1 if moment == "kept" else NONE):
                on_done(None)
        for _ in range(30):
            world.advance(1000)
            world.replicate()
            if not told:
                world.shard.heartbeat("g", committers[1])
        assert world.groups["g"].state is not State.COMPLETING_REBALANCE, f"allocation {first}"


@pytest.mark.parametrize("shortages", [1, 3])
def test_who_waits_for_an_assignment_is_told_where_no_timer_can_be_set_for_that(
    shortages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was stored, and its group heard nothing of it: the members waited until their clients gave up."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    world = SlowWorld()
    joined: list[JoinResult] = []
    request = JoinRequest("", None, "c", "/h", 10_000, 300_000, "consumer", (("range", b""),), False, True)
    world.shard.join("g", request, joined.append)
    world.advance(0)
    world.replicate()
    told: list[SyncResult] = []
    committer = Committer(joined[0].member_id, joined[0].generation)
    world.shard.sync("g", committer, None, None, {committer.member_id: b"all"}, told.append)
    group = world.groups["g"]
    propagate, failures = group._propagate, [MemoryError()] * shortages
    assert not told and group.state is State.COMPLETING_REBALANCE

    def short(*arguments: object) -> None:
        raise MemoryError

    def propagating(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        propagate(*arguments)

    monkeypatch.setattr(ClassicGroup, "_propagate", lambda group, *arguments: propagating(*arguments))
    with monkeypatch.context() as no_timers:
        no_timers.setattr(world, "call_later", short)
        world.replicate()
    assert not told
    for _ in range(12):
        with suppress(MemoryError):
            world.advance(1000)
        world.shard.heartbeat("g", committer)
    assert [(result.error, result.assignment) for result in told] == [(0, b"all")]
    assert group.state is State.STABLE and not failures


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_what_a_group_wants_is_done_once_whichever_allocations_in_a_row_fail(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came behind was forgotten where there was no memory to note what had failed: members were not answered, or not looked after."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    outcomes = []
    for first in range(60):
        group = ClassicGroup("g", wall_clock=lambda: 0, new_name=lambda: "n")
        done: deque[object] = deque()
        tried: deque[str] = deque()

        def do(effect: Any, done: deque[object] = done, tried: deque[str] = tried) -> None:
            tried.append(f"{effect.key} is tried")
            done.append(effect.key)

        def told(result: Any, done: deque[object] = done) -> None:
            done.append(result)

        results = [JoinResult(0, "one"), JoinResult(0, "two")]
        group.effects += [Wake(1, "a"), Answer(told, results[0]), Wake(2, "b"), Answer(told, results[1]), Wake(3, "c")]
        with suppress(MemoryError), AllocationsFail(first, count):
            carry_out(group, do, None)
        outcomes.append(len(done) == 5)
        carry_out(group, do, None)
        keys = [each for each in done if isinstance(each, str)]
        answers = [each for each in done if not isinstance(each, str)]
        assert sorted(keys) == ["a", "b", "c"] and answers == results[: len(answers)], f"allocations from {first} on"
        assert not group.effects
    assert set(outcomes) == {True, False} and outcomes[-1]


@pytest.mark.parametrize("who", ["waits", "reads"])
def test_each_is_told_of_an_end_whichever_allocation_fails(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind one that there was no memory to come to were not answered."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    error = NotCoordinator("moved")
    for first in range(20):
        told: deque[object] = deque()
        patience = Patience(1000, lambda: 0, lambda delay_s, callback: SimpleNamespace(cancel=lambda: None))
        durable: list[Any] = []
        readers = Readers(lambda: 7, durable.append, patience)
        for _ in range(3):
            if who == "reads":
                readers.add(told.append)
            else:
                patience.wait(lambda done: None, told.append)
        end = partial(durable[0], error) if who == "reads" else partial(patience.end, error)
        with suppress(MemoryError), AllocationsFail(first):
            end()
        patience.end(error)
        assert len(told) == 3, f"allocation {first}"
