"""What altering configuration writes: the incremental and the replacing form, for topics, groups and brokers.

Rules: as in `topics`: an image in, results and records out. The value a change leads to is checked as a whole, so that
a key or value that could not be read back is never written. Source: ConfigurationControlManager, ConfigAdminManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from fastq.errors import ConfigError, ErrorCode
from fastq.protocol.messages import AlterConfigsRequest, ConfigRecord
from fastq.values import Value
from fastq_broker import fail_closed, group_config, topic_config
from fastq_broker.config import CORDONED_LOG_DIRS, BrokerConfig, cordoned
from fastq_broker.config_keys import ConfigKey, ConfigType, ResourceType, shown, unknown_key
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.controller.features import ELIGIBLE_LEADER_REPLICAS, METADATA_VERSION
from fastq_broker.controller.image import MetadataImage, Record
from fastq_broker.controller.topics import Refused, Result, check_length, name_problem
from fastq_broker.controller.view import CORDONED

_MIN_ISR = "min.insync.replicas"
_MIRROR_SOURCE = "mirror.source"


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does with a key (`AlterConfigOp.OpType` in Kafka)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(Value):
    """One key of one resource."""

    name: str
    operation: int
    value: str | None


class ResourceChange(Value):
    """The changes of one resource; `replace` drops every override that is not named, but for what a mirror alone sets."""

    resource_type: int
    name: str
    changes: Sequence[ConfigChange]
    replace: bool = False


def change_of(resource: Any) -> ResourceChange:
    """What a resource of an AlterConfigs or an IncrementalAlterConfigs asks for."""
    replace = isinstance(resource, AlterConfigsRequest.AlterConfigsResource)
    changes = [
        ConfigChange(item.name, ConfigOperation.SET if replace else item.config_operation, item.value)
        for item in resource.configs
    ]
    return ResourceChange(resource.resource_type, resource.resource_name, changes, replace)


def plan_changes(
    image: MetadataImage,
    wanted: Sequence[ResourceChange],
    layers: topic_config.BrokerLayers,
    *,
    forwarded: bool = False,
) -> tuple[list[Result], list[Record]]:
    """Results in the order asked for, and the records of the resources that can be changed. `forwarded`: the broker that a client asked has
    judged what only it can."""
    named = Counter((item.resource_type, item.name) for item in wanted)
    results: list[Result] = []
    records: list[Record] = []
    for item in wanted:
        try:
            if named[item.resource_type, item.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records.extend(_change(image, item, layers, forwarded))
            results.append(Result())
        except Refused as refused:
            results.append(Result(refused.error, refused.message))
        except ConfigError as error:
            # Kafka answers a bad value of a topic or group with one code and that of a broker with another.
            broker = item.resource_type == ResourceType.BROKER
            results.append(Result(ErrorCode.INVALID_REQUEST if broker else ErrorCode.INVALID_CONFIG, str(error)))
    return results, records


def _change(
    image: MetadataImage, item: ResourceChange, layers: topic_config.BrokerLayers, forwarded: bool
) -> list[Record]:
    names = [change.name for change in item.changes]
    if len(set(names)) != len(names):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if "" in names:
        raise Refused(ErrorCode.INVALID_REQUEST, "A config key is empty")
    check_resource(image, item.resource_type, item.name, layers.config.node_id)
    _check_eligible_replicas(image, item, names)
    old = image.configs_of(item.resource_type, item.name)
    # By an older tool's change of another key nobody means to let write.
    kept = {_MIRROR_SOURCE} if item.replace else old.keys()
    new: dict[str, str] = {name: value for name, value in old.items() if name in kept}
    for change in item.changes:
        _apply(new, change, item, layers)
        check_length(change.name, new.get(change.name, ""))
    if item.resource_type == ResourceType.TOPIC:
        # Overrides written by another broker may have keys that this one does not know; they stay.
        known = {name: value for name, value in new.items() if name in topic_config.TOPIC_KEYS or name in names}
        topic_config.validate(known)
    elif item.resource_type == ResourceType.GROUP:
        group_config.validate(
            {name: value for name, value in new.items() if name in group_config.GROUP_KEYS or name in names}, layers
        )
    elif CORDONED_LOG_DIRS in names:
        _check_cordons(image, item, old, new, layers.config, forwarded)
    return _difference(item, old, new)


def _check_cordons(
    image: MetadataImage,
    item: ResourceChange,
    old: Mapping[str, str],
    new: Mapping[str, str],
    config: BrokerConfig,
    forwarded: bool,
) -> None:
    """Which directories another broker has, by their paths, nobody knows here: of what it has not judged itself no more are cordoned than
    were (KIP-1066)."""
    name = CORDONED_LOG_DIRS
    if not item.name:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]",
        )
    if image.features.get(METADATA_VERSION, 0) < CORDONED:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"The {name} configuration value cannot be set because it requires metadata.version >= 4.3-IV0 ({CORDONED})",
        )
    wanted = _split(new.get(name))
    if item.name == str(config.node_id):
        cordoned(wanted, config.log_dirs)
    elif not forwarded and not set(wanted) <= set(_split(old.get(name))):
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"When updating {name} via controllers,  the new value must be a subset of the current configuration value.",
        )


def check_resource(image: MetadataImage, resource_type: int, name: str, node_id: int) -> None:
    """Refuse a resource that does not exist, a broker that is nobody's, or whose configuration nobody alters here."""
    if resource_type == ResourceType.TOPIC:
        if not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        problem = name_problem(name)
        if problem is not None:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in image.topics_by_name:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif resource_type == ResourceType.BROKER:
        if name and not (name.isascii() and name.isdigit()):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Unable to parse the broker id {shown(name)}: it takes a number or ''"
            )
        if name and name not in (str(node_id), *map(str, image.brokers)):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {shown(name)}, and no such broker is registered",
            )
    elif resource_type == ResourceType.GROUP:
        if not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    else:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected resource type {resource_type}: topics ({int(ResourceType.TOPIC)}), brokers "
            f"({int(ResourceType.BROKER)}) and groups ({int(ResourceType.GROUP)}) have configuration that can be altered here",
        )


