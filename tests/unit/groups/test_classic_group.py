"""The classic group as a state machine, against Kafka's rules: rebalances, protocols, assignments, commits, and what is stored."""

from __future__ import annotations

import random
from typing import Any

import pytest
from classic_bench import (
    COMPLETING,
    DEAD,
    DELAY_MS,
    EMPTY,
    PREPARING,
    REBALANCE_MS,
    SESSION_MS,
    STABLE,
    Call,
    GroupBench,
)
from fastq_broker.groups.classic_state import PREVIOUS, State
from fastq_broker.groups.group import Committer

# --- the table ---


@pytest.mark.parametrize("target", State)
@pytest.mark.parametrize("source", State)
def test_only_the_transitions_of_the_table_can_be_made(bench: GroupBench, source: State, target: State) -> None:
    group = bench.group
    group.state = source
    if source in PREVIOUS[target]:
        group._go(target)
        assert (group.previous_state, group.state, group.state_since_ms) == (source, target, bench.wall_clock())
    else:
        with pytest.raises(ValueError, match=f"{target.value} cannot follow {source.value}"):
            group._go(target)


def test_a_group_goes_through_all_states(bench: GroupBench) -> None:
    assert bench.group.state is EMPTY
    member_id, joined = bench.join_new()
    assert bench.group.state is PREPARING
    bench.advance(DELAY_MS)
    assert bench.group.state is COMPLETING
    assert joined.result.members == [(member_id, None, b"meta")]
    bench.sync(member_id, assignments={member_id: b"all"})
    assert bench.group.state is STABLE
    bench.leave((member_id, None))
    assert bench.group.state is EMPTY
    bench.group.kill(16)
    assert bench.group.state is DEAD


# --- rebalances ---


def test_the_first_rebalance_waits_for_others_and_a_little_longer_for_each_that_comes(bench: GroupBench) -> None:
    _, first = bench.join_new()
    bench.advance(DELAY_MS - 1)
    _, second = bench.join_new()
    bench.advance(1)
    assert first.waits
    bench.advance(DELAY_MS - 1)
    assert first.waits
    bench.advance(1)
    assert (first.result.generation, second.result.generation) == (1, 1)
    assert len(first.result.members) == 2
    assert second.result.members == ()


def test_the_first_rebalance_lasts_no_longer_than_the_rebalance_timeout(bench: GroupBench) -> None:
    _, first = bench.join_new(rebalance_ms=7000)
    for _ in range(20):
        bench.advance(500)
        if not first.waits:
            break
        bench.join_new(rebalance_ms=7000)
    assert not first.waits
    assert bench.now_ms - 1_000_000 == 7000


def test_without_a_delay_the_first_member_is_answered_in_the_same_moment() -> None:
    bench = GroupBench(delay_ms=0)
    _, joined = bench.join_new()
    bench.advance(0)
    assert joined.result.error == 0


