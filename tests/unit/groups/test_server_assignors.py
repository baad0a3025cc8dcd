"""The server-side assignors against what balanced, sticky and valid mean, worked out slowly."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import pytest
from fastq_broker.groups.assignors import Assignment, MemberSpec, assign_range, assign_uniform
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = 1000 if os.environ.get("FASTQ_SOAK") == "1" else 100
TOPICS = [bytes([number]) * 16 for number in range(4)]
Groups = tuple[dict[str, MemberSpec], dict[bytes, int]]


@st.composite
def groups(draw: Any, same_topics: bool = False, members_max: int = 6) -> Groups:
    """Members with subscriptions and targets, where no partition has two owners but may be gone or not subscribed any more."""
    counts = {topic: draw(st.integers(0, 7)) for topic in draw(st.lists(st.sampled_from(TOPICS), unique=True))}
    names = [f"m{number}" for number in range(draw(st.integers(1, members_max)))]
    common = frozenset(draw(st.sets(st.sampled_from(TOPICS))))
    targets: dict[str, dict[bytes, set[int]]] = {name: {} for name in names}
    for topic in TOPICS:
        for number in range(9):
            owner = draw(st.sampled_from([*names, None]))
            if owner is not None:
                targets[owner].setdefault(topic, set()).add(number)
    members = {}
    for name in names:
        topics = common if same_topics else frozenset(draw(st.sets(st.sampled_from(TOPICS))))
        members[name] = MemberSpec(topics, {topic: frozenset(numbers) for topic, numbers in targets[name].items()})
    return members, counts


def owners(result: Mapping[str, Assignment]) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member_id, topics in result.items():
        for topic, numbers in topics.items():
            assert numbers
            for number in numbers:
                assert (topic, number) not in found, "two owners"
                found[topic, number] = member_id
    return found


def check_valid(group: Groups, result: Mapping[str, Assignment]) -> None:
    members, counts = group
    assert result.keys() == members.keys()
    found = owners(result)
    wanted = {
        (topic, number)
        for topic, count in counts.items()
        for number in range(count)
        if any(topic in spec.topics for spec in members.values())
    }
    assert found.keys() == wanted
    assert all(topic in members[owner].topics for (topic, _), owner in found.items())


def kept(group: Groups, result: Mapping[str, Assignment]) -> int:
    return sum(
        number in group[0][owner].target.get(topic, frozenset()) for (topic, number), owner in owners(result).items()
    )


def loads(result: Mapping[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in result.values())


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(groups(same_topics=True))
def test_uniform_of_equal_subscriptions_is_even_and_moves_the_least(group: Groups) -> None:
    members, counts = group
    result = assign_uniform(members, counts)
    check_valid(group, result)
    sizes = loads(result)
    assert sizes[-1] - sizes[0] <= 1
    share, extras = divmod(sum(sizes), len(sizes))
    # The most that even loads can keep: each its share, and `extras` members one more.
    usable = [
        sum(number < counts.get(topic, 0) for topic in spec.topics for number in spec.target.get(topic, ()))
        for spec in members.values()
    ]
    most = sum(min(size, share) for size in usable) + min(extras, sum(size > share for size in usable))
    assert kept(group, result) == most
    assert_stable(members, counts, result)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(groups(members_max=3))
def test_uniform_of_different_subscriptions_is_as_even_as_can_be(group: Groups) -> None:
    members, counts = group
    counts = {topic: min(count, 2) for topic, count in list(counts.items())[:3]}
    result = assign_uniform(members, counts)
    check_valid((members, counts), result)
    assert loads(result) == most_even_loads(members, counts)
    assert_stable(members, counts, result)


def most_even_loads(members: Mapping[str, MemberSpec], counts: Mapping[bytes, int]) -> list[int]:
    """By trying every assignment: the loads whose squares sum up to the least."""
    choices = [
        [name for name, spec in members.items() if topic in spec.topics]
        for topic, count in counts.items()
        for _ in range(count)
    ]
    best: list[int] | None = None
    for chosen in itertools.product(*[names for names in choices if names]):
        sizes = sorted(chosen.count(name) for name in members)
        if best is None or sum(size * size for size in sizes) < sum(size * size for size in best):
            best = sizes
    assert best is not None
    return best


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(groups())
def test_range_spreads_each_topic_for_itself(group: Groups) -> None:
    members, counts = group
    result = assign_range(members, counts)
    check_valid(group, result)
    for topic, count in counts.items():
        subscribers = [name for name, spec in members.items() if topic in spec.topics]
        if not subscribers:
            continue
        sizes = {name: len(result[name].get(topic, ())) for name in subscribers}
        share, extras = divmod(count, len(subscribers))
        assert sorted(sizes.values()) == [share] * (len(subscribers) - extras) + [share + 1] * extras
        usable = {
            name: sorted(number for number in members[name].target.get(topic, ()) if number < count)
            for name in subscribers
        }
        for name in subscribers:  # it keeps the lowest of what it had, as many as its share takes
            assert set(usable[name][: min(sizes[name], share)]) <= result[name].get(topic, frozenset())
    assert_stable(members, counts, result, assign_range)


def assert_stable(
    members: Mapping[str, MemberSpec],
    counts: Mapping[bytes, int],
    result: Mapping[str, Assignment],
    assign: Any = assign_uniform,
) -> None:
    """Assigning again on top of the result moves nothing."""
    again = {name: MemberSpec(spec.topics, result[name]) for name, spec in members.items()}
    assert assign(again, counts) == result


def test_range_keeps_copartitioned_topics_together() -> None:
    members = {f"m{number}": MemberSpec(frozenset(TOPICS[:2]), {}) for number in range(3)}
    result = assign_range(members, {TOPICS[0]: 7, TOPICS[1]: 7})
    assert [sorted(result[name][TOPICS[0]]) for name in sorted(result)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(result[name][TOPICS[0]] == result[name][TOPICS[1]] for name in members)


def test_a_large_group_is_assigned_within_its_bounds() -> None:
    """100 members over 1,000 partitions, then one more: it takes its share, and nobody else moves a partition."""
    topics = {bytes([number]) * 16: 100 for number in range(10)}
    members = {f"m{number:03}": MemberSpec(frozenset(topics), {}) for number in range(100)}
    first = assign_uniform(members, topics)
    grown = {name: MemberSpec(spec.topics, first[name]) for name, spec in members.items()}
    grown["new"] = MemberSpec(frozenset(topics), {})
    second = assign_uniform(grown, topics)
    before, after = owners(first), owners(second)
    moved = {partition for partition, owner in after.items() if before[partition] != owner}
    assert {after[partition] for partition in moved} == {"new"}
    assert len(moved) == 9


def test_a_group_without_members_has_no_assignment() -> None:
    assert assign_uniform({}, {TOPICS[0]: 3}) == {}
    assert assign_range({}, {TOPICS[0]: 3}) == {}
