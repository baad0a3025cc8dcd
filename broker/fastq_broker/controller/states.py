"""The states of partitions and replicas, and what a change of the metadata does to them: for the log, and for whoever counts.

Rules: states are derived from an image and kept nowhere. Names are those of Kafka's state machines, which its operators know:

    partition   NonExistentPartition; NewPartition (nobody has led it yet); OnlinePartition (somebody leads); OfflinePartition
    replica     NonExistentReplica; NewReplica (to come with a reassignment, not in sync yet); OnlineReplica (its broker is active and has
                its directory); OfflineReplica

A transition is told once, with its cause as far as the two images show it, and the epochs that are in force after it.
Source: PartitionStateMachine and ReplicaStateMachine of Kafka's former controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from fastq.values import NamedTuple
from fastq_broker.controller.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
)


class PartitionState(Enum):
    """What a partition is to its clients."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    """What a replica is to its partition."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"


class Transition(NamedTuple):
    """One partition (`replica` None) or one replica that is in another state than before. Epochs are -1 of what is gone."""

    topic: str
    partition: int
    replica: int | None
    before: PartitionState | ReplicaState
    after: PartitionState | ReplicaState
    cause: str
    leader: int
    leader_epoch: int
    partition_epoch: int

    def __str__(self) -> str:
        what = f"partition={self.topic}-{self.partition}"
        if self.replica is not None:
            what += f" replica={self.replica}"
        return (
            f"{what} from={self.before.value} to={self.after.value} cause={self.cause} leader={self.leader} "
            f"leader_epoch={self.leader_epoch} partition_epoch={self.partition_epoch}"
        )


def partition_state(partition: PartitionImage | None) -> PartitionState:
    """The state of a partition; None: there is none."""
    if partition is None:
        return PartitionState.NON_EXISTENT
    if partition.leader != NO_LEADER:
        return PartitionState.ONLINE
    return PartitionState.OFFLINE if partition.leader_epoch > 0 else PartitionState.NEW


def replica_state(image: MetadataImage, partition: PartitionImage | None, broker_id: int) -> ReplicaState:
    """The state of a broker's replica of a partition."""
    if partition is None or broker_id not in partition.replicas:
        return ReplicaState.NON_EXISTENT
    if not image.is_active(broker_id) or _has_lost(image, partition, broker_id):
        return ReplicaState.OFFLINE
    if broker_id in partition.adding_replicas and broker_id not in partition.isr:
        return ReplicaState.NEW
    return ReplicaState.ONLINE


def _has_lost(image: MetadataImage, partition: PartitionImage, broker_id: int) -> bool:
    """Whether the directory of the replica is not among those that the broker has."""
    return not image.brokers[broker_id].is_online(partition.directory_of(broker_id))


def transitions(old: MetadataImage, new: MetadataImage) -> Iterator[Transition]:
    """What is in another state in the new image, in the order of its topics, then of those that are gone.

    Looks at topics that are not the same object, and at all of them only when brokers changed.
    """
    all_of_them = old.brokers is not new.brokers
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is not topic or all_of_them:
            yield from _of_topic(old, new, before, topic)
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            yield from _of_topic(old, new, topic, None)


def _of_topic(
    old: MetadataImage, new: MetadataImage, before: TopicImage | None, after: TopicImage | None
) -> Iterator[Transition]:
    was = before.partitions if before else ()
    now = after.partitions if after else ()
    named = after or before
    name = named.name if named else ""
    for number in range(max(len(was), len(now))):
        one = was[number] if number < len(was) else None
        other = now[number] if number < len(now) else None
        leader, *epochs = (other.leader, other.leader_epoch, other.partition_epoch) if other else (NO_LEADER, -1, -1)
        states = partition_state(one), partition_state(other)
        if states[0] is not states[1]:
            yield Transition(name, number, None, *states, _cause(old, new, one, other), leader, epochs[0], epochs[1])
        replicas = dict.fromkeys((*(one.replicas if one else ()), *(other.replicas if other else ())))
        for broker_id in replicas:
            of_replica = replica_state(old, one, broker_id), replica_state(new, other, broker_id)
            if of_replica[0] is not of_replica[1]:
                cause = _replica_cause(old, new, one, other, broker_id)
                yield Transition(name, number, broker_id, *of_replica, cause, leader, epochs[0], epochs[1])


def _cause(old: MetadataImage, new: MetadataImage, one: PartitionImage | None, other: PartitionImage | None) -> str:
    """Why a partition is in another state."""
    if one is None:
        return "created"
    if other is None:
        return "deleted"
    if other.leader == NO_LEADER:
        return _loss(new, one, one.leader)
    if other.leader in one.isr:
        return "elected-from-isr"
    return "elected-from-elr" if other.leader in one.eligible_leader_replicas else "elected-unclean"


def unclean_elections(changed: Iterable[tuple[TopicImage | None, TopicImage]]) -> int:
    """How many partitions of these topics, before and after a change, got a leader that may lack what was committed."""
    return sum(
        other.leader not in (NO_LEADER, one.leader)
        and other.leader not in one.isr
        and other.leader not in one.eligible_leader_replicas
        for before, after in changed
        if before is not None
        for one, other in zip(before.partitions, after.partitions, strict=False)
        if one is not other
    )


def _replica_cause(
    old: MetadataImage, new: MetadataImage, one: PartitionImage | None, other: PartitionImage | None, broker_id: int
) -> str:
    """Why a replica is in another state."""
    if one is None:
        return "created"
    if other is None:
        return "deleted"
    if broker_id not in one.replicas or broker_id not in other.replicas:
        return "reassignment"
    after = replica_state(new, other, broker_id)
    if after is ReplicaState.OFFLINE:
        return _loss(new, other, broker_id)
    if after is ReplicaState.ONLINE and broker_id in one.adding_replicas and broker_id in other.isr:
        return "in-sync"
    return f"broker-{broker_id}-active" if not old.is_active(broker_id) else f"broker-{broker_id}-directory-online"


def _loss(image: MetadataImage, partition: PartitionImage, broker_id: int) -> str:
    """What is the matter with a broker that led, or had a replica."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return f"broker-{broker_id}-unregistered"
    if broker.fenced:
        return f"broker-{broker_id}-fenced"
    if broker.in_controlled_shutdown:
        return f"broker-{broker_id}-shutting-down"
    if broker_id in partition.replicas and _has_lost(image, partition, broker_id):
        return f"broker-{broker_id}-directory-offline"
    return f"broker-{broker_id}-left"
