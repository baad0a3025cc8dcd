"""What other clients (librdkafka and its Python binding, kafka-python, aiokafka) have, and what to write here: configuration keys that
have no counterpart, and keywords of calls that have the same name.

Rules: two tables of keys, by key in snake_case. IGNORED: leaving the key out changes nothing that a program could miss; it warns.
REFUSED: a program that sets it relies on it; it is an error that says what to write instead. Keys with a counterpart are aliases or
renamed keys of the configuration classes, whose own tables win over these. KEYWORDS, by call, is
looked at when an error is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

_KERBEROS = "Kerberos is not spoken: SASL PLAIN and SCRAM are (sasl_mechanism)"
_OAUTH = "OAUTHBEARER is not spoken: SASL PLAIN and SCRAM are (sasl_mechanism)"
_PEM = "give PEM: ssl_truststore_location, ssl_keystore_location, or ssl_context"
_REGISTRY = (
    "give value_serializer (or value_deserializer) an object of fastq.schema_registry, which has a client of its own"
)
_LISTENER = "give listener=, or on_assigned=, on_revoked= and on_lost=, to consumer.subscribe"
_DELIVERY = "ask the handle that send answers: .result(), or .add_done_callback(function); with asyncio, await it"
_VERSIONS = "versions are always negotiated (ApiVersions)"
_LOGGING = "use Python's logging: the loggers below 'fastq'"
_METRICS = "figures are read with metrics()"

IGNORED: dict[str, str] = {
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api_version_fallback_ms": _VERSIONS,
    "api_version_request": _VERSIONS,
    "api_version_request_timeout_ms": _VERSIONS,
    "broker_version_fallback": _VERSIONS,
    "broker_address_family": "every address of a name is tried in turn",
    "broker_address_ttl": "names are looked up for each connection",
    "debug": f"{_LOGGING}, at the level DEBUG",
    "log_level": _LOGGING,
    "log_connection_close": _LOGGING,
    "log_queue": _LOGGING,
    "log_thread_name": _LOGGING,
    "enable_random_seed": "random numbers need no seed",
    "enabled_events": "there is no queue of events",
    "internal_termination_signal": "there is no thread that a signal would have to end",
    "message_copy_max_bytes": "records are copied into their batch",
    "metrics_enabled": _METRICS,
    "metric_group_prefix": _METRICS,
    "statistics_interval_ms": _METRICS,
    "selector": "the best one of the system is used",
    "socket_keepalive_enable": "it is always on",
    "socket_max_fails": "a request that times out ends its connection",
    "socket_nagle_disable": "Nagle's algorithm is always off",
    "topic_metadata_propagation_max_ms": "a topic that is not there yet is waited for",
    "topic_metadata_refresh_fast_interval_ms": "retry_backoff_ms paces the requests for metadata",
    "topic_metadata_refresh_sparse": "only topics that a client reads or sends to are asked for; all of them with a pattern",
    "max_batch_size": "batch_size grows by itself",
    "queue_buffering_backpressure_threshold": "batches grow while requests are under way",
    "coordinator_query_interval_ms": "the coordinator is looked up when it has moved",
}

REFUSED: dict[str, str] = {
    "on_delivery": _DELIVERY,
    "dr_cb": _DELIVERY,
    "dr_msg_cb": _DELIVERY,
    "delivery_report_only_error": _DELIVERY,
    "rebalance_cb": _LISTENER,
    "offset_commit_cb": "give callback= to commit_async",
    "on_commit": "give callback= to commit_async",
    "default_offset_commit_callback": "give callback= to commit_async",
    "consume_cb": "iterate over the consumer, or use ConsumerPool",
    "background_event_cb": "errors are raised by the calls that they concern",
    "oauthbearer_token_refresh_cb": _OAUTH,
    "ssl_certificate_verify_cb": "give ssl_context, an ssl.SSLContext",
    "resolve_cb": "names are looked up by the system",
    "socket_cb": "there is no hook for sockets",
    "connect_cb": "there is no hook for sockets",
    "closesocket_cb": "there is no hook for sockets",
    "socket_options": "there is no hook for sockets: see send_buffer_bytes and receive_buffer_bytes",
    "plugin_library_paths": "give interceptors=",
    "default_topic_config": "its keys are keys of the client itself",
    "consumer_timeout_ms": "use poll(timeout=...), in seconds, or read_to_end()",
    "enable_partition_eof": "read_to_end() ends at the end",
    "enable_auto_offset_store": "a record counts as done when the next is asked for; or use enable_auto_commit=False and commit(record)",
    "offset_store_method": "offsets are kept by the group's coordinator; without a group, by the program",
    "offset_store_path": "offsets are kept by the group's coordinator; without a group, by the program",
    "enable_gapless_guarantee": "a record that fails fails alone: look at its delivery, or use a transaction",
    "loop": "the running loop is used",
    "kafka_client": "a client makes its own connections",
    "schema_registry_url": _REGISTRY,
    "value_subject_name_strategy": _REGISTRY,
    "key_subject_name_strategy": _REGISTRY,
    "ssl_crl_location": "give ssl_context, an ssl.SSLContext",
    "ssl_crlfile": "give ssl_context, an ssl.SSLContext",
    "ssl_curves_list": "give ssl_context, an ssl.SSLContext",
    "ssl_sigalgs_list": "give ssl_context, an ssl.SSLContext",
    "ssl_ca_certificate_stores": "give ssl_context, an ssl.SSLContext",
    "ssl_providers": "give ssl_context, an ssl.SSLContext",
    "ssl_engine_location": "give ssl_context, an ssl.SSLContext",
    "ssl_keystore_password": _PEM,
    "ssl_truststore_password": _PEM,
    "sasl_kerberos_service_name": _KERBEROS,
    "sasl_kerberos_principal": _KERBEROS,
    "sasl_kerberos_keytab": _KERBEROS,
    "sasl_kerberos_kinit_cmd": _KERBEROS,
    "sasl_kerberos_min_time_before_relogin": _KERBEROS,
    "sasl_kerberos_domain_name": _KERBEROS,
    "sasl_kerberos_name": _KERBEROS,
    "sasl_oauth_token_provider": _OAUTH,
    "sasl_oauthbearer_config": _OAUTH,
    "sasl_oauthbearer_method": _OAUTH,
    "sasl_oauthbearer_client_id": _OAUTH,
    "sasl_oauthbearer_client_secret": _OAUTH,
    "sasl_oauthbearer_token_endpoint_url": _OAUTH,
    "sasl_login_callback_handler_class": _OAUTH,
    "sasl_client_callback_handler_class": _OAUTH,
    "socks5_proxy": "proxies are not spoken to",
}

_SECONDS = "give timeout=, in seconds"
_NAMES = "name them by themselves: subscribe('a', 'b') or subscribe(['a', 'b'])"

KEYWORDS: dict[str, dict[str, str]] = {
    "poll": {
        "timeout_ms": _SECONDS,
        "num_messages": "give max_records=",
        "update_offsets": "leave it out: positions follow what is handed out",
    },
    "subscribe": {
        "topics": _NAMES,
        "topic": _NAMES,
        "pattern": "give the pattern by itself: subscribe(re.compile('b.*'))",
        "on_assign": "give on_assigned=, a function of a list of partitions",
        "on_revoke": "give on_revoked=, a function of a list of partitions",
    },
    "commit": {
        "asynchronous": "commit waits, commit_async does not",
        "offsets": "give the mapping by itself: commit({partition: offset})",
        "message": "give the record by itself: commit(record)",
        "timeout_ms": _SECONDS,
    },
}


def refuse_keywords(call: str, given: Iterable[str]) -> NoReturn:
    """TypeError for the first of these, which the call has not."""
    name = next(iter(given))
    hint = KEYWORDS[call].get(name)
    raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{f': {hint}' if hint else ''}")
