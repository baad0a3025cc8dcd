"""Members of a classic group: their ids and sessions, leaving, static members, and how many there may be."""

from __future__ import annotations

import pytest
from classic_bench import DELAY_MS, EMPTY, PREPARING, REBALANCE_MS, SESSION_MS, STABLE, GroupBench
from fastq_broker.groups.group import Committer

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


def test_a_static_member_comes_back_without_a_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.static_group()
    answer = bench.join(instance_id="i1").result
    assert (answer.error, answer.generation, answer.leader, answer.skip_assignment) == (0, 1, leader, False)
    assert answer.member_id != follower
    assert (bench.group.state, bench.group.generation) == (STABLE, 1)
    assert bench.sync(answer.member_id, instance_id="i1").result.assignment == b"a-" + follower.encode()


def test_the_old_id_of_a_static_member_is_fenced(bench: GroupBench) -> None:
    _, follower = bench.static_group()
    bench.join(instance_id="i1")
    assert bench.heartbeat(follower, instance_id="i1") == 82
    assert bench.sync(follower, instance_id="i1").result.error == 82
    assert bench.join(follower, instance_id="i1").result.error == 82
    assert bench.leave((follower, "i1")) == [82]
    assert bench.heartbeat(follower) == 25
    committer = Committer(follower, 1, "i1")
    assert bench.group.check_commit(committer, [], transactional=False, version=9) == 82


def test_a_leader_that_comes_back_skips_the_assignment_from_version_9_on(bench: GroupBench) -> None:
    leader, follower = bench.static_group()
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
    leader, follower = bench.static_group()
    bench.store_error = 16
    answer = bench.join(instance_id="i1", protocols=(("range", b"new"),), session_ms=30_000).result
    assert (answer.error, answer.member_id) == (16, "")
    member = bench.group.members[follower]
    assert (member.metadata("range"), member.session_timeout_ms) == (b"meta", SESSION_MS)
    assert bench.heartbeat(follower, instance_id="i1") == 0
    assert bench.heartbeat(leader, instance_id="i0") == 0


def test_a_new_id_that_a_rebalance_has_told_stays_however_its_record_fares(bench: GroupBench) -> None:
    """It was taken back where its record was not kept in time: who waited for the assignment under it was fenced."""
    leader, follower = bench.static_group()
    bench.hold_stores = True
    call = bench.join(instance_id="i1")
    assert bench.join(leader, instance_id="i0").result.error == call.result.error == 0
    told = call.result.member_id
    assert told != follower
    synced = bench.sync(told, instance_id="i1")
    bench.finish_store(15)
    assert synced.waits
    assert bench.heartbeat(told, instance_id="i1") == 0


@pytest.mark.parametrize("error", [0, 15])
def test_the_record_of_a_new_id_answers_no_join_after_it(bench: GroupBench, error: int) -> None:
    leader, _ = bench.static_group()
    bench.hold_stores = True
    call = bench.join(instance_id="i1")
    bench.join(leader, instance_id="i0")
    again = bench.join(call.result.member_id, instance_id="i1", protocols=(("range", b"other"),))
    bench.finish_store(error)
    assert again.waits and bench.group.state is PREPARING
    assert call.result.member_id in bench.group.members


def test_a_static_member_stays_while_it_is_away_but_not_longer_than_its_session(bench: GroupBench) -> None:
    leader, follower = bench.static_group()
    rejoined = bench.join(leader, instance_id="i0")
    bench.advance(SESSION_MS)
    assert rejoined.result.error == 0
    assert list(bench.group.members) == [leader]
    assert bench.join(follower, instance_id="i1").result.error == 25


@pytest.mark.parametrize("error", [0, 16])
@pytest.mark.parametrize("version", [8, 9])
def test_a_static_member_that_dies_while_its_new_id_is_stored_is_given_up(
    bench: GroupBench, version: int, error: int
) -> None:
    """It was in the group for ever where that took longer than its session."""
    (only,) = bench.static_group(1)
    bench.hold_stores = True
    call = bench.join(instance_id="i0", version=version)
    bench.advance(SESSION_MS + 1)
    assert call.waits and list(bench.group.members) != [only]
    bench.finish_store(error)
    assert call.result.error == error
    bench.advance(SESSION_MS - 1)
    assert bench.group.state is STABLE
    bench.advance(1)
    assert not bench.group.members


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
