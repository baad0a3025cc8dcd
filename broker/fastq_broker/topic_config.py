"""Topic settings of Kafka 4.3: what each is, where its value comes from, and what the log makes of it.

Rules: an override of a topic stands first; then the broker's key it falls back to, as altered for this broker, as
altered for all brokers, as set in the file; then the defaults. `layers_of` builds that chain, and `TopicDefaults` (the
values) and `describe` (the values with their synonyms) read it, so what is told is what is done.
Source: LogConfig, KIP-226.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastq.errors import ConfigError
from fastq.values import Value
from fastq_broker.config import CORDONED_LOG_DIRS, BrokerConfig, cordoned
from fastq_broker.config_keys import (
    GZIP_LEVEL,
    INT64_MAX,
    MIRROR_SOURCE,
    THROTTLED_REPLICAS,
    Check,
    ConfigKey,
    ConfigSource,
    ConfigType,
    ConfigValue,
    Status,
    at_least,
    between,
    list_of,
    one_of,
    table_of,
    unknown_key,
)
from fastq_broker.config_table import BROKER_KEYS, CODECS, DURABILITY, HOUR_MS, MINUTE_MS, RETIRED, THROTTLES
from fastq_broker.log.config import CleanerConfig, LogConfig
from fastq_broker.log.space import Marks

logger = logging.getLogger(__name__)

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST

_TIERED: Final = "tiered storage is not part of this broker"


def row(
    name: str,
    type: ConfigType,
    default: ConfigValue,
    check: Check | None = None,
    doc: str = "",
    *,
    broker: Sequence[str | tuple[str, int]] = (),
    nothing_yet: str = "",
) -> ConfigKey:
    """A topic key; `broker` are its synonyms, `nothing_yet` says why it has no effect so far."""
    return ConfigKey(
        name,
        type,
        default,
        check,
        Status.IGNORED if nothing_yet else Status.DONE,
        nothing_yet,
        doc,
        dynamic=True,
        synonyms=tuple((item, 1) if isinstance(item, str) else item for item in broker),
    )


TOPIC_KEYS = table_of(
    (
        row(
            "cleanup.policy",
            LIST,
            ["delete"],
            list_of("compact", "delete"),
            "What becomes of old segments: delete them, compact them, or both. A compacted topic demands keys.",
            broker=["log.cleanup.policy"],
        ),
        row(
            "compression.type",
            STRING,
            "producer",
            CODECS,
            "The codec of stored batches; producer keeps what comes.",
            broker=["compression.type"],
        ),
        row(
            "compression.gzip.level",
            INT,
            -1,
            GZIP_LEVEL,
            "Level of gzip; -1 is the codec's own.",
            broker=["compression.gzip.level"],
        ),
        row("compression.lz4.level", INT, 9, between(1, 17), "Level of lz4.", broker=["compression.lz4.level"]),
        row(
            "compression.zstd.level", INT, 3, between(-131072, 22), "Level of zstd.", broker=["compression.zstd.level"]
        ),
        row(
            "delete.retention.ms",
            LONG,
            86400000,
            at_least(0),
            "How long a compacted topic keeps tombstones, and the ends of transactions that left nothing.",
            broker=["log.cleaner.delete.retention.ms"],
        ),
        row(
            "durability",
            STRING,
            "page-cache",
            DURABILITY,
            "When a record is acknowledged and visible: once written (page-cache) or once on disk (fsync).",
            broker=["durability"],
        ),
        row(
            "file.delete.delay.ms",
            LONG,
            60000,
            at_least(0),
            "How long the files of a deleted segment stay.",
            broker=["log.segment.delete.delay.ms"],
        ),
        row(
            "flush.messages",
            LONG,
            INT64_MAX,
            at_least(1),
            "Records between flushes to disk; 1 is durability=fsync.",
            broker=["log.flush.interval.messages"],
        ),
        row(
            "flush.ms",
            LONG,
            INT64_MAX,
            at_least(0),
            "Time until written records are flushed to disk.",
            broker=["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        ),
        row(
            "follower.replication.throttled.replicas",
            LIST,
            [],
            THROTTLED_REPLICAS,
            "Replicas whose fetching is throttled.",
        ),
        row(
            "index.interval.bytes",
            INT,
            4096,
            at_least(0),
            "Bytes of log between index entries.",
            broker=["log.index.interval.bytes"],
        ),
        row(
            "leader.replication.throttled.replicas",
            LIST,
            [],
            THROTTLED_REPLICAS,
            "Replicas whose serving is throttled.",
        ),
        row(
            "local.retention.bytes",
            LONG,
            -2,
            at_least(-2),
            "Size of a tiered log kept here.",
            broker=["log.local.retention.bytes"],
            nothing_yet=_TIERED,
        ),
        row(
            "local.retention.ms",
            LONG,
            -2,
            at_least(-2),
            "Age of a tiered log kept here.",
            broker=["log.local.retention.ms"],
            nothing_yet=_TIERED,
        ),
        row(
            "max.compaction.lag.ms",
            LONG,
            INT64_MAX,
            at_least(1),
            "The longest a record waits for compaction.",
            broker=["log.cleaner.max.compaction.lag.ms"],
        ),
        row(
            "max.message.bytes",
            INT,
            1048588,
            at_least(0),
            "The largest batch, as it is stored.",
            broker=["message.max.bytes"],
        ),
        row(
            "message.timestamp.after.max.ms",
            LONG,
            3600000,
            at_least(0),
            "How far ahead of the broker's clock a record's timestamp may be.",
            broker=["log.message.timestamp.after.max.ms"],
        ),
        row(
            "message.timestamp.before.max.ms",
            LONG,
            INT64_MAX,
            at_least(0),
            "How far behind the broker's clock a record's timestamp may be.",
            broker=["log.message.timestamp.before.max.ms"],
        ),
        row(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "Whose clock stamps records: the producer's or the broker's.",
            broker=["log.message.timestamp.type"],
        ),
        row(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            between(0, 1),
            "How much of a log must be uncompacted before it is compacted.",
            broker=["log.cleaner.min.cleanable.ratio"],
        ),
        row(
            "min.compaction.lag.ms",
            LONG,
            0,
            at_least(0),
            "How long a record stays uncompacted at least.",
            broker=["log.cleaner.min.compaction.lag.ms"],
        ),
        row(
            "min.insync.replicas",
            INT,
            1,
            at_least(1),
            "In-sync replicas that a produce with acks=all needs.",
            broker=["min.insync.replicas"],
        ),
        row(
            "mirror.source",
            STRING,
            "",
            MIRROR_SOURCE,
            "What the topic is mirrored from with the same offsets: nobody else writes to it, and its own retention rests.",
        ),
        row("preallocate", BOOLEAN, False, None, "Reserve a segment's space at once.", broker=["log.preallocate"]),
        row("remote.log.copy.disable", BOOLEAN, False, None, "Stop copying to the remote tier.", nothing_yet=_TIERED),
        row(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            None,
            "Delete the remote tier when it is disabled.",
            nothing_yet=_TIERED,
        ),
        row("remote.storage.enable", BOOLEAN, False, None, "Keep old segments in a remote tier.", nothing_yet=_TIERED),
        row(
            "retention.bytes",
            LONG,
            -1,
            at_least(-1),
            "Size of a partition beyond which old segments go; -1: no limit.",
            broker=["log.retention.bytes"],
        ),
        row(
            "retention.ms",
            LONG,
            604800000,
            at_least(-1),
            "Age beyond which old segments go; -1: no limit.",
            broker=["log.retention.ms", ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)],
        ),
        row(
            "segment.bytes",
            INT,
            1073741824,
            at_least(1048576),
            "Size at which a new segment starts.",
            broker=["log.segment.bytes"],
        ),
        row(
            "segment.index.bytes",
            INT,
            10485760,
            at_least(4),
            "Size of a segment's offset index; a full one starts a new segment.",
            broker=["log.index.size.max.bytes"],
        ),
        row(
            "segment.jitter.ms",
            LONG,
            0,
            at_least(0),
            "The most that is taken off segment.ms at random.",
            broker=["log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)],
        ),
        row(
            "segment.ms",
            LONG,
            604800000,
            at_least(1),
            "Age at which a new segment starts.",
            broker=["log.roll.ms", ("log.roll.hours", HOUR_MS)],
        ),
        row(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            None,
            "Let a replica that lags become leader.",
            broker=["unclean.leader.election.enable"],
        ),
    )
)
# Kafka's own tests set it; it stands above segment.bytes, has no lower limit, and is not described.
_INTERNAL_SEGMENT_BYTES = ConfigKey("internal.segment.bytes", INT, None, at_least(1))


@dataclass(frozen=True)
class BrokerLayers:
    """The broker's part of the chain: altered for this broker, altered for all, set in the file. Texts as stored."""

    config: BrokerConfig
    this_broker: Mapping[str, str | None] = field(default_factory=dict)
    all_brokers: Mapping[str, str | None] = field(default_factory=dict)


