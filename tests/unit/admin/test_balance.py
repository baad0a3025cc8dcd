"""The plan that evens out replicas: what it promises, on many small clusters, and against trying everything."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random

import pytest

from fastq.admin.balance import held_by_node, led_by_node, plan_balance
from fastq.metadata import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]


def cluster(random: Random, *, racks: int) -> tuple[Replicas, dict[int, str | None]]:
    """Up to seven nodes with partitions placed anyhow."""
    nodes = list(range(1, random.randint(3, 7) + 1))
    factor = random.randint(1, min(3, len(nodes)))
    skew = random.choice([nodes, nodes[: max(factor, 2)]])
    partitions = {
        TopicPartition(random.choice("ab"), number): random.sample(skew, min(len(skew), random.randint(1, factor)))
        for number in range(random.randint(1, 25))
    }
    return partitions, {node: f"r{node % racks}" if racks else None for node in nodes}


def applied(before: Replicas, plan: Replicas) -> dict[TopicPartition, tuple[int, ...]]:
    return {tp: tuple(plan.get(tp, replicas)) for tp, replicas in before.items()}


def held(replicas: Replicas, nodes: Collection[int]) -> list[int]:
    counts = Counter(node for each in replicas.values() for node in each)
    return [counts[node] for node in nodes]


def copies(before: Replicas, after: Replicas) -> int:
    return sum(len(set(after[tp]) - set(replicas)) for tp, replicas in before.items())


@pytest.mark.parametrize("seed", range(150))
def test_what_a_plan_promises(seed: int) -> None:
    random = Random(seed)
    before, racks = cluster(random, racks=random.choice([0, 0, 2, 3]))
    most = max(map(len, before.values()))
    drained = random.sample(list(racks), random.randint(0, max(0, min(2, len(racks) - most))))
    left = [node for node in racks if node not in drained]
    after = applied(before, plan_balance(before, racks, drained))
    for tp, replicas in after.items():
        assert len(set(replicas)) == len(before[tp]) and set(replicas) <= set(left), tp
        if racks[left[0]] is not None:
            assert_apart(replicas, {node: racks[node] for node in left})
    if racks[left[0]] is None:
        assert max(held(after, left)) - min(held(after, left)) <= 1
    assert not plan_balance(after, racks, drained), "what is even stays as it is"


def assert_apart(replicas: Sequence[int], racks: Mapping[int, str | None]) -> None:
    """As far apart as any choice of as many nodes."""

    def crowding(nodes: Sequence[int]) -> int:
        return sum(count**2 for count in Counter(racks[node] for node in nodes).values())

    assert crowding(replicas) == min(map(crowding, itertools.combinations(racks, len(replicas))))


@pytest.mark.parametrize("seed", range(80))
def test_no_copy_more_than_it_takes(seed: int) -> None:
    """Without racks: every node above what it may have gives away just that, or every one below gets just that."""
    before, racks = cluster(Random(seed), racks=0)
    after = applied(before, plan_balance(before, racks))
    counts = held(before, racks)
    low, over = divmod(sum(counts), len(racks))
    fewest = max(
        sum(max(0, count - (low + (over > 0))) for count in counts), sum(max(0, low - count) for count in counts)
    )
    assert copies(before, after) == fewest


@pytest.mark.parametrize("seed", range(40))
def test_leaders_are_as_even_as_the_replicas_let_them(seed: int) -> None:
    """Against trying every choice of leaders."""
    random = Random(seed)
    nodes = range(1, random.randint(3, 4) + 1)
    before = {TopicPartition("t", n): random.sample(nodes, random.randint(1, 3)) for n in range(random.randint(1, 7))}
    after = applied(before, plan_balance(before, dict.fromkeys(nodes)))

    def unevenness(leaders: Sequence[int]) -> int:
        return sum(count**2 for count in Counter(leaders).values())

    best = min(unevenness(leaders) for leaders in itertools.product(*after.values()))
    assert unevenness([replicas[0] for replicas in after.values()]) == best


def test_a_node_that_is_drained_and_one_that_is_down() -> None:
    t0, t1, t2 = (TopicPartition("t", number) for number in range(3))
    before = {t0: [1, 2], t1: [2, 3], t2: [3, 9]}  # 9 is down: it may come back to what it has
    assert plan_balance(before, {1: None, 2: None, 3: None}) == {}
    assert plan_balance(before, dict.fromkeys((1, 2, 3)), drained=[9]) == {t2: (3, 1)}
    moved = plan_balance(before, dict.fromkeys((1, 2, 3, 4)), drained=[3, 9])
    assert all(not {3, 9} & set(replicas) for replicas in applied(before, moved).values())


def test_too_few_nodes_for_the_replicas_are_told() -> None:
    before = {TopicPartition("t", 0): [1, 2, 3]}
    with pytest.raises(ValueError, match=r"only 2 of the nodes can have any: drain fewer, or .*--replication-factor 2"):
        plan_balance(before, dict.fromkeys((1, 2, 3)), drained=[3])


def test_replicas_that_share_a_rack_part() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    tp = TopicPartition("t", 0)
    (replicas,) = plan_balance({tp: [1, 2]}, racks).values()
    assert {racks[node] for node in replicas} == {"a", "b"} and len({1, 2} & set(replicas)) == 1


def test_leaders_change_without_a_copy() -> None:
    before = {TopicPartition("t", number): [1, 2, 3] for number in range(6)}
    after = applied(before, plan_balance(before, dict.fromkeys((1, 2, 3))))
    assert copies(before, after) == 0
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2}


def test_a_large_cluster_in_little_time() -> None:
    """A node that joins ten others takes its part and no more."""
    random = Random(1)
    before = {TopicPartition("t", n): random.sample(range(10), 3) for n in range(3000)}
    after = applied(before, plan_balance(before, dict.fromkeys(range(11))))
    assert set(held(after, range(11))) <= {818, 819}


@pytest.mark.parametrize("seed", range(60))
def test_another_number_of_replicas(seed: int) -> None:
    """All have it; nobody whose place is right moves more than it takes, and leaders stay where they can."""
    random = Random(seed)
    before, racks = cluster(random, racks=random.choice([0, 2, 3]))
    factor = random.randint(1, len(racks))
    after = applied(before, plan_balance(before, racks, replication_factor=factor))
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in after.values())
    counts = held(after, racks)
    assert max(counts) - min(counts) <= 1 or any(racks.values())
    assert plan_balance(after, racks, replication_factor=factor) == {}
    if all(len(replicas) <= factor for replicas in before.values()) and not any(racks.values()):
        even = -(-len(before) * factor // len(racks))  # who has more than that has to give some away
        away = sum(max(0, count - even) for count in held(before, racks))
        assert copies(before, after) == sum(factor - len(replicas) for replicas in before.values()) + away


def test_what_goes_is_drained_or_down_before_anything_else() -> None:
    tp = TopicPartition("t", 0)
    racks = dict.fromkeys((1, 2, 3))
    assert plan_balance({tp: [1, 2, 3]}, racks, [1], replication_factor=2)[tp] in ((2, 3), (3, 2))
    assert plan_balance({tp: [1, 9, 3]}, racks, replication_factor=2)[tp] == (1, 3)
    with pytest.raises(ValueError, match="4 replicas take 4 nodes, and only 3"):
        plan_balance({tp: [1]}, racks, replication_factor=4)


def test_what_nodes_have_and_lead_is_counted() -> None:
    partitions = {TopicPartition("a", 0): [1, 2], TopicPartition("a", 1): (2, 3), TopicPartition("b", 0): []}
    assert held_by_node(partitions) == {1: 1, 2: 2, 3: 1} and held_by_node({})[1] == 0
    assert led_by_node(partitions) == {1: 1, 2: 1} and led_by_node(partitions)[3] == 0
