"""What a page needs of a whole cluster, by few requests: operations of `fastq.net.operations`.

Rules: names and counts of all topics come of one Metadata request, and are kept as short rows, not as descriptions of partitions. What is
asked about some partitions goes to the nodes that have them, one request to each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fastq.errors import FastqError
from fastq.metadata import Node, TopicPartition
from fastq.net.operations import ANY, Broker, Call, Operation
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey


class TopicRow(NamedTuple):
    """A topic in few words. `under_replicated` and `leaderless` count partitions."""

    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    under_replicated: int
    leaderless: int


class Picture(NamedTuple):
    """All topics in order of their names; nodes with how many partitions they lead and hold; how many another leads
    than the preferred replica."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    topics: tuple[TopicRow, ...]
    led: Mapping[int, int]
    held: Mapping[int, int]
    in_sync: Mapping[int, int]
    not_preferred: int

    @property
    def node_ids(self) -> list[int]:
        """The nodes that are there."""
        return [node.node_id for node in self.nodes]


def take_picture() -> Operation[Picture]:
    """One Metadata request about everything."""

    def build(version: int) -> m.MetadataRequest:
        return m.MetadataRequest(topics=[] if version == 0 else None, allow_auto_topic_creation=version < 4)

    response: m.MetadataResponse = yield Call(ANY, VersionedRequest(ApiKey.METADATA, build))
    led, held, in_sync = Counter[int](), Counter[int](), Counter[int]()
    topics = []
    not_preferred = 0
    for topic in response.topics:
        if topic.name is None:
            continue
        behind = leaderless = factor = 0
        for part in topic.partitions:
            led[part.leader_id] += 1
            held.update(part.replica_nodes)
            in_sync.update(part.isr_nodes)
            behind += len(part.isr_nodes) < len(part.replica_nodes)
            leaderless += part.leader_id < 0
            not_preferred += part.leader_id >= 0 and part.leader_id != part.replica_nodes[0]
            factor = max(factor, len(part.replica_nodes))
        topics.append(TopicRow(topic.name, topic.is_internal, len(topic.partitions), factor, behind, leaderless))
    nodes = tuple(Node(b.node_id, b.host, b.port, b.rack) for b in sorted(response.brokers, key=lambda b: b.node_id))
    return Picture(
        response.cluster_id, response.controller_id, nodes, tuple(sorted(topics)), led, held, in_sync, not_preferred
    )


Sizes = dict[TopicPartition, dict[int, int]]
"""Bytes of each replica by node."""


def replica_sizes(nodes: Collection[int], partitions: Mapping[str, Sequence[int]]) -> Operation[Sizes]:
    """What replicas take on the disks of their nodes, one DescribeLogDirs to each; a node that cannot be asked is left out."""
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic
    wanted = [topic(topic=name, partitions=list(indexes)) for name, indexes in partitions.items()]
    responses = yield [Call(Broker(node), m.DescribeLogDirsRequest(topics=wanted)) for node in nodes]
    sizes: Sizes = {}
    for node, response in zip(nodes, responses, strict=True):
        if isinstance(response, FastqError):
            continue
        for directory in response.results:
            for found in directory.topics:
                for part in found.partitions:
                    if not part.is_future_key:
                        sizes.setdefault(TopicPartition(found.name, part.partition_index), {})[node] = (
                            part.partition_size
                        )
    return sizes


class Disk(NamedTuple):
    """A log directory of a node; None where a broker does not say (before 3.3). `is_offline`: it has failed."""

    path: str
    total_bytes: int | None
    usable_bytes: int | None
    is_offline: bool


def disks(nodes: Sequence[int]) -> Operation[dict[int, list[Disk]]]:
    """The log directories of nodes without what is in them; a node that cannot be asked is left out."""
    responses = yield [Call(Broker(node), m.DescribeLogDirsRequest(topics=[])) for node in nodes]
    return {
        node: [
            Disk(
                found.log_dir,
                found.total_bytes if found.total_bytes >= 0 else None,
                found.usable_bytes if found.usable_bytes >= 0 else None,
                bool(found.error_code),
            )
            for found in response.results
        ]
        for node, response in zip(nodes, responses, strict=True)
        if not isinstance(response, FastqError)
    }
