"""What state partitions and their replicas are in, and how far each replica's log reaches: as the operators of Kafka know it.

Rules: the states are those of Kafka's state machines (PartitionStateMachine, ReplicaStateMachine), derived from what the brokers tell of
the metadata. Offsets of a replica are asked of its own node, all of a node in one request: where its log begins and ends in the name of
no replica (-2), the high watermark and the last stable offset by a fetch of nothing, as consumers may fetch from followers (KIP-392). An
offset that nobody told is None: its node is not there, which is told beside the states, or does not answer for followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fastq.admin.replica_comparison import FETCH_VERSIONS
from fastq.admin.shown import Shown, ask_once
from fastq.admin.types import PartitionDescription
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.net.operations import Operation
from fastq.protocol import messages as m

ANY_REPLICA = -2
EARLIEST, LATEST = -2, -1
READ_COMMITTED = 1
VERSIONS = (4, 32767)
"""From 4 on a request has the leader epoch; Kafka 4 serves no older one that would do."""


class ReplicaStatus(NamedTuple):
    """One replica. `log_start` and `log_end` are LW and LEO; `high_watermark` and `last_stable` are as this replica knows them, which of a
    follower may be some fetches old."""

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
) -> Operation[Shown[dict[TopicPartition, PartitionStatus]]]:
    """The status of these partitions. `adding`: the replicas that are to come, of those that are reassigned."""
    hosted: dict[int, list[TopicPartition]] = {}
    for tp, partition in partitions.items():
        for node in partition.replicas:
            if node not in partition.offline_replicas:
                hosted.setdefault(node, []).append(tp)
    silent: dict[int, FastqError] = {}
    starts, ends = yield from _offsets(hosted, silent)
    marks = yield from _marks(ends, silent)
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
                *marks.get((node, tp), (None, None)),
            )
            for node in partition.replicas
        )
        found[tp] = PartitionStatus(partition_state(partition), replicas)
    return Shown(found, silent)


_Offsets = dict[tuple[int, TopicPartition], int]


def _offsets(
    wanted: Mapping[int, Sequence[TopicPartition]], silent: dict[int, FastqError]
) -> Operation[tuple[_Offsets, _Offsets]]:
    """Where logs begin and end, by a ListOffsets of each node for each, side by side; who does not answer is noted in `silent`. It is left
    out, as is a partition that its node has an error for."""
    asked = [(node, timestamp) for timestamp in (EARLIEST, LATEST) for node in wanted]
    told = yield from ask_once([(node, _offsets_at(wanted[node], timestamp)) for node, timestamp in asked], VERSIONS)
    silent.update(told.silent)
    found: dict[int, _Offsets] = {EARLIEST: {}, LATEST: {}}
    for (node, timestamp), answer in zip(asked, told.found, strict=True):
        for topic in answer.topics if answer is not None else ():
            for partition in topic.partitions:
                if not partition.error_code:
                    found[timestamp][node, TopicPartition(topic.name, partition.partition_index)] = partition.offset
    return found[EARLIEST], found[LATEST]


def _offsets_at(partitions: Iterable[TopicPartition], timestamp: int) -> m.ListOffsetsRequest:
    topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for tp in partitions:
        asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
        topics.setdefault(tp.topic, []).append(asked)
    return m.ListOffsetsRequest(
        replica_id=ANY_REPLICA,
        topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=of) for name, of in topics.items()],
    )


def _marks(
    ends: Mapping[tuple[int, TopicPartition], int], silent: dict[int, FastqError]
) -> Operation[dict[tuple[int, TopicPartition], tuple[int, int]]]:
    """The high watermark and the last stable offset of each replica, by a fetch from its end, where nothing is."""
    wanted: dict[int, dict[str, list[m.FetchRequest.FetchPartition]]] = {}
    for (node, tp), end in ends.items():
        asked = m.FetchRequest.FetchPartition(partition=tp.partition, fetch_offset=end, partition_max_bytes=1)
        wanted.setdefault(node, {}).setdefault(tp.topic, []).append(asked)
    requests = [
        (
            node,
            m.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                isolation_level=READ_COMMITTED,
                topics=[m.FetchRequest.FetchTopic(topic=name, partitions=of) for name, of in topics.items()],
            ),
        )
        for node, topics in wanted.items()
    ]
    told = yield from ask_once(requests, FETCH_VERSIONS)
    silent.update(told.silent)
    return {
        (node, TopicPartition(topic.topic, data.partition_index)): (data.high_watermark, data.last_stable_offset)
        for (node, _), answer in zip(requests, told.found, strict=True)
        if answer is not None
        for topic in answer.responses
        for data in topic.partitions
        if data.error_code == 0
    }