def test_a_new_member_has_the_others_join_again(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    _, third = bench.join_new()
    assert bench.group.state is PREPARING
    assert bench.heartbeat(leader) == bench.heartbeat(follower) == 27
    joined = [(leader, bench.join(leader)), (follower, bench.join(follower))]
    assert bench.group.state is COMPLETING
    assert third.result.generation == 2
    assert len(bench.settle(*joined, ("", third))) == 3


def test_members_that_do_not_join_again_in_time_are_out(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    joined = bench.join(leader)
    bench.advance(REBALANCE_MS - 1, lambda: bench.heartbeat(follower))
    assert joined.waits
    bench.advance(1)
    assert joined.result.members == [(leader, None, b"meta")]
    assert bench.heartbeat(follower) == 25


def test_the_rebalance_timeout_is_the_longest_of_the_members(bench: GroupBench) -> None:
    bench.join_new(rebalance_ms=1000)
    bench.join_new(rebalance_ms=9000)
    assert bench.group.rebalance_timeout_ms == 9000


def test_a_leader_that_joins_again_forces_a_rebalance_an_unchanged_follower_does_not(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    answer = bench.join(follower).result
    assert (answer.error, answer.generation, answer.leader, answer.members) == (0, 1, leader, ())
    assert bench.group.state is STABLE
    assert bench.join(leader).waits
    assert bench.group.state is PREPARING


def test_a_follower_with_another_subscription_forces_a_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    assert bench.join(follower, protocols=(("range", b"other"),)).waits
    joined = bench.join(leader)
    assert (follower, None, b"other") in joined.result.members


def test_who_asks_again_while_the_assignment_is_awaited_gets_the_same_answer(bench: GroupBench) -> None:
    (leader, first), (follower, _) = bench.join_new(), bench.join_new()
    bench.advance(2 * DELAY_MS)
    assert bench.join(leader).result == first.result
    assert bench.join(follower).result.members == ()
    assert bench.group.state is COMPLETING
    assert bench.join(follower, protocols=(("range", b"other"),)).waits
    assert bench.group.state is PREPARING


def test_a_request_that_is_sent_again_leaves_nobody_waiting(bench: GroupBench) -> None:
    member_id, first = bench.join_new()
    second = bench.join(member_id)
    assert first.result.error == 27
    bench.advance(2 * DELAY_MS)
    assert second.result.error == 0


def test_the_last_member_leaving_in_a_rebalance_empties_the_group(bench: GroupBench) -> None:
    (only,) = bench.stable(1)
    _, joined = bench.join_new()
    bench.leave((only, None))
    assert joined.result.members[0][0] == joined.result.member_id
    assert bench.leave((joined.result.member_id, None)) == [0]
    assert (bench.group.state, bench.group.generation) == (EMPTY, 3)
    bench.reload()
    assert (bench.group.state, bench.group.generation, bench.group.protocol_type) == (EMPTY, 3, "consumer")


# --- protocols ---


def test_the_protocol_most_prefer_of_those_that_all_offer(bench: GroupBench) -> None:
    bench.join_new(protocols=(("a", b"1"), ("b", b"2"), ("c", b"3")))
    bench.join_new(protocols=(("c", b"3"), ("b", b"2"), ("x", b"")))
    _, joined = bench.join_new(protocols=(("b", b"2"), ("c", b"3")))
    bench.advance(3 * DELAY_MS)
    assert joined.result.protocol_name in ("b", "c")
    assert bench.group.protocol_name == "b"


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", (("other", b""),)), ("connect", (("range", b""),)), ("consumer", ()), ("", (("range", b""),))],
)
def test_who_shares_no_protocol_is_refused(bench: GroupBench, protocol_type: str, protocols: Any) -> None:
    bench.stable(1)
    assert bench.join(protocol_type=protocol_type, protocols=protocols).result.error == 23
    assert bench.group.state is STABLE


def test_a_first_member_needs_a_protocol(bench: GroupBench) -> None:
    assert bench.join(protocol_type="").result.error == 23
    assert bench.join(protocols=()).result.error == 23
    assert bench.group.members == {}


def test_sync_with_another_protocol_is_refused(bench: GroupBench) -> None:
    (member_id,) = bench.stable(1)
    assert bench.sync(member_id, protocol_type="connect").result.error == 23
    assert bench.sync(member_id, protocol_name="sticky").result.error == 23
    assert bench.sync(member_id, protocol_name="range").result.error == 0


# --- assignments ---


def test_followers_get_their_assignment_when_the_leader_has_given_it(bench: GroupBench) -> None:
    (leader, _), (follower, _) = bench.join_new(), bench.join_new()
    bench.advance(2 * DELAY_MS)
    waiting = bench.sync(follower)
    assert waiting.waits
    answer = bench.sync(leader, assignments={follower: b"f"}).result
    assert (answer.error, answer.assignment, answer.protocol_type, answer.protocol_name) == (
        0,
        b"",
        "consumer",
        "range",
    )
    assert waiting.result.assignment == b"f"
    assert bench.sync(follower).result.assignment == b"f"


def test_checks_come_in_the_order_member_generation_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    bench.join(leader)
    assert bench.group.state is PREPARING
    assert bench.sync("nobody", 7).result.error == bench.heartbeat("nobody", 7) == 25
    assert bench.sync(follower, 7).result.error == bench.heartbeat(follower, 7) == 22
    assert bench.sync(follower).result.error == bench.heartbeat(follower) == 27


def test_a_rebalance_while_the_assignment_is_awaited_sends_everybody_back(bench: GroupBench) -> None:
    _, (follower, _) = bench.join_new(), bench.join_new()
    bench.advance(2 * DELAY_MS)
    waiting = bench.sync(follower)
    bench.join_new()
    assert waiting.result.error == 27


def test_who_never_asks_for_the_assignment_is_out(bench: GroupBench) -> None:
    (leader, _), (follower, _) = bench.join_new(), bench.join_new()
    bench.advance(2 * DELAY_MS)

    def alive() -> None:
        for member_id in (leader, follower):
            if member_id in bench.group.members:
                bench.heartbeat(member_id)

    waiting = bench.sync(follower)
    bench.advance(REBALANCE_MS, alive)
    assert waiting.result.error == 27
    assert list(bench.group.members) == [follower]


def test_an_assignment_that_cannot_be_stored_sends_everybody_back(bench: GroupBench) -> None:
    (leader, _), (follower, _) = bench.join_new(), bench.join_new()
    bench.advance(2 * DELAY_MS)
    bench.store_error = 16
    waiting = bench.sync(follower)
    assert bench.sync(leader, assignments={follower: b"f"}).result.error == 16
    assert waiting.result.error == 16
    assert bench.group.state is PREPARING
    assert bench.group.members[follower].assignment == b""


def test_an_assignment_that_is_stored_late_is_of_no_use_after_a_rebalance(bench: GroupBench) -> None:
    (leader, _) = bench.join_new()
    bench.advance(2 * DELAY_MS)
    bench.hold_stores = True
    waiting = bench.sync(leader, assignments={leader: b"old"})
    assert waiting.waits
    bench.join_new()
    assert waiting.result.error == 27
    bench.finish_store()
    assert bench.group.state is PREPARING
    assert bench.group.members[leader].assignment == b""


# --- commits ---


def test_who_may_commit(bench: GroupBench) -> None:
    def error(member_id: str, generation: int, instance_id: str | None = None, transactional: bool = False) -> int:
        committer = Committer(member_id, generation, instance_id)
        return bench.group.check_commit(committer, [("t", 0)], transactional=transactional, version=9)

    assert error("", -1) == 0, "anybody while the group is empty"
    (member_id, _), _ = bench.join_new(), bench.join_new()
    assert error("", -1) == 25
    assert error("", -1, transactional=True) == 0, "producers before version 3 know no members"
    assert error("nobody", 0) == 25
    assert error(member_id, 0) == 0, "while members join, the last generation may still commit"
    bench.advance(2 * DELAY_MS)
    assert error(member_id, 0) == 22
    assert error(member_id, 1) == 27
    assert error(member_id, 1, transactional=True) == 0
    assert error(member_id, 1, "i9") == 25
    bench.group.kill(16)
    assert error(member_id, 1) == 15


# --- what is stored ---


def test_a_stable_group_comes_back_as_it_was(bench: GroupBench) -> None:
    static = bench.static_group()
    before = bench.group
    bench.reload()
    after = bench.group
    assert after is not before
    assert (after.state, after.generation, after.leader_id) == (STABLE, before.generation, before.leader_id)
    assert (after.protocol_type, after.protocol_name) == ("consumer", "range")
    assert after.assignments() == before.assignments()
    assert after.instances == before.instances
    assert after.subscribed == before.subscribed
    assert bench.heartbeat(static[0], instance_id="i0") == 0
    assert bench.sync(static[1], instance_id="i1").result.assignment == b"a-" + static[1].encode()
    bench.advance(SESSION_MS)
    assert after.state is EMPTY, "sessions go on after a load"


def test_who_waits_when_the_group_moves_is_told(bench: GroupBench) -> None:
    _, joining = bench.join_new()
    bench.group.kill(16)
    bench.run()
    assert joining.result.error == 16
    assert bench.join().result.error == 15
    assert bench.heartbeat("x") == 15


# --- any order of events ---


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_events_ends_in_a_stable_group(seed: int) -> None:
    """Clients that do the right thing most of the time, come, go, die and are slow: every request is answered once, the
    invariants hold after each event, and generations only grow."""
    bench = GroupBench(delay_ms=random.Random(seed).choice([0, 3000]), size_max=6)
    clients = [Client(bench, seed * 100 + n, f"i{n}" if n % 3 == 0 else None) for n in range(8)]
    rng = random.Random(seed)
    generation = 0
    for _ in range(400):
        client = rng.choice(clients)
        client.step(rng)
        bench.advance(rng.choice([0, 10, 500, 2500]))
        bench.store_error = 16 if rng.random() < 0.03 else 0
        assert bench.group.generation >= generation
        generation = bench.group.generation
    bench.store_error = 0
    living = clients[:4]
    for client in clients[4:]:
        client.dead = True
    for _ in range(300):
        for client in living:
            client.go_on()
        bench.advance(500)
    assert bench.group.state is STABLE
    assert sorted(bench.group.members) == sorted(client.member_id for client in living)
    assert all(call.results or client.current is call for client in clients for call in client.calls)


class Client:
    """A member as a client library plays it: joins, syncs, sends heartbeats, begins again after an error."""

    def __init__(self, bench: GroupBench, seed: int, instance_id: str | None) -> None:
        self.bench = bench
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.step_name = "join"
        self.calls: list[Call] = []
        self.current: Call | None = None
        self.dead = False
        self.metadata = b"%d" % seed

    def step(self, rng: random.Random) -> None:
        chance = rng.random()
        if chance < 0.03:  # gone without a word, and started again
            self.dead = False
            self.member_id, self.generation, self.step_name, self.current = "", -1, "join", None
        elif chance < 0.06 and self.member_id:
            self.bench.leave((self.member_id, self.instance_id))
            self.member_id, self.step_name, self.current = "", "join", None
        elif chance < 0.09:
            self.metadata = b"%d" % rng.randrange(1000)
            if self.current is None:
                self.step_name = "join"
        else:
            self.go_on()

    def go_on(self) -> None:
        if self.current is not None:
            if self.current.waits:
                return
            result, self.current = self.current.result, None
            self.take(result)
        elif self.step_name == "join":
            self.send(
                self.bench.join(self.member_id, instance_id=self.instance_id, protocols=(("range", self.metadata),))
            )
        elif self.step_name == "sync":
            leads = self.bench.group.leader_id == self.member_id
            given = dict.fromkeys(self.bench.group.members, b"x") if leads else None
            self.send(self.bench.sync(self.member_id, self.generation, given, instance_id=self.instance_id))
        else:
            error = self.bench.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
            if error:
                self.fail(error)

    def send(self, call: Call) -> None:
        self.calls.append(call)
        self.current = call

    def take(self, result: Any) -> None:
        if result.error == 79:
            self.member_id = result.member_id
        elif result.error:
            self.fail(result.error)
        elif self.step_name == "join":
            self.member_id, self.generation, self.step_name = result.member_id, result.generation, "sync"
        else:
            self.step_name = "heartbeat"

    def fail(self, error: int) -> None:
        self.step_name = "join"
        if error in (22, 25, 81, 82):
            self.member_id = ""


def test_where_only_some_of_those_who_leave_could_be_taken_out_the_others_join_again(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group was stable without the first of them, for as long as nobody else came or went."""
    stays, first, second = bench.stable(3)
    remove = bench.group._remove

    def removing(member_id: str) -> None:
        if member_id == second:
            raise MemoryError("none left")
        remove(member_id)

    with monkeypatch.context() as patch:
        patch.setattr(bench.group, "_remove", removing)
        with pytest.raises(MemoryError):
            bench.leave((first, None), (second, None))
    for _ in range(2):
        bench.advance(SESSION_MS // 2)
        bench.heartbeat(second)
        bench.heartbeat(stays)
    assert first not in bench.group.members and bench.heartbeat(stays) == 27


def test_a_leader_whose_assignment_cannot_be_taken_in_is_out_like_one_that_never_sent_it(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as one that waits, so that neither its session nor the time for syncs took it out: the others waited for good."""
    members = [bench.join_new(session_ms=SESSION_MS) for _ in range(2)]
    bench.advance(2 * DELAY_MS)
    leader, follower = sorted((member_id for member_id, _ in members), key=lambda name: name != bench.group.leader_id)
    waiting = bench.sync(follower)

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(bench.group, "_assignment_stored", no_memory)
        with pytest.raises(MemoryError):
            bench.sync(leader, assignments={})
    bench.advance(REBALANCE_MS)
    assert leader not in bench.group.members
    assert waiting.result.error == 27
