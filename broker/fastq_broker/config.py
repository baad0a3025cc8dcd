"""The broker's configuration: read once from a TOML file or a Kafka `server.properties`, overridden, checked.

Rules: `config_table.BROKER_KEYS` is the one list of keys. Reading a file, mapping older names and checking values
happens here and nowhere else; the rest of the broker sees `BrokerConfig`, frozen. An unknown key is an error that names
the nearest known one; a key that does nothing is a warning that says why, and an error where it would protect (`fail_closed`).
Later sources win: file, then overrides.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fastq.errors import ConfigError
from fastq_broker import fail_closed
from fastq_broker.config_keys import ConfigSource, Status, Value, is_count, unknown_key
from fastq_broker.config_table import BROKER_KEYS, DONE, LISTENER_PARTS, TARGETS

# The standard library has it from Python 3.11 on; tomli is the same parser for 3.10.
tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

logger = logging.getLogger(__name__)

# Prefixes under which Kafka takes keys that no table lists, and why they do nothing here.
_PREFIXES = {
    "listener.name.": "settings of one listener are not part of this version",
    "rsm.config.": "tiered storage is not part of this broker",
    "rlmm.config.": "tiered storage is not part of this broker",
    "config.providers.": "configuration providers are Java classes",
}
_BY_ATTRIBUTE = {key.attribute: key.name for key in BROKER_KEYS.values()}


@dataclass(frozen=True)
class Listener:
    """An address to listen on or to advertise. `host` empty: all interfaces; `port` 0: a free one is taken."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker; immutable and safe to share between threads.

    Each attribute is a key of Kafka in Python's spelling, with Kafka's unit and (mostly) default; `get` reads any key by its
    Kafka name. `settings` holds what was set (by Kafka name), so that sources can be told apart.
    """

    node_id: int
    process_roles: Sequence[str]
    broker_rack: str | None
    log_dirs: Sequence[str]
    metadata_log_dir: str
    durability: str
    listeners: Sequence[Listener]
    advertised_listeners: Sequence[Listener]
    controller_listeners: Sequence[Listener]
    listener_security_protocol_map: Mapping[str, str]
    inter_broker_listener_name: str
    controller_listener_names: Sequence[str]
    socket_listen_backlog_size: int
    socket_request_max_bytes: int
    non_produce_request_max_bytes: int
    queued_max_request_bytes: int
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    connections_max_idle_ms: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_coordinator_rebalance_protocols: Sequence[str]
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: Sequence[str]
    group_consumer_migration_policy: str
    group_consumer_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_regex_refresh_interval_ms: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transaction_state_log_min_isr: int
    min_insync_replicas: int
    message_max_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_jitter_ms: int
    log_retention_ms: int
    log_retention_bytes: int
    log_cleanup_policy: Sequence[str]
    log_index_interval_bytes: int
    log_index_size_max_bytes: int
    log_segment_delete_delay_ms: int
    log_preallocate: bool
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_message_timestamp_type: str
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    log_cleaner_delete_retention_ms: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int
    log_retention_check_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    metadata_log_segment_bytes: int
    metadata_log_segment_ms: int
    settings: Mapping[str, Value] = field(repr=False)
    warnings: Sequence[str] = field(repr=False)
    insecure_ignore: frozenset[str] = field(default=frozenset(), repr=False)
    """What may be ignored although it would protect: names of --insecure-ignore."""
    unprotected: Sequence[str] = field(default=(), repr=False)
    """The settings that are, of these."""

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        overrides: Mapping[str, Value] | None = None,
        *,
        insecure_ignore: Iterable[str] = (),
    ) -> BrokerConfig:
        """Read `path` (TOML by its `.toml`, else Java properties; None: nothing but defaults), then apply `overrides`.

        Raises ConfigError with key, value and what is allowed. Each warning is logged once.
        """
        settings = read_file(Path(path)) if path is not None else {}
        settings.update(_known(overrides or {}))
        config = cls.from_mapping(settings, insecure_ignore=insecure_ignore)
        for warning in config.warnings:
            logger.warning("%s", warning)
        return config

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Value], *, insecure_ignore: Iterable[str] = ()) -> BrokerConfig:
        """From keys by Kafka name (or in Python's spelling), the values as text or as Python values."""
        return _Builder(_known(settings), fail_closed.check_ignored(insecure_ignore)).build()

    def get(self, name: str) -> Value:
        """The value of any known key by its Kafka name: set, mapped from an older name, or the default."""
        return effective(name, self.settings)

    def source(self, name: str) -> ConfigSource:
        """Whether the key was set (under its own name)."""
        return ConfigSource.STATIC_BROKER_CONFIG if name in self.settings else ConfigSource.DEFAULT_CONFIG


def read_file(path: Path) -> dict[str, Value]:
    """The keys of a configuration file by Kafka name, values not checked yet; ConfigError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if path.suffix != ".toml":
        return _known(parse_properties(text))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML document: {error}") from error
    return _known(_flatten(document))


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties: `#` and `!` comments, `=`, `:` or blank after the key, `\\` escapes and continues a line."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key, position = _take_key(line)
        rest = line[position:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        found[_unescape(key)] = _unescape(rest)
    return found


def effective(name: str, settings: Mapping[str, Value]) -> Value:
    """The value of a key given what is set: its own, that of an older name, then the defaults in the same order."""
    if name in settings:
        return settings[name]
    older = [(old, factor) for old, (target, factor) in TARGETS.items() if target == name and old not in LISTENER_PARTS]
    for old, factor in older:
        if settings.get(old) is not None and not (old == "broker.id" and settings[old] < 0):
            return _scaled(settings[old], factor)
    own = BROKER_KEYS[name].default
    if own is not None:
        return own
    for old, factor in older:
        if BROKER_KEYS[old].default is not None:
            return _scaled(BROKER_KEYS[old].default, factor)
    return None


def _scaled(value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def _known(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The same settings under their Kafka names; an unknown name is an error."""
    known: dict[str, Value] = {}
    for given, value in settings.items():
        name = given if given in BROKER_KEYS else _BY_ATTRIBUTE.get(given, given)
        if name not in BROKER_KEYS and not name.startswith(tuple(_PREFIXES)):
            raise unknown_key(name, BROKER_KEYS, "broker setting")
        known[name] = value
    return known


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _logical_lines(text: str) -> list[str]:
    """Lines with continuations joined, without comments and blank lines."""
    lines: list[str] = []
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending += line[:-1]
            continue
        lines.append(pending + line)
        pending = ""
    return [*lines, pending] if pending else lines


def _take_key(line: str) -> tuple[str, int]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return line[:position], min(position, len(line))


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        escape = text[position]
        position += 1
        if escape == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or not set(digits) <= _HEXADECIMAL:
                raise ConfigError(f"\\u{digits} is not a character: four hexadecimal digits must follow \\u")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escape, escape))
    return "".join(out)


