"""A streaming query's reader: where it begins, how far the next micro-batch goes, and its tasks.

Rules
- Offsets are the JSON of `offsets.py`. What has not changed is handed back as it came, so that there is no empty micro-batch.
- The end of a query's first micro-batch also tells where it began: Spark does not keep the beginning, and asks for it again when
  that batch is replayed. "latest" would be later by then, and what lies between would be lost.
- A topic that was deleted and made anew is told by its id, however long its log has become: its first records would be passed over.
- Limits go by offsets, in proportion to what each partition has. ReadAllAvailable, as Trigger.Once asks, beats them.
- Under AvailableNow the end is what it was when it was first asked for; minOffsetsPerTrigger has no say then, because waiting
  would be in vain.
- Nothing is done at a commit: it comes with the next micro-batch only, never for the last.
Source: Spark's KafkaMicroBatchStream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fastq.errors import ConfigError
from fastq.spark.offsets import (
    OffsetReader,
    Offsets,
    named,
    read_offsets,
    report_data_loss,
    start_within,
    topic_ids_within,
    with_start,
    write_offsets,
)
from fastq.spark.planning import OffsetRange, plan_ranges, rate_limit, within_logs
from fastq.spark.source import RangePartition, columns_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fastq.metadata import TopicPartition
    from fastq.spark.options import SourceOptions

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # Spark 4.0 and 4.1 ask for all there is, and do AvailableNow by themselves, in one batch
    HAS_LIMITS = False
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One run of a streaming query, in a process of its own beside the driver; `read` runs in the workers, on a copy.

    Invariants: `_initial` is where this run would begin, once it was asked; `_target` the end that AvailableNow may not pass.
    Thread rule: one thread.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.columns = columns_of(schema)
        self._offsets = OffsetReader(options)
        self._clock_s = clock_s
        self._initial: Offsets | None = None
        self._available_now = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._last_trigger_s: float | None = None
        self._check_version()

    def _check_version(self) -> None:
        given = {
            "maxOffsetsPerTrigger": self.options.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.options.min_offsets_per_trigger,
        }
        for name, value in given.items():
            if value is not None and not HAS_LIMITS:
                raise ConfigError(
                    f"the option {name} needs Spark 4.2 or newer, which lets sources in Python limit a micro-batch; "
                    f"this is {pyspark.__version__}: leave it out, or update pyspark"
                )

    # -- how far

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; the same each time it is asked."""
        if self._initial is None:
            self._initial = self._offsets.attempts(self._resolve_start)
        return write_offsets(self._initial)

    def _resolve_start(self) -> Offsets:
        reader, starting = self._offsets, self.options.starting
        found = reader.resolve(starting, reader.partitions(), starting=True)
        return found if starting.offsets is None else within_logs(reader, found, "startingOffsets")

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the micro-batch that begins at `start`; `start` itself when there is nothing to read, or not enough yet.

        Spark 4.0 and 4.1 give neither: then it is the end of all there is.
        """
        before = read_offsets(start) if start is not None else self._latest or {}
        ids = topic_ids_within(start or {})
        end = self._latest = self._latest_offsets(before, ids)
        known = _without(before, _made_anew(ids, self._offsets.topic_ids))
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            if self._waits(known, end):
                return start or {}
            end = self._limited(known, end)
        written = write_offsets(end, self._offsets.topic_ids)
        if start is None:
            return written
        first = self._initial is not None and start == write_offsets(self._initial)
        if first:
            return with_start(written, known)
        return start if end == known else written

    def _latest_offsets(self, known: Offsets, ids: Mapping[str, bytes]) -> Offsets:
        if self._target is not None:
            return self._target
        reader = self._offsets

        def look() -> Offsets:
            there = reader.partitions(known)
            return reader.latest(there, _without(known, _made_anew(ids, reader.topic_ids)))

        found = reader.attempts(look)
        if self._available_now:
            self._target = found
        return found

    def _begins(self, known: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
        """Where each partition of `end` begins: a new one at its first record."""
        new = end.keys() - known.keys()
        fresh = self._offsets.attempts(lambda: self._offsets.earliest(new)) if new else {}
        return {tp: known[tp] if tp in known else fresh[tp] for tp in end}

    def _waits(self, known: Offsets, end: Offsets) -> bool:
        """True while there are fewer than minOffsetsPerTrigger new offsets, and maxTriggerDelay is not over."""
        wanted = self.options.min_offsets_per_trigger
        if wanted is None or self._available_now:
            return False
        now_s = self._clock_s()
        patient = (
            self._last_trigger_s is not None and now_s - self._last_trigger_s < self.options.max_trigger_delay_ms / 1000
        )
        if patient and sum(offset - known.get(tp, 0) for tp, offset in end.items()) < wanted:
            return True
        self._last_trigger_s = now_s
        return False

    def _limited(self, known: Offsets, end: Offsets) -> Offsets:
        wanted = self.options.max_offsets_per_trigger
        return end if wanted is None else rate_limit(wanted, self._begins(known, end), end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say. Spark knows one limit at a time: the other, and the delay, are looked at here."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there at the first look is all that this run reads."""
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs as of the last look, for the query's progress."""
        return write_offsets(self._latest) if self._latest else None

    # -- the tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the micro-batch from `start` to `end`. Raises DataLoss."""
        begun = start_within(end)
        known = read_offsets(start) if begun is None else begun
        until, ids = read_offsets(end), topic_ids_within(end)
        reader = self._offsets
        if ids.keys() - reader.topic_ids.keys():  # a micro-batch of the run before
            reader.attempts(lambda: reader.partitions(until))
        for topic in sorted(_made_anew(ids, reader.topic_ids)):  # nothing of what the micro-batch had is there
            self._report_made_anew(topic)
            known, until = (_without(offsets, {topic}) for offsets in (known, until))
        for topic in sorted(_made_anew(topic_ids_within(start), ids)):
            self._report_made_anew(topic)
            known = _without(known, {topic})
        ranges = self._plan(known, until)
        return [RangePartition(wanted) for wanted in ranges]

    def _report_made_anew(self, topic: str) -> None:
        report_data_loss(
            self.options.fail_on_data_loss,
            f"the topic {topic} was deleted and made anew since the query has read it: what is left of the old one is gone, and the new "
            "one is read from its first record",
            topic=topic,
        )

    def _plan(self, known: Offsets, end: Offsets) -> list[OffsetRange]:
        fail = self.options.fail_on_data_loss
        gone = known.keys() - end.keys()
        if gone:
            report_data_loss(fail, f"{named(gone)} are not there any more")
        starts = self._begins(known, end)
        for tp in sorted(end):
            if tp not in known and starts[tp] > 0:
                report_data_loss(fail, f"the new partition {tp} begins at offset {starts[tp]}, not at 0")
            elif end[tp] < starts[tp]:
                report_data_loss(fail, f"the end of {tp} went back from offset {starts[tp]} to {end[tp]}")
        return plan_ranges(
            starts,
            end,
            min_partitions=self.options.min_partitions,
            max_records_per_partition=self.options.max_records_per_partition,
            topic_ids=self._offsets.topic_ids,
            epochs=self._offsets.epochs,
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one task, as record batches."""
        from fastq.spark.read import read_range

        assert isinstance(partition, RangePartition)
        return read_range(self.options, self.columns, partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark keeps the offsets."""

    def stop(self) -> None:
        """The end of this run."""
        self._offsets.close()


def _made_anew(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> set[str]:
    """The topics that have another id than before."""
    return {topic for topic, one in before.items() if now.get(topic, one) != one}


def _without(offsets: Mapping[TopicPartition, int], topics: Collection[str]) -> Offsets:
    return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics}


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error when it is first asked: raised while a reader is being made, Spark would bury it under one of its own."""

    def __init__(self, error: ConfigError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self.error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        raise self.error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self.error

    def prepareForTriggerAvailableNow(self) -> None:
        """It comes to nothing anyway."""
