"""The keyword arguments of producers, with their types; rules as in fastq.client_options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastq.client_options import ClientOptions


class PlainProducerOptions(ClientOptions, total=False):
    """Those of `ProducerOptions` that say nothing of the types of what is sent."""

    acks: int | str
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int | None
    batch_bytes_max: int | None
    batch_records_max: int
    buffer_memory: int
    buffer_records_max: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    compression_type: str
    compression_level: int | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    compressed_topics: str | Sequence[str]
    partitioner: Any
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    interceptors: Any
    wait_for_delivery: bool
    raise_on_close: bool
    allow_auto_create_topics: bool
    transactional_id: str | None
    transaction_timeout_ms: int


class ProducerOptions(PlainProducerOptions, total=False):
    """The keyword arguments of Producer and AsyncProducer; the same names as the fields of `ProducerConfig`."""

    key_serializer: Any
    value_serializer: Any
