"""What `[oidc]` says: who logs people in, and which of their claims makes them what.

Rules: all of it comes from the file of whoever starts the console. The client's secret is in a file of its own or in the environment, never
in this one, and never shown. Addresses are https, but for a provider on this machine. Of the roles the first one that fits counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastq.arguments import without_logins
from fastq.console.paths import Path as JsonPath
from fastq.console.paths import parse
from fastq.console.users import Role
from fastq.errors import ConfigError

CALLBACK = "/login/oidc/back"
EVERYBODY = "*"
SESSION_S, SKEW_S, TIMEOUT_S = 12 * 3600, 60, 10
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class RoleRule:
    """Who has `value` among their roles (`*`: everybody who can log in) has a role here, for topics by pattern (none: all)."""

    value: str
    role: Role
    topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class OidcSettings:
    """A provider, and this console as its client. Times are in seconds; `session_s` is how long a login lasts, `skew_s` how far the
    clocks of the two may be apart, `timeout_s` how long the provider may take for an answer. No `secret`: a public client."""

    issuer: str
    client_id: str
    redirect_uri: str
    rules: tuple[RoleRule, ...]
    secret: str | None = field(default=None, repr=False)
    scopes: str = "openid profile"
    name_claim: JsonPath = ("preferred_username",)
    roles_claim: JsonPath = ("groups",)
    label: str = "Log in with single sign-on"
    skew_s: int = SKEW_S
    timeout_s: int = TIMEOUT_S
    session_s: int = SESSION_S
    ca_file: Path | None = None

    @property
    def origin(self) -> str:
        """Where browsers find the console, as they write it: scheme, host in small letters, and a port that is not the scheme's own."""
        parts = urlsplit(self.redirect_uri)
        netloc = parts.netloc.lower().removesuffix({"https": ":443", "http": ":80"}[parts.scheme])
        return f"{parts.scheme}://{netloc}"


def is_secure(url: object) -> bool:
    """Whether what is sent to an address can be read by nobody on the way: https, or this machine."""
    try:
        parts = urlsplit(str(url))
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


KNOWN = {
    "issuer", "client_id", "client_secret_file", "client_secret_env", "redirect_uri", "scopes", "name_claim", "roles_claim", "label",
    "skew_s", "timeout_s", "session_s", "ca_file", "role",
}  # fmt: skip


def parse_oidc(table: Mapping[str, Any], where: str, environment: Mapping[str, str] = os.environ) -> OidcSettings:
    """The settings of a table `[oidc]`; raises ConfigError with the place, and OSError for a file that cannot be read."""
    if "client_secret" in table:
        raise ConfigError(
            f"{where}: a secret does not stand here: client_secret_file = FILE, or client_secret_env = NAME"
        )
    unknown = sorted(set(table) - KNOWN)
    if unknown:
        raise ConfigError(f"{where}: {', '.join(unknown)} is not known; there are {', '.join(sorted(KNOWN))}")
    issuer, client_id, redirect_uri = (_text(table, name, where) for name in ("issuer", "client_id", "redirect_uri"))
    for name, url in (("issuer", issuer), ("redirect_uri", redirect_uri)):
        if not is_secure(url):
            raise ConfigError(f"{where}: {name} is https://..., or http:// of this machine, not {without_logins(url)}")
    parts = urlsplit(issuer)
    if parts.query or parts.fragment or "@" in parts.netloc:  # the login page names it where it does not answer
        raise ConfigError(
            f"{where}: issuer is https://... without a login, a query and a fragment, not {without_logins(issuer)}"
        )
    parts = urlsplit(redirect_uri)
    if parts.path != CALLBACK or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            f"{where}: redirect_uri is the console's own address and {CALLBACK}, not {without_logins(redirect_uri)}"
        )
    scopes = _text(table, "scopes", where, "openid profile")
    if "openid" not in scopes.split():
        raise ConfigError(f"{where}: scopes have openid in them, else no identity is told; not {scopes!r}")
    ca_file = table.get("ca_file")
    if ca_file is not None:
        Path(ca_file).read_bytes()  # the error of one that is not there names it
    return OidcSettings(
        issuer=issuer,
        client_id=client_id,
        redirect_uri=redirect_uri,
        rules=_rules(table.get("role"), where),
        secret=_secret(table, where, environment),
        scopes=scopes,
        name_claim=_path(table, "name_claim", where, "preferred_username"),
        roles_claim=_path(table, "roles_claim", where, "groups"),
        label=_text(table, "label", where, "Log in with single sign-on"),
        skew_s=_number(table, "skew_s", where, SKEW_S, 0, 300),
        timeout_s=_number(table, "timeout_s", where, TIMEOUT_S, 1, 60),
        session_s=_number(table, "session_s", where, SESSION_S, 60, 30 * 86400),
        ca_file=None if ca_file is None else Path(ca_file),
    )


def _rules(tables: Any, where: str) -> tuple[RoleRule, ...]:
    if not isinstance(tables, list) or not tables:
        raise ConfigError(
            f'{where}: nobody would have a role: [[oidc.role]] with value = "a group" and role = "viewer"'
        )
    rules = []
    for number, table in enumerate(tables, 1):
        place = f"{where}: [[oidc.role]] {number}"
        if not isinstance(table, dict) or set(table) - {"value", "role", "topics"}:
            raise ConfigError(f"{place}: it has value, role and, for some topics only, topics")
        topics = table.get("topics", [])
        if not isinstance(topics, list) or not all(isinstance(topic, str) and topic for topic in topics):
            raise ConfigError(f'{place}: topics is a list of patterns, as ["pub-*"]')
        if "topics" in table and not topics:
            raise ConfigError(f"{place}: topics has no pattern in it; leave it out to mean all topics")
        name = _text(table, "role", place)
        try:
            role = Role[name.upper()]
        except KeyError:
            raise ConfigError(f"{place}: role {name!r} is none of viewer, operator, admin") from None
        rules.append(RoleRule(_text(table, "value", place), role, tuple(topics)))
    return tuple(rules)


def _secret(table: Mapping[str, Any], where: str, environment: Mapping[str, str]) -> str | None:
    """Errors name where it is looked for, and nothing of it."""
    if "client_secret_file" in table and "client_secret_env" in table:
        raise ConfigError(f"{where}: client_secret_file and client_secret_env are both there; one of them is enough")
    if "client_secret_file" in table:
        path = Path(_text(table, "client_secret_file", where))
        try:
            secret = path.read_text(encoding="utf-8").strip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: client_secret_file {path} is no text of UTF-8") from None
        if not secret:
            raise ConfigError(f"{where}: client_secret_file {path} is empty")
        return secret
    if "client_secret_env" in table:
        name = _text(table, "client_secret_env", where)
        if not environment.get(name):
            raise ConfigError(f"{where}: client_secret_env: there is no {name} in the environment, or it is empty")
        return environment[name]
    return None


def _text(table: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f'{where}: {name} = "..." is missing' if value is None else f"{where}: {name} is a text in quotes"
        )
    return value


def _number(table: Mapping[str, Any], name: str, where: str, default: int, low: int, high: int) -> int:
    value = table.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{where}: {name} is a whole number from {low:,} to {high:,}, not {value!r}")
    return value


def _path(table: Mapping[str, Any], name: str, where: str, default: str) -> JsonPath:
    try:
        path = parse(_text(table, name, where, default))
    except ValueError as error:
        raise ConfigError(f"{where}: {name}: {error}") from None
    if not path:
        raise ConfigError(
            f"{where}: {name} names a claim, as groups, realm_access.roles or $['https://a.example/roles']"
        )
    return path
