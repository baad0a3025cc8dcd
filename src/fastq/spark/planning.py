"""From offsets to tasks: ranges of offsets, split as the options say. Pure, but for `plan_batch`, which asks the brokers.

Rules: a range is [start, end) of one partition; empty ones make no task. Splitting keeps every offset exactly once, in order. It
goes by offsets, which count what compaction and transactions have taken out, too.
Source: Spark's KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fastq.metadata import ZERO_UUID, TopicPartition
from fastq.spark.offsets import NOTHING_KNOWN, report_data_loss

if TYPE_CHECKING:
    from fastq.spark.offsets import OffsetReader, Offsets


class OffsetRange(NamedTuple):
    """The offsets of one task: `start` and up to, but not with, `end`; of the topic that had this id when it was planned, and of the log
    as its leader of that epoch had it, where brokers tell them (else zero, and -1)."""

    tp: TopicPartition
    start: int
    end: int
    topic_id: bytes = ZERO_UUID
    epoch: int = -1

    @property
    def size(self) -> int:
        """How many offsets; there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.tp} [{self.start}, {self.end})"


def plan_ranges(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    topic_ids: Mapping[str, bytes] = NOTHING_KNOWN,
    epochs: Mapping[TopicPartition, int] = NOTHING_KNOWN,
) -> list[OffsetRange]:
    """The tasks for what lies between `starts` and `ends`, in the order of their partitions.

    max_records_per_partition: no task has more offsets. min_partitions: where these are fewer tasks, large ranges are split in
    proportion to their size, so that there are about so many: rounding makes them a few more or less.
    """
    ranges = [
        OffsetRange(tp, starts[tp], ends[tp], topic_ids.get(tp.topic, ZERO_UUID), epochs.get(tp, -1))
        for tp in sorted(ends)
        if starts[tp] < ends[tp]
    ]
    if max_records_per_partition is not None:
        ranges = [part for whole in ranges for part in split(whole, -(-whole.size // max_records_per_partition))]
    if min_partitions is None or len(ranges) >= min_partitions or not ranges:
        return ranges
    return _split_to(ranges, min_partitions)


def _split_to(ranges: list[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Ranges whose share of the whole is worth one task stay as they are; the others share the tasks that are left."""
    total = sum(whole.size for whole in ranges)
    small = {whole for whole in ranges if _part_count(whole.size, total, wanted) == 1}
    left = max(wanted - len(small), 1)
    large_total = total - sum(whole.size for whole in small)
    return [
        part
        for whole in ranges
        for part in ([whole] if whole in small else split(whole, _part_count(whole.size, large_total, left)))
    ]


def _part_count(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def split(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """A range in `parts` of sizes that differ by one at most, the larger ones last; fewer where there are not so many offsets."""
    start = whole.start
    parts = min(parts, whole.size)
    for part in range(parts):
        end = start + (whole.end - start) // (parts - part)
        yield whole._replace(start=start, end=end)
        start = end


def rate_limit(
    offsets_max: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends before `ends` so that there are about `offsets_max` offsets from `starts` on, each partition with its share: rounded
    down, but at least one where there is anything."""
    sizes = {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}
    total = sum(sizes.values())
    limited = dict(ends)
    for tp, size in sizes.items():
        # In whole numbers: a share of a large topic would not be exact otherwise.
        limited[tp] = min(ends[tp], starts[tp] + max(offsets_max * size // total, 1))
    return limited


def plan_batch(reader: OffsetReader) -> list[OffsetRange]:
    """The tasks of a batch query: what its options name, looked up and held against the logs as they are now.

    Raises ConfigError for offsets that the logs cannot have, DataLoss for those that they do not have any more.
    """
    options = reader.options
    wanted = reader.partitions()
    starts = reader.resolve(options.starting, wanted, starting=True)
    ends = reader.resolve(options.ending, wanted, starting=False)
    if options.starting.offsets is not None:
        starts = within_logs(reader, starts, "startingOffsets")
    if options.ending.offsets is not None:
        ends = within_logs(reader, ends, "endingOffsets")
    return plan_ranges(
        starts,
        ends,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
        topic_ids=reader.topic_ids,
        epochs=reader.epochs,
    )


def within_logs(reader: OffsetReader, given: Offsets, option: str) -> Offsets:
    """Offsets that a user gave, held against what is in the logs; brought inside, where failOnDataLoss is false.

    Raises DataLoss for those that are beyond the log's end, or gone from its beginning.
    """
    fail = reader.options.fail_on_data_loss
    first, last = reader.earliest(given), reader.latest(given)
    for tp, offset in sorted(given.items()):
        log = f"{tp} goes from {first[tp]} to {last[tp]}"
        if offset > last[tp]:
            hint = "-1 is the end, whatever it is"
            report_data_loss(fail, f"{option} has {offset}, which is beyond the log: {log}", hint)
        elif offset < first[tp]:
            report_data_loss(
                fail, f"{option} has {offset}, which is gone: {log}", "-2 is the beginning, whatever it is"
            )
    return {tp: min(max(offset, first[tp]), last[tp]) for tp, offset in given.items()}
