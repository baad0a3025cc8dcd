"""What creating, deleting and growing topics writes: checks in Kafka's order, then records.

Rules: functions here read an image and return results and records; nothing is written and nothing is kept. One item's
error never stops another item. Codes and their order follow ReplicationControlManager and ControllerApis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from fastq.errors import ConfigError, ErrorCode
from fastq.protocol.messages import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from fastq.protocol.uuid import random_uuid
from fastq.values import Value
from fastq_broker import topic_config
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ResourceType, shown
from fastq_broker.controller import placement
from fastq_broker.controller.image import MetadataImage, Record, TopicImage
from fastq_broker.controller.records import BATCH_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX
from fastq_broker.controller.storage import METADATA_TOPIC

if TYPE_CHECKING:
    from typing_extensions import Self

TOPIC_NAME_LENGTH_MAX = 249
CONFIG_VALUE_BYTES_MAX = 32_767
# Kafka's bound on the records of one user's request (QuorumController.MAX_RECORDS_PER_USER_OP).
PARTITIONS_PER_REQUEST_MAX = 10_000
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class NewTopic(Value):
    """A topic to create. Partitions and replication factor -1: the broker's default; both -1 with assignments."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class Result:
    """What became of one item; `message` says what was expected when `error` is not NONE."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None

    def refused(self, refusal: Refused) -> Self:
        """The result of the same item when it is refused after all; one that was refused before keeps its own reason."""
        return self if self.error else self._bare(refusal)

    def _bare(self, refusal: Refused) -> Self:
        return replace(self, error=refusal.error, message=refusal.message)


@dataclass(frozen=True)
class CreatedTopic(Result):
    """A topic created (or, with validate_only, one that could be)."""

    name: str = ""
    topic_id: bytes = bytes(16)
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)

    def _bare(self, refusal: Refused) -> Self:
        return type(self)(refusal.error, refusal.message, self.name)


class NewPartitions(Value):
    """A topic to grow to `count` partitions; `assignments` of the new ones, or None to let the broker place them. `client_id`: of who asks,
    by which a mirror says that it is the one that writes the topic."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None
    client_id: str = ""


class Refused(Exception):
    """An item that cannot be done; carries its code and the words for its sender."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def check_size(values: Sequence[bytes]) -> None:
    """Refuse a request whose records (encoded) do not fit one batch of the metadata log: it would not be made whole or not at all."""
    size = sum(map(len, values)) + RECORD_OVERHEAD_BYTES_MAX * len(values)
    if size > BATCH_BYTES_MAX:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"Unable to perform excessively large batch operation: its {len(values)} records take {size} bytes of metadata, "
            f"one request may make {BATCH_BYTES_MAX}; send several",
        )


def check_length(name: str, value: str) -> None:
    """Refuse a configuration value that no record can hold (ConfigurationControlManager)."""
    size = len(value.encode())
    if size > CONFIG_VALUE_BYTES_MAX:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"The value of {name} has {size} bytes; a configuration value has at most {CONFIG_VALUE_BYTES_MAX}",
        )


def name_problem(name: str) -> str | None:
    """Why `name` cannot be a topic's name; None when it can (Topic.validate)."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: {name!r} is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"Topic name is invalid: it has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"Topic name is invalid: {name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Two names with the same key would share names of metrics."""
    return name.replace(".", "_")


