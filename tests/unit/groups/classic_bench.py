"""Drives a classic group without a broker: a clock, what is due, who was answered what, and a log that may fail."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_member import JoinRequest, JoinResult, SyncResult
from fastq_broker.groups.classic_records import group_record, read_group
from fastq_broker.groups.classic_state import Answer, Settings, State, Store, Wake

WALL_MS = 1_790_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000

PREPARING, COMPLETING, STABLE, EMPTY, DEAD = (
    State.PREPARING_REBALANCE,
    State.COMPLETING_REBALANCE,
    State.STABLE,
    State.EMPTY,
    State.DEAD,
)


class Call:
    """A request that waits for its answer, which must come once."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: Any) -> None:
        assert not self.results, f"answered twice: {self.results[0]}, {result}"
        self.results.append(result)

    @property
    def waits(self) -> bool:
        return not self.results

    @property
    def result(self) -> Any:
        assert self.results, "not answered yet"
        return self.results[0]


class GroupBench:
    """A group and its world. `store_error` is what the log answers; with `hold_stores` the answer comes with `finish_store`."""

    def __init__(self, *, size_max: int = 1000, delay_ms: int = DELAY_MS) -> None:
        self.now_ms = 1_000_000
        self.ids = 0
        self.settings = Settings(delay_ms, size_max)
        self.group = ClassicGroup("g", self.settings, wall_clock=self.wall_clock, new_name=self.new_name)
        self.stored: list[bytes] = []
        self.store_error = 0
        self.hold_stores = False
        self.held: list[Store] = []
        self._due: list[tuple[int, int, str]] = []
        self._sequence = 0

    def wall_clock(self) -> int:
        return WALL_MS + self.now_ms

    def new_name(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    # --- the world ---

    def run(self) -> None:
        group = self.group
        while group.effects:
            effects, group.effects = group.effects, []
            for effect in effects:
                if isinstance(effect, Answer):
                    effect.waiter(effect.result)
                elif isinstance(effect, Wake):
                    self._sequence += 1
                    heapq.heappush(self._due, (effect.at_ms, self._sequence, effect.key))
                elif self.hold_stores:
                    self.held.append(effect)
                else:
                    self._finish(effect, self.store_error)
            self.check()

    def _finish(self, store: Store, error: int) -> None:
        if not error:
            value = group_record(self.group, store.assignments)[1]
            assert value is not None
            self.stored.append(value)
        store.then(error, self.now_ms)

    def finish_store(self, error: int = 0) -> None:
        """The log answers what was held back first."""
        self._finish(self.held.pop(0), error)
        self.run()

    def advance(self, ms: int, each: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `each` runs before everything that is due."""
        end = self.now_ms + ms
        while self._due and self._due[0][0] <= end:
            at_ms, _, key = heapq.heappop(self._due)
            self.now_ms = max(self.now_ms, at_ms)
            each()
            self.group.wake(key, self.now_ms)
            self.run()
        self.now_ms = end

    def check(self) -> None:
        """The group's invariants."""
        group = self.group
        assert group.awaiting_join == sum(m.join_waiter is not None for m in group.members.values())
        assert group.instances == {m.instance_id: i for i, m in group.members.items() if m.instance_id is not None}
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        names = [name for m in group.members.values() for name in {n for n, _ in m.protocols}]
        assert {name: count for name, count in group.support.items() if count} == {n: names.count(n) for n in names}
        assert group.pending_syncs <= set(group.members)
        if group.state is State.EMPTY:
            assert not group.members
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            assert group.members
            assert group.protocol_name is not None

    def reload(self) -> None:
        """Lose the group and read back what was stored last."""
        self.group = read_group("g", self.stored[-1], self.settings, self.wall_clock, self.new_name)
        self._due.clear()
        self.group.start_sessions(self.now_ms)
        self.run()

    # --- requests ---

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"meta"),),
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Call:
        call = Call()
        request = JoinRequest(
            member_id,
            instance_id,
            "client",
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            version >= 4,
            version >= 9,
        )
        self.group.join(request, call, self.now_ms)
        self.run()
        return call

    def join_new(self, **options: Any) -> tuple[str, Call]:
        """Join as a new dynamic member: once for the id, once with it."""
        first = self.join(**options).result
        assert first.error == 79
        return first.member_id, self.join(first.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = None,
    ) -> Call:
        call = Call()
        generation = self.group.generation if generation is None else generation
        self.group.sync(
            member_id, instance_id, generation, protocol_type, protocol_name, assignments or {}, call, self.now_ms
        )
        self.run()
        return call

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance_id: str | None = None) -> int:
        generation = self.group.generation if generation is None else generation
        error = self.group.heartbeat(member_id, instance_id, generation, self.now_ms)
        self.run()
        return error

    def leave(self, *leaving: tuple[str, str | None]) -> list[int]:
        errors = self.group.leave(leaving, self.now_ms)
        self.run()
        return errors

    def stable(self, count: int, **options: Any) -> list[str]:
        """A group of `count` members with assignments; the first id is the leader's."""
        members = [self.join_new(**options) for _ in range(count)]
        self.advance(2 * self.settings.initial_rebalance_delay_ms)
        return self.settle(*members)

    def static_group(self, count: int = 2) -> list[str]:
        """A stable group of static members i0, i1, ...; the leader is i0."""
        calls = [self.join(instance_id=f"i{n}") for n in range(count)]
        self.advance(2 * DELAY_MS)
        ids = self.settle(*(("", call) for call in calls))
        assert self.group.leader_id == self.group.instances["i0"]
        return ids

    def settle(self, *members: tuple[str, Call]) -> list[str]:
        """Members that have joined sync; answers their ids, the leader's first."""
        for _, call in members:
            assert isinstance(call.result, JoinResult)
            assert call.result.error == 0
        ids = [call.result.member_id for _, call in members]
        leader = self.group.leader_id
        assert leader is not None
        given = {member_id: b"a-" + member_id.encode() for member_id in self.group.members}
        calls = [
            self.sync(member_id, assignments=given if member_id == leader else None)
            for member_id in sorted(ids, key=lambda member_id: member_id == leader)
        ]
        assert all(isinstance(call.result, SyncResult) and call.result.error == 0 for call in calls)
        assert self.group.state is State.STABLE
        return sorted(ids, key=lambda member_id: member_id != leader)
