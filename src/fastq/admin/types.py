"""What the admin clients take and give: frozen records, and outcomes that hold a result or an error for each item.

Rules of this file: names are Kafka's; a list is a tuple; what a broker does not say is None, never a magic number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, SupportsIndex, TypeVar

from fastq.errors import FastqError, KafkaError
from fastq.metadata import Node, TopicPartition

__all__ = [
    "AlterConfigOp",
    "ApiVersion",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "LogDirDescription",
    "NewPartitions",
    "NewTopic",
    "OffsetResult",
    "OffsetSpec",
    "Outcome",
    "Outcomes",
    "PartitionDescription",
    "ReplicaInfo",
    "ResourceType",
    "TopicDescription",
    "TopicListing",
]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[V]):
    """The result of one item, or why there is none. Exactly one of the two is meant: with `error`, `value` is None."""

    value: V | None = None
    error: FastqError | None = None

    def result(self) -> V:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # V may be None itself, as where there is nothing to tell


class Outcomes(Mapping[K, Outcome[V]]):
    """An outcome for each item that was asked for, in that order."""

    def __init__(self, outcomes: Mapping[K, Outcome[V]]) -> None:
        self._outcomes = dict(outcomes)

    def __getitem__(self, key: K) -> Outcome[V]:
        return self._outcomes[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __repr__(self) -> str:
        return f"Outcomes({self._outcomes!r})"

    @property
    def errors(self) -> dict[K, FastqError]:
        """The items that failed."""
        return {key: outcome.error for key, outcome in self._outcomes.items() if outcome.error is not None}

    def results(self) -> dict[K, V]:
        """All values; raises the first error when an item failed."""
        return {key: outcome.result() for key, outcome in self._outcomes.items()}


def check_kind(what: str, value: object, kind: type, words: str) -> None:
    """TypeError for an argument of another kind, before an encoder cuts a float or stumbles over a text."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{what}: {words} is expected, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create.

    partitions, replication_factor: -1 takes the broker's defaults. replica_assignments: broker ids for each partition
    index, instead of both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    replica_assignments: Mapping[int, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        check_kind("the name of a topic", self.name, str, "a str")
        check_kind("partitions", self.partitions, SupportsIndex, "an int")
        check_kind("replication_factor", self.replication_factor, SupportsIndex, "an int")
        check_kind("configs", self.configs, Mapping, "a mapping")


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created, or would be. Counts and configs are None where the broker does not say (before 2.4)."""

    name: str
    topic_id: bytes
    partitions: int | None
    replication_factor: int | None
    configs: Mapping[str, ConfigEntry] | None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The number of partitions that a topic shall have, and where the new ones go (None: the controller decides)."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        check_kind("the number of partitions", self.total, SupportsIndex, "an int")


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic by name and id; the id is sixteen zero bytes where brokers know none (before 2.8)."""

    name: str
    topic_id: bytes
    is_internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; `leader` is None while there is none.

    `elr` are the replicas out of sync that may lead without loss, `last_known_elr` whoever could before there was no one left (KIP-966);
    None where the broker does not say (before 3.8).
    """

    index: int
    leader: Node | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions, in order of their index."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of the cluster; `controller` is None while there is none.

    `fenced_nodes` are registered and not let in: down, or not caught up yet. They are told with `include_fenced` alone.
    """

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]
    fenced_nodes: tuple[Node, ...] = ()


class ResourceType(IntEnum):
    """What has configurations (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic or group by name, a broker by its id as a string ("" is the default of all brokers), ..."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def group(cls, group_id: str) -> ConfigResource:
        """A group of the consumer protocol (KIP-848)."""
        return cls(ResourceType.GROUP, group_id)

    @classmethod
    def broker(cls, node_id: int | None = None) -> ConfigResource:
        """A broker; None is the default of all brokers."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(default)'}"


class ConfigSource(IntEnum):
    """Where a value comes from (Kafka's ConfigEntry.ConfigSource)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigType(IntEnum):
    """The type of a value (Kafka's ConfigEntry.ConfigType)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, value: object) -> ConfigType:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value of the same setting further down the line of precedence."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `value` is None for a sensitive one."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_sensitive: bool = False
    is_read_only: bool = False
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterConfigOp(IntEnum):
    """What an incremental change does; APPEND and SUBTRACT are for settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets; any other int is a time in milliseconds since the epoch."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True)
class OffsetResult:
    """An offset; -1 when no record is at or after the time asked for. `timestamp_ms` is -1 for EARLIEST and LATEST."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A partition's log in a log directory. `is_future`: it is on its way there from another directory."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory; totals are None where the broker does not say (before 3.3). `error` when it is offline.

    `is_cordoned`: it gets no new replicas (KIP-1066); False also where the broker knows nothing of that (before 4.3).
    """

    path: str
    error: KafkaError | None
    replicas: tuple[ReplicaInfo, ...]
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """The versions of an API that a broker supports."""

    api_key: int
    name: str
    min_version: int
    max_version: int