def plan_create(
    image: MetadataImage,
    config: BrokerConfig,
    topics: Sequence[NewTopic],
    random: Random | None = None,
    new_id: Callable[[], bytes] = random_uuid,
) -> tuple[list[CreatedTopic], list[Record]]:
    """Results in the order asked for, and the records of those that can be created.

    `random` says where placements begin; None: the system's. `new_id` has the topics' ids.
    """
    random = random or Random()
    named = Counter(topic.name for topic in topics)
    colliding = {collision_key(name): name for name in image.topics_by_name if "." in name or "_" in name}
    results: list[CreatedTopic] = []
    records: list[Record] = []
    for topic in topics:
        try:
            if named[topic.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            room = PARTITIONS_PER_REQUEST_MAX - len(records)
            result, made = _create(image, config, topic, colliding, room, random, new_id)
        except Refused as refused:
            results.append(CreatedTopic(refused.error, refused.message, topic.name))
            continue
        results.append(result)
        records.extend(made)
    return results, records


def _create(
    image: MetadataImage,
    config: BrokerConfig,
    topic: NewTopic,
    colliding: dict[str, str],
    room: int,
    random: Random,
    new_id: Callable[[], bytes],
) -> tuple[CreatedTopic, list[Record]]:
    _check_name(image, topic.name, colliding)
    configs = _check_configs(topic.configs)
    placed = _assigned(image, topic) if topic.assignments else _placed(image, config, topic, room, random)
    if len(placed) > room:
        raise Refused(ErrorCode.POLICY_VIOLATION, _too_many(len(placed)))
    topic_id = new_id()
    records: list[Record] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=int(ResourceType.TOPIC), resource_name=topic.name, name=name, value=value)
        for name, value in sorted(configs.items())
    ]
    records += [partition_record(image, topic_id, number, replicas) for number, replicas in enumerate(placed)]
    if "." in topic.name or "_" in topic.name:
        colliding[collision_key(topic.name)] = topic.name
    created = CreatedTopic(ErrorCode.NONE, None, topic.name, topic_id, len(placed), len(placed[0]), configs)
    return created, records


def _too_many(count: int) -> str:
    return (
        f"Excessively large number of partitions per request: {count}, "
        f"one request makes at most {PARTITIONS_PER_REQUEST_MAX}; send several"
    )


def _check_name(image: MetadataImage, name: str, colliding: Mapping[str, str]) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name == METADATA_TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in image.topics_by_name:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = colliding.get(collision_key(name)) if "." in name or "_" in name else None
    if other is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _check_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in configs:
        if value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {shown(name)}")
        check_length(name, value)
        found[name] = value
    try:
        topic_config.validate(found)
    except ConfigError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return found


def _assigned(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    """Replicas by partition as the request gives them."""
    if topic.replication_factor != -1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    numbers = sorted(number for number, _ in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions should be a consecutive 0-based integer sequence, got {numbers[:20]}",
        )
    placed = [tuple(replicas) for _, replicas in sorted(topic.assignments, key=lambda item: item[0])]
    for number, replicas in enumerate(placed):
        check_replicas(image, replicas, len(placed[0]))
        check_active(image, number, replicas)
    return placed


def check_replicas(image: MetadataImage, replicas: Sequence[int], expected: int) -> None:
    """Refuse an assignment that is empty, names a broker twice or one that is not registered, or differs in size."""
    if not replicas:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    if len(set(replicas)) != len(replicas):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment {list(replicas)} includes a broker more than once.",
        )
    for broker in replicas:
        if broker not in image.brokers:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
            )
    if len(replicas) != expected:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but this is not consistent with previous partitions, which have {expected} replica(s).",
        )


def check_active(image: MetadataImage, number: int, replicas: Sequence[int]) -> None:
    """Refuse an assignment of which no broker could lead."""
    if not any(image.is_active(broker) for broker in replicas):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual assignment of partition {number} names the brokers {list(replicas)}, all of which are fenced or in "
            "controlled shutdown; name one that is not.",
        )


def _placed(
    image: MetadataImage, config: BrokerConfig, topic: NewTopic, room: int, random: Random
) -> list[tuple[int, ...]]:
    """Replicas by partition as the broker places them."""
    factor = config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    count = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    if factor <= 0:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor must be larger than 0, or -1 to use the default value, got {factor}.",
        )
    if count <= 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions must be larger than 0, or -1 to use the default value, got {count}.",
        )
    if count > room:
        raise Refused(ErrorCode.POLICY_VIOLATION, _too_many(count))
    return place(image, count, factor, random)


