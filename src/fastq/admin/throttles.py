"""Which settings bound the copying of a reassignment, as kafka-reassign-partitions.sh sets and removes them (KIP-73, KIP-113).

Rules: rates are settings of each broker that has a part in a move, and replicas settings of the topics: the present ones are throttled as
leaders, those to come as followers. What is said here is data; whoever asks a cluster sets it before anything moves, and takes it away
once nothing does. The defaults of all brokers are left alone.
Source: ReassignPartitionsCommand.calculateLeaderThrottles, calculateFollowerThrottles, clearAllThrottles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastq.admin.cluster_types import PartitionReassignment
from fastq.admin.types import (
    AlterConfigOp,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    Outcomes,
    ResourceType,
)
from fastq.metadata import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
NAMES = frozenset({LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE, LEADER_REPLICAS, FOLLOWER_REPLICAS})

Changes = dict[ConfigResource, dict[str, "str | None"]]
"""Settings of brokers and topics; None: back to what holds without one."""


def broker(node: int) -> ConfigResource:
    """A broker by its number."""
    return ConfigResource(ResourceType.BROKER, str(node))


def replication_throttles(
    before: Mapping[TopicPartition, Sequence[int]],
    wanted: Mapping[TopicPartition, Sequence[int]],
    moving: Mapping[TopicPartition, PartitionReassignment],
    bytes_per_s: int,
) -> Changes:
    """What bounds the copying of moves that are about to begin, and of those that are under way."""
    rate = str(bytes_per_s)
    sources = {tp: set(before[tp]) for tp in wanted}
    targets = {tp: set(replicas) for tp, replicas in wanted.items()}
    for tp, move in moving.items():
        sources[tp] = set(move.replicas) - set(move.adding_replicas)
        targets.setdefault(tp, set(move.target))
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    nodes: set[int] = set()
    for tp, there in sorted(sources.items()):
        coming = targets[tp] - there
        if coming:
            leaders.setdefault(tp.topic, []).extend(f"{tp.partition}:{node}" for node in sorted(there))
            followers.setdefault(tp.topic, []).extend(f"{tp.partition}:{node}" for node in sorted(coming))
            nodes |= there | coming
    changes: Changes = {
        ConfigResource.topic(topic): {
            LEADER_REPLICAS: ",".join(leaders[topic]),
            FOLLOWER_REPLICAS: ",".join(followers[topic]),
        }
        for topic in leaders
    }
    changes.update({broker(node): {LEADER_RATE: rate, FOLLOWER_RATE: rate} for node in sorted(nodes)})
    return changes


def may_have_throttles(cluster: ClusterDescription, topics: Iterable[str]) -> tuple[list[ConfigResource], list[int]]:
    """The brokers that run and the topics, to be asked for their configurations; and the brokers that are registered and do not run, which
    keep what they have."""
    resources = [*(broker(node.node_id) for node in cluster.nodes), *map(ConfigResource.topic, topics)]
    return resources, [node.node_id for node in cluster.fenced_nodes]


def throttles_of(described: Outcomes[ConfigResource, dict[str, ConfigEntry]]) -> Changes:
    """What takes the throttles away that brokers and topics have of their own."""
    own = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    changes: Changes = {}
    for resource, outcome in described.items():
        entries = outcome.result().values() if outcome.error is None else ()
        found = [entry.name for entry in entries if entry.name in NAMES and entry.source in own]
        if found:
            changes[resource] = dict.fromkeys(found)
    return changes


def alterations(changes: Changes) -> dict[ConfigResource, list[tuple[AlterConfigOp, str, str | None]]]:
    """As `Admin.incremental_alter_configs` takes them."""
    return {
        resource: [
            (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, name, value)
            for name, value in values.items()
        ]
        for resource, values in changes.items()
    }
