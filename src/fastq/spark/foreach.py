"""Sending from `foreachPartition`: rows, one by one, or whole Arrow batches.

Rules
- Rows are taken in chunks, and a chunk is turned into columns without a call of Python per row where columns are given by name:
  a row is a tuple, so its columns are every n-th item of all rows laid end to end.
- A task has delivered everything when it returns; see producers.py. At-least-once: a task that Spark tries again, or runs
  twice (speculation), sends its records again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from fastq.producer.options import ProducerOptions
from fastq.spark.producers import Shipment, borrowed, checked_options, key_of, task_name

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Unpack

CHUNK_ROWS = 512
"""How many rows are turned into columns at a time: enough to make the cost of a chunk vanish, few enough to stay in the cache, and to be
gone before the next collection of garbage looks at them."""

Of: TypeAlias = "str | Callable[[Any], Any]"
"""Where a part of the record comes from: a column, by its name, or a function of the row."""

_spark_fields = attrgetter("__fields__")
_BYTES = {bytes, bytearray, memoryview, type(None)}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


class ForeachPartitionProducer:
    """Sends every row of a partition: for `foreachPartition` of a DataFrame or an RDD.

        df.foreachPartition(ForeachPartitionProducer("copy", bootstrap_servers=bs, key="key", value="value"))
        rdd.foreachPartition(ForeachPartitionProducer("copy", bootstrap_servers=bs, value=lambda row: row.encode()))

    `topic`: its name, or a function of the row. `value`, `key`, `headers`, `timestamp`, `partition`: a column by its name, or a
    function of the row; None: the record has none. `partition` may be a number as well. Keys and values are bytes of any kind
    (Spark hands binary columns over as bytearray), strings, which go out as UTF-8, or null; headers are a list of (str, bytes
    or None) pairs or a mapping, so Kafka's headers column will do; timestamps are datetimes or milliseconds since 1970.
    `options` are ProducerConfig's, by keyword, and the same in all workers; `transactional_id` is refused: for exactly-once use
    the format `fastq` with delivery="exactly-once".

    Pickles, and holds no connection: each worker process makes one producer for all of its tasks. A task returns when all its
    records are delivered; otherwise it raises NotDelivered, or what kept a record from being sent, and Spark tries it again:
    at-least-once. Raises ConfigError and TypeError on the driver for what is wrong with the arguments.
    """

    def __init__(
        self,
        topic: str | Callable[[Any], str],
        *,
        value: Of = "value",
        key: Of | None = None,
        headers: Of | None = None,
        partition: Of | int | None = None,
        timestamp: Of | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if not (callable(topic) or (isinstance(topic, str) and topic)):
            raise TypeError(f"topic is a name or a function of the row, got {topic!r}")
        for name, spec in (("value", value), ("key", key), ("headers", headers), ("timestamp", timestamp)):
            if not (isinstance(spec, str) or callable(spec) or (spec is None and name != "value")):
                raise TypeError(f"{name} is the name of a column or a function of the row, got {spec!r}")
        if partition is not None and not isinstance(partition, str | int) and not callable(partition):
            raise TypeError(f"partition is a number, the name of a column or a function of the row, got {partition!r}")
        self.topic = topic
        self.columns: dict[str, Any] = {
            name: spec
            for name, spec in (
                ("value", value),
                ("key", key),
                ("headers", headers),
                ("partition", partition),
                ("timestamp", timestamp),
            )
            if spec is not None
        }
        self._options = checked_options(options)
        self._key = key_of(self._options)

    def __call__(self, rows: Iterable[Any]) -> None:
        """Send the rows of one partition, in a worker."""
        rows = iter(rows)
        chunk = list(islice(rows, CHUNK_ROWS))
        if not chunk:
            return
        with borrowed(self._options, self._key) as producer:
            shipment = Shipment(producer, f"foreachPartition, {task_name()}")
            while chunk:
                self._send(shipment, chunk)
                chunk = list(islice(rows, CHUNK_ROWS))
            shipment.finish()

    def _send(self, shipment: Shipment, rows: list[Any]) -> None:
        columns = columns_of(rows, self.columns)
        values = as_bytes(columns["value"], self.columns["value"], "value")
        keys = as_bytes(columns["key"], self.columns["key"], "key") if "key" in columns else None
        headers = columns.get("headers")
        timestamps = as_milliseconds(columns["timestamp"]) if "timestamp" in columns else None
        partition = columns.get("partition")
        if isinstance(self.topic, str) and not isinstance(partition, list):
            shipment.send(self.topic, values, keys=keys, headers=headers, partition=partition, timestamps=timestamps)
            return
        topics = [self.topic] * len(rows) if isinstance(self.topic, str) else list(map(self.topic, rows))
        partitions = partition if isinstance(partition, list) else [partition] * len(rows)
        for (topic, number), pick in targets(topics, partitions):
            shipment.send(
                topic,
                pick(values),
                keys=keys and pick(keys),
                headers=headers and pick(headers),
                partition=number,
                timestamps=timestamps and pick(timestamps),
            )

    def __repr__(self) -> str:
        return f"<ForeachPartitionProducer topic={self.topic!r} columns={self.columns!r}>"


# -- rows to columns ------------------------------------------------------------------------------------------------


def columns_of(rows: list[Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of records that `specs` asks for, as lists as long as `rows`; a number stays one."""
    names = [spec for spec in specs.values() if isinstance(spec, str)]
    named = named_columns(rows, names) if names else {}
    return {
        part: named[spec] if isinstance(spec, str) else list(map(spec, rows)) if callable(spec) else spec
        for part, spec in specs.items()
    }