def _check_eligible_replicas(image: MetadataImage, item: ResourceChange, names: Sequence[str]) -> None:
    """With eligible leader replicas min.insync.replicas has one value for the cluster, always set (KIP-966)."""
    if not image.features.get(ELIGIBLE_LEADER_REPLICAS) or item.resource_type != ResourceType.BROKER:
        return
    if item.name and _MIN_ISR in names:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled: alter it for all brokers ('')",
        )
    for change in item.changes:
        if not item.name and change.name == _MIN_ISR and change.operation == ConfigOperation.DELETE:
            raise Refused(
                ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            )
    if item.replace and not item.name and _MIN_ISR not in names:
        raise Refused(
            ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        )


def _key_of(resource_type: int, name: str) -> ConfigKey:
    if resource_type == ResourceType.TOPIC:
        return topic_config.topic_key(name)
    if resource_type == ResourceType.GROUP:
        return group_config.group_key(name)
    if name not in BROKER_KEYS:
        raise unknown_key(name, BROKER_KEYS, "broker setting", "broker-settings.md")
    return BROKER_KEYS[name]


def _apply(
    values: dict[str, str], change: ConfigChange, item: ResourceChange, layers: topic_config.BrokerLayers
) -> None:
    if change.operation == ConfigOperation.DELETE:
        values.pop(change.name, None)
        return
    key = _key_of(item.resource_type, change.name)
    if change.value is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    if item.resource_type == ResourceType.BROKER and not key.dynamic:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: {change.name}; set it in the broker's file and start it again",
        )
    if fail_closed.protects(change.name, key.parse(change.value)) and change.name not in layers.config.insecure_ignore:
        raise fail_closed.refuse_setting(change.name)
    if change.operation == ConfigOperation.SET:
        key.parse(change.value)
        values[change.name] = change.value
        return
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation} for {change.name}")
    if key.type is not ConfigType.LIST:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Can't {ConfigOperation(change.operation).name} to key {change.name} because its type is not LIST.",
        )
    values[change.name] = _joined(key, change, values, item.resource_type, layers)


def _joined(
    key: ConfigKey,
    change: ConfigChange,
    values: Mapping[str, str],
    resource_type: int,
    layers: topic_config.BrokerLayers,
) -> str:
    """The list in force with the items of the change appended or taken away."""
    if resource_type == ResourceType.TOPIC:
        chain = topic_config.layers_of(key, values, layers)
        current = list(chain[0].value) if chain else []
    elif change.name in values:
        current = list(key.parse(values[change.name]))
    else:
        current = list(layers.config.get(change.name) or [])
    items = key.parse(change.value) if change.operation == ConfigOperation.APPEND else _split(change.value)
    if change.operation == ConfigOperation.APPEND:
        joined = list(dict.fromkeys([*current, *items]))
    else:
        joined = [item for item in current if item not in items]
    text = ",".join(joined)
    key.parse(text)
    return text


def _split(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _difference(item: ResourceChange, old: Mapping[str, str], new: Mapping[str, str]) -> list[Record]:
    changed = [(name, value) for name, value in new.items() if old.get(name) != value]
    removed = [(name, None) for name in old if name not in new]
    return [
        ConfigRecord(resource_type=int(item.resource_type), resource_name=item.name, name=name, value=value)
        for name, value in [*changed, *removed]
    ]
