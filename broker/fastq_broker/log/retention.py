"""Retention: which segments of a log are deleted, by age, by size, and below the log start offset.

Rules
- A log that a mirror writes has the start of its source, and deletes nothing by itself.
- Whole segments go, the oldest first, and only what lies below the high watermark.
- The active segment goes only if everything in the log is expired: it is rolled first, so that the log's end stays known.
- By age counts the largest timestamp of a segment's records; without any, the time of the file. Source: UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .partition_log import PartitionLog
    from .segment import Segment

logger = logging.getLogger(__name__)


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete what a log need not keep; answers how many segments went. Raises KafkaStorageError."""
    deleted = _delete_below_start(log, now_ms)
    if "delete" in log.config.cleanup_policy and not log.config.mirror_source:
        deleted += _delete_by_size(log, now_ms)
        deleted += _delete_by_time(log, now_ms)
    return deleted


def _delete_by_time(log: PartitionLog, now_ms: int) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0

    def expired(segment: Segment, _: int) -> bool:
        return now_ms - segment.largest_timestamp() > retention_ms and now_ms - log.expired_at(segment) > retention_ms

    return _delete_while(log, now_ms, expired, f"older than retention.ms {retention_ms}")


def _delete_by_size(log: PartitionLog, now_ms: int) -> int:
    retention_bytes = log.config.retention_bytes
    surplus = log.size_bytes - retention_bytes
    if retention_bytes < 0 or surplus < 0:
        return 0

    def dispensable(segment: Segment, _: int) -> bool:
        nonlocal surplus
        if surplus < segment.size:
            return False
        surplus -= segment.size
        return True

    return _delete_while(log, now_ms, dispensable, f"beyond retention.bytes {retention_bytes}")


def _delete_below_start(log: PartitionLog, now_ms: int) -> int:
    start = log.log_start_offset

    def below(_: Segment, following: int) -> bool:
        return following <= start

    return _delete_while(log, now_ms, below, f"below the log start offset {start}")


def _delete_while(log: PartitionLog, now_ms: int, judge: Callable[[Segment, int], bool], reason: str) -> int:
    """Delete the oldest segments as long as `judge(segment, offset after it)` says so."""
    segments = log.segments
    count = 0
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        following = log.log_end_offset if last else segments[number + 1].base_offset
        if following > log.high_watermark or (last and not segment.size) or not judge(segment, following):
            break
        count += 1
    if not count:
        return 0
    if count == len(segments):
        log.roll(now_ms)
    for segment in segments[:count]:
        logger.info("%s: deleted, %d bytes, %s", segment.log.path, segment.size, reason)
    log.drop_oldest(count)
    return count
