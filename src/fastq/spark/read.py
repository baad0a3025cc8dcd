"""In the worker: one range of offsets, as record batches of Arrow.

Rules
- Fetched bytes become Arrow columns in native code; there is no Python object for a record.
- A worker process keeps its consumers between tasks, one for each configuration that is in use; a task borrows one, and has it
  for itself. A process that was forked has none.
- A range ends where it was planned to end, whatever lies before it: offsets without records are passed. What is not in the log
  any more is `failOnDataLoss`'s to decide, and so is a topic that was made anew since, or a leader that has not all of the log; a log
  that does not come to the range's end within kafkaConsumer.pollTimeoutMs fails the task.
Source: Spark's KafkaDataConsumer.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from fastq.consumer.calls import Ends
from fastq.errors import FastqError, OffsetOutOfRange, RequestTimedOut, UnknownTopicId, UnknownTopicOrPartition
from fastq.metadata import ZERO_UUID
from fastq.spark.offsets import LATEST, report_data_loss
from fastq.spark.worker import settle

if TYPE_CHECKING:
    from fastq._native.columns import ConsumerBatch
    from fastq.consumer import Consumer
    from fastq.metadata import TopicPartition
    from fastq.spark.options import SourceOptions
    from fastq.spark.planning import OffsetRange


# A worker reads from one cluster or two; what is beyond is closed, the one that waited longest first.
IDLE_MAX = 4


class ConsumerCache:
    """The consumers of this process that no task is using.

    Invariants: a consumer is either here or with one task, assigned to nothing while it is here; there are IDLE_MAX at most. Thread
    rule: any.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[tuple[tuple[str, str], ...], Consumer]] = []
        self._lock = threading.Lock()

    def take(self, options: SourceOptions) -> Consumer:
        """A consumer for these options, one that was used before if there is one."""
        key = _key(options)
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == key:
                    return self._idle.pop(place)[1]
        from fastq.consumer import Consumer

        return Consumer(**options.consumer_config().as_dict())

    def give_back(self, options: SourceOptions, consumer: Consumer) -> None:
        """Keep a consumer for the next task."""
        consumer.assign(())
        with self._lock:
            self._idle.append((_key(options), consumer))
            surplus = self._idle.pop(0)[1] if len(self._idle) > IDLE_MAX else None
        if surplus is not None:
            surplus.close()

    def forget(self) -> None:
        """In a child of a fork: the consumers are the parent's."""
        self._idle = []
        self._lock = threading.Lock()


def _key(options: SourceOptions) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(options.client.items()))


_cache = ConsumerCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cache.forget)


def read_range(options: SourceOptions, columns: list[str], wanted: OffsetRange) -> Iterator[Any]:
    """The records of `wanted`, with these columns in this order, as pyarrow record batches.

    Raises DataLoss, and what the consumer raises.
    """
    consumer = _cache.take(options)
    keep = True
    try:
        consumer.assign([wanted.tp])
        consumer.seek(wanted.tp, wanted.start)
        yield from _batches(options, consumer, columns, wanted)
    except FastqError:
        # Whatever it was, the next attempt begins with new connections.
        keep = False
        raise
    finally:
        if keep:
            _cache.give_back(options, consumer)
        else:
            consumer.close()
        settle()


def _batches(options: SourceOptions, consumer: Consumer, columns: list[str], wanted: OffsetRange) -> Iterator[Any]:
    timeout_s = options.poll_timeout_ms / 1000
    tp = wanted.tp
    until = _ends(wanted, wanted.end, wanted.epoch)
    while consumer.position(tp, timeout_s) < until[tp]:
        try:
            batch = consumer.poll_batch(timeout=timeout_s, until=until)
        except OffsetOutOfRange as error:
            until = _what_is_left(options, consumer, wanted, error)
            continue
        except (UnknownTopicOrPartition, UnknownTopicId) as error:
            report_data_loss(options.fail_on_data_loss, f"{wanted} cannot be read: {error}")
            return
        if len(batch):
            yield to_record_batch(batch, columns)
        elif consumer.position(tp, timeout_s) < until[tp]:
            _check_end(options, consumer, wanted)
            return