class Layer(Value):
    """One place a value comes from: the name it has there, the text, and the value in that name's unit."""

    name: str
    value: ConfigValue
    source: ConfigSource
    factor: int = 1


class ConfigEntry(Value):
    """One key as DescribeConfigs tells it; `synonyms` begins with the layer in force, where that is one of a broker or was set."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    synonyms: Sequence[Layer]
    read_only: bool = False


def validate(overrides: Mapping[str, str | None]) -> dict[str, ConfigValue]:
    """The overrides of a topic as checked values; ConfigError names key, value and what is allowed."""
    values: dict[str, ConfigValue] = {}
    for name, text in overrides.items():
        key = topic_key(name)
        if text is None:
            raise ConfigError(f"{name} has no value: leave the key out to take the default")
        values[name] = key.parse(text)
    shortest = values.get("min.compaction.lag.ms", 0)
    longest = values.get("max.compaction.lag.ms", INT64_MAX)
    if shortest > longest:
        raise ConfigError(f"min.compaction.lag.ms = {shortest} is above max.compaction.lag.ms = {longest}")
    if values.get("remote.storage.enable"):
        raise ConfigError("remote.storage.enable = 'true' is not allowed: tiered storage is not part of this broker")
    return values


def topic_key(name: str) -> ConfigKey:
    """The row of a topic key; ConfigError names the nearest one where there is none."""
    if name == _INTERNAL_SEGMENT_BYTES.name:
        return _INTERNAL_SEGMENT_BYTES
    if name not in TOPIC_KEYS:
        raise unknown_key(name, TOPIC_KEYS, "topic config", "topic-settings.md")
    return TOPIC_KEYS[name]


def stored_value(key: ConfigKey, text: str | None) -> ConfigValue:
    """A value from the metadata; None, with a warning, for one that another version let pass and this one does not."""
    try:
        return key.parse(text)
    except ConfigError as error:
        logger.warning("a stored setting is passed over: %s", error)
        return None


def broker_layers_of(name: str, layers: BrokerLayers, factor: int = 1) -> list[Layer]:
    """Where one broker key is set, strongest first, its default last."""
    key = BROKER_KEYS[name]
    found: list[Layer] = []
    for texts, source in (
        (layers.this_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (layers.all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    ):
        value = stored_value(key, texts.get(name))
        if value is not None:
            found.append(Layer(name, value, source, factor))
    if layers.config.settings.get(name) is not None:
        found.append(Layer(name, layers.config.settings[name], ConfigSource.STATIC_BROKER_CONFIG, factor))
    if key.default is not None:
        found.append(Layer(name, key.default, ConfigSource.DEFAULT_CONFIG, factor))
    return found


def layers_of(key: ConfigKey, overrides: Mapping[str, str | None], layers: BrokerLayers) -> list[Layer]:
    """The chain of one topic key, strongest first. Never empty for a key that has a default."""
    chain: list[Layer] = []
    override = stored_value(key, overrides.get(key.name))
    if override is not None:
        chain.append(Layer(key.name, override, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    broker = [layer for name, factor in key.synonyms for layer in broker_layers_of(name, layers, factor)]
    # What somebody set in an older unit stands above the default of the newer name.
    chain.extend(layer for layer in broker if layer.source is not ConfigSource.DEFAULT_CONFIG)
    chain.extend(layer for layer in broker if layer.source is ConfigSource.DEFAULT_CONFIG)
    if not broker and key.default is not None:
        chain.append(Layer(key.name, key.default, ConfigSource.DEFAULT_CONFIG))
    return chain


def _in_force(layer: Layer) -> ConfigValue:
    if layer.factor == 1:
        return layer.value
    return layer.value * layer.factor if layer.value >= 0 else -1


class TopicDefaults:
    """Topic values in force under one state of the broker's keys; kept, for resolving thousands of topics.

    Immutable from outside; safe to share. Topics without overrides share one `LogConfig`.
    """

    def __init__(self, layers: BrokerLayers) -> None:
        self.layers = layers
        self.values = {name: _in_force(layers_of(key, {}, layers)[0]) for name, key in TOPIC_KEYS.items()}
        self.log_config = to_log_config(self.values)

    def resolve(self, overrides: Mapping[str, str | None]) -> dict[str, ConfigValue]:
        """Every topic key with the value in force. Keys that this broker does not know are passed over."""
        values = dict(self.values)
        for name, text in overrides.items():
            value = stored_value(TOPIC_KEYS[name], text) if name in TOPIC_KEYS else None
            if value is not None:
                values[name] = value
        internal = stored_value(_INTERNAL_SEGMENT_BYTES, overrides.get(_INTERNAL_SEGMENT_BYTES.name))
        if internal is not None:
            values["segment.bytes"] = internal
        return values

    def log_config_of(self, overrides: Mapping[str, str | None]) -> LogConfig:
        """The settings of the log of a topic with these overrides."""
        return to_log_config(self.resolve(overrides)) if overrides else self.log_config


def describe(overrides: Mapping[str, str | None], layers: BrokerLayers) -> list[ConfigEntry]:
    """Every topic key as DescribeConfigs tells it: the default of one without a counterpart among the broker's is no synonym."""
    entries = []
    for key in TOPIC_KEYS.values():
        chain = layers_of(key, overrides, layers)
        synonyms = [layer for layer in chain if key.synonyms or layer.source is not ConfigSource.DEFAULT_CONFIG]
        entries.append(ConfigEntry(key, key.render(_in_force(chain[0])), chain[0].source, synonyms))
    return entries


