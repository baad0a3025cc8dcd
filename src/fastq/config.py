"""What every client is configured with: where the cluster is, how to reach it, how long to wait.

Rules: one option a key, see fastq.settings; defaults are Kafka's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fastq.arguments import without_logins
from fastq.errors import ConfigError
from fastq.net.addresses import Address, parse_servers
from fastq.settings import INT32_MAX, INT64_MAX, Config, Renamed, option, renamed, to_tuple, user_level
from fastq.settings import ConfigWarning as ConfigWarning

if TYPE_CHECKING:
    import ssl

_SERVERS = "HOST:PORT, several with commas or in a list"


def _check_servers(value: Any) -> tuple[str, ...]:
    try:
        servers = to_tuple(value)
    except (TypeError, ValueError):
        raise ValueError(_SERVERS) from None
    if not servers:
        raise ValueError("at least one HOST:PORT")
    parse_servers(servers)
    return servers


def _check_context(value: Any) -> ssl.SSLContext:
    import ssl

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
# Who gives one of these means to be protected, which security_protocol alone decides.
PROTECTING_TLS = frozenset(
    (
        "ssl_context",
        "ssl_truststore_location",
        "ssl_truststore_certificates",
        "ssl_keystore_location",
        "ssl_keystore_certificate_chain",
        "ssl_keystore_key",
        "ssl_key_location",
    )
)
# The settings that name PEM files, and those that have what is in them.
PEM_FILES = {
    "ssl_truststore_location": "ssl_truststore_certificates",
    "ssl_keystore_location": "ssl_keystore_certificate_chain and ssl_keystore_key",
    "ssl_key_location": "ssl_keystore_key",
}
PROTECTING_SASL = frozenset(("sasl_username", "sasl_password"))
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


_CLIENTS = (
    ("producer", "fastq.producer.config", "ProducerConfig"),
    ("consumer", "fastq.consumer.config", "ConsumerConfig"),
)


def _certificate_verification(value: Any) -> Mapping[str, Any]:
    """librdkafka's, which with false looks at nothing: neither who has signed a certificate nor whose it is."""
    if str(value).strip().lower() not in ("true", "1", "yes", "on"):
        raise ValueError(
            "true; to verify nothing at all give an ssl_context with check_hostname=False and verify_mode=ssl.CERT_NONE, to leave out the "
            "name alone ssl_endpoint_identification_algorithm='none'"
        )
    return {}


