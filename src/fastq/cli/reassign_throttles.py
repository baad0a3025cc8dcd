"""Throttles of `fastq partitions reassign` and `rebalance`: which settings they are, `fastq.admin.throttles` says.

Rules: they are set before anything moves, and taken away once nothing does, from all brokers that run and from the topics of the file. What
stays, or may, is told with why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastq.cli.output import complain
from fastq.cli.reassignment_files import Placement
from fastq.errors import UnknownTopicOrPartition, UnsupportedVersion
from fastq.metadata import TopicPartition
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import ClusterDescription
    from fastq.admin.throttles import Changes


LIST = "fastq partitions reassign --list"


class Freed(NamedTuple):
    """Whether throttles were taken away, and sentences about those that stay."""

    taken: bool
    stay: tuple[str, ...] = ()

    def tell(self) -> None:
        """Complain of what stays."""
        for sentence in self.stay:
            complain(sentence)


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


def unthrottle(admin: Admin, topics: Iterable[str]) -> Freed:
    """Take the throttles away, unless partitions move."""
    from fastq.admin.throttles import alterations, may_have_throttles, throttles_of

    moving = len(admin.list_partition_reassignments())
    if moving:
        verb = "moves" if moving == 1 else "move"
        return Freed(
            False, (f"{counted(moving, 'partition')} {verb}, so throttles stay if there are any; {LIST} shows how far",)
        )
    resources, gone = may_have_throttles(_cluster(admin), topics)
    described = admin.describe_configs(resources)
    changes = throttles_of(described)
    altered = admin.incremental_alter_configs(alterations(changes)) if changes else None
    errors = {**described.errors, **(altered.errors if altered is not None else {})}
    failed = [
        f"{resource.type.name.lower()} {resource.name} has its throttles still, if there are any: {error}"
        for resource, error in errors.items()
        if not isinstance(error, UnknownTopicOrPartition)
    ]
    gone_ones = [
        f"broker {node} does not run, and keeps a throttle if it has one: --verify again once it is back"
        for node in gone
    ]
    return Freed(any(resource not in errors for resource in changes), (*failed, *gone_ones))


def _cluster(admin: Admin) -> ClusterDescription:
    """With the brokers that are registered and do not run, where the cluster tells (Kafka 4.0)."""
    try:
        return admin.describe_cluster(include_fenced=True)
    except UnsupportedVersion:
        return admin.describe_cluster()


def _alter(admin: Admin, changes: Changes) -> None:
    from fastq.admin.throttles import alterations

    if changes:
        admin.incremental_alter_configs(alterations(changes)).results()
