"""Columns of fetched batches, and their Arrow export, read back by pyarrow, Polars, pandas and DuckDB."""

import gc
import sys
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy
import pandas
import polars
import pyarrow
import pytest
from consume_support import batch_rows, drain, fetched
from hypothesis import given
from hypothesis import strategies as st

from fastq._native.arrow import COLUMN_NAMES, ArrowExport
from fastq._native.columns import ConsumerBatch
from fastq._native.records import build_batch

T0 = 1_700_000_000_000
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("timestampType", pyarrow.int32()),
    ]
)
HEADERS = pyarrow.list_(
    pyarrow.field("element", pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
)


def make(*parts: Sequence[tuple[Any, ...]], codec: int = 0) -> ConsumerBatch:
    """A batch of one partition a list of (timestamp, key, value, headers), in two record batches where there are two rows."""
    made = ConsumerBatch()
    for number, rows in enumerate(parts):
        half = len(rows) // 2
        data = b"".join(
            bytes(build_batch(piece, base_offset=base, codec=codec))
            for base, piece in ((10, rows[:half]), (10 + half, rows[half:]))
            if piece
        )
        made.add(fetched(data, 10, topic=f"t{number}", partition=number))
    return made


ROWS = [
    (T0, b"k0", b"v0", [("h", b"x"), ("é", None)]),
    (T0 + 1, None, b"", []),
    (T0 + 2, b"", None, [("", b"")]),
    (T0 + 3, b"k3", b"v" * 300, []),
    (T0 + 4, None, b"v4", [("z", b"1")]),
]


@given(st.lists(batch_rows, min_size=1, max_size=3), st.sampled_from([0, 4]))
def test_table_equals_the_rows(parts: list, codec: int) -> None:
    batch = make(*parts, codec=codec)
    table = batch.to_arrow(headers=True)
    table.validate(full=True)
    expected = [
        {
            "key": key,
            "value": value,
            "topic": f"t{part}",
            "partition": part,
            "offset": 10 + index,
            "timestamp": time_ms * 1000,
            "timestampType": 0,
            "headers": [{"key": name, "value": data} for name, data in headers],
        }
        for part, content in enumerate(parts)
        for index, (time_ms, key, value, headers) in enumerate(content)
    ]
    raw = table.set_column(5, "timestamp", table["timestamp"].cast(pyarrow.int64()))
    assert raw.to_pylist() == expected
    assert len(batch) == len(expected)
    assert list(batch.offsets) == [row["offset"] for row in expected]
    assert list(batch.partitions) == [row["partition"] for row in expected]
    assert list(batch.timestamps) == [row["timestamp"] // 1000 for row in expected]
    assert list(batch.timestamp_types) == [0] * len(expected)
    assert batch.topics == [row["topic"] for row in expected]
    assert batch.keys == [row["key"] for row in expected]
    assert batch.values == [row["value"] for row in expected]
    assert batch.headers == [tuple((h["key"], h["value"]) for h in row["headers"]) for row in expected]
    records = list(batch)
    assert [(r.offset, r.key, r.value, r.headers) for r in records] == list(
        zip(batch.offsets, batch.keys, batch.values, batch.headers, strict=True)
    )
    assert [batch[i] for i in range(len(batch))] == records


def test_schema_is_that_of_sparks_source() -> None:
    batch = make(ROWS)
    assert pyarrow.schema(batch) == SCHEMA
    assert pyarrow.schema(batch.arrow(headers=True)) == SCHEMA.append(pyarrow.field("headers", HEADERS))
    assert batch.to_arrow(["offset", "value"]).schema == pyarrow.schema([SCHEMA.field("offset"), SCHEMA.field("value")])
    assert batch.to_arrow(["headers"]).column_names == ["headers"]
    assert batch.arrow(["value"], headers=True).__arrow_c_schema__() is not None
    with pytest.raises(ValueError, match=r"no column 'values'; there are key, value"):
        batch.to_arrow(["values"])
    with pytest.raises(ValueError, match="twice"):
        batch.arrow(["key", "key"])


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_each_column_alone(name: str) -> None:
    batch = make(ROWS, ROWS[:1])
    whole, alone = batch.to_arrow(headers=True), batch.to_arrow([name])
    alone.validate(full=True)
    assert alone[name].equals(whole[name])


def test_no_records() -> None:
    batch = ConsumerBatch()
    assert len(batch) == 0 and list(batch) == [] and batch.values == [] and list(batch.offsets) == []
    assert repr(batch) == "ConsumerBatch(0 records of no partition)"
    assert pyarrow.table(batch).schema == SCHEMA
    assert pyarrow.record_batch(batch).num_rows == 0
    assert batch.to_arrow().num_rows == 0
    with pytest.raises(IndexError):
        batch[0]


def test_indexing() -> None:
    batch = make(ROWS, ROWS)
    assert batch[0].value == b"v0" and batch[-1].offset == 14 and batch[-1].topic == "t1"
    assert [record.offset for record in batch[3:7]] == [13, 14, 10, 11]
    assert batch[::-4] == [batch[9], batch[5], batch[1]]
    for index in (10, -11):
        with pytest.raises(IndexError, match=f"record {index} of 10"):
            batch[index]
    for index in (2**70, -(2**70)):
        with pytest.raises(IndexError):
            batch[index]
    with pytest.raises(TypeError, match=r"not 'value': its columns are attributes \(values, keys"):
        batch["value"]
    for bad in (1.0, None, (0,)):
        with pytest.raises(TypeError):
            batch[bad]
    assert repr(batch) == "ConsumerBatch(10 records of t0-0, t1-1)"


def test_columns_of_numbers_are_taken_without_a_copy() -> None:
    batch = make(ROWS)
    array = numpy.asarray(batch.offsets)
    assert array.dtype == numpy.int64 and not array.flags.owndata and not array.flags.writeable
    assert numpy.asarray(batch.partitions).dtype == numpy.int32
    assert batch.offsets is batch.offsets and batch.values is batch.values


def test_takers_of_capsules() -> None:
    batch = make(ROWS)
    frame = polars.DataFrame(batch)
    assert frame["value"].to_list() == batch.values and frame["offset"].to_list() == list(batch.offsets)
    assert frame.schema["timestamp"] == polars.Datetime("us", "UTC")
    assert polars.DataFrame(batch.arrow(["value"], headers=True))["headers"].to_list()[0][0]["key"] == "h"
    from_arrow = getattr(pandas.DataFrame, "from_arrow", None) or (lambda taken: pyarrow.table(taken).to_pandas())
    assert from_arrow(batch)["key"].tolist()[3] == b"k3"  # pandas takes the interface by itself from 3.0 on
    source = batch.arrow()
    assert duckdb.sql('select count(*), max("offset"), count(key) from source').fetchall() == [(5, 14, 3)]
    assert pyarrow.record_batch(batch).equals(pyarrow.table(batch).to_batches()[0])
    assert source.__arrow_c_stream__() is not None


def test_what_is_exported_outlives_the_batch() -> None:
    batch = make(ROWS, codec=4)
    stream, (schema, array) = batch.__arrow_c_stream__(), batch.__arrow_c_array__()
    table = batch.to_arrow()
    values = batch.values
    del batch
    gc.collect()
    assert table["value"].to_pylist() == values
    # Capsules that nobody takes are released with what they hold.
    del stream, schema, array, table
    gc.collect()


def test_columns_past_the_limit_come_as_several_arrays() -> None:
    batch = make(*[ROWS] * 4)
    whole = batch.to_arrow(headers=True)
    export = ArrowExport(batch, [*COLUMN_NAMES], binary_bytes_max=310)
    table = pyarrow.table(export)
    table.validate(full=True)
    assert len(table.to_batches()) > 1
    assert table.combine_chunks().equals(whole.combine_chunks())
    with pytest.raises(OverflowError, match="__arrow_c_stream__"):
        export.__arrow_c_array__()


def test_add_stops_where_the_bytes_are_enough() -> None:
    data = b"".join(bytes(build_batch([(T0, b"key", b"value")] * 3, base_offset=base)) for base in range(0, 12, 3))
    chunk, batch = fetched(data), ConsumerBatch()
    assert batch.add(chunk, bytes_max=25) == 6
    assert batch.size_bytes == 48 and chunk.position == 6
    assert batch.add(chunk, bytes_max=48) == 0
    assert batch.add(chunk) == 6 and batch.size_bytes == 96


def test_times_none_and_at_the_ends_of_the_range() -> None:
    made = ConsumerBatch()
    made.add(fetched(bytes(build_batch([(2**62, None, b"v"), (5, None, b"v")]))))
    column = made.to_arrow(["timestamp"])["timestamp"].cast(pyarrow.int64()).to_pylist()
    assert column == [(2**63 - 1) // 1000 * 1000, 5000]
    appended = ConsumerBatch()
    appended.add(fetched(bytes(build_batch([(1, None, b"v")], timestamp_type=1, max_timestamp=T0))))
    assert appended.to_arrow()["timestampType"].to_pylist() == [1] and list(appended.timestamps) == [T0]


def test_header_keys_that_are_no_text() -> None:
    keys = ["ok", "\udcff\udcfe", "é\udc80", "\ud800", "日本語", "\U0001f600"]
    made = ConsumerBatch()
    made.add(fetched(bytes(build_batch([(T0, None, b"", [(key, b"") for key in keys if key != "\ud800"])]))))
    table = made.to_arrow(["headers"])
    table.validate(full=True)
    seen = [header["key"] for header in table["headers"].to_pylist()[0]]
    assert seen == ["ok", "??", "???", "日本語", "\U0001f600"]


def test_pyarrow_missing_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make(ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install pyarrow"):
        batch.to_arrow()
    assert polars.DataFrame(batch.arrow()).height == 5


def test_a_chunk_that_was_begun_goes_on_where_it_was() -> None:
    chunk = fetched(bytes(build_batch([(T0, None, b"%d" % n) for n in range(6)])))
    assert len(chunk.take(2)) == 2
    batch = ConsumerBatch()
    assert batch.add(chunk) == 4 and batch.values == [b"2", b"3", b"4", b"5"]
    assert chunk.exhausted and drain(chunk) == [] and batch.add(chunk) == 0


@pytest.mark.parametrize("rows_max", [1, 3])
def test_a_batch_whose_topics_would_pass_a_column_comes_as_several_arrays(rows_max: int) -> None:
    data = bytes(build_batch([(T0, b"k%d" % number, None, []) for number in range(10)], base_offset=0, codec=1))
    topic = "topic" * 4
    batch = ConsumerBatch()
    assert batch.add(fetched(data, 0, topic=topic, partition=0), topic_bytes_max=rows_max * len(topic)) == 10
    assert [record.key for record in batch] == [batch[number].key for number in range(10)] == batch.keys
    export = ArrowExport(batch, ["key", "topic"], binary_bytes_max=rows_max * len(topic))
    pieces = [piece.num_rows for piece in pyarrow.RecordBatchReader.from_stream(export)]
    assert sum(pieces) == 10 and max(pieces) == rows_max
    table = pyarrow.table(batch.arrow(["key", "topic"]))
    assert table.column("key").to_pylist() == batch.keys and set(table.column("topic").to_pylist()) == {topic}
    assert batch.next_offsets == {(topic, 0): 10}
