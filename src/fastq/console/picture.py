"""What a page needs of a whole cluster, by few requests: operations of `fastq.net.operations`.

Rules: names and counts of all topics come of one Metadata request, and are kept as short rows, not as descriptions of partitions. What is
asked about some partitions goes to the nodes that have them, one request to each, and one that is not there holds up no page: what it would
tell is missing, and it is told of (`Shown.silent`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fastq.admin import OffsetSpec, Outcomes, TopicDescription
from fastq.admin.core import look_up_topics, per_item
from fastq.admin.descriptions import describe_pages
from fastq.admin.shown import Shown, ask_once
from fastq.errors import UnsupportedVersion
from fastq.metadata import Node, TopicPartition
from fastq.net.operations import ANY, Call, Operation
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

OFFSETS_TIMEOUT_MS = 10_000


class TopicRow(NamedTuple):
    """A topic in few words. `under_replicated` and `leaderless` count partitions, `leaders` has the leader of each (-1: none)."""

    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    under_replicated: int
    leaderless: int
    leaders: tuple[int, ...]


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
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}  # thousands of topics have few different leaders
    not_preferred = 0
    for topic in response.topics:
        if topic.name is None:
            continue
        behind = leaderless = factor = 0
        leaders = [-1] * len(topic.partitions)
        for part in topic.partitions:
            leader, replicas = part.leader_id, part.replica_nodes
            led[leader] += 1
            for node in replicas:
                held[node] += 1
            for node in part.isr_nodes:
                in_sync[node] += 1
            behind += len(part.isr_nodes) < len(replicas)
            leaderless += leader < 0
            not_preferred += leader >= 0 and leader != replicas[0]
            factor = max(factor, len(replicas))
            if part.partition_index < len(leaders):
                leaders[part.partition_index] = leader
        whom = tuple(leaders)
        whom = shared.setdefault(whom, whom)
        topics.append(TopicRow(topic.name, topic.is_internal, len(leaders), factor, behind, leaderless, whom))
    nodes = tuple(Node(b.node_id, b.host, b.port, b.rack) for b in sorted(response.brokers, key=lambda b: b.node_id))
    return Picture(
        response.cluster_id, response.controller_id, nodes, tuple(sorted(topics)), led, held, in_sync, not_preferred
    )


class _ByNumber(dict[int, Node]):
    """Nodes whose addresses nobody needs: a page shows their numbers."""

    def get(self, number: int, default: Any = None) -> Any:
        return Node(number, "", -1) if number >= 0 else default


def topic_at_a_glance(name: str) -> Operation[Outcomes[str, TopicDescription]]:
    """A topic with its partitions by one request to one node (one for each 2,000 partitions); its nodes have no addresses."""
    try:
        outcomes = yield from per_item([name], lambda names: describe_pages(names, _ByNumber()))
    except UnsupportedVersion:  # before Kafka 3.8
        outcomes = yield from look_up_topics([name])
    return outcomes


class Ends(NamedTuple):
    """The first offset of a partition and the one behind its last record; None where its leader does not tell."""

    start: int | None
    end: int | None


NO_ENDS = Ends(None, None)


def ends_of(
    leaders: Mapping[TopicPartition, int], *, starts: bool = True
) -> Operation[Shown[dict[TopicPartition, Ends]]]:
    """Where partitions begin and end, of leaders that are known: one ListOffsets for starts (unless they are not asked for) and one for
    ends to each, side by side. Nothing is asked twice: what a leader does not tell, because it is one no more perhaps, is None."""
    by_node: dict[int, dict[str, list[int]]] = {}
    for tp, node in leaders.items():
        if node >= 0:
            by_node.setdefault(node, {}).setdefault(tp.topic, []).append(tp.partition)
    times = (OffsetSpec.EARLIEST, OffsetSpec.LATEST) if starts else (OffsetSpec.LATEST,)
    asked = [(node, time) for node in by_node for time in times]
    told = yield from ask_once([(node, _offsets_at(by_node[node], time)) for node, time in asked], (1, 32767))
    found: dict[OffsetSpec, dict[TopicPartition, int]] = {OffsetSpec.EARLIEST: {}, OffsetSpec.LATEST: {}}
    for (_, time), response in zip(asked, told.found, strict=True):
        for topic in response.topics if response is not None else ():
            for part in topic.partitions:
                if not part.error_code:
                    found[time][TopicPartition(topic.name, part.partition_index)] = part.offset
    starts_of, ends = found[OffsetSpec.EARLIEST], found[OffsetSpec.LATEST]
    return Shown({tp: Ends(starts_of.get(tp), ends.get(tp)) for tp in leaders}, told.silent)


def _offsets_at(partitions: Mapping[str, Sequence[int]], time: OffsetSpec) -> VersionedRequest:
    topic, partition = m.ListOffsetsRequest.ListOffsetsTopic, m.ListOffsetsRequest.ListOffsetsPartition

    def build(version: int) -> m.ListOffsetsRequest:
        asked = [
            topic(name=name, partitions=[partition(partition_index=index, timestamp=int(time)) for index in indexes])
            for name, indexes in partitions.items()
        ]
        request = m.ListOffsetsRequest(replica_id=-1, topics=asked)
        if version >= 10:
            request.timeout_ms = OFFSETS_TIMEOUT_MS
        return request

    return VersionedRequest(ApiKey.LIST_OFFSETS, build)


Sizes = dict[TopicPartition, dict[int, int]]
"""Bytes of each replica by node."""


def replica_sizes(nodes: Collection[int], partitions: Mapping[str, Sequence[int]]) -> Operation[Shown[Sizes]]:
    """What replicas take on the disks of their nodes, one DescribeLogDirs to each; a node that cannot be asked is left out."""
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic
    wanted = [topic(topic=name, partitions=list(indexes)) for name, indexes in partitions.items()]
    told = yield from ask_once([(node, m.DescribeLogDirsRequest(topics=wanted)) for node in nodes])
    sizes: Sizes = {}
    for node, response in zip(nodes, told.found, strict=True):
        for directory in response.results if response is not None else ():
            for found in directory.topics:
                for part in found.partitions:
                    if not part.is_future_key:
                        sizes.setdefault(TopicPartition(found.name, part.partition_index), {})[node] = (
                            part.partition_size
                        )
    return Shown(sizes, told.silent)


def leaders_sizes(topic: str, led: Mapping[int, Sequence[int]]) -> Operation[Shown[dict[int, int]]]:
    """What partitions of a topic take on the disks of their leaders, which are known: one DescribeLogDirs to each."""
    wanted = m.DescribeLogDirsRequest.DescribableLogDirTopic
    told = yield from ask_once(
        [
            (node, m.DescribeLogDirsRequest(topics=[wanted(topic=topic, partitions=list(indexes))]))
            for node, indexes in led.items()
        ]
    )
    sizes = {
        part.partition_index: part.partition_size
        for response in told.found
        if response is not None
        for directory in response.results
        for found in directory.topics
        for part in found.partitions
        if not part.is_future_key
    }
    return Shown(sizes, told.silent)


class Disk(NamedTuple):
    """A log directory of a node; None where a broker does not say (before 3.3). `is_offline`: it has failed."""

    path: str
    total_bytes: int | None
    usable_bytes: int | None
    is_offline: bool


def disks(nodes: Sequence[int]) -> Operation[Shown[dict[int, list[Disk]]]]:
    """The log directories of nodes without what is in them; a node that cannot be asked is left out."""
    told = yield from ask_once([(node, m.DescribeLogDirsRequest(topics=[])) for node in nodes])
    known = {
        node: [
            Disk(
                found.log_dir,
                found.total_bytes if found.total_bytes >= 0 else None,
                found.usable_bytes if found.usable_bytes >= 0 else None,
                bool(found.error_code),
            )
            for found in response.results
        ]
        for node, response in zip(nodes, told.found, strict=True)
        if response is not None
    }
    return Shown(known, told.silent)
