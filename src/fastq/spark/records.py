"""What the columns that are written mean as records: the schema's check on the driver, and Arrow batches as `send_many` takes them.

Rules
- Columns and types are those of Spark's JVM connector: value (required), key: string or binary; topic: string, required where
  no option names the topic; headers: array<struct<key: string, value: binary>>; partition: int; timestamp: timestamp, or double
  in seconds. Other columns are passed over, and those that are there are written: includeHeaders is for reading.
- Null is null: a null value is a tombstone, a null partition lets the key decide, a null timestamp is now.
- Bytes stay where Arrow has them: nothing here makes a Python object of a record. Source: Spark's KafkaWriter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastq.errors import FastqError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import DataType, StructType

ROWS_PER_BATCH = 4096
"""How many rows go into an Arrow batch, where Spark hands over rows."""

EXPECTED = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "timestamp": "timestamp, or double in seconds since 1970",
}
_TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp", "double"),
}


class WrongSchema(FastqError, ValueError):
    """The columns to be written are not those of records."""

    cure = "Select the columns key, value, topic, partition, headers and timestamp, cast to the types that it names."
    default_message = "the columns to be written are not those of records"


def columns_to_write(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns that make the records, found good. `topic`: where all go; None when the column says. Raises WrongSchema."""
    found: dict[str, DataType] = {}
    for field in schema.fields:
        if field.name in EXPECTED:
            if field.name in found:
                raise WrongSchema(f"there are several columns {field.name}: drop or rename all but one")
            found[field.name] = field.dataType
    have = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields) or "none"
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise WrongSchema(f"there is neither the option topic nor a column topic; the columns are: {have}")
    if "value" not in found:
        raise WrongSchema(
            f"there is no column value (string or binary), which records are made of; the columns are: {have}"
        )
    for name, kind in found.items():
        if kind.simpleString().split(" collate ")[0] not in _TYPES[name]:
            raise WrongSchema(
                f"the column {name} has the type {kind.simpleString()}, expected {EXPECTED[name]}; cast it"
            )
    return tuple(name for name in EXPECTED if name in found)


def parts_of(
    batch: pa.RecordBatch, topic: str | None, columns: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """An Arrow batch as (topic, records) for `send_many`, the order within a topic kept. Raises WrongSchema for a null topic."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    wanted = [name for name in columns if name != "topic"]
    records = batch.select(wanted)
    if "timestamp" in columns and pa.types.is_floating(records.column(wanted.index("timestamp")).type):
        place = wanted.index("timestamp")
        millis = pc.floor(pc.multiply(records.column(place), 1000.0)).cast(pa.int64())
        arrays = [millis if name == "timestamp" else records.column(i) for i, name in enumerate(wanted)]
        records = pa.RecordBatch.from_arrays(arrays, names=wanted)
    if topic is not None:
        yield topic, records
        return
    topics = batch.column(batch.schema.get_field_index("topic"))
    if topics.null_count:
        row = pc.index(topics.is_null(), True).as_py()
        raise WrongSchema(
            f"the column topic is null in row {row} of a batch; give the option topic, or filter such rows out"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], records
        return
    order = pc.sort_indices(encoded.indices)  # stable
    by_topic = records.take(order)
    counts = {item["values"]: item["counts"] for item in pc.value_counts(encoded.indices).to_pylist()}
    start = 0
    for place, name in enumerate(names):
        count = counts.get(place, 0)
        if count:
            yield name, by_topic.slice(start, count)
        start += count


def batches_of_rows(rows: Iterable[Any], schema: StructType, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Spark's rows as Arrow batches with the columns that are wanted, for Sparks whose streaming sinks get rows."""
    import pyarrow as pa

    names = schema.fieldNames()
    places = [names.index(name) for name in columns]
    types = [arrow_type(name, schema.fields[place].dataType) for name, place in zip(columns, places, strict=True)]
    rows = iter(rows)
    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        cells = list(zip(*chunk, strict=True))
        arrays = [
            pa.array(cells[place], type=kind) if name != "headers" else headers_array(cells[place], kind)
            for name, place, kind in zip(columns, places, types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def arrow_type(name: str, kind: DataType) -> pa.DataType:
    """The Arrow type of a column that was found good."""
    import pyarrow as pa

    if name == "headers":
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }[kind.simpleString().split(" collate ")[0]]


def headers_array(column: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Headers as Arrow has them, of rows of rows."""
    import pyarrow as pa

    return pa.array(
        [None if row is None else [{"key": key, "value": value} for key, value in row] for row in column], type=kind
    )
