"""What `metrics()` of the clients answers: dictionaries with known keys.

Rules: `_total` counts since the client was made, `_bytes` and `_records` are amounts at this moment; None is "not known yet".
"""

from __future__ import annotations

from typing import TypedDict

from fastq.metadata import TopicPartition


class ProducerMetrics(TypedDict):
    """Of `Producer.metrics()` and `AsyncProducer.metrics()`."""

    records_sent_total: int
    batches_total: int
    bytes_total: int
    requests_total: int
    retries_total: int
    record_errors_total: int
    epoch_bumps_total: int
    transactions_committed_total: int
    transactions_aborted_total: int
    records_per_batch_avg: float
    batch_bytes_avg: float
    buffered_records: int
    buffer_used_bytes: int
    buffer_free_bytes: int
    batches_incomplete: int


class PartitionMetrics(TypedDict):
    """Of one partition that a consumer reads. `lag` is what `Consumer.lag()` says."""

    position: int | None
    end_offset: int | None
    lag: int | None
    buffered_bytes: int


class ConsumerMetrics(TypedDict):
    """Of `Consumer.metrics()` and `AsyncConsumer.metrics()`; the first three count since the start."""

    fetches: int
    fetch_errors: int
    fetched_bytes: int
    buffered_bytes: int
    skipped_records: int
    partitions: dict[TopicPartition, PartitionMetrics]
