"""The sink of the format `fastq`: what a DataFrame or a stream writes.

Rules
- The driver checks schema and options; a task takes Arrow batches and hands their buffers to the producer.
- A task ends when all its records are delivered, and raises otherwise. What that promises is the delivery's: at-least-once here,
  exactly-once in exactly_once.py. Nothing is left for Spark's commit to do, but what that file says.
- A mode other than append is refused, as the JVM connector does; a stream's complete mode appends each result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from fastq.errors import ConfigError
from fastq.spark.producers import Shipment, borrowed, checked_options, task_name
from fastq.spark.records import batches_of_rows, columns_to_write, parts_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
    from pyspark.sql.types import StructType

    from fastq.spark.options import SinkOptions
else:
    # Before Spark 4.1 a streaming sink gets rows.
    StreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

STREAMS_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: which it was, and how many records it has; `skipped`: they were there already.

    `committed`: exactly-once: the tasks that had committed this batch when this one began.
    """

    partition: int
    rows: int
    skipped: bool = False
    committed: tuple[int, ...] = ()


class Sink:
    """What both sinks are: checked on the driver, pickled, and writing in a worker.

    Raises ConfigError and WrongSchema. Thread rule: none is needed, a task has a copy of its own.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, streaming: bool) -> None:
        self.options = options
        self.schema = schema
        self.columns = columns_to_write(schema, options.topic)
        self.client = checked_options(options.client)
        self.streaming = streaming
        if options.exactly_once:
            from fastq.spark.exactly_once import checked_config

            checked_config(self.client, "checked on the driver")
        if options.exactly_once and not streaming and options.token is None:
            raise ConfigError(
                "delivery=exactly-once of a batch needs the option token: a name for this very write, by which doing it again is "
                "recognised; a stream has its query id and batch ids for that"
            )

    def send(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write one partition, in a worker."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return Written(partition_id(), 0)
        whole = _chained(first, filled)
        if self.options.exactly_once:
            from fastq.spark.exactly_once import send_once

            return send_once(self, whole)
        with borrowed(self.client) as producer:
            shipment = Shipment(producer, f"the fastq sink, {task_name()}")
            self.ship(shipment, whole)
            return Written(partition_id(), shipment.finish())

    def check_tasks(self, messages: Iterable[WriterCommitMessage | None], batch_id: int) -> None:
        """On the driver, when all tasks have ended."""
        if self.options.exactly_once:
            from fastq.spark.exactly_once import check_tasks

            check_tasks([message for message in messages if isinstance(message, Written)], batch_id)

    def ship(self, shipment: Shipment, batches: Iterable[pa.RecordBatch]) -> None:
        """Hand over all records; they are on their way afterwards."""
        for batch in batches:
            for topic, records in parts_of(batch, self.options.topic, self.columns):
                shipment.send(topic, records)


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("fastq")`: the batch sink."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('mode("overwrite") is not for topics, whose records stay; use mode("append")')
        self.sink = Sink(options, schema, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; see `Sink.send`."""
        return self.sink.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have ended well: their records are in the topics."""
        self.sink.check_tasks(messages, 0)


class StreamSink(StreamWriter):
    """`df.writeStream.format("fastq")`: the streaming sink."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self.sink = Sink(options, schema, streaming=True)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition of a micro-batch; see `Sink.send`."""
        if not STREAMS_ARROW:
            iterator = batches_of_rows(iterator, self.sink.schema, self.sink.columns)
        return self.sink.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch have ended well: their records are in the topics."""
        self.sink.check_tasks(messages, batchId)


def partition_id() -> int:
    """The number of this task's partition; -1 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