class _Builder:
    """Parses, maps and cross-checks one set of settings; used once."""

    def __init__(self, settings: Mapping[str, Value], insecure_ignore: frozenset[str]) -> None:
        self.warnings: list[str] = []
        self.settings: dict[str, Value] = {}
        self.insecure_ignore = insecure_ignore
        self.unprotected: list[str] = []
        for name, raw in settings.items():
            key = BROKER_KEYS.get(name)
            if fail_closed.protects(name, raw if key is None else key.parse(raw)):
                if name not in insecure_ignore:
                    raise fail_closed.refuse_setting(name)
                self.unprotected.append(name)
            elif key is None:
                note = next(note for prefix, note in _PREFIXES.items() if name.startswith(prefix))
                self.warnings.append(f"{name} is ignored: {note}")
            elif key.status is Status.IGNORED:
                self.warnings.append(f"{name} is ignored: {key.note}")
            if key is not None:
                self.settings[name] = key.parse(raw)

    def build(self) -> BrokerConfig:
        values: dict[str, Value] = {key.attribute: effective(key.name, self.settings) for key in DONE}
        protocols = self._security_protocols(values["listener_security_protocol_map"])
        controller_names = values["controller_listener_names"]
        everything = self._listeners(values["listeners"], protocols, "listeners", self._old_listener("listeners"))
        own = tuple(listener for listener in everything if listener.name not in controller_names)
        values["controller_listeners"] = tuple(item for item in everything if item.name in controller_names)
        values["listeners"] = own
        values["advertised_listeners"] = self._advertised(values["advertised_listeners"], own, protocols)
        values["listener_security_protocol_map"] = protocols
        values["max_connections_per_ip_overrides"] = self._per_ip(values["max_connections_per_ip_overrides"])
        self._check_node(values, own)
        self._check_consumer_groups(values)
        return BrokerConfig(
            **values,
            settings=self.settings,
            warnings=tuple(self.warnings),
            insecure_ignore=self.insecure_ignore,
            unprotected=tuple(self.unprotected),
        )

    def _check_node(self, values: dict[str, Value], own: Sequence[Listener]) -> None:
        if not values["log_dirs"]:
            raise ConfigError("log.dirs = '' is not allowed: it takes at least one directory")
        places: dict[str, str] = {}
        for directory in values["log_dirs"]:
            other = places.setdefault(os.path.realpath(directory), directory)
            if other != directory:
                raise ConfigError(f"log.dirs names one directory twice: {other} and {directory}")
        if not values["controller_listener_names"]:
            raise ConfigError("controller.listener.names = '' is not allowed: it takes at least one name")
        if not own:
            raise ConfigError("listeners names no listener for clients: all of them are controller listeners")
        values["metadata_log_dir"] = values["metadata_log_dir"] or values["log_dirs"][0]
        values["inter_broker_listener_name"] = values["inter_broker_listener_name"] or own[0].name
        if values["inter_broker_listener_name"] not in {listener.name for listener in own}:
            raise ConfigError(
                f"inter.broker.listener.name = {values['inter_broker_listener_name']!r} is not allowed: "
                "it takes one of " + ", ".join(listener.name for listener in own)
            )
        if set(values["process_roles"]) != {"broker", "controller"}:
            raise ConfigError(
                f"process.roles = {','.join(values['process_roles'])!r} is not allowed: "
                "this version runs as broker,controller"
            )

    def _check_consumer_groups(self, values: dict[str, Value]) -> None:
        """Each of these within its bounds, and heartbeats more often than sessions end."""
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
            attribute = name.replace(".", "_")
            low, value, high = (values[f"group_consumer_{kind}{attribute}"] for kind in ("min_", "", "max_"))
            if not low <= value <= high:
                raise ConfigError(
                    f"group.consumer.{name} = {value} is not allowed: group.consumer.min.{name} and group.consumer.max.{name} "
                    f"bound it to {low} to {high}"
                )
        heartbeat_ms, session_ms = (
            values["group_consumer_heartbeat_interval_ms"],
            values["group_consumer_session_timeout_ms"],
        )
        if heartbeat_ms >= session_ms:
            raise ConfigError(
                f"group.consumer.heartbeat.interval.ms = {heartbeat_ms} is not allowed: it must be below "
                f"group.consumer.session.timeout.ms, {session_ms}"
            )

    def _old_listener(self, target: str) -> str | None:
        """`host.name` and `port` of Kafka 0.8 as a listener of today, where no `listeners` is set."""
        prefix = "" if target == "listeners" else "advertised."
        host = self.settings.get(f"{prefix}host.name")
        port = self.settings.get(f"{prefix}port")
        if target in self.settings or (host is None and port is None):
            return None
        if prefix:
            host = host if host is not None else self.settings.get("host.name", "")
            port = port if port is not None else self.settings.get("port", 9092)
        host = host or ""
        return f"PLAINTEXT://{f'[{host}]' if ':' in host else host}:{9092 if port is None else port}"

    def _listeners(
        self, texts: Sequence[str], protocols: Mapping[str, str], key: str, instead: str | None
    ) -> tuple[Listener, ...]:
        found = tuple(parse_listener(text, protocols, key) for text in ([instead] if instead else texts))
        if not found:
            raise ConfigError(f"{key} = '' is not allowed: it takes at least one NAME://host:port")
        for position, listener in enumerate(found):
            if any(other.name == listener.name for other in found[:position]):
                raise ConfigError(f"{key} names {listener.name} twice; each listener needs a name of its own")
            if any(other.port == listener.port != 0 and other.host == listener.host for other in found[:position]):
                raise ConfigError(f"{key} has two listeners at {listener.host}:{listener.port}")
        return found

    def _advertised(
        self, texts: Sequence[str] | None, own: Sequence[Listener], protocols: Mapping[str, str]
    ) -> tuple[Listener, ...]:
        instead = self._old_listener("advertised.listeners")
        if not texts and not instead:
            return tuple(Listener(item.name, _reachable(item.host), item.port, item.security_protocol) for item in own)
        found = self._listeners(texts or (), protocols, "advertised.listeners", instead)
        names = {listener.name for listener in own}
        for listener in found:
            if listener.host in ("0.0.0.0", "::"):
                raise ConfigError(
                    f"advertised.listeners = {str(listener)!r} is not allowed: "
                    "it takes an address that clients can connect to"
                )
        return tuple(listener for listener in found if listener.name in names) or found

    def _security_protocols(self, text: str) -> dict[str, str]:
        protocols: dict[str, str] = {}
        for pair in filter(None, (item.strip() for item in text.split(","))):
            name, colon, protocol = pair.rpartition(":")
            if not colon or protocol.upper() not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
                raise ConfigError(
                    f"listener.security.protocol.map = {text!r} is not allowed: it takes "
                    "NAME:PROTOCOL pairs, protocols PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL"
                )
            protocols[name.strip().upper()] = protocol.upper()
        return protocols

    def _per_ip(self, text: str) -> dict[str, int]:
        limits: dict[str, int] = {}
        for pair in filter(None, (item.strip() for item in text.split(","))):
            address, colon, count = pair.rpartition(":")
            if not colon or not is_count(count):
                raise ConfigError(
                    f"max.connections.per.ip.overrides = {text!r} is not allowed: it takes address:count pairs"
                )
            limits[address.strip().strip("[]")] = int(count)
        return limits


