"""The format `fastq`: what Spark asks a data source for.

Rules
- The columns are those of Spark's JVM connector. A schema given by the user takes some of them, by name: columns that are left
  out are not made, which is the only pruning that Spark has for sources in Python.
- No filter is pushed down: Spark would go on using it for the next query of the same DataFrame.
- Options are checked where Spark first shows them, which is in `load()`; what depends on batch or stream, when it is planned.
- What a worker needs is imported by the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastq.errors import ConfigError

if TYPE_CHECKING:
    from fastq.spark.options import SourceOptions
    from fastq.spark.planning import OffsetRange

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", HEADERS)])


class RangePartition(InputPartition):
    """One task of a read."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def column(name: str) -> StructField:
    """The source's column of this name. Raises ConfigError where it has none."""
    for field in SCHEMA_WITH_HEADERS.fields:
        if field.name == name:
            return field
    raise ConfigError(f"the source has no column {name!r}; there are {', '.join(SCHEMA_WITH_HEADERS.fieldNames())}")


def columns_of(schema: StructType) -> list[str]:
    """The names of a schema's columns. Raises ConfigError for one that is not the source's, or of another type."""
    for field in schema.fields:
        wanted = column(field.name).dataType
        if field.dataType != wanted:
            raise ConfigError(
                f"the column {field.name} is {wanted.simpleString()}, the schema says {field.dataType.simpleString()}: "
                "leave it so, and cast in the query"
            )
    return [str(name) for name in schema.fieldNames()]


def schema_of(options: SourceOptions, columns: Sequence[str] | None = None) -> StructType:
    """The columns of a source with these options, or those of them that are named, in that order. Raises ConfigError for names that
    are not the source's, that come twice, and for none."""
    if columns is None:
        return SCHEMA_WITH_HEADERS if options.include_headers else SCHEMA
    names = [columns] if isinstance(columns, str) else list(columns)
    fields = [column(name) for name in names]
    if not names or len(set(names)) < len(names):
        known = ", ".join(SCHEMA_WITH_HEADERS.fieldNames())
        raise ConfigError(f"columns: name one or more of {known}, each once; got {names}")
    return StructType(fields)


def planned(options: SourceOptions) -> list[OffsetRange]:
    """The tasks of a batch, as the logs are now. Raises ConfigError, DataLoss and what the brokers refuse."""
    from fastq.spark.offsets import OffsetReader
    from fastq.spark.planning import plan_batch
    from fastq.spark.worker import settle

    reader = OffsetReader(options)
    try:
        return reader.attempts(lambda: plan_batch(reader))
    finally:
        reader.close()
        settle()


class BatchReader(DataSourceReader):
    """A batch query. What it reads is fixed when it is planned. Pickles."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = columns_of(schema)

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises ConfigError and what the brokers refuse."""
        return [RangePartition(wanted) for wanted in planned(self.options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one task, as record batches."""
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark's only task when there is nothing to read
        from fastq.spark.read import read_range

        return read_range(self.options, self.columns, partition.wanted)


class FastqDataSource(DataSource):
    """Reads and writes topics of a Kafka-protocol cluster: `spark.read.format("fastq")` and its kin.

    The options are those of Spark's JVM connector (`fastq.spark.options` has the table).
    """

    @classmethod
    def name(cls) -> str:
        return "fastq"

    def schema(self) -> StructType:
        """The columns, headers among them with includeHeaders."""
        from fastq.spark.options import SourceOptions

        return schema_of(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from fastq.spark.options import SourceOptions

        return BatchReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from fastq.spark.options import SourceOptions
        from fastq.spark.stream import RefusedStream, StreamReader

        try:
            return StreamReader(SourceOptions.parse(self.options, streaming=True), schema)
        except ConfigError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fastq.spark.options import SinkOptions
        from fastq.spark.sink import BatchSink

        return BatchSink(SinkOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from fastq.spark.options import SinkOptions
        from fastq.spark.sink import StreamSink

        return StreamSink(SinkOptions.parse(self.options, streaming=True), schema, overwrite)
