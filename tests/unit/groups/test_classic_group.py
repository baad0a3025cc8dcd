"""The classic group as a state machine, against Kafka's rules: joining, syncing, staying, leaving, static members."""

from __future__ import annotations

import random
from typing import Any

import pytest
from classic_bench import DELAY_MS, REBALANCE_MS, SESSION_MS, Call, GroupBench
from fastq_broker.groups.classic_state import PREVIOUS, State
from fastq_broker.groups.group import Committer

PREPARING, COMPLETING, STABLE, EMPTY, DEAD = (
    State.PREPARING_REBALANCE,
    State.COMPLETING_REBALANCE,
    State.STABLE,
    State.EMPTY,
    State.DEAD,
)


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()


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


# --- member ids ---


def test_a_dynamic_member_needs_an_id_from_version_4_on(bench: GroupBench) -> None:
    answer = bench.join(version=4).result
    assert (answer.error, answer.member_id, answer.generation) == (79, "client-id1", -1)
    assert bench.group.state is EMPTY
    joined = bench.join(answer.member_id, version=4)
    assert joined.waits
    assert bench.group.pending_joins == {}


def test_before_version_4_it_joins_at_once(bench: GroupBench) -> None:
    joined = bench.join(version=3)
    assert joined.waits
    bench.advance(DELAY_MS)
    assert joined.result.member_id == "client-id1"


def test_an_id_that_is_not_used_expires_with_the_session(bench: GroupBench) -> None:
    pending = bench.join().result.member_id
    bench.advance(SESSION_MS - 1)
    assert pending in bench.group.pending_joins
    bench.advance(1)
    assert bench.join(pending).result.error == 25


def test_a_rebalance_waits_for_ids_that_were_given_out(bench: GroupBench) -> None:
    (first,) = bench.stable(1)
    late = bench.join(session_ms=6000).result.member_id
    rejoined = bench.join(first)
    assert rejoined.waits
    bench.advance(5999)
    assert rejoined.waits
    bench.advance(1)
    assert rejoined.result.error == 0
    assert late not in bench.group.members


def test_unknown_members_are_told_so(bench: GroupBench) -> None:
    bench.stable(1)
    assert bench.join("nobody").result.error == 25
    assert bench.sync("nobody").result.error == 25
    assert bench.heartbeat("nobody") == 25
    assert bench.leave(("nobody", None)) == [25]


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


# --- sessions ---


def test_a_session_ends_without_heartbeats(bench: GroupBench) -> None:
    leader, _ = bench.stable(2)
    bench.advance(SESSION_MS - 1)
    assert bench.heartbeat(leader) == 0
    bench.advance(1)
    assert list(bench.group.members) == [leader]
    assert bench.heartbeat(leader) == 27
    bench.advance(SESSION_MS)
    assert bench.group.state is EMPTY


