"""Settings of one log, and of the cleaner: Kafka's, in their units, after defaults and overrides have been resolved."""

from __future__ import annotations

import sys
from typing import Literal

from fastq.values import Value, replace

UNLIMITED = (1 << 63) - 1
"""Long.MAX_VALUE, Kafka's word for "never"."""
METADATA_TOPIC = "__cluster_metadata"
"""Its log is the controller's, which opens it before any other."""


class LogConfig(Value, kw_only=True):
    """Settings of a log; names and defaults are those of Kafka's topic configs (LogConfig), times in ms, sizes in bytes.

    `flush_messages=1` promises what `durability="fsync"` does, and is served in the same way.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = UNLIMITED
    flush_ms: int = UNLIMITED
    retention_bytes: int = -1
    """-1: no limit."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """-1: no limit."""
    max_message_bytes: int = 1048588
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    """Of "delete" and "compact"; empty: keep everything."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = UNLIMITED
    message_timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    """"producer" keeps what comes; else uncompressed, gzip, snappy, lz4 or zstd: batches in another codec are encoded anew."""
    compression_gzip_level: int | None = None
    compression_lz4_level: int | None = None
    compression_zstd_level: int | None = None
    preallocate: bool = False
    file_delete_delay_ms: int = 60 * 1000
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNLIMITED
    min_cleanable_dirty_ratio: float = 0.5
    durability: Literal["page-cache", "fsync"] = "page-cache"
    mirror_source: str = ""
    """Of another cluster, whose mirror alone writes here: the log's start follows that of the source, and no retention of its own."""

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Age at which a segment is closed: records of the active one cannot be compacted, so max.compaction.lag.ms bounds it too."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms

    @property
    def synchronous(self) -> bool:
        """Whether a record is visible and acknowledged only once it is on disk."""
        return self.durability == "fsync" or self.flush_messages == 1


def copied(config: LogConfig) -> LogConfig:
    """Settings of a log that is a copy of another: nobody waits for its disk."""
    return replace(config, durability="page-cache", flush_messages=UNLIMITED)


class CleanerConfig(Value, kw_only=True):
    """Kafka's log.cleaner.* keys, those that are not defaults of topic settings; times in ms, sizes in bytes.

    The dedupe buffer is divided among the threads, which here are processes; 0 threads compact nothing.
    """

    enabled: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    dedupe_load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_bytes_per_second_max: float = sys.float_info.max
    backoff_ms: int = 15_000
    """Time between two looks at logs of which none was to be compacted."""