def named_columns(rows: list[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns by name of Spark's rows, of named tuples, or of mappings. Raises TypeError and KeyError."""
    if isinstance(rows[0], Mapping):
        try:
            return {name: list(map(itemgetter(name), rows)) for name in names}
        except (KeyError, TypeError) as error:
            raise KeyError(f"a row has no {error}; give a function of the row") from None
    fields = common_fields(rows)
    cells = list(chain.from_iterable(rows))
    found = {}
    for name in names:
        if fields.count(name) != 1:
            many = "has no column" if name not in fields else "has several columns"
            raise KeyError(f"the row {many} {name!r}, it has {', '.join(fields)}")
        found[name] = cells[fields.index(name) :: len(fields)]
    return found


def common_fields(rows: list[Any]) -> list[str]:
    """The names of the columns, which all rows must have. Raises TypeError for rows without names."""
    try:
        found = list(map(_spark_fields, rows))
    except AttributeError:
        found = [_names_of(row) for row in rows]
    # Rows of a DataFrame share their list of names, a batch of them at a time: this compares the few different lists.
    fields, *others = [names for names, _ in groupby(found)]
    if fields is None or None in others:
        raise TypeError(
            f"a row is {type(rows[found.index(None)]).__name__} and has no names of columns: give functions of the row, "
            "as in value=lambda row: row[0]"
        )
    if others:
        raise TypeError(f"rows differ in their columns: {', '.join(fields)} and {', '.join(others[0])}")
    if set(map(len, rows)) != {len(fields)}:
        raise TypeError(f"a row has not as many items as columns: {', '.join(fields)}")
    return list(fields)


def _names_of(row: Any) -> list[str] | None:
    names = getattr(row, "__fields__", getattr(row, "_fields", None))
    return None if names is None else list(names)


def as_bytes(column: list[Any], spec: Any, part: str) -> list[Any]:
    """Keys or values as the producer takes them: strings are encoded. TypeError for what is neither string nor bytes."""
    types = set(map(type, column))
    if types <= _BYTES:
        return column
    for kind in types - _BYTES:
        if not issubclass(kind, str | bytes | bytearray):
            _not_bytes(kind, spec, part)
    return [item.encode() if isinstance(item, str) else item for item in column]


def _not_bytes(kind: type, spec: Any, part: str) -> NoReturn:
    where = f"column {spec!r}" if isinstance(spec, str) else f"the function for {part}"
    raise TypeError(
        f"{part}: {where} gives {kind.__name__}, expected bytes of any kind, str or None; cast the column to string or "
        "binary, or give a function of the row that answers bytes"
    )


def as_milliseconds(column: list[Any]) -> list[int | None]:
    """Timestamps as Kafka has them. A datetime without a zone is local time, as Spark hands timestamps over."""
    return [
        (item.astimezone(timezone.utc) - _EPOCH) // _MILLISECOND if isinstance(item, datetime) else item
        for item in column
    ]


def targets(
    topics: list[Any], partitions: list[Any]
) -> Iterator[tuple[tuple[str, int | None], Callable[[list[Any]], list[Any]]]]:
    """By topic and partition, what picks their records out of a column; the order within each stays."""
    places: dict[tuple[str, int | None], list[int]] = {}
    for place, target in enumerate(zip(topics, partitions, strict=True)):
        places.setdefault(target, []).append(place)
    for target, found in places.items():
        yield target, partial(_pick, found)


def _pick(places: list[int], column: list[Any]) -> list[Any]:
    return [column[place] for place in places]


# -- whole Arrow batches --------------------------------------------------------------------------------------------


def foreach_partition_arrow(
    frame: DataFrame,
    topic: str | Column,
    *,
    value: str | Column = "value",
    key: str | Column | None = None,
    headers: str | Column | None = None,
    partition: str | Column | int | None = None,
    timestamp: str | Column | None = None,
    **options: Unpack[ProducerOptions],
) -> int:
    """Send every row of a DataFrame as a record, by Arrow batches: `foreachPartition` without a Python object for each row.

        foreach_partition_arrow(df, "copy", bootstrap_servers=bs, key="key", value="value")

    `topic`: its name; or a Column, such as col("topic"), which says it for each row. `value`, `key`, `headers`, `partition`,
    `timestamp`: a column by its name or as an expression; `partition` may be a number. Types are those of the sink: value and key
    string or binary, headers array<struct<key:string,value:binary>>, partition int, timestamp timestamp, or double in
    seconds. `options` are ProducerConfig's, by keyword.
    Runs at once, and answers how many records were delivered; a task that could not deliver all of its records raises NotDelivered
    and is tried again by Spark: at-least-once. Raises WrongSchema and ConfigError on the driver.
    """
    from pyspark.sql import functions

    from fastq.spark.records import columns_to_write

    chosen: dict[str, Any] = {
        "value": value,
        "key": key,
        "headers": headers,
        "partition": partition,
        "timestamp": timestamp,
    }
    if not isinstance(topic, str):
        chosen["topic"] = topic
    columns = [
        (
            functions.lit(spec) if isinstance(spec, int) else functions.col(spec) if isinstance(spec, str) else spec
        ).alias(name)
        for name, spec in chosen.items()
        if spec is not None
    ]
    selected = frame.select(*columns)
    name = topic if isinstance(topic, str) else None
    wanted = columns_to_write(selected.schema, name)
    send = ArrowPartition(name, wanted, checked_options(options))
    return sum(row.records for row in selected.mapInArrow(send, "records long").collect())


class ArrowPartition:
    """Sends the Arrow batches of one partition, in a worker, and answers how many records they had. Pickles."""

    def __init__(self, topic: str | None, columns: tuple[str, ...], options: Mapping[str, Any]) -> None:
        self._topic = topic
        self._columns = columns
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from fastq.spark.records import parts_of

        with borrowed(self._options) as producer:
            shipment = Shipment(producer, f"foreach_partition_arrow, {task_name()}")
            for batch in batches:
                for topic, records in parts_of(batch, self._topic, self._columns):
                    shipment.send(topic, records)
            sent = shipment.finish()
        yield pa.RecordBatch.from_pydict({"records": [sent]})
