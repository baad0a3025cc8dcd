"""What a client knows of the cluster: brokers, topics, partitions and their leaders.

Rules of this file:
- The entries are immutable and replaced whole, so a thread may read one without a lock while another thread updates
  the cache.
- `generation` grows by one with every change that a reader could see; who keeps something derived compares it.
- A leader epoch never goes back (KIP-320): an answer from a broker that lags behind does not undo a newer leader,
  unless the topic was deleted and made again, which its topic id tells.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from fastq.arguments import int_of
from fastq.errors import ErrorCode, InvalidTopic
from fastq.values import NamedTuple, Value, replace

if TYPE_CHECKING:
    from fastq.protocol.messages import MetadataResponse

ZERO_UUID = bytes(16)


class TopicPartition(NamedTuple):
    """A partition of a topic, by name; hashable and ordered."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partition_of(given: TopicPartition | tuple[str, int]) -> TopicPartition:
    """A partition as an application names it. TypeError for what is none, as the name of a topic alone; ValueError for a number that no
    partition has."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        if type(given) is TopicPartition and type(given.partition) is int and 0 <= given.partition < 2**31:
            return given
        if hasattr(given[1], "__index__"):  # numpy's numbers are ints too
            return TopicPartition(given[0], int_of(given[1], f"the number of a partition of {given[0]}", 0, 2**31 - 1))
    several = "; several are given one by one, as in pause(*partitions)" if isinstance(given, list) else ""
    raise TypeError(f"a partition is a TopicPartition or a pair (topic, number), got {given!r}{several}")


def partitions_of(given: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
    """Partitions as an application names several. Raises as `partition_of`, and TypeError for what is no list."""
    one = isinstance(given, str) or (isinstance(given, tuple) and bool(given) and isinstance(given[0], str))
    if one or not isinstance(given, Iterable):
        raise TypeError(
            f"partitions: a list of partitions is needed, each a TopicPartition or a pair (topic, number), got {given!r}"
        )
    return [partition_of(tp) for tp in given]


class GroupMetadata(NamedTuple):
    """Who commits: what a transaction of a producer sends along with the offsets of a consumer (KIP-447).

    generation_id: the generation, or the member epoch under KIP-848; -1, with an empty member id, without a membership.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


# What Kafka's Topic.validate allows.
_TOPIC_NAME = r"[a-zA-Z0-9._-]{1,249}"


def is_topic_name(name: str) -> bool:
    """Whether there can be a topic of this name. One that there cannot be makes a broker refuse the whole request, perhaps."""
    return re.fullmatch(_TOPIC_NAME, name) is not None and name not in (".", "..")


def check_topic_name(name: object) -> None:
    """Raise TypeError or InvalidTopic for what names no topic, before anything is asked with it."""
    if not isinstance(name, str):
        raise TypeError(f"a topic is named by a str, got {name!r}")
    if not is_topic_name(name):
        raise InvalidTopic(
            f"{name[:300]!a} is no name of a topic", hint="Use 1 to 249 letters, digits, dots, underscores and hyphens"
        )


class OffsetAndMetadata(NamedTuple):
    """What is committed for a partition: the offset of the next record to read, and a note of the application's.

    leader_epoch: of the record before it, -1 when unknown. metadata: up to offset.metadata.max.bytes (4096) of the broker.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Node(Value):
    """A broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} (node {self.node_id})"


class PartitionMetadata(Value):
    """One partition. `leader_id` is -1 while it has no leader; `error` is a Kafka error code, 0 for none."""

    index: int
    leader_id: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error: int = 0


class TopicMetadata(Value):
    """One topic. `partitions[i].index == i` always; `topic_id` is sixteen zero bytes where the broker knows no ids.

    `error` is a Kafka error code, 0 for none; with an error there may be no partitions.
    """

    name: str
    topic_id: bytes = ZERO_UUID
    partitions: tuple[PartitionMetadata, ...] = ()
    error: int = 0
    is_internal: bool = False