def test_heartbeats_keep_a_session_with_one_look_at_a_time(bench: GroupBench) -> None:
    (member_id,) = bench.stable(1)
    for _ in range(1000):
        bench.advance(SESSION_MS // 10)
        assert bench.heartbeat(member_id) == 0
    assert len(bench._due) <= 4


def test_who_waits_for_a_join_or_sync_needs_no_heartbeat(bench: GroupBench) -> None:
    first, second = bench.stable(2)
    waiting = bench.join(first)
    bench.advance(REBALANCE_MS - 1, lambda: bench.heartbeat(second))
    assert waiting.waits
    assert first in bench.group.members


def test_a_new_member_that_waits_too_long_is_told_to_try_again(bench: GroupBench) -> None:
    (first,) = bench.stable(1, rebalance_ms=20 * 60_000)
    _, waiting = bench.join_new(rebalance_ms=20 * 60_000)
    bench.advance(5 * 60_000 - 1, lambda: bench.heartbeat(first))
    assert waiting.waits
    bench.advance(1, lambda: bench.heartbeat(first))
    assert (waiting.result.error, waiting.result.member_id) == (25, "")


def test_commits_keep_a_session_too(bench: GroupBench) -> None:
    (member_id,) = bench.stable(1)
    bench.advance(SESSION_MS - 1)
    bench.group.note_commit(Committer(member_id, 1), bench.now_ms)
    bench.run()
    bench.advance(SESSION_MS - 1)
    assert bench.group.state is STABLE


# --- leaving ---


def test_leaving_is_answered_one_by_one(bench: GroupBench) -> None:
    bench.join_new()
    static = bench.join(instance_id="i1")
    bench.advance(2 * DELAY_MS)
    pending = bench.join().result.member_id
    old = static.result.member_id
    assert bench.leave(("", "i2"), ("", None), ("nobody", None), ("other", "i1")) == [25, 25, 25, 82]
    assert bench.leave((pending, None), ("", "i1"), (old, "i1")) == [0, 0, 25]
    assert bench.group.instances == {}


def test_who_leaves_while_it_waits_is_answered(bench: GroupBench) -> None:
    member_id, waiting = bench.join_new()
    assert bench.leave((member_id, None)) == [0]
    assert waiting.result.error == 25
    bench.advance(DELAY_MS)
    assert bench.group.state is EMPTY


# --- static members (KIP-345, KIP-814) ---


def static_group(bench: GroupBench, count: int = 2) -> list[str]:
    """A stable group of static members i0, i1, ...; the leader is i0."""
    calls = [bench.join(instance_id=f"i{n}") for n in range(count)]
    bench.advance(2 * DELAY_MS)
    ids = bench.settle(*(("", call) for call in calls))
    assert bench.group.leader_id == bench.group.instances["i0"]
    return ids


def test_a_static_member_comes_back_without_a_rebalance(bench: GroupBench) -> None:
    leader, follower = static_group(bench)
    answer = bench.join(instance_id="i1").result
    assert (answer.error, answer.generation, answer.leader, answer.skip_assignment) == (0, 1, leader, False)
    assert answer.member_id != follower
    assert (bench.group.state, bench.group.generation) == (STABLE, 1)
    assert bench.sync(answer.member_id, instance_id="i1").result.assignment == b"a-" + follower.encode()


def test_the_old_id_of_a_static_member_is_fenced(bench: GroupBench) -> None:
    _, follower = static_group(bench)
    bench.join(instance_id="i1")
    assert bench.heartbeat(follower, instance_id="i1") == 82
    assert bench.sync(follower, instance_id="i1").result.error == 82
    assert bench.join(follower, instance_id="i1").result.error == 82
    assert bench.leave((follower, "i1")) == [82]
    assert bench.heartbeat(follower) == 25
    committer = Committer(follower, 1, "i1")
    assert bench.group.check_commit(committer, [], transactional=False, version=9) == 82


def test_a_leader_that_comes_back_skips_the_assignment_from_version_9_on(bench: GroupBench) -> None:
    leader, follower = static_group(bench)
    answer = bench.join(instance_id="i0", version=9).result
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert {member for member, _, _ in answer.members} == {answer.member_id, follower}
    older = bench.join(instance_id="i0", version=8).result
    assert (older.skip_assignment, older.members) == (False, ())
    assert older.leader == answer.member_id != older.member_id
    assert bench.group.leader_id == older.member_id
    assert leader not in bench.group.members


def test_a_static_member_with_another_choice_of_protocol_forces_a_rebalance(bench: GroupBench) -> None:
    both = (("range", b""), ("sticky", b""))
    calls = [bench.join(instance_id=f"i{n}", protocols=both) for n in range(2)]
    bench.advance(2 * DELAY_MS)
    bench.settle(*(("", call) for call in calls))
    assert bench.join(instance_id="i1", protocols=(("sticky", b""),)).waits
    assert bench.group.state is PREPARING


def test_a_static_member_that_comes_back_while_the_assignment_is_awaited_forces_a_rebalance(bench: GroupBench) -> None:
    calls = [bench.join(instance_id=f"i{n}") for n in range(2)]
    bench.advance(2 * DELAY_MS)
    waiting = bench.sync(calls[1].result.member_id, instance_id="i1")
    assert bench.join(instance_id="i1").waits
    assert waiting.result.error == 82
    assert bench.group.state is PREPARING


def test_a_static_member_that_joins_twice_fences_who_waits(bench: GroupBench) -> None:
    first = bench.join(instance_id="i0")
    second = bench.join(instance_id="i0")
    assert first.result.error == 82
    bench.advance(2 * DELAY_MS)
    assert second.result.error == 0


def test_a_new_id_that_cannot_be_stored_leaves_the_old_one(bench: GroupBench) -> None:
    leader, follower = static_group(bench)
    bench.store_error = 16
    answer = bench.join(instance_id="i1", protocols=(("range", b"new"),), session_ms=30_000).result
    assert (answer.error, answer.member_id) == (16, "")
    member = bench.group.members[follower]
    assert (member.metadata("range"), member.session_timeout_ms) == (b"meta", SESSION_MS)
    assert bench.heartbeat(follower, instance_id="i1") == 0
    assert bench.heartbeat(leader, instance_id="i0") == 0


def test_a_static_member_stays_while_it_is_away_but_not_longer_than_its_session(bench: GroupBench) -> None:
    leader, follower = static_group(bench)
    rejoined = bench.join(leader, instance_id="i0")
    bench.advance(SESSION_MS)
    assert rejoined.result.error == 0
    assert list(bench.group.members) == [leader]
    assert bench.join(follower, instance_id="i1").result.error == 25


# --- size ---


def test_a_full_group_takes_nobody_in() -> None:
    bench = GroupBench(size_max=2)
    leader, _ = bench.stable(2)
    assert (bench.join().result.error, bench.join().result.member_id) == (81, "")
    assert bench.join(leader).waits


def test_a_group_that_is_too_large_by_now_sheds_the_last_to_join() -> None:
    bench = GroupBench()
    members = bench.stable(3)
    bench.settings = bench.settings._replace(size_max=2)
    bench.reload()
    bench.group.rebalance_if_too_large(bench.now_ms)
    bench.run()
    assert bench.group.state is PREPARING
    calls = [bench.join(member_id) for member_id in members]
    assert calls[2].result.error == 81
    assert [call.result.error for call in calls[:2]] == [0, 0]
    assert len(bench.group.members) == 2


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
    static = static_group(bench)
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
