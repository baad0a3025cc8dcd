"""The partitions that this node hosts, as the request path looks them up: by topic name or id as bytes, then by number.

Rules
- The controller's image decides what is here; `Broker` applies each delta. Nothing else adds or removes.
- Two tables, by name and by id, hold the same replicas: requests name topics one way or the other, by their version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode

from .controller.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from .log import LogConfig, PartitionLog


class Replica:
    """One hosted partition: its log, and what the metadata says about it. Loop thread only."""

    __slots__ = (
        "followers",
        "internal",
        "isr_size",
        "leader_epoch",
        "leader_id",
        "log",
        "min_insync_replicas",
        "partition",
        "synchronous",
        "topic",
        "topic_id",
    )

    def __init__(self, log: PartitionLog, topic: str, topic_id: bytes, partition: int) -> None:
        self.log = log
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.internal = topic in INTERNAL_TOPICS
        self.leader_id = -1
        self.leader_epoch = -1
        self.isr_size = 0
        self.followers: frozenset[int] = frozenset()
        self.min_insync_replicas = 1
        self.synchronous = False

    def apply_config(self, config: LogConfig, min_insync_replicas: int) -> None:
        """Note what the request path needs of the topic's settings."""
        self.synchronous = config.synchronous
        self.min_insync_replicas = min_insync_replicas

    def epoch_error(self, requested: int) -> int:
        """0, or the error for a request that was made under another leader epoch; -1 asks for no check (KIP-320)."""
        if requested == -1 or requested == self.leader_epoch:
            return 0
        return ErrorCode.FENCED_LEADER_EPOCH if requested < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def follower_error(self, replica_id: int, requested_epoch: int) -> int:
        """0, or the error for a request in the name of a replica that the partition does not have.

        Negative ids are no replicas. Kafka's Partition.followerReplicaOrThrow: who names the leader's epoch may know of a
        reassignment before this node does, so it shall try again.
        """
        if replica_id < 0 or replica_id in self.followers:
            return 0
        return ErrorCode.UNKNOWN_LEADER_EPOCH if requested_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER


class ReplicaTable:
    """All replicas of a node. Loop thread only. Invariant: both tables hold the same replicas."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.by_name: dict[bytes, dict[int, Replica]] = {}
        self.by_id: dict[bytes, dict[int, Replica]] = {}
        self._without_log: set[tuple[bytes, int]] = set()

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self.by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    def add(self, replica: Replica) -> None:
        partitions = self.by_name.setdefault(replica.topic.encode(), {})
        partitions[replica.partition] = replica
        self.by_id[replica.topic_id] = partitions
        if self._without_log:
            self._without_log -= {(replica.topic.encode(), replica.partition), (replica.topic_id, replica.partition)}

    def get(self, topic: str, partition: int) -> Replica | None:
        return self.by_name.get(topic.encode(), {}).get(partition)

    def remove_topic(self, topic: str, topic_id: bytes) -> list[Replica]:
        """Take a topic out; answers its replicas."""
        self.by_id.pop(topic_id, None)
        name = topic.encode()
        self._without_log = {key for key in self._without_log if key[0] not in (name, topic_id)}
        gone = list(self.by_name.pop(name, {}).values())
        for replica in gone:
            replica.leader_id = -1  # whoever still holds it sees that
        return gone

    def note_failure(self, topic: str, topic_id: bytes, partition: int) -> None:
        """A partition is placed here, but its log cannot be opened."""
        self._without_log |= {(topic.encode(), partition), (topic_id, partition)}

    def leader(self, topic: str, partition: int) -> Replica | int:
        """The replica if this node leads the partition, else the error code to answer."""
        replica = self.get(topic, partition)
        if replica is None:
            return self.missing_error(topic.encode(), partition, by_id=False)
        return replica if replica.leader_id == self.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def missing_error(self, topic: bytes, partition: int, by_id: bool) -> int:
        """Why a lookup by name or id found nothing."""
        if (topic, partition) in self._without_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if by_id and topic not in self.by_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
