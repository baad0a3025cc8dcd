"""What a change of the metadata does to the states of partitions and replicas."""

from __future__ import annotations

from control_world import Cluster, change_of, directory_id, topic_id
from fastq_broker.controller import brokers, elections
from fastq_broker.controller.image import MetadataDelta, MetadataImage
from fastq_broker.controller.reassignment import plan_reassignments
from fastq_broker.controller.states import PartitionState, ReplicaState, partition_state, transitions, unclean_elections

from fastq.protocol import messages as m


def told(old: MetadataImage, cluster: Cluster) -> list[str]:
    return [str(transition) for transition in transitions(old, cluster.image)]


def two() -> Cluster:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[1])
    return cluster


def test_a_partition_and_its_replicas_come_and_go() -> None:
    cluster = Cluster()
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    before = cluster.image
    cluster.partition(replicas=[1, 2], isr=[1])
    assert told(before, cluster) == [
        "partition=t-0 from=NonExistentPartition to=OnlinePartition cause=created leader=1 leader_epoch=10 partition_epoch=20",
        "partition=t-0 replica=1 from=NonExistentReplica to=OnlineReplica cause=created leader=1 leader_epoch=10 partition_epoch=20",
        "partition=t-0 replica=2 from=NonExistentReplica to=OfflineReplica cause=created leader=1 leader_epoch=10 partition_epoch=20",
    ]
    before = cluster.image
    cluster.apply(m.RemoveTopicRecord(topic_id=topic_id("t")))
    assert [(line.split()[1], line.split()[-3]) for line in told(before, cluster)] == [
        ("from=OnlinePartition", "leader=-1"),
        ("replica=1", "leader=-1"),
        ("replica=2", "leader=-1"),
    ]
    assert told(cluster.image, cluster) == []


def test_a_broker_is_fenced_and_comes_back() -> None:
    cluster = two()
    before = cluster.image
    cluster.apply(*brokers.plan_fence(cluster.view, 1))
    assert told(before, cluster) == [
        "partition=t-0 from=OnlinePartition to=OfflinePartition cause=broker-1-fenced leader=-1 leader_epoch=11 partition_epoch=21",
        "partition=t-0 replica=1 from=OnlineReplica to=OfflineReplica cause=broker-1-fenced leader=-1 leader_epoch=11 partition_epoch=21",
    ]
    before = cluster.image
    unfence = m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, fenced=-1)
    cluster.apply(unfence, *elections.broker_joins(cluster.view, 1))
    assert [(found.after, found.cause) for found in transitions(before, cluster.image)] == [
        (PartitionState.ONLINE, "elected-from-elr"),
        (ReplicaState.ONLINE, "broker-1-active"),
    ]


def test_elections_say_from_where_the_leader_comes() -> None:
    for isr, elr, cause in (([2], [], "elected-from-isr"), ([], [2], "elected-from-elr"), ([], [], "elected-unclean")):
        cluster = Cluster()
        cluster.brokers(1, 2)
        cluster.partition(replicas=[1, 2], isr=isr, eligible_leader_replicas=elr, leader=-1)
        before = cluster.image
        cluster.apply(change_of(leader=2, isr=[2], eligible_leader_replicas=[]))
        assert [found.cause for found in transitions(before, cluster.image)] == [cause]
        delta = MetadataDelta.between(before, cluster.image)
        assert unclean_elections(delta.changed_topics) == (cause == "elected-unclean")


def test_a_replica_is_new_until_it_is_in_sync() -> None:
    cluster = two()
    cluster.brokers(3)
    before = cluster.image
    kind = m.AlterPartitionReassignmentsRequest
    partition = kind.ReassignablePartition(partition_index=0, replicas=[3, 1])
    _, records = plan_reassignments(
        cluster.view, kind(topics=[kind.ReassignableTopic(name="t", partitions=[partition])])
    )
    cluster.apply(*records)
    assert [(found.replica, found.after, found.cause) for found in transitions(before, cluster.image)] == [
        (3, ReplicaState.NEW, "reassignment")
    ]
    before = cluster.image
    change = elections.PartitionChange(cluster.view, cluster.located())
    change.isr = [1, 3]
    cluster.apply(change.build())
    assert [(found.replica, found.after, found.cause) for found in transitions(before, cluster.image)] == [
        (3, ReplicaState.ONLINE, "in-sync"),
        (2, ReplicaState.NON_EXISTENT, "reassignment"),
    ]


def test_why_a_replica_is_offline() -> None:
    def after(record: object) -> set[str]:
        cluster = Cluster()
        cluster.broker(1, directories=2)
        cluster.partition(replicas=[1])
        before = cluster.image
        cluster.apply(record)
        return {found.cause for found in transitions(before, cluster.image)}

    def change(**fields: object) -> m.BrokerRegistrationChangeRecord:
        return m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, **fields)  # type: ignore[arg-type]

    assert after(change(in_controlled_shutdown=1)) == {"broker-1-shutting-down"}
    assert after(change(log_dirs=[directory_id(1, 1)])) == {"broker-1-directory-offline"}
    assert after(change(cordoned_log_dirs=[])) == set()
    assert after(m.UnregisterBrokerRecord(broker_id=1, broker_epoch=101)) == {"broker-1-unregistered"}
    assert after(change_of(leader=-1)) == {"broker-1-left"}


def test_a_partition_is_new_until_somebody_has_led_it() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    cluster.partition(replicas=[1], leader=-1, leader_epoch=0)
    assert partition_state(cluster.state()) is PartitionState.NEW
    cluster.partition(replicas=[1], leader=-1, leader_epoch=1)
    assert partition_state(cluster.state(number=1)) is PartitionState.OFFLINE
    assert partition_state(None) is PartitionState.NON_EXISTENT


def test_a_directory_that_is_there_again() -> None:
    cluster = Cluster()
    cluster.broker(1, log_dirs=[directory_id(1, 1)])
    cluster.partition(replicas=[1], directories=[directory_id(1, 0)])
    before = cluster.image
    cluster.apply(change_of(directories=[directory_id(1, 1)]))
    assert [found.cause for found in transitions(before, cluster.image)] == ["broker-1-directory-online"]
