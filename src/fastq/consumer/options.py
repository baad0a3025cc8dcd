"""The keyword arguments of consumers, with their types; rules as in fastq.client_options."""

from __future__ import annotations

import sys
from typing import Any, Generic

from fastq.client_options import ClientOptions
from fastq.consumer.deserializers import Deserializer

if sys.version_info >= (3, 13):
    from typing import Required, TypeVar
else:  # type variables with a default
    from typing_extensions import Required, TypeVar

K = TypeVar("K", default=bytes)
V = TypeVar("V", default=bytes)


class PlainConsumerOptions(ClientOptions, total=False):
    """Those of `ConsumerOptions` that say nothing of the records' types."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    partition_assignment_strategy: Any
    group_remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    exclude_internal_topics: bool
    auto_offset_reset: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    prefetch_bytes_max: int
    check_crcs: bool
    isolation_level: str
    default_api_timeout_ms: int
    allow_auto_create_topics: bool
    on_deserialization_error: str
    interceptors: Any
    decompressed_batch_bytes_max: int


class ConsumerOptions(PlainConsumerOptions, total=False):
    """The keyword arguments of a consumer; the same names as the fields of `ConsumerConfig`."""

    key_deserializer: Any
    value_deserializer: Any


# The same for type checkers: a consumer's records have the types that its deserializers make, bytes without one, Any by a name.


class TypedOptions(PlainConsumerOptions, Generic[K, V], total=False):
    """Deserializers by themselves, or none."""

    key_deserializer: Deserializer[K] | None
    value_deserializer: Deserializer[V] | None


class NamedKeyOptions(PlainConsumerOptions, Generic[V], total=False):
    """That of keys by its name."""

    key_deserializer: Required[str]
    value_deserializer: Deserializer[V] | None


class NamedValueOptions(PlainConsumerOptions, Generic[K], total=False):
    """That of values by its name."""

    key_deserializer: Deserializer[K] | None
    value_deserializer: Required[str]


class NamedOptions(PlainConsumerOptions, total=False):
    """Both by their names."""

    key_deserializer: Required[str]
    value_deserializer: Required[str]
