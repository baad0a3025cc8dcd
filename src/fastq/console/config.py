"""What a console is started with: clusters, users, masks, and what it may do.

Rules: everything here comes from whoever starts the process, by options and files; nothing of it comes from a browser, and what is
secret in it (properties, hashes) is given to clients alone, never to a template.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from fastq.console.masking import Mask
from fastq.console.oidc_settings import OidcSettings, parse_oidc
from fastq.console.users import Users
from fastq.errors import ConfigError
from fastq.properties import toml

if TYPE_CHECKING:
    from fastq.mirror.config import MirrorConfig

CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster by the name that its pages have. `settings` are those of every client, under Kafka's names or ours."""

    name: str
    settings: Mapping[str, Any]
    schema_registry: str | None = None
    metrics: tuple[str, ...] = ()
    """The metrics pages of its nodes, for charts."""


@dataclass(frozen=True)
class ConsoleConfig:
    """Without `users` and `oidc` nobody logs in, which `check` allows on a loopback address alone."""

    clusters: tuple[ClusterConfig, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    users: Users | None = None
    oidc: OidcSettings | None = None
    mirrors: Mapping[str, MirrorConfig] = field(default_factory=dict)
    read_only: bool = False
    audit_log: Path | None = None
    masks: tuple[Mask, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    picture_s: float = 2.0
    """How old what a page shows of all topics may be, in seconds."""
    names: frozenset[str] = field(default=frozenset())
    """Host names that a browser may call the console by, beside its address; needed behind a name of one's own."""

    @property
    def has_login(self) -> bool:
        """Whether somebody has to log in."""
        return self.users is not None or self.oidc is not None

    def check(self) -> ConsoleConfig:
        """Itself; raises ConfigError for what must not be served."""
        if not self.clusters:
            raise ConfigError("the console needs a cluster: --bootstrap HOST:PORT, or [clusters.NAME] in --config FILE")
        if not is_loopback(self.host) and not self.has_login:
            raise ConfigError(
                f"--listen {self.host}:{self.port} can be reached from elsewhere, so a login is needed: --users FILE "
                "(a line is name:role:hash; fastq console hash-password makes the hash), or [oidc] in --config FILE, or listen on "
                "127.0.0.1"
            )
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-certificate FILE and --tls-key FILE go together")
        return self

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """The names that a request may be addressed to; None: any. Without a login a page of elsewhere, whose name is made to point
        to this machine, would else read everything."""
        names = frozenset(name.lower() for name in self.names)  # as browsers send them, whatever was typed
        if self.oidc is not None and names:
            names |= {(urlsplit(self.oidc.origin).hostname or "").lower()}
        if not self.has_login:
            return LOOPBACK_NAMES | {self.host.lower()} | names
        return (names | LOOPBACK_NAMES | {self.host.lower()}) if names else None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, [v6]:PORT; port 0 takes a free one."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen takes HOST:PORT, as 127.0.0.1:8080, not {text!r}")
    return host, int(port)


class Loaded(NamedTuple):
    """What a file of settings says."""

    clusters: list[ClusterConfig]
    masks: tuple[Mask, ...] = ()
    oidc: OidcSettings | None = None
    mirrors: Mapping[str, MirrorConfig] = MappingProxyType({})


def load_file(path: Path) -> Loaded:
    """A TOML file: `[clusters.NAME]` with bootstrap, schema_registry, metrics and properties; `[[mask]]` with topics, in and path;
    `[oidc]`, see `fastq.console.oidc_settings`; `[mirrors.NAME]` with config, the mirror's own file, and reverse. Raises ConfigError with
    the place."""
    parser = toml()
    try:
        document = parser.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the parser calls itself for what is nested
        raise ConfigError(f"{path}: {error}") from None
    _only(document, {"clusters", "mask", "oidc", "mirrors"}, f"{path}")
    clusters = [_cluster(path, name, table) for name, table in _table(document.get("clusters", {}), path).items()]
    masks = document.get("mask", [])
    if not isinstance(masks, list):
        raise ConfigError(f"{path}: masks are [[mask]] tables")
    where = f"{path}: [oidc]"
    oidc = parse_oidc(_table(document["oidc"], where), where) if "oidc" in document else None
    mirrors = {name: _mirror(path, name, found) for name, found in _table(document.get("mirrors", {}), path).items()}
    return Loaded(clusters, tuple(_mask(path, table) for table in masks), oidc, mirrors)


def _mirror(path: Path, name: str, table: Any) -> MirrorConfig:
    from fastq.mirror.config import load_config
    from fastq.mirror.failover import reversed_config

    where = f"{path}: [mirrors.{name}]"
    if not CLUSTER_NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has up to 64 letters, digits, dots, underscores and dashes")
    _only(_table(table, where), {"config", "reverse"}, where)
    if not isinstance(table.get("config"), str) or not isinstance(table.get("reverse", False), bool):
        raise ConfigError(
            f'{where}: config = "mirror.toml", the file of fastq mirror, and reverse = true for its other way'
        )
    found = load_config(table["config"])
    return reversed_config(found) if table.get("reverse") else found


def _cluster(path: Path, name: str, table: Any) -> ClusterConfig:
    where = f"{path}: [clusters.{name}]"
    if not CLUSTER_NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has up to 64 letters, digits, dots, underscores and dashes")
    _only(_table(table, where), {"bootstrap", "schema_registry", "metrics", "properties"}, where)
    bootstrap, registry = table.get("bootstrap"), table.get("schema_registry")
    if not isinstance(bootstrap, str):
        raise ConfigError(f'{where}: bootstrap = "HOST:PORT" is missing')
    if registry is not None and not isinstance(registry, str):
        raise ConfigError(f"{where}: schema_registry is a URL in quotes")
    metrics = table.get("metrics", [])
    if not isinstance(metrics, list) or not all(map(_is_page, metrics)):
        raise ConfigError(f'{where}: metrics are the pages of the nodes, as ["http://kafka-1:9404/metrics"]')
    properties = _table(table.get("properties", {}), where)
    return ClusterConfig(name, {"bootstrap.servers": bootstrap, **properties}, registry, tuple(metrics))


def _is_page(url: Any) -> bool:
    """Whether it is an address of a page: http or https, with a host, and a port that is one."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets, or a port
        return False


def _mask(path: Path, table: Any) -> Mask:
    where = f"{path}: [[mask]]"
    _only(_table(table, where), {"topics", "in", "path"}, where)
    try:
        return Mask.of(str(table.get("topics", "*")), str(table.get("in", "value")), str(table.get("path", "$")))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _table(value: Any, where: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a table is expected, not {type(value).__name__}")
    return value


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(f"{where}: {', '.join(unknown)} is not known; there are {', '.join(sorted(known))}")
