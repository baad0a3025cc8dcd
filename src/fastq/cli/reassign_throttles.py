"""Throttles of `fastq partitions reassign` and `rebalance`: which settings they are, `fastq.admin.throttles` says.

Rules: they are set before anything moves, and taken away once nothing does, from all brokers that run and from the topics of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.cli.reassignment_files import Placement
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin.throttles import Changes


def throttle(
    admin: Admin,
    before: Mapping[TopicPartition, Sequence[int]],
    wanted: Mapping[TopicPartition, Sequence[int]],
    bytes_per_s: int | None,
) -> None:
    """Bound the copying between brokers that is about to begin, and what of it is under way; None: no bound."""
    from fastq.admin.throttles import replication_throttles

    if bytes_per_s is not None:
        _alter(admin, replication_throttles(before, wanted, admin.list_partition_reassignments(), bytes_per_s))


def throttle_log_dirs(admin: Admin, wanted: Mapping[TopicPartition, Placement], bytes_per_s: int | None) -> None:
    """Bound the copying between directories of brokers; None: no bound."""
    from fastq.admin.throttles import LOG_DIRS_RATE, broker

    if bytes_per_s is not None:
        named = (zip(place.replicas, place.log_dirs, strict=True) for place in wanted.values())
        nodes = sorted({node for pairs in named for node, path in pairs if path is not None})
        _alter(admin, {broker(node): {LOG_DIRS_RATE: str(bytes_per_s)} for node in nodes})


def unthrottle(admin: Admin, topics: Iterable[str]) -> bool:
    """Take the throttles away, unless partitions move; whether there were any."""
    from fastq.admin import ConfigResource
    from fastq.admin.throttles import broker, throttles_of

    if admin.list_partition_reassignments():
        return False
    resources = [broker(node.node_id) for node in admin.describe_cluster().nodes]
    resources += [ConfigResource.topic(topic) for topic in topics]
    changes = throttles_of(admin.describe_configs(resources))
    _alter(admin, changes)
    return bool(changes)


def _alter(admin: Admin, changes: Changes) -> None:
    from fastq.admin.throttles import alterations

    if changes:
        admin.incremental_alter_configs(alterations(changes)).results()
