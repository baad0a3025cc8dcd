"""What a mirror is told: its TOML file, checked before anything is connected.

Rules: three tables. `[source]` and `[target]` have an `alias` and the settings of clients under Kafka's names, those of one kind in
`[source.consumer]` and `[target.producer]`; `[mirror]` has the options of `MirrorOptions`. An unknown key is an error that names the
nearest one. Secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from fastq.admin.config import AdminConfig
from fastq.consumer.config import ConsumerConfig
from fastq.errors import ConfigError
from fastq.producer.config import ProducerConfig
from fastq.properties import toml
from fastq.settings import INT32_MAX, Config, option
from fastq.values import NamedTuple

ALIAS = re.compile(r"[A-Za-z0-9_-]{1,64}")
KINDS = ("consumer", "producer")
LEFT_TO_THE_TARGET: Any = (
    r"(follower|leader)\.replication\.throttled\.replicas",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
"""Configs that MirrorMaker 2 does not copy either: times are those of the source, which a topic that stamps records would replace."""
EVERYTHING: Any = (".*",)
OWN_KEYS = (
    "transactional_id", "transaction_timeout_ms", "group_id", "group_instance_id", "group_protocol", "partition_assignment_strategy",
    "session_timeout_ms", "heartbeat_interval_ms", "isolation_level", "auto_offset_reset", "enable_auto_commit", "allow_auto_create_topics",
    "key_serializer", "value_serializer", "key_deserializer", "value_deserializer",
)  # fmt: skip


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"regular expressions, and {text!r} is none: {error}") from None


def _patterns(texts: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(_pattern(text) for text in texts)


def _separator(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise ValueError("one or more letters that a topic's name may have: A-Z a-z 0-9 . _ -")
    return text


class MirrorOptions(Config):
    """How a mirror copies: the table `[mirror]`."""

    PAGE: ClassVar[str] = "docs/reference/mirror-settings.md"
    topics: Sequence[re.Pattern[str]] = option(
        (),
        kind=tuple,
        convert=_patterns,
        doc="regular expressions; a topic of the source that one of them matches in full is mirrored",
    )
    exclude: Sequence[re.Pattern[str]] = option(
        (), kind=tuple, convert=_patterns, doc="regular expressions of topics that are not, whatever topics says"
    )
    names: str = option(
        "prefixed",
        choices=("prefixed", "identity"),
        doc="the name in the target: source alias, separator and name, or the same name",
    )
    offsets: str = option(
        "translated",
        choices=("translated", "same"),
        doc="records are produced anew in any cluster, and offsets of groups translated; or batches are copied as they are with the "
        "offsets that they have, to a fastq broker, where the topic is read-only until fail-over",
    )
    separator: str = option(".", convert=_separator, doc="between the alias and the name")
    lanes: int = option(
        4,
        low=1,
        high=256,
        doc="how many transactions run side by side; fixed by the first start, shared by all processes",
    )
    read_committed: bool = option(
        True, doc="leave out what transactions of the source have aborted, and wait for open ones"
    )
    start: str = option(
        "earliest", choices=("earliest", "latest"), doc="where a partition begins that was never mirrored"
    )
    on_gap: str = option(
        "stop",
        choices=("stop", "continue"),
        doc="what to do with a partition whose next records the source has no more (deleted, truncated, made anew): stop it, or go on "
        "where the source goes on and write the gap down",
    )
    transaction_bytes: int = option(
        8 * 1024 * 1024, low=1, high=INT32_MAX, doc="a lane commits at the latest when it has copied so much"
    )
    transaction_interval_ms: int = option(100, low=1, high=60_000, doc="or when its transaction is so old")
    refresh_interval_ms: int = option(
        5_000, low=100, high=INT32_MAX, doc="how often topics, partitions and configs of the source are looked at"
    )
    session_timeout_ms: int = option(
        6_000, low=1_000, high=INT32_MAX, doc="after this silence of a process the others take its lanes over"
    )
    replication_factor: int = option(
        -1,
        low=1,
        high=32767,
        also=(-1,),
        doc="of topics that are made in the target; -1: the target's default, and of the mirror's own "
        "topic 3, or one a node where there are fewer",
    )
    copy_configs: bool = option(True, doc="set the configs of source topics in the target, and follow their changes")
    exclude_configs: Sequence[re.Pattern[str]] = option(
        LEFT_TO_THE_TARGET,
        kind=tuple,
        convert=_patterns,
        doc="regular expressions of topic configs that are the target's own",
    )

    acl_interval_ms: int = option(
        60_000,
        low=0,
        high=INT32_MAX,
        doc="how often access controls (ACLs) of source topics are made for the target's, but for those that allow to write; 0: never",
    )

    groups: Sequence[re.Pattern[str]] = option(
        EVERYTHING, kind=tuple, convert=_patterns, doc="regular expressions of the groups whose offsets are translated"
    )
    exclude_groups: Sequence[re.Pattern[str]] = option(
        (), kind=tuple, convert=_patterns, doc="regular expressions of those that are not"
    )
    sync_groups: bool = option(
        True, doc="commit the translated offsets in the target, for groups that have no members there, never back"
    )
    group_interval_ms: int = option(
        10_000, low=0, high=INT32_MAX, doc="how often offsets of groups are looked at; 0: never"
    )
    heartbeat_interval_ms: int = option(
        1_000, low=0, high=INT32_MAX, doc="how often a heartbeat is written to the source, which is mirrored; 0: never"
    )
    mm2_topics: bool = option(
        True,
        doc="write MirrorMaker 2's checkpoints and offset syncs in its formats, for its tools and RemoteClusterUtils",
    )
    offset_syncs: str = option(
        "source", choices=("source", "target"), doc="which cluster has MirrorMaker 2's offset syncs"
    )

    def resolve(self) -> None:
        if not self.topics:
            raise ConfigError('the mirror has no topics; write topics = ["orders", "logs-.*"] in [mirror]')


class Side(NamedTuple):
    """One of the two clusters: its alias, and the settings of clients there."""

    alias: str
    common: Mapping[str, Any]
    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Side({self.alias!r})"  # settings may hold secrets


class MirrorConfig(NamedTuple):
    """Both clusters, and how to copy from one to the other."""

    source: Side
    target: Side
    options: MirrorOptions


def load_config(path: str | Path) -> MirrorConfig:
    """The configuration in a TOML file. Raises OSError, TypeError, and ConfigError for what is wrong in it, with the file's name."""
    if not isinstance(path, (str, PathLike)):  # a number would be an open file's, and closed
        raise TypeError(f"path is a str or a path, got {path!r}")
    parser = toml()
    with open(path, "rb") as file:
        try:
            document = parser.load(file)
        except (parser.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:  # of what is nested
            raise ConfigError(f"{path}: this is no TOML: {error}") from None
    try:
        return parse_config(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(document: Mapping[str, Any]) -> MirrorConfig:
    """The configuration in a TOML document. Raises ConfigError."""
    unknown = sorted(document.keys() - {"source", "target", "mirror"})
    if unknown:
        raise ConfigError(f"unknown table or key {unknown[0]}; there are [source], [target] and [mirror]")
    source, target = _side(document, "source"), _side(document, "target")
    if source.alias == target.alias:
        raise ConfigError(f"source and target have the same alias {source.alias}; give each its own")
    options = MirrorOptions.from_mapping(_table(document, "mirror"))
    return MirrorConfig(source, target, options)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    if not isinstance(found, Mapping):
        raise ConfigError(f"the table [{name}] is missing")
    return found


def _side(document: Mapping[str, Any], name: str) -> Side:
    table = dict(_table(document, name))
    alias = table.pop("alias", None)
    if alias is None:
        raise ConfigError(f'[{name}] has no alias: write alias = "NAME", of 1 to 64 of A-Z a-z 0-9 _ -')
    if not isinstance(alias, str) or not ALIAS.fullmatch(alias):
        raise ConfigError(f"alias of [{name}]: 1 to 64 of A-Z a-z 0-9 _ - are expected, got {alias!r}")
    of_kind = {kind: _flat(_sub_table(table, name, kind)) for kind in KINDS}
    common = _flat(table)
    if "bootstrap_servers" not in common:
        raise ConfigError(f'[{name}] has no bootstrap.servers; write bootstrap.servers = "host:9092"')
    for key in OWN_KEYS:
        if any(key in settings for settings in (common, *of_kind.values())):
            raise ConfigError(f"{key.replace('_', '.')} of [{name}] is decided by the mirror; leave it out")
    _check_clients(name, common, of_kind)
    return Side(alias, common, **of_kind)


def _check_clients(name: str, common: Mapping[str, Any], of_kind: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ConfigError for what a client would refuse. Nothing is connected."""
    try:
        AdminConfig.from_mapping(common)
        ConsumerConfig.from_mapping({**common, **of_kind["consumer"]})
        ProducerConfig.from_mapping({**common, **of_kind["producer"], "transactional_id": "a-lane"})
    except ConfigError as error:
        raise ConfigError(f"[{name}]: {error.message}", hint=error.hint) from None


def _sub_table(table: dict[str, Any], name: str, kind: str) -> Mapping[str, Any]:
    found = table.pop(kind, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"[{name}.{kind}] is a table of settings, got {found!r}")
    return found


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Keys in snake_case: `bootstrap.servers = ...` is a table in a table to TOML."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = before + key.replace(".", "_").replace("-", "_").lower()
        if isinstance(value, Mapping):
            found.update(_flat(value, name + "_"))
        else:
            found[name] = value
    return found
