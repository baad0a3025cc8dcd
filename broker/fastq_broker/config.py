"""The broker's configuration: read once from a TOML file or a Kafka `server.properties`, overridden, checked.

Rules: `config_table.BROKER_KEYS` is the one list of keys. Reading a file, mapping older names and checking values
happens here and nowhere else (listeners: `config_listeners`, a node's place in its cluster: `config_cluster`); the rest of the
broker sees `BrokerConfig`, frozen. An unknown key is an error that names
the nearest known one; a key that does nothing is a warning that says why, and an error where it would protect (`fail_closed`).
Later sources win: file, then overrides.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import ConfigError
from fastq.properties import flattened, parse_properties, settings_text, toml
from fastq_broker import config_cluster, config_listeners, config_mirror, fail_closed
from fastq_broker.config_cluster import HostPort
from fastq_broker.config_keys import ConfigKey, ConfigSource, ConfigValue, Status, unknown_key
from fastq_broker.config_listeners import Listener as Listener
from fastq_broker.config_table import BROKER_KEYS, DONE, LISTENER_PARTS, TARGETS
from fastq_broker.config_table_cluster import CLUSTER

if TYPE_CHECKING:
    from fastq.config import ClientConfig

logger = logging.getLogger(__name__)

# Prefixes under which Kafka takes keys that no table lists, and why they do nothing here.
_PREFIXES = {
    "rsm.config.": "tiered storage is not part of this broker",
    "rlmm.config.": "tiered storage is not part of this broker",
    "config.providers.": "configuration providers are Java classes",
}
CORDONED_LOG_DIRS = "cordoned.log.dirs"
_BY_ATTRIBUTE = {key.attribute: key.name for key in BROKER_KEYS.values()}


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
    cordoned_log_dirs: Sequence[str]
    metadata_log_dir: str
    durability: str
    disk_warn_free_bytes: int
    disk_refuse_free_bytes: int
    disk_ballast_bytes: int
    listeners: Sequence[Listener]
    advertised_listeners: Sequence[Listener]
    controller_listeners: Sequence[Listener]
    advertised_controller_listeners: Sequence[Listener]
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
    offsets_commit_timeout_ms: int
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
    add_partitions_to_txn_retry_backoff_ms: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    metadata_log_segment_bytes: int
    metadata_log_segment_ms: int
    metadata_max_retention_bytes: int
    metadata_max_retention_ms: int
    controller_quorum_voters: Mapping[int, HostPort]
    controller_quorum_bootstrap_servers: Sequence[HostPort]
    controller_quorum_voter_addresses: Mapping[int, HostPort]
    controller_quorum_auto_join_enable: bool
    controller_quorum_election_timeout_ms: int
    controller_quorum_election_backoff_max_ms: int
    controller_quorum_fetch_timeout_ms: int
    controller_quorum_request_timeout_ms: int
    controller_quorum_retry_backoff_ms: int
    controller_quorum_append_linger_ms: int
    controller_quorum_fetch_max_bytes: int
    controller_quorum_fetch_snapshot_max_bytes: int
    metadata_max_idle_interval_ms: int
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    broker_disconnect_timeout_ms: int
    initial_broker_registration_timeout_ms: int
    server_max_startup_time_ms: int
    early_start_listeners: Sequence[str] | None
    controlled_shutdown_enable: bool
    controller_socket_timeout_ms: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    log_dir_failure_timeout_ms: int
    num_replica_fetchers: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replica_socket_receive_buffer_bytes: int
    replica_socket_timeout_ms: int
    num_replica_alter_log_dirs_threads: int | None
    alter_log_dirs_replication_quota_window_num: int
    alter_log_dirs_replication_quota_window_size_seconds: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    unclean_leader_election_enable: bool
    unclean_leader_election_interval_ms: int
    settings: Mapping[str, ConfigValue] = field(repr=False)
    mirror_sources: Mapping[str, ClientConfig] = field(repr=False)
    """By their aliases: see `config_mirror`."""
    warnings: Sequence[str] = field(repr=False)
    insecure_ignore: frozenset[str] = field(default=frozenset(), repr=False)
    """What may be ignored although it would protect: names of --insecure-ignore."""
    unprotected: Sequence[str] = field(default=(), repr=False)
    """The settings that are, of these."""

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        overrides: Mapping[str, ConfigValue] | None = None,
        *,
        insecure_ignore: Iterable[str] = (),
    ) -> BrokerConfig:
        """Read `path` (TOML by its `.toml`, else Java properties; None: nothing but defaults), then apply `overrides`.

        Raises ConfigError with key, value and what is allowed. Each warning is logged once.
        """
        config = cls.read(path, overrides, insecure_ignore=insecure_ignore)
        for warning in config.warnings:
            logger.warning("%s", warning)
        return config

    @classmethod
    def read(
        cls,
        path: str | Path | None,
        overrides: Mapping[str, ConfigValue] | None = None,
        *,
        insecure_ignore: Iterable[str] = (),
        looks_up: bool = True,
    ) -> BrokerConfig:
        """As `load`, and nothing is logged. Without `looks_up` the config has no limits of connections for names of hosts, as nobody is
        asked for their addresses."""
        repeated: list[str] = []
        settings = read_file(Path(path), repeated) if path is not None else {}
        settings.update(_known(overrides or {}))
        config = _Builder(settings, fail_closed.check_ignored(insecure_ignore)).build(looks_up)
        return (
            replace(config, warnings=(*(f"{path}: {text}" for text in repeated), *config.warnings))
            if repeated
            else config
        )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, ConfigValue], *, insecure_ignore: Iterable[str] = ()) -> BrokerConfig:
        """From keys by Kafka name (or in Python's spelling), the values as text or as Python values."""
        return _Builder(_known(settings), fail_closed.check_ignored(insecure_ignore)).build()

    def get(self, name: str) -> ConfigValue:
        """The value of any known key by its Kafka name: set, mapped from an older name, or the default."""
        return effective(name, self.settings)

    def source(self, name: str) -> ConfigSource:
        """Whether the key was set (under its own name)."""
        return ConfigSource.STATIC_BROKER_CONFIG if name in self.settings else ConfigSource.DEFAULT_CONFIG


def read_file(path: Path, repeated: list[str] | None = None) -> dict[str, ConfigValue]:
    """The keys of a configuration file by Kafka name, values not checked yet; ConfigError when it cannot be read. `repeated` gets what
    properties say more than once."""
    try:
        text = settings_text(path)
    except ConfigError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from None
    if path.suffix != ".toml":
        return _known(parse_properties(text, repeated))
    parser = toml()
    try:
        document = parser.loads(text)
    except (parser.TOMLDecodeError, RecursionError) as error:  # the parser calls itself for what is nested
        raise ConfigError(f"{path} is not a TOML document: {error}") from error
    return _known(flattened(document))


def parse_assignments(texts: Iterable[str]) -> dict[str, ConfigValue]:
    """KEY=VALUE of each --set. Raises ValueError in the option's words."""
    found: dict[str, ConfigValue] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            word = re.match(r"[\w.-]*", text)  # and no more of it: what follows may be a secret
            raise ValueError(f"--set {word[0] if word else ''!r}: it takes KEY=VALUE")
        found[key.strip()] = value
    return found


_OF_PROTOCOLS = ("listeners", "listener.security.protocol.map")


def check_bare_listen(address: str, replaced: Mapping[str, ConfigValue]) -> None:
    """ConfigError where `--listen HOST:PORT`, which names no protocol, would serve in the clear what it replaces and is protected."""
    settings = {name: BROKER_KEYS[name].parse(raw) for name, raw in replaced.items() if name in _OF_PROTOCOLS}
    texts = settings.get("listeners") or ()
    protocols = config_listeners.security_protocols(
        effective("listener.security.protocol.map", settings),
        is_set="listener.security.protocol.map" in settings,
        listeners=texts,
        controller_names=(),
    )
    for text in texts:
        protocol = protocols.get(text.rpartition("://")[0].strip().upper(), "PLAINTEXT")
        if protocol != "PLAINTEXT":
            raise ConfigError(
                f"--listen {address} would take the place of listeners = {text!r}, and serve in the clear what that protects by "
                f"{protocol}: to have it so, say --listen PLAINTEXT://{address}"
            )


def effective(name: str, settings: Mapping[str, ConfigValue]) -> ConfigValue:
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


def cordoned(names: Sequence[str], log_dirs: Sequence[str]) -> frozenset[str]:
    """The absolute paths of what cordoned.log.dirs names. ConfigError for what is none of log.dirs. Source: KafkaConfig."""
    paths = frozenset(map(os.path.abspath, log_dirs))
    if "*" in names:
        if len(names) > 1:
            raise ConfigError(
                f"{CORDONED_LOG_DIRS} = {','.join(names)!r} is not allowed: `*` is for all, and stands alone"
            )
        return paths
    unknown = [name for name in names if os.path.abspath(name) not in paths]
    if unknown:
        raise ConfigError(
            f"{CORDONED_LOG_DIRS} = {','.join(names)!r} is not allowed: {', '.join(unknown)} is none of log.dirs, {', '.join(log_dirs)}"
        )
    return frozenset(map(os.path.abspath, names))


def _scaled(value: ConfigValue, factor: int) -> ConfigValue:
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def _known(settings: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The same settings under their Kafka names; an unknown name is an error."""
    known: dict[str, ConfigValue] = {}
    for given, value in settings.items():
        name = given if given in BROKER_KEYS else _BY_ATTRIBUTE.get(given, given)
        check_known(name)
        known[name] = value
    return known


def check_known(name: str) -> None:
    """ConfigError for what is no name of Kafka's, with the nearest that is one."""
    if name in BROKER_KEYS or name.startswith((config_listeners.PREFIX, *_PREFIXES)):
        return
    if config_mirror.is_meant(name):
        config_mirror.check_name(name)
    else:
        raise unknown_key(name, BROKER_KEYS, "broker setting", "broker-settings.md")


class _Builder:
    """Parses, maps and cross-checks one set of settings; used once."""

    def __init__(self, settings: Mapping[str, ConfigValue], insecure_ignore: frozenset[str]) -> None:
        self.warnings: list[str] = []
        self.settings: dict[str, ConfigValue] = {}
        self.insecure_ignore = insecure_ignore
        self.unprotected: list[str] = []
        self._listener_names: dict[str, str] = {}
        self._own_keys: dict[str, dict[str, ConfigValue]] = {}
        self._sources: dict[str, ConfigValue] = {}
        for name, raw in settings.items():
            if name.startswith(config_mirror.PREFIX):
                self._sources[name] = raw
                continue
            key, value = self._parse(name, raw)
            if fail_closed.protects(name, value):
                if name not in insecure_ignore:
                    raise fail_closed.refuse_setting(name)
                self.unprotected.append(name)
            elif key is None:
                note = next(note for prefix, note in _PREFIXES.items() if name.startswith(prefix))
                self.warnings.append(f"{name} is ignored: {note}")
            elif key.status is Status.IGNORED and name in BROKER_KEYS:
                self.warnings.append(f"{name} is ignored: {key.note}")
            if name in BROKER_KEYS:
                self.settings[name] = value

    def _parse(self, name: str, raw: ConfigValue) -> tuple[ConfigKey | None, ConfigValue]:
        """The row of a setting (None: of a prefix that no table lists) and its value; a listener's own is put aside for it."""
        if not name.startswith(config_listeners.PREFIX):
            key = BROKER_KEYS.get(name)
            return key, raw if key is None else key.parse(raw)
        listener, own, key = config_listeners.own_key(name, BROKER_KEYS)
        value = key.named(name).parse(raw)
        self._listener_names[name] = listener
        self._own_keys.setdefault(listener, {})[own] = value
        return key, value

    def build(self, looks_up: bool = True) -> BrokerConfig:
        values: dict[str, ConfigValue] = {
            key.attribute: effective(key.name, self.settings) for key in (*DONE, *CLUSTER)
        }
        self._check_directories(values)
        self._place(values)
        config_cluster.check_times(values)
        values["max_connections_per_ip_overrides"] = config_listeners.limits_by_address(
            values["max_connections_per_ip_overrides"], looks_up=looks_up
        )
        self._check_consumer_groups(values)
        return BrokerConfig(
            **values,
            settings=self.settings,
            mirror_sources=config_mirror.parse_sources(self._sources, self.warnings),
            warnings=tuple(self.warnings),
            insecure_ignore=self.insecure_ignore,
            unprotected=tuple(self.unprotected),
        )

    def _check_directories(self, values: dict[str, ConfigValue]) -> None:
        if not values["log_dirs"]:
            raise ConfigError("log.dirs = '' is not allowed: it takes at least one directory")
        places: dict[str, str] = {}
        for directory in values["log_dirs"]:
            other = places.setdefault(os.path.realpath(directory), directory)
            if other != directory:
                raise ConfigError(f"log.dirs names one directory twice: {other} and {directory}")
        cordoned(values["cordoned_log_dirs"], values["log_dirs"])
        values["metadata_log_dir"] = values["metadata_log_dir"] or values["log_dirs"][0]

    def _place(self, values: dict[str, ConfigValue]) -> None:
        """The node's roles, its quorum, and its listeners."""
        node_id, roles = values["node_id"], values["process_roles"]
        voters = config_cluster.parse_voters(values["controller_quorum_voters"])
        bootstrap = config_cluster.parse_bootstrap(values["controller_quorum_bootstrap_servers"])
        config_cluster.check_quorum(node_id, roles, voters, bootstrap)
        addresses = config_cluster.parse_voters(
            values["controller_quorum_voter_addresses"], key=config_cluster.ADDRESSES
        )
        config_cluster.check_addresses(voters, addresses)
        values |= {
            "controller_quorum_voters": voters,
            "controller_quorum_bootstrap_servers": bootstrap,
            "controller_quorum_voter_addresses": addresses,
        }
        controller_names = [name.upper() for name in values["controller_listener_names"]]
        if not controller_names:
            raise ConfigError("controller.listener.names = '' is not allowed: it takes at least one name")
        inter_broker_name = values["inter_broker_listener_name"]
        if inter_broker_name is not None and "security.inter.broker.protocol" in self.settings:
            raise ConfigError(
                "inter.broker.listener.name and security.inter.broker.protocol are both set, and name the listener between brokers; "
                "remove security.inter.broker.protocol"
            )
        texts = self._texts("listeners", values)
        protocols = config_listeners.security_protocols(
            values["listener_security_protocol_map"],
            is_set="listener.security.protocol.map" in self.settings,
            listeners=texts or (),
            controller_names=controller_names,
        )
        advertised = self._texts("advertised.listeners", values)
        found = config_listeners.divide_listeners(
            self._with_own_keys(
                config_listeners.parse_listeners(texts or (), protocols, "listeners"), controller_names
            ),
            None
            if advertised is None
            else config_listeners.parse_listeners(advertised, protocols, "advertised.listeners"),
            roles=roles,
            controller_names=controller_names,
            protocols=protocols,
            inter_broker_name=None if inter_broker_name is None else inter_broker_name.upper(),
            alone=config_cluster.is_alone(node_id, roles, voters, bootstrap),
        )
        known = [listener.name for listener in (*found.controllers, *found.own)]
        config_cluster.check_early_start(values["early_start_listeners"], known)
        values |= {
            "listeners": found.own,
            "advertised_listeners": found.advertised,
            "controller_listeners": found.controllers,
            "advertised_controller_listeners": found.advertised_controllers,
            "inter_broker_listener_name": found.inter_broker_name,
            "controller_listener_names": controller_names,
            "listener_security_protocol_map": protocols,
        }

    def _texts(self, key: str, values: dict[str, ConfigValue]) -> Sequence[str] | None:
        """What a setting of listeners says, in the words of today."""
        old = self._old_listener(key)
        texts: Sequence[str] | None = values[key.replace(".", "_")]
        return texts if old is None else [old]

    def _with_own_keys(self, listeners: Sequence[Listener], controller_names: Sequence[str]) -> list[Listener]:
        """Each listener with the settings that are its own. Those that protect were refused, and the others have no effect."""
        names = {*controller_names, *(listener.name for listener in listeners)}
        for name, listener_name in self._listener_names.items():
            if name in self.unprotected:
                continue
            if listener_name not in names:
                self.warnings.append(f"{name} is ignored: this node has no listener {listener_name}")
            else:
                self.warnings.append(f"{name} is ignored: one listener has no such setting of its own here")
        return [
            replace(listener, settings=self._own_keys[listener.name]) if listener.name in self._own_keys else listener
            for listener in listeners
        ]

    def _check_consumer_groups(self, values: dict[str, ConfigValue]) -> None:
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


ATTRIBUTES = frozenset(item.name for item in fields(BrokerConfig)) - {
    "settings",
    "mirror_sources",
    "warnings",
    "controller_listeners",
    "advertised_controller_listeners",
    "insecure_ignore",
    "unprotected",
}
