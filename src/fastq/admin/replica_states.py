"""What state partitions and their replicas are in, and how far each replica's log reaches: as the operators of Kafka know it.

Rules: the states are those of Kafka's state machines (PartitionStateMachine, ReplicaStateMachine), derived from what the brokers tell of
the metadata. Offsets of a replica are asked of its own node, all of a node in one request, in the name of no replica (-2), which
followers answer too; what only the leader knows (the high watermark, the last stable offset) is asked of the leader. An offset that nobody
told is None: its node is not there, or does not answer for followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fastq.admin.types import PartitionDescription
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.net.operations import Broker, Call, Operation
from fastq.protocol import messages as m

ANY_REPLICA = -2
CONSUMER = -1
EARLIEST, LATEST = -2, -1
READ_COMMITTED = 1
VERSIONS = (4, 32767)
"""From 4 on a request has the isolation level and the leader epoch; Kafka 4 serves no older one that would do."""


class ReplicaStatus(NamedTuple):
    """One replica. `log_start` and `log_end` are LW and LEO; `high_watermark` and `last_stable` are told of the leader alone."""

    node_id: int
    state: str
    is_leader: bool
    in_sync: bool
    eligible: bool
    log_start: int | None
    log_end: int | None
    high_watermark: int | None
    last_stable: int | None


class PartitionStatus(NamedTuple):
    """One partition: its state, and its replicas in the order of their assignment."""

    state: str
    replicas: tuple[ReplicaStatus, ...]


def partition_state(partition: PartitionDescription) -> str:
    """OnlinePartition: somebody leads; NewPartition: nobody has led it yet; OfflinePartition."""
    if partition.leader is not None:
        return "OnlinePartition"
    return "OfflinePartition" if partition.leader_epoch > 0 else "NewPartition"


def replica_state(partition: PartitionDescription, node_id: int, adding: Iterable[int]) -> str:
    """OfflineReplica: its node or its disk is not there; NewReplica: it is to come with a reassignment; OnlineReplica."""
    if node_id in partition.offline_replicas:
        return "OfflineReplica"
    return "NewReplica" if node_id in adding and node_id not in partition.isr else "OnlineReplica"


def replica_states(
    partitions: Mapping[TopicPartition, PartitionDescription], adding: Mapping[TopicPartition, Sequence[int]]
) -> Operation[dict[TopicPartition, PartitionStatus]]:
    """The status of these partitions. `adding`: the replicas that are to come, of those that are reassigned."""
    hosted: dict[int, list[TopicPartition]] = {}
    led: dict[int, list[TopicPartition]] = {}
    for tp, partition in partitions.items():
        for node in partition.replicas:
            if node not in partition.offline_replicas:
                hosted.setdefault(node, []).append(tp)
        if partition.leader is not None:
            led.setdefault(partition.leader.node_id, []).append(tp)
    starts = yield from _offsets(hosted, ANY_REPLICA, EARLIEST)
    ends = yield from _offsets(hosted, ANY_REPLICA, LATEST)
    high = yield from _offsets(led, CONSUMER, LATEST)
    stable = yield from _offsets(led, CONSUMER, LATEST, READ_COMMITTED)
    found: dict[TopicPartition, PartitionStatus] = {}
    for tp, partition in partitions.items():
        leader = None if partition.leader is None else partition.leader.node_id
        replicas = tuple(
            ReplicaStatus(
                node,
                replica_state(partition, node, adding.get(tp, ())),
                node == leader,
                node in partition.isr,
                node in (partition.elr or ()),
                starts.get((node, tp)),
                ends.get((node, tp)),
                high.get((node, tp)),
                stable.get((node, tp)),
            )
            for node in partition.replicas
        )
        found[tp] = PartitionStatus(partition_state(partition), replicas)
    return found


def _offsets(
    wanted: Mapping[int, Sequence[TopicPartition]], replica_id: int, timestamp: int, isolation: int = 0
) -> Operation[dict[tuple[int, TopicPartition], int]]:
    """ListOffsets of each node for its partitions; who does not answer, or not for a partition, is left out."""
    calls = []
    for node, partitions in wanted.items():
        topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
        for tp in partitions:
            asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
            topics.setdefault(tp.topic, []).append(asked)
        request = m.ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation,
            topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=of) for name, of in topics.items()],
        )
        calls.append(Call(Broker(node), request, VERSIONS))
    answers = (yield calls) if calls else []
    return {
        (node, TopicPartition(topic.name, partition.partition_index)): partition.offset
        for node, answer in zip(wanted, answers, strict=True)
        if not isinstance(answer, FastqError)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == 0
    }
