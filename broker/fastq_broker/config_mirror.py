"""Which clusters this node may fetch from by itself, for a mirror that has it do so: `mirror.pull.ALIAS.KEY`.

Rules
- ALIAS is the source's in the mirror's file, KEY a setting of a client by any of its names, `bootstrap.servers` among them. What a client
  would refuse is refused at the start.
- No address ever comes from a request: who asks names an alias (`handlers/mirror_pull.py`).
- They are no keys of the table: DescribeConfigs tells none of them, AlterConfigs and SIGHUP change none. What is shown elsewhere has no
  secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from fastq.errors import ConfigError

from .config_keys import ConfigValue, shown

if TYPE_CHECKING:
    from fastq.config import ClientConfig

PREFIX = "mirror.pull."
DOC = (
    "KEY is a setting of every client by Kafka's name, such as bootstrap.servers (which each ALIAS needs), security.protocol or "
    "sasl.jaas.config: how this node reaches the cluster that a mirror with the same offsets calls ALIAS as its source. That mirror has it "
    "fetch by itself then. Never told by DescribeConfigs. fastq's own."
)
DEFAULTS = {"client_id": "fastq-mirror-pull", "retries": 3, "response_bytes_max": 100 * 1024 * 1024}
"""Where nothing else is set: a source that cannot be reached is soon given up, as its mirror can copy too, and of one that announces more
than a node takes by a request (socket.request.max.bytes), as its mirror would send it, no memory is taken for it."""
NEARLY = 0.75
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_meant(name: str) -> bool:
    """Whether a setting that is none of the table begins with the prefix, or with what is nearly it."""
    if name.startswith(PREFIX):
        return True
    if not name.startswith("mi"):
        return False
    import difflib

    return difflib.SequenceMatcher(None, name[: len(PREFIX)], PREFIX).ratio() >= NEARLY


def check_name(name: str) -> None:
    """Raises ConfigError for a setting without the prefix, or with it and no alias or key behind it."""
    alias, dot, key = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not dot or not key or not _ALIAS.fullmatch(alias):
        raise ConfigError(
            f"unknown broker setting {shown(name)}: it takes {PREFIX}ALIAS.KEY, the alias of a mirror's source (A-Z a-z 0-9 _ -) and a "
            f"setting of clients, as in {PREFIX}east.bootstrap.servers"
        )


def parse_sources(settings: Mapping[str, ConfigValue], warnings: list[str]) -> dict[str, ClientConfig]:
    """How each source is reached, by its alias; `warnings` gets what is without effect. Raises ConfigError."""
    given: dict[str, dict[str, ConfigValue]] = {}
    for name, value in settings.items():
        check_name(name)
        alias, _, key = name.removeprefix(PREFIX).partition(".")
        given.setdefault(alias, {})[key] = value
    return {alias: _client(alias, keys, warnings) for alias, keys in given.items()}


def _client(alias: str, keys: Mapping[str, ConfigValue], warnings: list[str]) -> ClientConfig:
    from fastq.config import ClientConfig, ConfigWarning  # a node that pulls from nobody has no need of it

    if not any(key.replace(".", "_").lower() == "bootstrap_servers" for key in keys):
        raise ConfigError(f"{PREFIX}{alias} has no {PREFIX}{alias}.bootstrap.servers: HOST:PORT of one or more brokers")
    with catch_warnings(record=True) as caught:
        simplefilter("always", ConfigWarning)
        try:
            config = ClientConfig.from_mapping(DEFAULTS, **keys)
            if config.uses_tls:
                from fastq.net.tls import client_context

                client_context(config)
        except ConfigError as error:
            raise ConfigError(f"{PREFIX}{alias}: {error.message}", hint=error.hint) from None
    warnings += [f"{PREFIX}{alias}: {warning.message}" for warning in caught]
    return config


def told_settings(sources: Mapping[str, ClientConfig]) -> Iterator[tuple[str, str]]:
    """What is set of each source, by today's names, without secrets."""
    for alias, config in sorted(sources.items()):
        for key, declared in config.options().items():
            value = getattr(config, key)
            if value == DEFAULTS.get(key, declared.default):
                continue
            if isinstance(value, tuple):
                value = ",".join(value)
            text = "[hidden]" if declared.secret else str(value)
            yield f"{PREFIX}{alias}.{key.replace('_', '.')}", text


def differing_sources(old: Mapping[str, ClientConfig], new: Mapping[str, ClientConfig]) -> list[str]:
    """The sources that are not reached in the same way, as settings."""
    return [f"{PREFIX}{alias}" for alias in sorted({*old, *new}) if old.get(alias) != new.get(alias)]
