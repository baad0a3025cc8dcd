"""What the admin clients say about the nodes of a cluster: its metadata quorum, its features, leaders and moves of replicas.

Rules of this file: as in `types.py`: names are Kafka's, a list is a tuple, what a broker does not say is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, SupportsIndex

from fastq.admin.types import check_kind

__all__ = [
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "PartitionReassignment",
    "QuorumDescription",
    "QuorumReplica",
    "RaftVoterEndpoint",
    "TopicPartitionReplica",
    "UpgradeType",
]


class RaftVoterEndpoint(NamedTuple):
    """Where a controller listens: the listener's name, as CONTROLLER, and its address."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum (Kafka's QuorumInfo.ReplicaState).

    `lag` counts the records of the leader's log that it has not fetched. Times are milliseconds since the epoch: None for one that has not
    fetched from this leader. `directory_id` is None where it is not known: before Kafka 3.9, and under kraft.version 0.
    """

    node_id: int
    directory_id: bytes | None
    log_end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The metadata quorum as its leader sees it. `endpoints` has the voters' addresses by node id; empty before Kafka 3.9."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[RaftVoterEndpoint, ...]]


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """The levels of features: what the node that was asked supports, (lowest, highest), and what the cluster has finalized.

    A feature that is supported and not finalized is at level 0. `finalized_epoch` rises with every change of the cluster's metadata; None
    where nothing was finalized yet.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    finalized_epoch: int | None


class UpgradeType(IntEnum):
    """Which way a feature's level may go: up only, down where nothing is lost, or down whatever is lost."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature is to get; 0 takes it away, which is a downgrade."""

    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE

    def __post_init__(self) -> None:
        check_kind("the level of a feature", self.level, SupportsIndex, "an int")


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition that moves: all its replicas, those of them that are still to come in sync, and those that go then."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition has in the end."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)

    def copied_percent(self, sizes_bytes: Mapping[int, int]) -> int | None:
        """How much the new replicas have of what the largest of the others has, 0 to 100, on average; 100 where none is new.

        `sizes_bytes` is what the replicas take on the disks of their nodes, as DescribeLogDirs tells it. None: it is of no old one.
        """
        if not self.adding_replicas:
            return 100
        whole = max(
            (sizes_bytes.get(node, -1) for node in self.replicas if node not in self.adding_replicas), default=-1
        )
        if whole < 0:
            return None
        came = [
            min(1.0, sizes_bytes.get(node, 0) / whole) if whole else float(node in sizes_bytes)
            for node in self.adding_replicas
        ]
        return int(100 * sum(came) / len(came))


class ElectionType(IntEnum):
    """Who is to lead: the first replica of the list, or, where no replica in sync is left, any that lives: records are lost then."""

    PREFERRED = 0
    UNCLEAN = 1


class TopicPartitionReplica(NamedTuple):
    """A partition's replica on one broker."""

    topic: str
    partition: int
    broker_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on node {self.broker_id}"
