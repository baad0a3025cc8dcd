"""An image of the metadata as the tree that Kafka's metadata shell shows: for people, and for programs that know its paths.

Rules: a quota's folder names default entities too, which Kafka's shell leaves out, and its values; of a credential there is no secret. A
folder is a mapping by name, a leaf a text, or a pair of the name of Kafka's class and its fields, which whoever shows it puts into
words. Paths and fields are those of org.apache.kafka.image.node. Made from a log, of which only a snapshot has the beginning, or from a
snapshot; neither is changed, and a torn end, as a running node has one, is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fastq.errors import ConfigError
from fastq.protocol.uuid import uuid_to_str
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.features import METADATA_VERSION
from fastq_broker.controller.image import (
    BrokerImage,
    MetadataDelta,
    MetadataError,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from fastq_broker.controller.releases import name_of
from fastq_broker.controller.snapshot import (
    Batch,
    TransactionFilter,
    decode_batches,
    list_snapshots,
    read_snapshot,
)
from fastq_broker.controller.storage import METADATA_DIRECTORY, read_file

Tree = dict[str, Any]

_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ENTITIES = {"client-id": "clientId", "user": "user", "ip": "ip"}
_RESOURCES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
_PATTERNS = {3: "LITERAL", 4: "PREFIXED"}
_OPERATIONS = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
_SNAPSHOT, _LOG = ".checkpoint", ".log"


def read_tree(path: Path) -> Tree:
    """The tree of a snapshot, of a file of the metadata log, or of a directory: that of the log, or the node's above it. ConfigError for
    anything else, and for a log whose beginning is in a snapshot that is not beside it; OSError; MetadataError where it is damaged."""
    if path.is_dir():
        below = path / METADATA_DIRECTORY
        return tree_of(_of_directory(below if below.is_dir() else path))
    if path.suffix == _SNAPSHOT:
        return tree_of(_replayed(read_snapshot(path), MetadataImage()))
    if path.suffix == _LOG:
        _check_beginning(path)
        return tree_of(_replayed(_log_from(0, [path]), MetadataImage()))
    raise ConfigError(f"{path}: a .checkpoint or .log of the metadata, or a directory with them, is expected")


def _of_directory(directory: Path) -> MetadataImage:
    image, start = MetadataImage(), 0
    snapshots = list_snapshots(directory)
    logs = sorted(directory.glob("*" + _LOG))
    if not snapshots and not logs:
        raise ConfigError(f"{directory} holds no metadata: neither *{_LOG} nor *{_SNAPSHOT}")
    if snapshots:
        last = snapshots[-1]
        start = last.end_offset
        path = directory / f"{last.end_offset:020d}-{last.epoch:010d}{_SNAPSHOT}"
        image = _replayed(read_snapshot(path), image)._replace(offset=last.end_offset - 1, epoch=last.epoch)
    elif logs:
        _check_beginning(logs[0])
    return _replayed(_log_from(start, logs), image)


def _log_from(start: int, paths: Iterable[Path]) -> Iterator[Batch]:
    """The batches of a log from an offset on, which follow each other; MetadataError where one is damaged, or not there."""
    for path in paths:
        for batch in _batches_of(path):
            if batch.last_offset < start:
                continue
            if batch.base_offset != start:
                raise MetadataError(
                    f"{path} goes on with offset {batch.base_offset}, and what is before it ends with {start - 1}: what lies between is "
                    "missing; another controller may have it"
                )
            start = batch.last_offset + 1
            yield batch


def _batches_of(path: Path) -> Iterator[Batch]:
    try:
        yield from decode_batches(read_file(path))
    except ValueError as error:
        raise MetadataError(f"{path} is damaged: {error}; another controller may have it whole") from error


def _check_beginning(path: Path) -> None:
    # The name says where a log begins; a copy may have another one, and then its first batch does.
    first = next(_batches_of(path), None)
    if first is None:
        raise ConfigError(f"{path} holds no metadata: not one whole batch can be read")
    offset = int(path.stem) if path.stem.isdecimal() else first.base_offset
    if offset:
        raise ConfigError(
            f"{path} begins with offset {offset}: what was before is in a snapshot, so give its directory"
        )


def _replayed(batches: Iterator[Batch], image: MetadataImage) -> MetadataImage:
    delta, closed = MetadataDelta(image), TransactionFilter()
    offset, epoch, timestamp_ms = image.offset, image.epoch, image.timestamp_ms
    for batch in batches:
        for record in closed.closed(batch):
            delta.replay(record)
        offset, epoch = batch.last_offset, max(epoch, batch.epoch)
        timestamp_ms = batch.timestamp_ms
    return delta.apply(offset, epoch, timestamp_ms)


def tree_of(image: MetadataImage) -> Tree:
    """All that an image holds."""
    kept = _kept(image.kept)
    features: Tree = {
        f"finalized_{name}": str(level) for name, level in image.features.items() if name != METADATA_VERSION
    }
    if METADATA_VERSION in image.features:
        features["metadataVersion"] = f"Optional[{name_of(image.features[METADATA_VERSION])}]"
    time = datetime.fromtimestamp(image.timestamp_ms / 1000, timezone.utc)
    when = time.strftime("%Y-%m-%dT%H:%M:%S") + f".{time.microsecond:06d}".rstrip("0.")
    return {
        "image": {
            "acls": {"byId": kept["acl"]},
            "clientQuotas": kept["quota"],
            "cluster": {
                "brokers": {str(number): _broker(broker) for number, broker in image.brokers.items()},
                "controllers": kept["controller"],
            },
            "configs": {_resource(*key): dict(values) for key, values in image.configs.items() if values},
            "delegationToken": kept["token"],
            "features": features,
            "producerIds": {"nextProducerId": str(image.next_producer_id or -1)},
            "provenance": f"offset {image.offset}, epoch {image.epoch}, time {when}Z[UTC]",
            "scram": {name: kept["scram"].get(name, {}) for name in _MECHANISMS.values()},
            "topics": {
                "byId": {uuid_to_str(topic.topic_id): _topic(topic) for topic in image.topics_by_name.values()},
                "byName": {topic.name: _topic(topic) for topic in image.topics_by_name.values()},
            },
        }
    }


def _topic(topic: TopicImage) -> Tree:
    partitions = {str(number): _partition(partition) for number, partition in enumerate(topic.partitions)}
    return {**partitions, "id": uuid_to_str(topic.topic_id), "name": topic.name}


def _partition(partition: PartitionImage) -> tuple[str, Tree]:
    return "PartitionRegistration", {
        "replicas": list(partition.replicas),
        "directories": [uuid_to_str(directory) for directory in partition.directories],
        "isr": list(partition.isr),
        "removingReplicas": list(partition.removing_replicas),
        "addingReplicas": list(partition.adding_replicas),
        "elr": list(partition.eligible_leader_replicas),
        "lastKnownElr": list(partition.last_known_elr),
        "leader": partition.leader,
        "leaderRecoveryState": "RECOVERING" if partition.leader_recovery_state else "RECOVERED",
        "leaderEpoch": partition.leader_epoch,
        "partitionEpoch": partition.partition_epoch,
    }


def _endpoint(name: str, protocol: int, host: str, port: int) -> tuple[str, Tree]:
    known = _PROTOCOLS.get(protocol, str(protocol))
    return "Endpoint", {"listenerName": f"'{name}'", "securityProtocol": known, "host": f"'{host}'", "port": port}


def _broker(broker: BrokerImage) -> tuple[str, Tree]:
    return "BrokerRegistration", {
        "id": broker.broker_id,
        "epoch": broker.epoch,
        "incarnationId": uuid_to_str(broker.incarnation_id),
        "listeners": [_endpoint(at.name, at.security_protocol, at.host, at.port) for at in sorted(broker.endpoints)],
        "supportedFeatures": {name: f"{low}-{high}" for name, low, high in sorted(broker.features)},
        "rack": "Optional.empty" if broker.rack is None else f"Optional[{broker.rack}]",
        "fenced": broker.fenced,
        "inControlledShutdown": broker.in_controlled_shutdown,
        "isMigratingZkBroker": False,
        "directories": [uuid_to_str(directory) for directory in broker.directories],
        "cordonedDirectories": [uuid_to_str(directory) for directory in broker.cordoned_directories],
    }


def _resource(kind: int, name: str) -> str:
    type_name = ResourceType(kind).name
    return f"{type_name}:{name}" if name else type_name


def _kept(records: Mapping[Hashable, Any]) -> dict[str, Tree]:
    """The records that are kept as they came, by the folder that they belong to. What would be a secret is left out."""
    found: dict[str, Tree] = {name: {} for name in ("acl", "quota", "controller", "token", "scram")}
    for key, record in records.items():
        kind = key[0] if isinstance(key, tuple) else ""
        if kind == "acl":
            found["acl"][uuid_to_str(record.id)] = ("StandardAcl", _acl(record))
        elif kind == "quota":
            parts = sorted(
                (_ENTITIES.get(item.entity_type, item.entity_type), item.entity_name) for item in record.entity
            )
            name = "_".join(f"{entity}({'' if own is None else _escaped(own)})" for entity, own in parts)
            found["quota"].setdefault(name, {})[record.key] = str(record.value)
        elif kind == "controller":
            found["controller"][str(record.controller_id)] = _controller(record)
        elif kind == "token":
            found["token"][record.token_id] = (
                "TokenData",
                _fields(record, "owner requester issue_timestamp expiration_timestamp"),
            )
        elif kind == "scram":
            mechanism = _MECHANISMS.get(record.mechanism, str(record.mechanism))
            found["scram"].setdefault(mechanism, {})[record.name] = (
                "ScramCredentialData",
                {"iterations": record.iterations},
            )
    return found


def _controller(record: Any) -> tuple[str, Tree]:
    return "ControllerRegistration", {
        "id": record.controller_id,
        "incarnationId": uuid_to_str(record.incarnation_id),
        "zkMigrationReady": record.zk_migration_ready,
        "listeners": [
            _endpoint(at.name, at.security_protocol, at.host, at.port)
            for at in sorted(record.end_points, key=lambda at: at.name)
        ],
        "supportedFeatures": {
            at.name: f"{at.min_supported_version}-{at.max_supported_version}"
            for at in sorted(record.features, key=lambda at: at.name)
        },
    }


def _fields(record: Any, names: str) -> Tree:
    words = (name.split("_") for name in names.split())
    return {
        "".join([first, *map(str.capitalize, rest)]): getattr(record, "_".join([first, *rest]))
        for first, *rest in words
    }


def _acl(record: Any) -> Tree:
    return {
        "resourceType": _RESOURCES.get(record.resource_type, "UNKNOWN"),
        "resourceName": record.resource_name,
        "patternType": _PATTERNS.get(record.pattern_type, "UNKNOWN"),
        "principal": record.principal,
        "host": record.host,
        "operation": _OPERATIONS.get(record.operation, "UNKNOWN"),
        "permissionType": {2: "DENY", 3: "ALLOW"}.get(record.permission_type, "UNKNOWN"),
    }


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
