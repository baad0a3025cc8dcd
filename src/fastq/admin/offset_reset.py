"""The plan of a reset of a group's offsets: pure, from what is committed and what the partitions hold (KIP-122).

Rules, after Kafka's ConsumerGroupCommand: an offset before the start becomes the start, one past the end the end; a time after
the last record is the end; a shift needs something committed to shift from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastq.admin.group_types import OffsetChange, OffsetReset
from fastq.metadata import TopicPartition


def plan_reset(
    reset: OffsetReset,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    by_time: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, OffsetChange]:
    """Where each partition's offset goes. `by_time`: what ListOffsets found for a reset to a time, -1 for nothing.

    ValueError for a shift of a partition without a committed offset.
    """
    plan: dict[TopicPartition, OffsetChange] = {}
    for tp in partitions:
        before, start, end = committed.get(tp), starts[tp], ends[tp]
        wanted = _wanted(reset, tp, before, start, end, (by_time or {}).get(tp, -1))
        after = max(start, min(end, wanted))
        plan[tp] = OffsetChange(before, after, start, end, clamped=after != wanted)
    return plan


def _wanted(reset: OffsetReset, tp: TopicPartition, before: int | None, start: int, end: int, found: int) -> int:
    if reset.kind == "earliest":
        return start
    if reset.kind == "latest":
        return end
    if reset.kind == "time":
        return found if found >= 0 else end
    if reset.kind == "current":
        return end if before is None else before
    if reset.kind == "offset":
        return reset.value
    if reset.kind == "offsets":
        return reset.offsets[tp]
    if before is None:
        raise ValueError(f"{tp}: the group has committed no offset to shift from; reset to earliest, latest or a time")
    return before + reset.value
