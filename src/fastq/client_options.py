"""The keyword arguments that every client takes, with their types: for type checkers, and for who asks `typing.get_type_hints`.

Rules: the names are those of `ClientConfig`'s fields. A client imports its room of options for type checkers only: a TypedDict compiles
every annotation of its, and none of it is needed to run.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence

if sys.version_info >= (3, 11):
    from typing import TypedDict
else:  # generic ones, which inherit from this
    from typing_extensions import TypedDict


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
