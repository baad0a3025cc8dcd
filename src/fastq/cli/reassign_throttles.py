"""Throttles of `fastq partitions reassign` and `rebalance`, as kafka-reassign-partitions.sh sets and removes them (KIP-73, KIP-113).

Rules: rates are settings of each broker that has a part in a move, and replicas settings of the topics: the present ones are throttled as
leaders, those to come as followers. They are set before anything moves, and taken away once nothing does, from all brokers that run and
from the topics of the file. The defaults of all brokers are left alone.
Source: ReassignPartitionsCommand.calculateLeaderThrottles, calculateFollowerThrottles, clearAllThrottles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.cli.reassignment_files import Placement
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import ConfigResource

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


def throttle(
    admin: Admin,
    before: Mapping[TopicPartition, Sequence[int]],
    wanted: Mapping[TopicPartition, Sequence[int]],
    bytes_per_s: int | None,
) -> None:
    """Bound the copying between brokers that is about to begin, and what of it is under way; None: no bound."""
    if bytes_per_s is not None:
        _alter(admin, _replication(admin, before, wanted, str(bytes_per_s)))


def throttle_log_dirs(admin: Admin, wanted: Mapping[TopicPartition, Placement], bytes_per_s: int | None) -> None:
    """Bound the copying between directories of brokers; None: no bound."""
    if bytes_per_s is not None:
        named = (zip(place.replicas, place.log_dirs, strict=True) for place in wanted.values())
        nodes = sorted({node for pairs in named for node, path in pairs if path is not None})
        _alter(admin, {_broker(node): {LOG_DIRS_RATE: str(bytes_per_s)} for node in nodes})


def _replication(
    admin: Admin,
    before: Mapping[TopicPartition, Sequence[int]],
    wanted: Mapping[TopicPartition, Sequence[int]],
    rate: str,
) -> dict[ConfigResource, dict[str, str | None]]:
    from fastq.admin import ConfigResource

    sources = {tp: set(before[tp]) for tp in wanted}
    targets = {tp: set(replicas) for tp, replicas in wanted.items()}
    for tp, move in admin.list_partition_reassignments().items():
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
    changes: dict[ConfigResource, dict[str, str | None]] = {
        ConfigResource.topic(topic): {
            LEADER_REPLICAS: ",".join(leaders[topic]),
            FOLLOWER_REPLICAS: ",".join(followers[topic]),
        }
        for topic in leaders
    }
    changes.update({_broker(node): {LEADER_RATE: rate, FOLLOWER_RATE: rate} for node in sorted(nodes)})
    return changes


def unthrottle(admin: Admin, topics: Iterable[str]) -> bool:
    """Take the throttles away, unless partitions move; whether there were any."""
    from fastq.admin import ConfigResource, ConfigSource

    if admin.list_partition_reassignments():
        return False
    names = {LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE, LEADER_REPLICAS, FOLLOWER_REPLICAS}
    own = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    resources = [_broker(node.node_id) for node in admin.describe_cluster().nodes]
    resources += [ConfigResource.topic(topic) for topic in topics]
    changes: dict[ConfigResource, dict[str, str | None]] = {}
    for resource, outcome in admin.describe_configs(resources).items():
        entries = outcome.result().values() if outcome.error is None else ()
        found = [entry.name for entry in entries if entry.name in names and entry.source in own]
        if found:
            changes[resource] = dict.fromkeys(found)
    _alter(admin, changes)
    return bool(changes)


def _broker(node: int) -> ConfigResource:
    from fastq.admin import ConfigResource, ResourceType

    return ConfigResource(ResourceType.BROKER, str(node))


def _alter(admin: Admin, changes: Mapping[ConfigResource, Mapping[str, str | None]]) -> None:
    from fastq.admin import AlterConfigOp

    if changes:
        admin.incremental_alter_configs(
            {
                resource: [
                    (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, name, value)
                    for name, value in values.items()
                ]
                for resource, values in changes.items()
            }
        ).results()
