"""The strategies against slow, obvious oracles: every division of small groups, and what Kafka documents of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping

import aiokafka.coordinator.protocol as protocol
import pytest

from fastq._native.wire import DecodeError
from fastq.consumer.group.assignors import (
    Assignor,
    GroupTopics,
    RangeAssignor,
    RoundRobinAssignor,
    check_assignment,
    find_assignors,
)
from fastq.consumer.group.sticky import CooperativeStickyAssignor, StickyAssignor
from fastq.consumer.group.subscription import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fastq.errors import ConfigError, InconsistentGroupProtocol
from fastq.metadata import TopicPartition

TP = TopicPartition
Found = Mapping[str, Iterable[TopicPartition]]


def sizes(found: Found) -> list[int]:
    return sorted((len(list(partitions)) for partitions in found.values()), reverse=True)


def moved(found: Found, before: Mapping[TopicPartition, str]) -> int:
    """How many partitions are not with the member that had them."""
    return sum(before.get(tp, member_id) != member_id for member_id, partitions in found.items() for tp in partitions)


def best_by_trying_all(
    topics: GroupTopics, members: Mapping[str, MemberSubscription], before: Mapping[TopicPartition, str]
) -> tuple[list[int], int]:
    """The most even sizes of all possible divisions, and the fewest moves among those that have them."""
    wanted = {topic for member in members.values() for topic in member.topics}
    partitions = topics.partitions(wanted)
    choices = [[m for m, member in members.items() if tp.topic in member.topics] for tp in partitions]
    best: tuple[list[int], int] | None = None
    for owners in itertools.product(*choices):
        found: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        for tp, owner in zip(partitions, owners, strict=True):
            found[owner].append(tp)
        # Even is what has the smallest sum of squares: a partition handed from a larger to a smaller member lowers it.
        key = (sum(size * size for size in sizes(found)), moved(found, before))
        if best is None or key < (sum(size * size for size in best[0]), best[1]):
            best = (sizes(found), key[1])
    assert best is not None
    return best


def is_complete(found: Found, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> None:
    """Every partition that somebody wants has one owner, who wants it."""
    given = [tp for partitions in found.values() for tp in partitions]
    assert sorted(given) == topics.partitions({t for member in members.values() for t in member.topics})
    assert all(tp.topic in members[m].topics for m, partitions in found.items() for tp in partitions)


@pytest.mark.parametrize("seed", range(60))
def test_sticky_is_as_even_as_can_be_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"t{i}" for i in range(rng.randint(1, 3))]
    topics = GroupTopics({name: rng.randint(1, 3) for name in names})
    alike = rng.random() < 0.4
    members: dict[str, MemberSubscription] = {}
    before: dict[TopicPartition, str] = {}
    for i in range(rng.randint(1, 4)):
        wanted = tuple(names) if alike else tuple(rng.sample(names, rng.randint(1, len(names))))
        owned = [tp for tp in topics.partitions(wanted) if tp not in before and rng.random() < 0.5]
        before.update(dict.fromkeys(owned, f"m{i}"))
        members[f"m{i}"] = MemberSubscription(wanted, tuple(owned), generation=3)
    found = StickyAssignor().assign(topics, members)
    is_complete(found, topics, members)
    even, moves = best_by_trying_all(topics, members, before)
    assert (sizes(found), moved(found, before)) == (even, moves), f"seed {seed}: {members}"


@pytest.mark.parametrize("seed", range(40))
def test_range_and_roundrobin_are_complete_and_even_by_their_rules(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"t{i}" for i in range(rng.randint(1, 4))]
    topics = GroupTopics({name: rng.randint(1, 7) for name in names})
    members = {
        f"m{i}": MemberSubscription(tuple(rng.sample(names, rng.randint(1, len(names)))), group_instance_id=instance)
        for i, instance in enumerate(rng.sample([None, "a", "b", "c"], rng.randint(1, 4)))
    }
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        is_complete(assignor.assign(topics, members), topics, members)
    for topic in names:
        readers = [m for m in members if topic in members[m].topics]
        per_topic = [sum(tp.topic == topic for tp in RangeAssignor().assign(topics, members)[m]) for m in readers]
        assert not readers or max(per_topic) - min(per_topic) <= 1
    everybody = {m: MemberSubscription(tuple(names)) for m in members}
    even = sizes(RoundRobinAssignor().assign(topics, everybody))
    assert even[0] - even[-1] <= 1


def test_kafkas_own_examples() -> None:
    topics = GroupTopics({"t0": 3, "t1": 3})
    two = {"C0": MemberSubscription(("t0", "t1")), "C1": MemberSubscription(("t0", "t1"))}
    assert RangeAssignor().assign(topics, two) == {
        "C0": [TP("t0", 0), TP("t0", 1), TP("t1", 0), TP("t1", 1)],
        "C1": [TP("t0", 2), TP("t1", 2)],
    }
    assert RoundRobinAssignor().assign(topics, two) == {
        "C0": [TP("t0", 0), TP("t0", 2), TP("t1", 1)],
        "C1": [TP("t0", 1), TP("t1", 0), TP("t1", 2)],
    }
    uneven = {
        "C0": MemberSubscription(("t0",)),
        "C1": MemberSubscription(("t0", "t1")),
        "C2": MemberSubscription(("t0", "t1", "t2")),
    }
    assert RoundRobinAssignor().assign(GroupTopics({"t0": 1, "t1": 2, "t2": 3}), uneven) == {
        "C0": [TP("t0", 0)],
        "C1": [TP("t1", 0)],
        "C2": [TP("t1", 1), TP("t2", 0), TP("t2", 1), TP("t2", 2)],
    }


def test_static_members_keep_their_place_in_a_range_when_their_member_id_changes() -> None:
    topics = GroupTopics({"t": 2})
    before = {"z1": MemberSubscription(("t",), group_instance_id="a"), "b": MemberSubscription(("t",))}
    after = {"x9": MemberSubscription(("t",), group_instance_id="a"), "b": MemberSubscription(("t",))}
    assert RangeAssignor().assign(topics, before)["z1"] == RangeAssignor().assign(topics, after)["x9"] == [TP("t", 0)]


def test_range_prefers_the_members_own_rack_within_its_share() -> None:
    racks = {TP("t", i): frozenset({rack}) for i, rack in enumerate("abab")}
    members = {"m0": MemberSubscription(("t",), rack="b"), "m1": MemberSubscription(("t",), rack="a")}
    found = RangeAssignor().assign(GroupTopics({"t": 4}, racks), members)
    assert found == {"m0": [TP("t", 1), TP("t", 3)], "m1": [TP("t", 0), TP("t", 2)]}
    everywhere = {tp: frozenset("ab") for tp in racks}
    assert RangeAssignor().assign(GroupTopics({"t": 4}, everywhere), members)["m0"] == [TP("t", 0), TP("t", 1)]


def test_cooperative_sticky_waits_for_the_old_owner() -> None:
    topics = GroupTopics({"t": 4})
    owned = tuple(topics.partitions(["t"]))
    members = {"m0": MemberSubscription(("t",), owned, 1), "m1": MemberSubscription(("t",), (), 1)}
    assignor = CooperativeStickyAssignor()
    first = assignor.assign(topics, members)
    assert len(first["m0"]) == 2 and first["m1"] == []
    second = assignor.assign(topics, {"m0": MemberSubscription(("t",), tuple(first["m0"]), 2), "m1": members["m1"]})
    assert second["m0"] == first["m0"] and len(second["m1"]) == 2


def test_a_later_generation_has_the_better_claim_and_equal_claims_cancel_out() -> None:
    topics = GroupTopics({"t": 2})
    members = {
        "m0": MemberSubscription(("t",), (TP("t", 0), TP("t", 1)), 4),
        "m1": MemberSubscription(("t",), (TP("t", 0),), 5),
    }
    assert StickyAssignor().assign(topics, members) == {"m0": [TP("t", 1)], "m1": [TP("t", 0)]}
    both = {m: MemberSubscription(("t",), (TP("t", 0),), 5) for m in ("m0", "m1")}
    assert sizes(StickyAssignor().assign(topics, both)) == [1, 1]


def test_sticky_remembers_in_its_user_data_and_makes_nothing_of_rubbish() -> None:
    assignor, topics = StickyAssignor(), GroupTopics({"t": 2, "u": 1})
    assert assignor.user_data(frozenset("tu")) is None
    assignor.on_assignment([TP("t", 1), TP("u", 0)], 7)
    data = assignor.user_data(frozenset("tu"))
    assert assignor.claim(MemberSubscription(("t", "u"), user_data=data)) == ([TP("t", 1), TP("u", 0)], 7)
    members = {
        "m0": MemberSubscription(("t", "u"), user_data=b"\xff\xff"),
        "m1": MemberSubscription(("t", "u"), user_data=data),
    }
    assert {TP("t", 1), TP("u", 0)} <= set(StickyAssignor().assign(topics, members)["m1"])


def test_a_hundred_members_and_a_thousand_partitions() -> None:
    topics = GroupTopics({f"t{i}": 100 for i in range(10)})
    members = {f"m{i:03}": MemberSubscription(tuple(topics.counts)) for i in range(100)}
    first = StickyAssignor().assign(topics, members)
    assert sizes(first) == [10] * 100
    before = {tp: m for m, partitions in first.items() for tp in partitions}
    left = {m: MemberSubscription(tuple(topics.counts), tuple(first[m]), 1) for m in list(members)[:90]}
    second = StickyAssignor().assign(topics, left)
    assert sizes(second) == [12] * 10 + [11] * 80
    assert moved(second, before) == 100  # those of the ten that are gone
    is_complete(second, topics, left)


def test_subscriptions_and_assignments_as_bytes() -> None:
    partitions = (TP("a", 0), TP("a", 2), TP("b", 1))
    data = encode_subscription(["b", "a"], b"data", partitions, 9, "rack-1")
    assert decode_subscription(data, "i") == MemberSubscription(("a", "b"), partitions, 9, b"data", "rack-1", "i")
    assert decode_assignment(encode_assignment(partitions, b"x")) == (partitions, b"x")
    assert decode_assignment(b"") == ((), None)
    # A version of the future: more behind what is known.
    assert decode_subscription(b"\x00\x09" + data[2:] + b"more").topics == ("a", "b")
    version_0 = len(encode_subscription(["b", "a"], b"data")) - 4 - 4 - 2  # nothing owned, a generation, no rack
    for end in range(len(data)):
        if end == version_0:  # as some clients write version 1
            assert decode_subscription(data[:end])[:2] == (("a", "b"), ())
            continue
        with pytest.raises(DecodeError):
            decode_subscription(data[:end])
    with pytest.raises(DecodeError):
        decode_subscription(b"\xff\xff" + data[2:])


def test_subscriptions_as_aiokafka_writes_and_reads_them() -> None:
    theirs = protocol.ConsumerProtocolMemberMetadata(0, ["a", "b"], b"").encode()
    assert decode_subscription(theirs)[:2] == (("a", "b"), ())
    ours = protocol.ConsumerProtocolMemberMetadata.decode(encode_subscription(["a", "b"], b"u"))
    assert (list(ours.subscription), ours.user_data) == (["a", "b"], b"u")
    given = protocol.ConsumerProtocolMemberAssignment(0, [("a", [0, 2])], b"").encode()
    assert decode_assignment(given)[0] == (TP("a", 0), TP("a", 2))
    taken = protocol.ConsumerProtocolMemberAssignment.decode(encode_assignment([TP("a", 2), TP("a", 0)]))
    assert taken.assignment == [("a", [0, 2])]


class Everything(Assignor):
    """A strategy that gives all to one member, right or wrong."""

    name = "everything"

    def __init__(self, answer: dict[str, list[TopicPartition]] | None = None) -> None:
        self.answer = answer

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> Found:
        first = min(members)
        return self.answer if self.answer is not None else {first: topics.partitions(members[first].topics)}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"nobody": [TP("t", 0)]}, "names a member 'nobody'"),
        ({"m0": [TP("t", 5)]}, "gives t-5 which does not exist"),
        ({"m0": [TP("u", 0)]}, "to member m0, which is not subscribed to the topic"),
        ({"m0": [TP("t", 0)], "m1": [TP("t", 0)]}, "gives t-0 to both m0 and m1"),
    ],
)
def test_a_strategy_of_ones_own_is_checked(answer: dict[str, list[TopicPartition]], problem: str) -> None:
    topics = GroupTopics({"t": 1, "u": 1})
    members = {"m0": MemberSubscription(("t",)), "m1": MemberSubscription(("t", "u"))}
    assignor = Everything(answer)
    with pytest.raises(InconsistentGroupProtocol, match=problem):
        check_assignment(assignor, topics, members, assignor.assign(topics, members))
    good = Everything()
    assert check_assignment(good, topics, members, good.assign(topics, members)) == {"m0": [TP("t", 0)], "m1": []}


def test_strategies_by_name() -> None:
    found = find_assignors(
        [
            "range",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            Everything(),
            RoundRobinAssignor,
            "sticky",
        ]
    )
    assert [assignor.name for assignor in found] == [
        "range",
        "cooperative-sticky",
        "everything",
        "roundrobin",
        "sticky",
    ]
    with pytest.raises(ConfigError, match="one of 'range', 'roundrobin', 'sticky', 'cooperative-sticky'"):
        find_assignors(["rnage"])
    with pytest.raises(ConfigError, match=r"a subclass of fastq\.consumer\.Assignor"):
        find_assignors([object()])
    with pytest.raises(ConfigError, match="each once"):
        find_assignors(["range", "range"])
