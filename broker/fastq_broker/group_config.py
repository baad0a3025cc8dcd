"""Group settings of Kafka 4.3: what may be set for one group of the consumer protocol, and what holds where nothing is (KIP-848).

Rules: a setting of a group stands first, then the broker's key `group.<name>`, as altered, as set in the file, and its default. A
value outside the broker's bounds is refused when it is set; one that is outside later, as the bounds have changed, counts as the
nearest bound. A group need not exist to have settings, and keeps them when it is gone. Source: GroupConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastq.errors import ConfigError
from fastq_broker.config_keys import (
    ConfigKey,
    ConfigSource,
    ConfigType,
    ConfigValue,
    Status,
    at_least,
    table_of,
    unknown_key,
)
from fastq_broker.topic_config import BrokerLayers, ConfigEntry, Layer, broker_layers_of, stored_value

INT = ConfigType.INT
BOOLEAN = ConfigType.BOOLEAN

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT: Final = "consumer.assignment.interval.ms"

_BOUNDS: Final = {
    SESSION: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    HEARTBEAT: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ASSIGNMENT: ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
}


def _row(name: str, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, INT, None, at_least(low), doc=doc, dynamic=True, synonyms=((f"group.{name}", 1),))


def _ignored(names: str, note: str) -> list[ConfigKey]:
    return [
        ConfigKey(name, ConfigType.STRING, status=Status.IGNORED, note=note, dynamic=True) for name in names.split()
    ]


GROUP_KEYS = table_of(
    (
        _row(SESSION, 1, "A member that is silent for so long is given up."),
        _row(HEARTBEAT, 1, "How often members are told to be heard of."),
        _row(ASSIGNMENT, 0, "The assignment is worked out at most once in this time; 0: with each change."),
        *_ignored("consumer.assignor.offload.enable", "assignments are worked out where heartbeats are served"),
        *_ignored(
            "share.session.timeout.ms share.heartbeat.interval.ms share.record.lock.duration.ms "
            "share.delivery.count.limit share.partition.max.record.locks share.auto.offset.reset share.isolation.level "
            "share.renew.acknowledge.enable share.assignment.interval.ms share.assignor.offload.enable",
            "share groups are not part of this broker",
        ),
        *_ignored(
            "streams.session.timeout.ms streams.heartbeat.interval.ms streams.num.standby.replicas "
            "streams.initial.rebalance.delay.ms streams.assignment.interval.ms streams.assignor.offload.enable",
            "streams groups are not part of this broker",
        ),
    )
)


def group_key(name: str) -> ConfigKey:
    """The row of a group key; ConfigError names the nearest one where there is none."""
    if name not in GROUP_KEYS:
        raise unknown_key(name, GROUP_KEYS, "group config", "group-settings.md")
    return GROUP_KEYS[name]


def broker_value(name: str, layers: BrokerLayers) -> ConfigValue:
    """The broker's value of a group key (or of any broker key with a default) under its settings as altered."""
    return broker_layers_of(name if name.startswith("group.") else f"group.{name}", layers)[0].value


def validate(overrides: Mapping[str, str | None], layers: BrokerLayers) -> None:
    """Refuse settings of a group that are unknown, out of the broker's bounds, or contradict each other. Raises ConfigError."""
    values = {name: group_key(name).parse(text) for name, text in overrides.items()}
    for name, (lowest, highest) in _BOUNDS.items():
        value = values.get(name)
        if value is None:
            continue
        low, high = broker_value(lowest, layers), broker_value(highest, layers)
        if value < low:
            raise ConfigError(f"{name} = {value} must be greater than or equal to {lowest} = {low}")
        if value > high:
            raise ConfigError(f"{name} = {value} must be less than or equal to {highest} = {high}")
    session = broker_value(SESSION, layers) if values.get(SESSION) is None else values[SESSION]
    heartbeat = broker_value(HEARTBEAT, layers) if values.get(HEARTBEAT) is None else values[HEARTBEAT]
    if session <= heartbeat:
        raise ConfigError(f"{SESSION} = {session} must be greater than {HEARTBEAT} = {heartbeat}")


def in_force(overrides: Mapping[str, str | None], layers: BrokerLayers) -> dict[str, int]:
    """The values of a group's working keys, each within the broker's bounds."""
    found: dict[str, int] = {}
    for name, (lowest, highest) in _BOUNDS.items():
        value = stored_value(GROUP_KEYS[name], overrides.get(name))
        if value is None:
            found[name] = broker_value(name, layers)
        else:
            found[name] = min(max(value, broker_value(lowest, layers)), broker_value(highest, layers))
    return found


def describe(overrides: Mapping[str, str | None], layers: BrokerLayers) -> list[ConfigEntry]:
    """Every group key that has a value, as DescribeConfigs tells it; `synonyms` begin with what somebody set."""
    entries = []
    for key in GROUP_KEYS.values():
        override = stored_value(key, overrides.get(key.name))
        chain = [] if override is None else [Layer(key.name, override, ConfigSource.GROUP_CONFIG)]
        chain += [layer for name, _ in key.synonyms for layer in broker_layers_of(name, layers)]
        if chain:
            entries.append(ConfigEntry(key, key.render(chain[0].value), chain[0].source, chain))
    return entries