def place(image: MetadataImage, count: int, factor: int, random: Random) -> list[tuple[int, ...]]:
    """Replicas of `count` new partitions over the brokers that are there; Refused where these are not enough."""
    try:
        return placement.place(image.brokers.values(), count, factor, random)
    except placement.CannotPlace as error:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {factor} time(s): {error}."
        ) from None


def partition_record(image: MetadataImage, topic_id: bytes, number: int, replicas: Sequence[int]) -> PartitionRecord:
    """A new partition: every active replica is in sync, the first of them leads. `image` has one of them at least."""
    isr = [replica for replica in replicas if image.is_active(replica)]
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        removing_replicas=[],
        adding_replicas=[],
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[image.brokers[replica].default_directory for replica in replicas],
    )


def plan_delete(image: MetadataImage, topic_ids: Sequence[bytes]) -> tuple[list[Result], list[Record]]:
    """Results in the order asked for, and the records that delete the topics that are there."""
    results: list[Result] = []
    records: list[Record] = []
    for topic_id in topic_ids:
        if topic_id not in image.topics_by_id:
            results.append(Result(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host a topic of this id."))
            continue
        results.append(Result())
        records.append(RemoveTopicRecord(topic_id=topic_id))
    return results, records


def plan_partitions(
    image: MetadataImage, wanted: Sequence[NewPartitions], random: Random | None = None
) -> tuple[list[Result], list[Record]]:
    """Results in the order asked for, and the records of the partitions that can be added. `random` as for `plan_create`."""
    random = random or Random()
    named = Counter(item.name for item in wanted)
    results: list[Result] = []
    records: list[Record] = []
    for item in wanted:
        try:
            if named[item.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            records.extend(_grow(image, item, PARTITIONS_PER_REQUEST_MAX - len(records), random))
            results.append(Result())
        except Refused as refused:
            results.append(Result(refused.error, refused.message))
    return results, records


def _grow(image: MetadataImage, item: NewPartitions, room: int, random: Random) -> list[Record]:
    topic = image.topics_by_name.get(item.name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic {shown(item.name)} does not exist.")
    mirror = image.topic_configs(item.name).get("mirror.source")
    if mirror and mirror != item.client_id and item.name not in INTERNAL_TOPICS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"The topic {item.name} is mirrored from another cluster: its partitions follow those there until fastq mirror fail-over.",
        )
    current = len(topic.partitions)
    if item.count == current:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if item.count < current:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {item.name} currently has {current} partition(s); {item.count} would not be an increase. "
            "Partitions cannot be taken away: create another topic.",
        )
    added = item.count - current
    if added > room:
        raise Refused(ErrorCode.POLICY_VIOLATION, _too_many(added))
    factor = len(topic.partitions[0].replicas)
    placed = _grown(image, item, topic, added, factor, random)
    return [
        partition_record(image, topic.topic_id, current + number, replicas) for number, replicas in enumerate(placed)
    ]


def _grown(
    image: MetadataImage, item: NewPartitions, topic: TopicImage, added: int, factor: int, random: Random
) -> list[tuple[int, ...]]:
    if item.assignments is None:
        return place(image, added, factor, random)
    if len(item.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but {len(item.assignments)} assignment(s) were specified.",
        )
    for number, replicas in enumerate(item.assignments, len(topic.partitions)):
        check_replicas(image, replicas, factor)
        check_active(image, number, replicas)
    return [tuple(replicas) for replicas in item.assignments]


def internal_topic(config: BrokerConfig, name: str, image: MetadataImage) -> NewTopic:
    """The topic `name` as its configuration wants it, with as many replicas as there are brokers for: those that are down for now too, as
    nobody gives it more once they are back."""
    brokers = len(image.brokers)
    if name == OFFSETS_TOPIC:
        factor = min(config.offsets_topic_replication_factor, brokers)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return NewTopic(name, config.offsets_topic_num_partitions, factor, configs=tuple(configs.items()))
    if name == TRANSACTIONS_TOPIC:
        factor = min(config.transaction_state_log_replication_factor, brokers)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor)),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(name, config.transaction_state_log_num_partitions, factor, configs=tuple(configs.items()))
    return NewTopic(name)
