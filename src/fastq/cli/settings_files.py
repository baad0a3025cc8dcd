"""Settings of clients from files: `--command-config FILE` as Kafka's tools take it, and profiles of one's own.

Rules: a file may serve several kinds of clients, Kafka's tools among them, so keys of another kind of client are passed over, and those of
serializers and interceptors too: what keys and values become is the commands' own. What no client of ours knows is an error that names the
file. Profiles are tables of profiles.toml, in $XDG_CONFIG_HOME/fastq or ~/.config/fastq, a table a profile, Kafka's names as keys:

    [prod]
    bootstrap.servers = "kafka-1:9093,kafka-2:9093"
    security.protocol = "SSL"
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.output import UsageError, complain
from fastq.errors import ConfigError
from fastq.other_clients import IGNORED, REFUSED
from fastq.properties import flattened, parse_properties, settings_text, toml
from fastq.settings import canonical

if TYPE_CHECKING:
    from fastq.config import ClientConfig

_KINDS = {
    "admin": ("fastq.admin.config", "AdminConfig"),
    "producer": ("fastq.producer.config", "ProducerConfig"),
    "consumer": ("fastq.consumer.config", "ConsumerConfig"),
}
_OF_THE_COMMANDS = {
    "key_serializer",
    "value_serializer",
    "key_deserializer",
    "value_deserializer",
    "interceptors",
    "interceptor_classes",
}


def from_file(path: str, kind: str) -> dict[str, Any]:
    """What a properties file says for one kind of client, by the keys as written. Raises UsageError."""
    repeated: list[str] = []
    given = _parsed(Path(path), lambda text: parse_properties(text, repeated))
    for text in repeated:
        complain(f"warning: {path}: {text}")
    return _for_client(kind, given, path)


def from_profile(name: str, kind: str) -> dict[str, Any]:
    """The same of one profile."""
    path = profiles_path()
    profiles = _parsed(path, toml().loads)
    if not isinstance(profiles.get(name), dict):
        near = difflib.get_close_matches(name, profiles, n=1)
        known = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(profiles)) or 'none'}"
        raise UsageError(f"--profile {name}: {path} has no table [{name}], {known}")
    given = {key: _as_in_properties(value) for key, value in flattened(profiles[name]).items()}
    return _for_client(kind, given, f"{path} [{name}]")


def _as_in_properties(value: Any) -> Any:
    """TOML has numbers and the like where a setting takes a text, client.id=7 for one; a list is one."""
    return value if isinstance(value, (str, list)) else str(value).lower() if isinstance(value, bool) else str(value)


def profiles_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # What is not absolute is to be ignored: XDG Base Directory Specification.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "fastq" / "profiles.toml"


def _parsed(path: Path, parse: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse(settings_text(path))
    except (ConfigError, ValueError, RecursionError) as error:  # TOML's parser calls itself for what is nested
        raise UsageError(f"cannot read the settings in {path}: {error}") from None
    return found


def _for_client(kind: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    configs: dict[str, type[ClientConfig]] = {
        name: getattr(importlib.import_module(module), class_name) for name, (module, class_name) in _KINDS.items()
    }
    everybody = set().union(*map(_names, configs.values()))
    own, found = _names(configs[kind]) | {*IGNORED, *REFUSED}, {}
    for key, value in given.items():
        name = canonical(key)
        if name in own and name not in _OF_THE_COMMANDS:
            found[key] = value
        elif name not in everybody and name not in _OF_THE_COMMANDS:
            near = difflib.get_close_matches(name, everybody, n=1)
            hint = f"did you mean {near[0].replace('_', '.')}?" if near else "it is no client setting of Kafka's"
            raise UsageError(f"{source}: {key} is not known, {hint}")
    return found


def _names(config: type[ClientConfig]) -> set[str]:
    """Every name that a configuration class knows."""
    aliases = (alias for option in config.options().values() for alias in option.aliases)
    return {*config.options(), *aliases, *config._merged("RENAMED"), *config._merged("IGNORED")}