def describe_broker(layers: BrokerLayers) -> list[ConfigEntry]:
    """Every broker key of today's Kafka and of our own; sensitive values are never told. Throttles are no keys of Kafka's files, so their
    default is no synonym."""
    entries = []
    for key in BROKER_KEYS.values():
        chain = broker_layers_of(key.name, layers)
        if key.name in RETIRED and not any(layer.source is not ConfigSource.DEFAULT_CONFIG for layer in chain):
            continue
        first = chain[0] if chain else Layer(key.name, None, ConfigSource.DEFAULT_CONFIG)
        value = None if key.sensitive else key.render(first.value)
        if key.name in THROTTLES:
            chain = [layer for layer in chain if layer.source is not ConfigSource.DEFAULT_CONFIG]
        entries.append(ConfigEntry(key, value, first.source, chain, read_only=not key.dynamic))
    return entries


def cleaner_config(layers: BrokerLayers) -> CleanerConfig:
    """The settings of the log cleaner under the broker's keys, as set and altered."""

    def value(name: str) -> ConfigValue:
        return broker_layers_of(name, layers)[0].value

    return CleanerConfig(
        enabled=value("log.cleaner.enable"),
        threads=value("log.cleaner.threads"),
        dedupe_buffer_bytes=value("log.cleaner.dedupe.buffer.size"),
        dedupe_load_factor=value("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes=value("log.cleaner.io.buffer.size"),
        io_bytes_per_second_max=value("log.cleaner.io.max.bytes.per.second"),
        backoff_ms=value("log.cleaner.backoff.ms"),
    )


def space_marks(layers: BrokerLayers) -> Marks:
    """What is to be free on the disks, as set and altered."""
    names = ("disk.warn.free.bytes", "disk.refuse.free.bytes", "disk.ballast.bytes")
    return Marks(*(broker_layers_of(name, layers)[0].value for name in names))


def cordoned_dirs(layers: BrokerLayers) -> frozenset[str]:
    """The absolute paths of the log directories that get no new replicas, as set and altered; what was altered and names a directory that
    is none any more is passed over, with a warning."""
    for layer in broker_layers_of(CORDONED_LOG_DIRS, layers):
        try:
            return cordoned(layer.value, layers.config.log_dirs)
        except ConfigError as error:
            logger.warning("a stored setting is passed over: %s", error)
    return frozenset()


def to_log_config(values: Mapping[str, ConfigValue]) -> LogConfig:
    """Resolved topic values (of `resolve`) as the settings of a log."""
    gzip_level = values["compression.gzip.level"]
    return LogConfig(
        segment_bytes=values["segment.bytes"],
        segment_ms=values["segment.ms"],
        segment_jitter_ms=values["segment.jitter.ms"],
        segment_index_bytes=values["segment.index.bytes"],
        index_interval_bytes=values["index.interval.bytes"],
        flush_messages=values["flush.messages"],
        flush_ms=values["flush.ms"],
        retention_bytes=values["retention.bytes"],
        retention_ms=values["retention.ms"],
        max_message_bytes=values["max.message.bytes"],
        cleanup_policy=frozenset(values["cleanup.policy"]),
        message_timestamp_type=values["message.timestamp.type"],
        message_timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
        message_timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
        compression_type=values["compression.type"],
        compression_gzip_level=None if gzip_level == -1 else gzip_level,
        compression_lz4_level=values["compression.lz4.level"],
        compression_zstd_level=values["compression.zstd.level"],
        preallocate=values["preallocate"],
        file_delete_delay_ms=values["file.delete.delay.ms"],
        delete_retention_ms=values["delete.retention.ms"],
        min_compaction_lag_ms=values["min.compaction.lag.ms"],
        max_compaction_lag_ms=values["max.compaction.lag.ms"],
        min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
        durability=values["durability"],
        mirror_source=values["mirror.source"],
    )
