"""Client configuration: frozen, keyword-only, checked once, with Kafka's names.

Rules of this file:
- An option is declared once, by `option(...)`: its default, its range or choices, its aliases and its meaning are
  one line of a class body. There is no second table to keep in step.
- Names are Kafka's in snake_case; the dotted spelling of Kafka (`bootstrap.servers`) is accepted by
  `Config.from_mapping`.
- Options named by Kafka keep Kafka's unit (`*_ms`); options of our own end in their unit.
- Every error is a `ConfigError` that names the key, the value and what is allowed; an unknown key names the nearest
  known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import ssl
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar, cast

from typing_extensions import Self

from fastq.errors import ConfigError
from fastq.net.addresses import Address, parse_servers

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_METADATA_KEY = "fastq.option"
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class ConfigWarning(UserWarning):
    """A configuration key that is accepted, but renamed or without effect; the message names today's key or the
    reason.
    """


@dataclass(frozen=True)
class Option:
    """What one configuration key accepts.

    kind: the type of the value (`int`, `float`, `bool`, `str`, `tuple` for a list of strings, or `object` for
    anything). low, high: bounds of a number, both included. also: numbers allowed outside the bounds (such as -1).
    choices: the allowed strings, compared without case. nullable: None is allowed.
    aliases: other names of the key, in snake_case. secret: never shown in `repr`. convert: a last step that may
    normalise the value and raises ValueError with what is allowed.
    """

    kind: type
    low: float | None = None
    high: float | None = None
    also: tuple[float, ...] = ()
    choices: tuple[str, ...] = ()
    nullable: bool = False
    aliases: tuple[str, ...] = ()
    secret: bool = False
    convert: Callable[[Any], Any] | None = None
    doc: str = ""

    def allowed(self) -> str:
        """What the key accepts, in words for an error message."""
        if self.choices:
            words = "one of " + ", ".join(repr(choice) for choice in self.choices)
        elif self.kind in (int, float):
            words = "an integer" if self.kind is int else "a number"
            if self.low is not None and self.high is not None:
                words += f" from {self.low} to {self.high}"
            elif self.low is not None:
                words += f" of at least {self.low}"
            if self.also:
                words += " or " + " or ".join(str(value) for value in self.also)
        else:
            words = {bool: "true or false", str: "a string", tuple: "a list of strings"}.get(self.kind, "another value")
        return words + " or None" if self.nullable else words


@dataclass(frozen=True)
class Renamed:
    """A key of an older release: `today` is what the warning names; `convert` maps the old value to today's keys."""

    today: str
    convert: Callable[[Any], Mapping[str, Any]]


def renamed(key: str, scale: float | None = None, values: Mapping[str, Any] | None = None) -> Renamed:
    """An old key that maps to the one key of today, its number multiplied by `scale` or its value looked up in
    `values`.
    """

    def convert(value: Any) -> Mapping[str, Any]:
        if values is not None:
            found = values.get(str(value).strip().lower())
            if found is None:
                raise ValueError("one of " + ", ".join(repr(name) for name in values))
            return {key: found}
        return {key: int(float(value) * scale) if scale is not None else value}

    return Renamed(key, convert)


def option(
    default: T,
    *,
    kind: type | None = None,
    low: float | None = None,
    high: float | None = None,
    also: tuple[float, ...] = (),
    choices: Iterable[str] = (),
    nullable: bool | None = None,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
    convert: Callable[[Any], Any] | None = None,
    doc: str = "",
) -> T:
    """Declare a field of a `Config` class. `kind` is the type of the default unless given; see `Option` for the
    rest.
    """
    if kind is None:
        if default is None:
            raise TypeError("an option whose default is None needs kind=")
        kind = type(default)
    declared = Option(
        kind=kind,
        low=low,
        high=high,
        also=also,
        choices=tuple(choices),
        nullable=default is None if nullable is None else nullable,
        aliases=aliases,
        secret=secret,
        convert=convert,
        doc=doc,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declared})


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value.strip()


