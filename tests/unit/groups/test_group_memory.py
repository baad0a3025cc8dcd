"""Where there is no memory for a moment, whichever, a classic group goes on: nobody waits for good."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.groups.classic_member import JoinRequest, JoinResult, SyncResult
from fastq_broker.groups.classic_state import State
from fastq_broker.groups.group import Committer
from group_world import SlowWorld

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