class ClusterMetadata:
    """The cache. Written by the core in the driver's turn; read by anybody. `generation` counts its visible changes.

    Invariant: `has_all_topics` from the first answer on that lists all topics; every later one does.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.has_all_topics = False
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: Mapping[int, Node] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self._names: dict[bytes, str] = {}

    def topic(self, name: str) -> TopicMetadata | None:
        """The topic, or None while nothing is known of it."""
        return self.topics.get(name)

    def is_gone(self, name: str) -> bool:
        """Whether the cluster says that it has no such topic; False while it has said nothing. One that is new may be so for a while."""
        topic = self.topics.get(name)
        if topic is None:
            return self.has_all_topics
        return topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The partition, or None while it is not known."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def leader(self, topic: str, partition: int) -> Node | None:
        """The broker that leads the partition, or None while there is none or it is not known."""
        found = self.partition(topic, partition)
        return None if found is None else self.nodes.get(found.leader_id)

    @property
    def controller(self) -> Node | None:
        """The broker that takes changes of topics and configurations."""
        return self.nodes.get(self.controller_id)

    def update(self, response: MetadataResponse, *, all_topics: bool = False) -> bool:
        """Take over an answer; with `all_topics`, what it does not list is gone. True when anything changed."""
        self.has_all_topics = self.has_all_topics or all_topics
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        # A broker that has just started may not know any broker yet, not even itself: keep what was known.
        changed = bool(nodes) and nodes != self.nodes
        if changed:
            self.nodes = nodes
        if response.cluster_id is not None and response.cluster_id != self.cluster_id:
            self.cluster_id, changed = response.cluster_id, True
        if response.controller_id != self.controller_id:
            self.controller_id, changed = response.controller_id, True
        topics = {} if all_topics else dict(self.topics)
        for answer in response.topics:
            name = answer.name if answer.name is not None else self._names.get(answer.topic_id)
            if name is not None:
                topics[name] = self._merge(name, answer, self.topics.get(name))
        if topics != self.topics:
            self._replace_topics(topics)
            changed = True
        self.generation += changed
        return changed

    @staticmethod
    def _merge(name: str, answer: MetadataResponse.MetadataResponseTopic, old: TopicMetadata | None) -> TopicMetadata:
        known: tuple[PartitionMetadata, ...] = ()
        if old is not None and (old.topic_id == answer.topic_id or ZERO_UUID in (old.topic_id, answer.topic_id)):
            known = old.partitions
        found: dict[int, PartitionMetadata] = {}
        for p in answer.partitions:
            before = known[p.partition_index] if 0 <= p.partition_index < len(known) else None
            if before is not None and -1 < p.leader_epoch < before.leader_epoch:
                found[p.partition_index] = before
                continue
            found[p.partition_index] = PartitionMetadata(
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                tuple(p.offline_replicas),
                p.error_code,
            )
        # A gap would make every index after it lie; the indexes of a topic are dense, so a gap is a partition not
        # yet known.
        count = max(found, default=-1) + 1
        if count > 2 * len(found) + 1024:
            count = 0
        partitions = tuple(found.get(index) or PartitionMetadata(index, -1, error=3) for index in range(count))
        return TopicMetadata(name, answer.topic_id, partitions, answer.error_code, answer.is_internal)

    def update_leader(
        self, topic: str, partition: int, leader_id: int, leader_epoch: int, nodes: Iterable[Node] = ()
    ) -> bool:
        """Take over a leader that a Produce or Fetch answer named (KIP-951); True when it was news."""
        known = self.partition(topic, partition)
        if known is None or leader_epoch <= known.leader_epoch or leader_id < 0:
            return False
        fresh = {node.node_id: node for node in nodes}
        if leader_id not in self.nodes and leader_id not in fresh:
            return False
        if fresh:
            self.nodes = {**self.nodes, **fresh}
        entry = self.topics[topic]
        partitions = list(entry.partitions)
        partitions[partition] = replace(known, leader_id=leader_id, leader_epoch=leader_epoch, error=0)
        self.topics[topic] = replace(entry, partitions=tuple(partitions))
        self.generation += 1
        return True

    def forget(self, topics: Collection[str]) -> None:
        """Drop topics that nobody watches any more."""
        if not self.topics.keys().isdisjoint(topics):
            gone = set(topics)
            self._replace_topics({name: entry for name, entry in self.topics.items() if name not in gone})
            self.generation += 1

    def _replace_topics(self, topics: dict[str, TopicMetadata]) -> None:
        self._names = {entry.topic_id: name for name, entry in topics.items() if entry.topic_id != ZERO_UUID}
        self.topics = topics
