"""The table of one member's steps towards its target."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.groups.consumer_member import Member, MemberState
from fastq_broker.groups.reconciliation import Target, is_subset, reconcile

from fastq.errors import FencedMemberEpoch

A, B = b"a" * 16, b"b" * 16
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS


def member(
    state: MemberState, epoch: int, assigned: dict[bytes, Any], revoking: dict[bytes, Any] | None = None
) -> Member:
    return Member(
        "m", member_epoch=epoch, previous_epoch=epoch - 1, state=state, assigned=assigned, revoking=revoking or {}
    )


def step(
    before: Member,
    epoch: int,
    target: dict[bytes, set[int]],
    *,
    owned: dict[bytes, list[int]] | None = None,
    others: dict[tuple[bytes, int], str] | None = None,
    subscribed: tuple[bytes, ...] = (A, B),
    changed: bool = False,
) -> Member:
    return reconcile(
        before,
        Target(epoch, {topic: frozenset(numbers) for topic, numbers in target.items()}),
        subscribed=subscribed,
        owner_of=lambda topic, number: (others or {}).get((topic, number)),
        owned=owned,
        subscription_changed=changed,
    )


def seen(after: Member) -> tuple[Any, ...]:
    return after.state, after.member_epoch, dict(after.assigned), dict(after.revoking)


def test_a_member_that_has_all_stays() -> None:
    before = member(STABLE, 3, {A: {0: 1}})
    assert step(before, 3, {A: {0}}) is before


def test_free_partitions_are_assigned_at_once_in_the_new_epoch() -> None:
    after = step(member(STABLE, 1, {A: {0: 1}}), 2, {A: {0, 1}, B: {5}})
    assert seen(after) == (STABLE, 2, {A: {0: 1, 1: 2}, B: {5: 2}}, {})
    assert after.previous_epoch == 1


def test_partitions_of_others_are_waited_for() -> None:
    after = step(member(STABLE, 1, {A: {0: 1}}), 2, {A: {0, 1, 2}}, others={(A, 2): "x"})
    assert seen(after) == (UNRELEASED, 2, {A: {0: 1, 1: 2}}, {})
    still = step(after, 2, {A: {0, 1, 2}}, others={(A, 2): "x"})
    assert seen(still) == seen(after)
    assert seen(step(still, 2, {A: {0, 1, 2}})) == (STABLE, 2, {A: {0: 1, 1: 2, 2: 2}}, {})


def test_what_is_to_go_goes_before_the_new_epoch_comes() -> None:
    told = step(member(STABLE, 1, {A: {0: 1, 1: 1}}), 2, {A: {0}, B: {0}})
    assert seen(told) == (UNREVOKED, 1, {A: {0: 1}}, {A: {1: 1}})
    assert step(told, 2, {A: {0}, B: {0}}) is told  # it says nothing of what it owns
    assert step(told, 2, {A: {0}, B: {0}}, owned={A: [0, 1]}) is told
    done = step(told, 2, {A: {0}, B: {0}}, owned={A: [0]}, others={(A, 1): "m"})
    assert seen(done) == (STABLE, 2, {A: {0: 1}, B: {0: 2}}, {})


def test_a_target_that_gives_back_what_is_being_revoked() -> None:
    told = member(UNREVOKED, 1, {A: {0: 1}}, {A: {1: 1}})
    back = step(told, 3, {A: {0, 1}}, owned={A: [0]}, others={(A, 0): "m", (A, 1): "m"})
    assert seen(back) == (STABLE, 3, {A: {0: 1, 1: 3}}, {})


def test_topics_that_are_not_subscribed_any_more_go_at_once() -> None:
    before = member(STABLE, 2, {A: {0: 1}, B: {0: 2}})
    told = step(before, 2, {A: {0}, B: {0}}, subscribed=(A,), changed=True)
    assert seen(told) == (UNREVOKED, 2, {A: {0: 1}}, {B: {0: 2}})
    gone = step(before, 2, {A: {0}, B: {0}}, subscribed=(A,), changed=True, owned={A: [0]})
    assert seen(gone) == (STABLE, 2, {A: {0: 1}}, {})
    more = step(told, 2, {B: {0}}, subscribed=(), changed=True, owned={A: [0], B: [0]})
    assert seen(more) == (UNREVOKED, 2, {}, {A: {0: 1}, B: {0: 2}})


def test_an_unknown_state_starts_from_scratch() -> None:
    assert MemberState(99) is MemberState.UNKNOWN
    before = member(MemberState.UNKNOWN, 1, {A: {0: 1}})
    for owned in (None, {A: [0]}):
        with pytest.raises(FencedMemberEpoch):
            step(before, 5, {A: {0}}, owned=owned)
    assert seen(step(before, 5, {A: {0, 1}}, owned={})) == (STABLE, 5, {A: {0: 1, 1: 5}}, {})


def test_who_says_nothing_may_own_anything() -> None:
    assert not is_subset(None, {A: {0: 1}})
    assert is_subset({}, {})
    assert is_subset({A: [0]}, {A: {0: 1, 1: 1}})
    assert not is_subset({A: [2]}, {A: {0: 1}})
    assert not is_subset({B: [0]}, {A: {0: 1}})
