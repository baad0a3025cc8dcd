"""What `metrics()` of the clients answers: dictionaries with known keys.

Rules: `_total` counts since the client was made, `_bytes` and `_records` are amounts at this moment; None is "not known yet". What each
key means stands beside it, for Prometheus' HELP lines and for the reference.
"""

from __future__ import annotations

from typing import TypedDict

from fastq.metadata import TopicPartition

PRODUCER_MEANINGS = {
    "records_sent_total": "Records in batches that were closed, to be sent.",
    "batches_total": "These batches.",
    "bytes_total": "Their bytes, before they are compressed.",
    "requests_total": "Produce requests that were sent.",
    "retries_total": "Batches that were sent again.",
    "record_errors_total": "Records that failed for good: their deliveries have an error.",
    "epoch_bumps_total": "New epochs of the idempotent producer, each after an error that left a sequence in doubt.",
    "transactions_committed_total": "Transactions that were committed.",
    "transactions_aborted_total": "Transactions that were aborted.",
    "records_per_batch_avg": "Records of a batch, on average since the start.",
    "batch_bytes_avg": "Bytes of a batch, on average since the start.",
    "buffered_records": "Records of batches that are open, wait to be sent or are on their way.",
    "buffer_used_bytes": "Bytes of buffer_memory that are taken.",
    "buffer_free_bytes": "Bytes of buffer_memory that are free; at 0 a send waits, up to max_block_ms.",
    "batches_incomplete": "These batches.",
}
CONSUMER_MEANINGS = {
    "fetches": "Fetches that were answered, since the start.",
    "fetch_errors": "Fetches that were lost: no answer, or a broken connection.",
    "fetched_bytes": "Bytes of the answers, as they came: compressed.",
    "buffered_bytes": "Bytes that were fetched and not handed out yet.",
    "skipped_records": "Records that were left out because they could not be deserialized (on_deserialization_error).",
    "partitions": "The partitions that are read.",
}
PARTITION_MEANINGS = {
    "position": "The offset of the next record to be handed out; None before it is known.",
    "end_offset": "Up to where the partition can be read, as of the last fetch: its high watermark, or last stable offset.",
    "lag": "Records from the position to there.",
    "buffered_bytes": "Bytes of the partition that were fetched and not handed out yet.",
}


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