def _reachable(host: str) -> str:
    """What to advertise for an address to listen on: all interfaces become the name of this machine."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host


def parse_listener(text: str, protocols: Mapping[str, str] | None = None, key: str = "listeners") -> Listener:
    """`NAME://host:port`, `host:port` (PLAINTEXT) with IPv6 in brackets; ConfigError says what it takes."""
    name, separator, address = text.rpartition("://")
    name = name.upper() if separator else "PLAINTEXT"
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not name or not colon or not is_count(port) or int(port) > 65535 or (":" in host and f"[{host}]" not in address):
        raise ConfigError(f"{key} = {text!r} is not allowed: it takes NAME://host:port, IPv6 addresses in brackets")
    known = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(protocols or {})}
    protocol = known.get(name)
    if protocol is None:
        raise ConfigError(f"{key} = {text!r} is not allowed: listener.security.protocol.map has no protocol for {name}")
    if protocol != "PLAINTEXT":
        raise ConfigError(
            f"{key} = {text!r} is not allowed: this version serves PLAINTEXT, and {name} is {protocol}; nothing is served in the "
            "clear that was to be protected: make it a PLAINTEXT listener on an address that only trusted clients reach"
        )
    return Listener(name, host, int(port), protocol)


ATTRIBUTES = frozenset(item.name for item in fields(BrokerConfig)) - {
    "settings",
    "warnings",
    "controller_listeners",
    "insecure_ignore",
    "unprotected",
}