class ClientConfig(Config):
    """What every client has in common: where the cluster is, how to reach it, how long to wait. Defaults are
    Kafka's, but the socket buffers, which the operating system tunes better than a constant does."""

    PAGE: ClassVar[str] = "docs/reference/client-settings.md"
    REFUSED: ClassVar[Mapping[str, str]] = {
        "error_cb": "errors are raised by the calls that they concern, and logged by the logger 'fastq'",
        "stats_cb": "call metrics() whenever figures are wanted; fastq.observability exports them",
        "throttle_cb": "throttling is obeyed without a word",
        "log_cb": "set handlers of the logger 'fastq'",
        "logger": "set handlers of the logger 'fastq'",
        "oauth_cb": "SASL PLAIN and SCRAM are spoken only",
    }

    bootstrap_servers: str | Sequence[str] = option(
        "localhost:9092",
        kind=object,
        convert=_check_servers,
        accepts=_SERVERS,
        show=without_logins,
        doc="HOST:PORT of one or more brokers, a comma-separated string or a list; [::1]:9092 for IPv6; 9092 is the port left out",
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
    retries: int = option(
        INT32_MAX,
        low=0,
        high=INT32_MAX,
        doc="how often producers and admin clients send a failed request again; 0: never",
    )
    retry_backoff_ms: int = option(100, low=0, high=INT32_MAX, doc="the first pause before a retry; doubles each time")
    retry_backoff_max_ms: int = option(1_000, low=0, high=INT32_MAX, doc="the longest pause before a retry")
    reconnect_backoff_ms: int = option(50, low=0, high=INT32_MAX, doc="the first pause before a broker is tried again")
    reconnect_backoff_max_ms: int = option(
        1_000, low=0, high=INT32_MAX, doc="the longest pause before a broker is tried again"
    )
    socket_connection_setup_timeout_ms: int = option(
        10_000,
        low=1,
        high=INT32_MAX,
        doc="how long a connection may take, name resolution and TLS each; grows with failures",
    )
    socket_connection_setup_timeout_max_ms: int = option(
        30_000, low=1, high=INT32_MAX, doc="the longest time that a connection may take, after failures"
    )
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
    ssl_context: ssl.SSLContext | None = option(
        None,
        kind=object,
        convert=_check_context,
        accepts="an ssl.SSLContext",
        doc="a ready context; the other ssl_ keys are then not used",
    )
    ssl_truststore_location: str | None = option(
        None,
        kind=str,
        aliases=("ssl_cafile", "ssl_ca_location"),
        doc="PEM file of the certificates to trust, and no others; None: the system's",
    )
    ssl_truststore_certificates: str | None = option(
        None, kind=str, aliases=("ssl_ca_pem",), doc="trusted certificates as PEM text"
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
        "sasl_jaas_config": Renamed(
            "sasl_username and sasl_password",
            _jaas,
            secret=True,
            told="is what Java clients log in by; its username and password are taken as sasl_username and sasl_password",
        ),
        "topic_metadata_refresh_interval_ms": renamed("metadata_max_age_ms"),
        "enable_ssl_certificate_verification": Renamed(
            "ssl_context",
            _certificate_verification,
            told="has no effect: the broker's certificate is verified unless ssl_context says otherwise",
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

    @classmethod
    def _unknown(cls, key: str, name: str) -> str:
        for whose, module, class_name in _CLIENTS:  # by name: they import this one, and only an error needs them
            owner: type[Config] = getattr(import_module(module), class_name)
            names = {*owner.options(), *owner._merged("RENAMED")}.union(*(o.aliases for o in owner.options().values()))
            if name in names:
                return f"unknown configuration key {key}: it is a setting of a {whose}, not of this client"
        return super()._unknown(key, name)

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
        for key in PROTECTING_TLS:
            if getattr(self, key) == "":  # as a template leaves it
                self._set(key, None)
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            self._set("retry_backoff_max_ms", self.retry_backoff_ms)
        if self.reconnect_backoff_max_ms < self.reconnect_backoff_ms:
            self._set("reconnect_backoff_max_ms", self.reconnect_backoff_ms)
        if self.uses_sasl and not (self.sasl_username and self.sasl_password):
            raise ConfigError(
                f"security_protocol={self.security_protocol} with sasl_mechanism={self.sasl_mechanism} "
                "needs sasl_username and sasl_password"
            )
        unused = [
            key
            for key in sorted(self._given)
            if ((key in PROTECTING_TLS and not self.uses_tls) or (key in PROTECTING_SASL and not self.uses_sasl))
            and getattr(self, key)
        ]
        if unused:
            without = (("nothing is encrypted", self.uses_tls), ("nobody logs in", self.uses_sasl))
            uses = " and ".join(words for words, is_used in without if not is_used)
            warnings.warn(
                f"{', '.join(unused)}: without effect: security_protocol={self.security_protocol} means that {uses}; choose another "
                f"of {', '.join(SECURITY_PROTOCOLS)}, or leave it out",
                ConfigWarning,
                stacklevel=user_level(),
            )
        for version in self.ssl_enabled_protocols:
            if version not in ("TLSv1.2", "TLSv1.3"):
                raise ConfigError(f"bad value for ssl_enabled_protocols: {version!r}; allowed: TLSv1.2, TLSv1.3")
        for key, of_text in PEM_FILES.items():
            path = getattr(self, key)
            if path is not None and "-----BEGIN" in path:  # which is not shown: it may be a private key
                raise ConfigError(f"bad value for {key}: the text of a PEM file; allowed: its path (text is {of_text})")
            if path is not None and path.lower().endswith((".jks", ".p12", ".pfx")):
                raise ConfigError(
                    f"bad value for {key}: {path!r}; allowed: a PEM file (convert with keytool and openssl)"
                )
        for key, chain in (
            ("ssl_key_location", "ssl_keystore_location"),
            ("ssl_keystore_key", "ssl_keystore_certificate_chain"),
        ):
            if self.uses_tls and getattr(self, key) is not None and getattr(self, chain) is None:
                raise ConfigError(f"{key} is the key of {chain}, which is not given: give both, or none")