def _ends(wanted: OffsetRange, end: int, epoch: int) -> Ends:
    """Where to stop, in the topic and the log that the range was planned in, as far as they are known."""
    tp = wanted.tp
    topic_ids = {} if wanted.topic_id == ZERO_UUID else {tp.topic: wanted.topic_id}
    return Ends({tp: end}, topic_ids, {} if epoch < 0 else {tp: epoch})


def _what_is_left(options: SourceOptions, consumer: Consumer, wanted: OffsetRange, error: OffsetOutOfRange) -> Ends:
    """The log does not have the position, or is not the one of before any more: go to what is left of the range, and tell its end.
    Raises DataLoss when that is not to be."""
    tp = wanted.tp
    position = consumer.position(tp)
    first, end = _bounds(consumer, tp)
    what = (
        f"{wanted} cannot be read: {error}"
        if first <= position <= end
        else f"offset {position} of {wanted} is not in the log, which goes from {first} to {end}"
    )
    report_data_loss(options.fail_on_data_loss, what, topic=tp.topic, partition=tp.partition)
    consumer.seek(tp, max(position, first))
    return _ends(wanted, min(wanted.end, end), -1)


def _bounds(consumer: Consumer, tp: TopicPartition) -> tuple[int, int]:
    """Where the log begins and ends. Meanwhile the partition may say by itself, too, that it cannot go on from its position: once, as it
    does not try then."""
    while True:
        with contextlib.suppress(OffsetOutOfRange):
            return consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]


def _check_end(options: SourceOptions, consumer: Consumer, wanted: OffsetRange) -> None:
    """Nothing came in time: the log may end before the range by now, which is a loss of data. Raises DataLoss when that is not to be,
    and RequestTimedOut when the records may come yet."""
    from fastq.admin import Admin

    tp = wanted.tp
    try:
        with Admin(options.admin_config()) as admin:
            # The log's own end: what an open transaction holds back is there.
            end = admin.list_offsets({tp: LATEST})[tp].result().offset
    except FastqError:
        raise _nothing_came(options, consumer, wanted) from None
    if consumer.position(tp) < end or wanted.end <= end:
        raise _nothing_came(options, consumer, wanted)
    report_data_loss(
        options.fail_on_data_loss,
        f"{wanted} is not all in the log, which ends at {end}",
        topic=tp.topic,
        partition=tp.partition,
    )


def _nothing_came(options: SourceOptions, consumer: Consumer, wanted: OffsetRange) -> FastqError:
    end = consumer.metrics()["partitions"][wanted.tp]["end_offset"]
    known = "no broker answered" if end is None else f"the log ends at {end}, as far as a reader may see"
    return RequestTimedOut(
        f"nothing of {wanted} came within {options.poll_timeout_ms} ms, from offset {consumer.position(wanted.tp)} on: {known}",
        topic=wanted.tp.topic,
        partition=wanted.tp.partition,
        hint="Look at the brokers, or raise kafkaConsumer.pollTimeoutMs; under read_committed, "
        "an open transaction holds back what follows it",
    )


def to_record_batch(batch: ConsumerBatch, columns: list[str]) -> Any:
    """A pyarrow record batch of these columns, with Spark's idea of them: headers are null where a record has none."""
    found = pa.record_batch(batch.arrow(columns))
    if "headers" not in columns:
        return found
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # takes longer to load than a small task takes

    place = columns.index("headers")
    headers = found.column(place)
    there = pc.not_equal(pc.list_value_length(headers), 0)
    buffers = [there.buffers()[1], headers.buffers()[1]]
    with_nulls = pa.Array.from_buffers(headers.type, len(headers), buffers, children=[headers.values])
    return found.set_column(place, found.schema.field(place), with_nulls)
