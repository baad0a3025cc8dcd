"""Placement over racks and brokers: exact where the beginnings are given, by property where they are drawn.

Cases are those of Apache Kafka's StripedReplicaPlacerTest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from control_world import Cluster, directory_id
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import NewPartitions, NewTopic
from fastq_broker.controller.image import UNASSIGNED_DIRECTORY
from fastq_broker.controller.placement import CannotPlace, place
from fastq_broker.controller.topics import CreatedTopic, internal_topic, plan_create, plan_partitions

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

CONFIG = BrokerConfig.from_mapping({"log.dirs": "/nowhere", "default.replication.factor": "2"})


class Still(random.Random):
    """Begins at the first of everything, and shuffles nothing."""

    def randrange(self, *args: Any, **named: Any) -> int:
        return 0

    def shuffle(self, x: Any) -> None:
        pass


def racks(*sizes: int, fenced: Sequence[int] = ()) -> Cluster:
    """Brokers 10, 11, ... in rack A, 20, 21, ... in rack B, and so on."""
    cluster = Cluster()
    for number, size in enumerate(sizes):
        for broker_id in range(10 * (number + 1), 10 * (number + 1) + size):
            cluster.broker(broker_id, rack="ABCDEF"[number], fenced=broker_id in fenced)
    return cluster


def placed(cluster: Cluster, count: int, factor: int, source: random.Random | None = None) -> list[tuple[int, ...]]:
    return place(cluster.image.brokers.values(), count, factor, source or Still())


def test_stripes_over_racks_and_their_brokers() -> None:
    assert placed(racks(3, 3, 3), 3, 3) == [(10, 20, 30), (21, 31, 11), (32, 12, 22)]


def test_brokers_without_racks_are_one_rack() -> None:
    cluster = Cluster()
    cluster.brokers(3, 1, 2)
    assert placed(cluster, 3, 2) == [(1, 2), (2, 3), (3, 1)]


def test_brokers_without_a_rack_come_before_the_racks() -> None:
    cluster = racks(1)
    cluster.broker(7, rack=None)
    assert placed(cluster, 1, 2) == [(7, 10)]


def test_one_broker_is_placed_on_again_and_again() -> None:
    cluster = Cluster()
    cluster.brokers(4)
    assert placed(cluster, 5, 1) == [(4,)] * 5


def test_a_fenced_broker_follows_but_does_not_lead() -> None:
    cluster = racks(1, 1, 1, fenced=[10])
    assert placed(cluster, 3, 3) == [(20, 10, 30), (20, 30, 10), (30, 10, 20)]


def test_fenced_brokers_come_where_others_do_not_suffice() -> None:
    cluster = racks(3, fenced=[10, 11])
    assert placed(cluster, 2, 1) == [(12,), (12,)]
    assert placed(cluster, 1, 3) == [(12, 10, 11)]


@pytest.mark.parametrize("fenced", [[10], [20], [10, 20]])
def test_many_partitions_beside_fenced_brokers_are_placed_at_all(fenced: list[int]) -> None:
    for assigned in placed(racks(2, 2, 2, fenced=fenced), 50, 6, random.Random(3)):
        assert len(set(assigned)) == 6


def test_every_partition_has_as_many_racks_as_it_can() -> None:
    source = random.Random(7)
    for _ in range(50):
        sizes = [source.randint(1, 4) for _ in range(source.randint(1, 4))]
        cluster = racks(*sizes)
        factor = source.randint(1, sum(sizes))
        for assigned in placed(cluster, 30, factor, source):
            assert len(set(assigned)) == factor
            assert len({broker // 10 for broker in assigned}) == min(factor, len(sizes))


def test_leaders_and_replicas_are_even() -> None:
    found = placed(racks(3, 3, 3), 900, 3, random.Random(5))
    leaders = Counter(assigned[0] for assigned in found)
    replicas = Counter(broker for assigned in found for broker in assigned)
    assert min(leaders.values()) > 70
    assert max(leaders.values()) < 130
    assert set(replicas.values()) == {300}


def test_the_same_sets_do_not_come_again_and_again() -> None:
    found = {frozenset(assigned) for assigned in placed(racks(4, 4, 4), 200, 3, random.Random(5))}
    assert len(found) > 30


def test_who_shuts_down_and_who_is_cordoned_whole_takes_nothing() -> None:
    cluster = Cluster()
    cluster.broker(1)
    cluster.broker(2, shutting=True)
    cluster.broker(3, directories=2, cordoned_log_dirs=[directory_id(3, 0), directory_id(3, 1)])
    cluster.broker(4, directories=2, cordoned_log_dirs=[directory_id(4, 0)])
    assert {broker for assigned in placed(cluster, 4, 2) for broker in assigned} == {1, 4}
    with pytest.raises(CannotPlace, match=r"factor of 3 .* only 2 broker"):
        placed(cluster, 1, 3)


def test_without_an_unfenced_broker_nothing_is_placed() -> None:
    with pytest.raises(CannotPlace, match="neither fenced"):
        placed(racks(2, fenced=[10, 11]), 1, 1)
    with pytest.raises(CannotPlace, match="neither fenced"):
        placed(Cluster(), 1, 1)


# Topics


def create(cluster: Cluster, **topic: Any) -> tuple[CreatedTopic, list[m.PartitionRecord]]:
    (result,), records = plan_create(cluster.image, CONFIG, [NewTopic("t", **topic)], Still())
    return result, [record for record in records if isinstance(record, m.PartitionRecord)]


def test_a_topic_of_several_replicas() -> None:
    cluster = racks(2, 2, fenced=[21])
    cluster.broker(30, rack="C", directories=2)
    result, records = create(cluster, num_partitions=2, replication_factor=3)
    assert (result.error, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 2, 3)
    assert [(record.replicas, record.isr, record.leader) for record in records] == [
        ([10, 20, 30], [10, 20, 30], 10),
        ([20, 30, 11], [20, 30, 11], 20),
    ]
    assert records[0].directories == [directory_id(10), directory_id(20), UNASSIGNED_DIRECTORY]
    assert [(record.leader_epoch, record.partition_epoch) for record in records] == [(0, 0), (0, 0)]


def test_who_is_not_active_is_a_replica_but_not_in_sync() -> None:
    cluster = racks(1, 1, 1, fenced=[10])
    _, (record,) = create(cluster, num_partitions=1, replication_factor=3)
    assert (record.replicas, record.isr, record.leader) == ([20, 10, 30], [20, 30], 20)
    cluster.broker(10, rack="A", shutting=True)
    _, (record,) = create(cluster, assignments=[(0, [10, 30, 20])])
    assert (record.replicas, record.isr, record.leader) == ([10, 30, 20], [30, 20], 30)


def test_more_replicas_than_brokers() -> None:
    result, records = create(racks(2), num_partitions=1, replication_factor=3)
    assert (result.error, records) == (ErrorCode.INVALID_REPLICATION_FACTOR, [])
    assert "only 2 broker(s)" in (result.message or "")


def test_no_active_broker() -> None:
    cluster = racks(2, fenced=[10, 11])
    result, _ = create(cluster, num_partitions=1, replication_factor=1)
    assert result.error == ErrorCode.INVALID_REPLICATION_FACTOR
    result, _ = create(cluster, assignments=[(0, [10, 11])])
    assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "partition 0" in (result.message or "")


def test_partitions_grow_with_as_many_replicas_as_there_are() -> None:
    cluster = racks(2, 2)
    cluster.partition(replicas=[10, 20])
    (result,), records = plan_partitions(cluster.image, [NewPartitions("t", 3)], Still())
    assert result.error == ErrorCode.NONE
    assert [(record.partition_id, record.replicas) for record in records] == [(1, [10, 20]), (2, [21, 11])]


def test_partitions_grow_by_hand() -> None:
    cluster = racks(2, 2, fenced=[10, 11])
    cluster.partition(replicas=[10, 20])
    (result,), records = plan_partitions(cluster.image, [NewPartitions("t", 2, [[10, 21]])])
    assert [(record.replicas, record.isr, record.leader) for record in records] == [([10, 21], [21], 21)]
    (result,), records = plan_partitions(cluster.image, [NewPartitions("t", 2, [[10, 11]])])
    assert (result.error, records) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])
    assert "partition 1" in (result.message or "")
    (result,), _ = plan_partitions(cluster.image, [NewPartitions("t", 2, [[10, 20, 21]])])
    assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_placement_draws_from_what_it_is_given() -> None:
    cluster = racks(3, 3)
    found = [
        plan_create(cluster.image, CONFIG, [NewTopic("t", 6, 2)], random.Random(seed))[1][1:] for seed in (1, 1, 2)
    ]
    replicas = [[record.replicas for record in records] for records in found]
    assert replicas[0] == replicas[1] != replicas[2]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize(("registered", "factor"), [(1, 1), (3, 3), (4, 3)])
def test_internal_topics_count_on_brokers_that_are_down_for_now(name: str, registered: int, factor: int) -> None:
    cluster = Cluster()
    cluster.broker(1)
    for broker_id in range(2, registered + 1):
        cluster.broker(broker_id, fenced=True)
    made = internal_topic(BrokerConfig.from_mapping({}), name, cluster.image)
    assert made.replication_factor == factor
    assert {len(replicas) for replicas in place(cluster.image.brokers.values(), 3, factor, random.Random(1))} == {
        factor
    }