def _to_tuple(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    items = tuple(value)
    if not all(isinstance(item, str) for item in items):
        raise ValueError
    return tuple(item.strip() for item in items if item.strip())


_COERCE: Mapping[type, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
    tuple: _to_tuple,
}


def _bad_value(key: str, value: Any, declared: Option, allowed: str | None = None) -> ConfigError:
    shown = "(hidden)" if declared.secret else repr(value)
    return ConfigError(f"bad value for {key}: {shown}; allowed: {allowed or declared.allowed()}")


def check_value(key: str, value: Any, declared: Option) -> Any:
    """The normalised value of `key`, or ConfigError naming key, value and what is allowed."""
    if value is None:
        if declared.nullable:
            return None
        raise _bad_value(key, value, declared)
    coerce = _COERCE.get(declared.kind)
    if coerce is not None:
        try:
            value = coerce(value)
        except (TypeError, ValueError, OverflowError):
            raise _bad_value(key, value, declared) from None
    if declared.choices:
        match = next((choice for choice in declared.choices if choice.lower() == str(value).lower()), None)
        if match is None:
            raise _bad_value(key, value, declared)
        value = match
    if declared.kind in (int, float) and value not in declared.also:
        # NaN compares false with everything, so the test is for "inside", not for "outside".
        above = declared.low is None or value >= declared.low
        below = declared.high is None or value <= declared.high
        if not (above and below):
            raise _bad_value(key, value, declared)
    if declared.convert is not None:
        try:
            return declared.convert(value)
        except (TypeError, ValueError) as error:
            raise _bad_value(key, value, declared, str(error) or None) from None
    return value


@functools.cache
def _options(cls: type[Config]) -> dict[str, Option]:
    return {f.name: f.metadata[_METADATA_KEY] for f in dataclasses.fields(cls) if _METADATA_KEY in f.metadata}


def canonical(key: str) -> str:
    """The snake_case spelling of a dotted or dashed key."""
    return key.strip().replace(".", "_").replace("-", "_").lower()


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every configuration class: `from_mapping` for names of any age, `__init__` for today's names.

    Subclasses are frozen keyword-only dataclasses whose fields are declared by `option`. They may override `resolve`
    for rules across fields. Instances never change, hash by identity of their values, and pickle.
    """

    RENAMED: ClassVar[Mapping[str, Renamed]] = {}
    """Old names (snake_case) and what they became; merged over the class hierarchy."""
    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Names of Kafka's that have no effect here, and why; merged over the class hierarchy."""

    def __init_subclass__(cls) -> None:
        # The dataclass decorator writes a __repr__ of its own, secrets included, into a class that has none.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Config.__repr__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for key, declared in self.options().items():
            object.__setattr__(self, key, check_value(key, getattr(self, key), declared))
        self.resolve()

    def resolve(self) -> None:
        """Rules across fields; raises ConfigError. An override may fill in fields that depend on others by `_set`."""

    def _set(self, key: str, value: Any) -> None:
        """Replace a field while the instance is being made (only from `resolve`)."""
        object.__setattr__(self, key, value)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every key of this class and what it accepts, in order of declaration."""
        return _options(cls)  # type: ignore[arg-type]  # mypy has no hashable type objects

    @classmethod
    def _merged(cls, name: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            table.update(base.__dict__.get(name, {}))
        return table

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """A configuration from keys in any accepted spelling: snake_case, Kafka's dots, aliases, names of older
        releases.

        Keys of `more` win over those of `values`. Two spellings of one key with different values are a ConfigError,
        and so is an unknown key. A renamed or ignored key gives a `ConfigWarning`.
        """
        merged: dict[str, Any] = {}
        for source in (values or {}, more):
            given: dict[str, tuple[str, Any]] = {}
            for key, value in source.items():
                for name, converted in cls._translate(key, value):
                    if name in given and given[name][1] != converted:
                        raise ConfigError(
                            f"{given[name][0]} and {key} are two names of {name} and disagree: "
                            f"{given[name][1]!r} and {converted!r}; give one of them"
                        )
                    given[name] = (key, converted)
            merged.update((name, value) for name, (_, value) in given.items())
        return cls(**merged)

    @classmethod
    def _translate(cls, key: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Pairs of today's key and value for one key as given."""
        if not isinstance(key, str):
            raise ConfigError(f"configuration keys are strings, got {key!r}")
        name, options = canonical(key), cls.options()
        if name in options:
            return [(name, value)]
        for known, declared in options.items():
            if name in declared.aliases:
                return [(known, value)]
        renamed_keys: Mapping[str, Renamed] = cls._merged("RENAMED")
        if name in renamed_keys:
            old = renamed_keys[name]
            warnings.warn(f"{key} is a name of an older release; use {old.today}", ConfigWarning, stacklevel=4)
            try:
                return list(old.convert(value).items())
            except (TypeError, ValueError) as error:
                raise ConfigError(f"bad value for {key}: {value!r}; allowed: {error}") from None
        ignored: Mapping[str, str] = cls._merged("IGNORED")
        if name in ignored:
            warnings.warn(f"{key} has no effect: {ignored[name]}", ConfigWarning, stacklevel=4)
            return []
        raise ConfigError(cls._unknown(key, name))

    @classmethod
    def _unknown(cls, key: str, name: str) -> str:
        known = [*cls.options(), *cls._merged("RENAMED"), *cls._merged("IGNORED")]
        for declared in cls.options().values():
            known.extend(declared.aliases)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; see {cls.__name__} for the known keys"
        return f"unknown configuration key {key}{hint}"

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed, checked again."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Every key and its value, secrets included."""
        return {key: getattr(self, key) for key in self.options()}

    def __repr__(self) -> str:
        """Only what differs from the default, with secrets hidden."""
        shown = []
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                declared = f.metadata.get(_METADATA_KEY)
                hidden = declared is not None and declared.secret
                shown.append(f"{f.name}={'(hidden)' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _check_servers(value: Any) -> tuple[str, ...]:
    try:
        servers = _to_tuple(value)
    except (TypeError, ValueError):
        raise ValueError("HOST:PORT, several with commas or in a list") from None
    if not servers:
        raise ValueError("at least one HOST:PORT")
    parse_servers(servers)
    return servers


def _check_context(value: Any) -> ssl.SSLContext:
    if not isinstance(value, ssl.SSLContext):
        raise ValueError("an ssl.SSLContext")
    return value


def _jaas(value: Any) -> Mapping[str, Any]:
    """`sasl.jaas.config` of the Java client, for the two login modules whose options are a name and a password."""
    text = str(value)
    found = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', text))
    if not any(module in text for module in ("PlainLoginModule", "ScramLoginModule")) or "username" not in found:
        raise ValueError("PlainLoginModule or ScramLoginModule with username and password")
    return {
        "sasl_username": re.sub(r"\\(.)", r"\1", found["username"]),
        "sasl_password": re.sub(r"\\(.)", r"\1", found.get("password", "")),
    }


SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class ClientOptions(TypedDict, total=False):
    """The keyword arguments that every client takes; the same names as the fields of `ClientConfig`."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    client_dns_lookup: str
    client_rack: str
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    response_bytes_max: int
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_location: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_key_location: str | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: str
    ssl_enabled_protocols: str | Sequence[str]
    ssl_cipher_suites: str | Sequence[str]
    sasl_mechanism: str
    sasl_username: str | None
    sasl_password: str | None


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Config):
    """What every client has in common: where the cluster is, how to reach it, how long to wait. Defaults are
    Kafka's, but the socket buffers, which the operating system tunes better than a constant does."""

    bootstrap_servers: str | Sequence[str] = option(
        "localhost:9092",
        kind=object,
        convert=_check_servers,
        doc="HOST:PORT of one or more brokers, a comma-separated string or a list; [::1]:9092 for IPv6",
    )
    client_id: str = option("fastq", doc="a name that the broker logs and applies quotas to")
    client_dns_lookup: str = option(
        "use_all_dns_ips",
        choices=("use_all_dns_ips",),
        doc="every address of a name is tried in turn before the next pause",
    )
    client_rack: str = option(
        "", aliases=("broker_rack",), doc="where this client runs, to read from a replica near by"
    )
    request_timeout_ms: int = option(30_000, low=1, high=INT32_MAX, doc="how long a request may wait for its response")
    retries: int = option(INT32_MAX, low=0, high=INT32_MAX, doc="how often a failed request is sent again; 0: never")
    retry_backoff_ms: int = option(100, low=0, high=INT32_MAX, doc="the first pause before a retry; doubles each time")
    retry_backoff_max_ms: int = option(1_000, low=0, high=INT32_MAX, doc="the longest pause before a retry")
    reconnect_backoff_ms: int = option(50, low=0, high=INT32_MAX, doc="the first pause before a broker is tried again")
    reconnect_backoff_max_ms: int = option(1_000, low=0, high=INT32_MAX, doc="the longest such pause")
    socket_connection_setup_timeout_ms: int = option(
        10_000,
        low=1,
        high=INT32_MAX,
        doc="how long a connection may take, name resolution and TLS each; grows with failures",
    )
    socket_connection_setup_timeout_max_ms: int = option(30_000, low=1, high=INT32_MAX, doc="the longest such time")
    connections_max_idle_ms: int = option(
        540_000, low=1, high=INT64_MAX, also=(-1,), doc="an unused connection is closed after this time; -1: never"
    )
    metadata_max_age_ms: int = option(
        300_000, low=1, high=INT32_MAX, doc="topics and leaders are asked for again after this time without any error"
    )
    metadata_recovery_strategy: str = option(
        "rebootstrap",
        choices=("none", "rebootstrap"),
        doc="what to do when no known broker answers: go back to bootstrap_servers, or keep trying (KIP-899)",
    )
    metadata_recovery_rebootstrap_trigger_ms: int = option(
        300_000, low=0, high=INT32_MAX, doc="go back to bootstrap_servers after so long without metadata (KIP-1102)"
    )
    send_buffer_bytes: int = option(-1, low=0, high=INT32_MAX, also=(-1,), doc="SO_SNDBUF; -1: the system tunes it")
    receive_buffer_bytes: int = option(-1, low=0, high=INT32_MAX, also=(-1,), doc="SO_RCVBUF; -1: the system tunes it")
    response_bytes_max: int = option(
        512 * 1024 * 1024,
        low=1024,
        high=INT32_MAX,
        aliases=("receive_message_max_bytes",),
        doc="a response that announces more is refused, and the connection closed, before any memory is taken for it",
    )
    security_protocol: str = option("PLAINTEXT", choices=SECURITY_PROTOCOLS, doc="with or without TLS and SASL")
    ssl_context: ssl.SSLContext | None = option(  # noqa: RUF009
        None, kind=object, convert=_check_context, doc="a ready context; the other ssl_ keys are then not used"
    )
    ssl_truststore_location: str | None = option(
        None,
        kind=str,
        aliases=("ssl_cafile", "ssl_ca_location"),
        doc="PEM file of trusted certificates; None: the system's",
    )
    ssl_truststore_certificates: str | None = option(
        None, kind=str, aliases=("ssl_ca_pem",), doc="the same, as PEM text"
    )
    ssl_keystore_location: str | None = option(
        None,
        kind=str,
        aliases=("ssl_certfile", "ssl_certificate_location"),
        doc="PEM file with the client's certificate chain, and its key unless ssl_key_location is given",
    )
    ssl_keystore_certificate_chain: str | None = option(
        None, kind=str, aliases=("ssl_certificate_pem",), doc="the client's certificate chain as PEM text"
    )
    ssl_keystore_key: str | None = option(
        None, kind=str, secret=True, aliases=("ssl_key_pem",), doc="the client's private key as PEM text"
    )
    ssl_key_location: str | None = option(None, kind=str, aliases=("ssl_keyfile",), doc="PEM file of the client's key")
    ssl_key_password: str | None = option(None, kind=str, secret=True, aliases=("ssl_password",), doc="of that key")
    ssl_endpoint_identification_algorithm: str = option(
        "https",
        choices=("https", "", "none"),
        doc="check the broker's name against its certificate; empty or none: do not",
    )
    ssl_enabled_protocols: str | Sequence[str] = option(
        ("TLSv1.2", "TLSv1.3"), kind=tuple, doc="the TLS versions to offer: TLSv1.2, TLSv1.3"
    )
    ssl_cipher_suites: str | Sequence[str] = option(
        (), kind=tuple, doc="OpenSSL names for TLS 1.2; empty: the defaults"
    )
    sasl_mechanism: str = option(
        "PLAIN", choices=SASL_MECHANISMS, aliases=("sasl_mechanisms",), doc="how to prove who we are, with SASL_*"
    )
    sasl_username: str | None = option(None, kind=str, aliases=("sasl_plain_username",), doc="for PLAIN and SCRAM")
    sasl_password: str | None = option(
        None, kind=str, secret=True, aliases=("sasl_plain_password",), doc="for PLAIN and SCRAM"
    )

    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        "metadata_broker_list": renamed("bootstrap_servers"),
        "sasl_jaas_config": Renamed("sasl_username and sasl_password", _jaas),
        "topic_metadata_refresh_interval_ms": renamed("metadata_max_age_ms"),
        "enable_ssl_certificate_verification": renamed(
            "ssl_endpoint_identification_algorithm", values={"true": "https", "false": "none"}
        ),
        "ssl_check_hostname": renamed(
            "ssl_endpoint_identification_algorithm", values={"true": "https", "false": "none"}
        ),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        "metric_reporters": "metrics are read with .metrics()",
        "metrics_num_samples": "metrics are read with .metrics()",
        "metrics_sample_window_ms": "metrics are read with .metrics()",
        "metrics_recording_level": "metrics are always on",
        "auto_include_jmx_reporter": "there is no JMX",
        "enable_metrics_push": "telemetry is not pushed to the broker",
        "security_providers": "TLS comes from Python's ssl module",
        "ssl_provider": "TLS comes from Python's ssl module",
        "ssl_protocol": "ssl_enabled_protocols says what is offered",
        "ssl_truststore_type": "only PEM is read",
        "ssl_keystore_type": "only PEM is read",
        "ssl_keymanager_algorithm": "TLS comes from Python's ssl module",
        "ssl_trustmanager_algorithm": "TLS comes from Python's ssl module",
        "ssl_secure_random_implementation": "TLS comes from Python's ssl module",
        "ssl_engine_factory_class": "give ssl_context instead",
    }

    @property
    def addresses(self) -> tuple[Address, ...]:
        """`bootstrap_servers`, parsed."""
        return parse_servers(cast("tuple[str, ...]", self.bootstrap_servers))

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return self.security_protocol.startswith("SASL")

    def resolve(self) -> None:
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            self._set("retry_backoff_max_ms", self.retry_backoff_ms)
        if self.reconnect_backoff_max_ms < self.reconnect_backoff_ms:
            self._set("reconnect_backoff_max_ms", self.reconnect_backoff_ms)
        if self.uses_sasl and (self.sasl_username is None or self.sasl_password is None):
            raise ConfigError(
                f"security_protocol={self.security_protocol} with sasl_mechanism={self.sasl_mechanism} "
                "needs sasl_username and sasl_password"
            )
        for version in self.ssl_enabled_protocols:
            if version not in ("TLSv1.2", "TLSv1.3"):
                raise ConfigError(f"bad value for ssl_enabled_protocols: {version!r}; allowed: TLSv1.2, TLSv1.3")
        for key in ("ssl_truststore_location", "ssl_keystore_location"):
            path = getattr(self, key)
            if path is not None and path.lower().endswith((".jks", ".p12", ".pfx")):
                raise ConfigError(
                    f"bad value for {key}: {path!r}; allowed: a PEM file (convert with keytool and openssl)"
                )
