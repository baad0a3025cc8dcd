"""What send_many makes of Arrow data, read back out of its batches; and the same rows as pyarrow reads them."""

import pyarrow as pa
import record_oracle
from test_accumulator import Core

from fastq._native.send_many import SendMany

PARTITIONS = 4


def records(values, *, keys=None, partition=None, convert=None):
    """(value, key, headers, timestamp) of what send_many makes of Arrow data, by partition."""
    core = Core(PARTITIONS)
    taken = {}

    def take():
        for index, batches in core.take_all().items():
            taken.setdefault(index, []).extend(batches)

    through = None if convert is None else lambda *row: (core.topic, *convert(*row), None)
    call = SendMany(core, core.topic, values, keys, None, partition, None, through)
    while not call.step():
        if call.needs_room:
            take()
        core._attend()
    take()
    return {
        index: [
            (value, key, headers, timestamp)
            for batch in batches
            for _, timestamp, key, value, headers in record_oracle.decode(batch)
        ]
        for index, batches in taken.items()
    }


def as_bytes(value):
    return value.encode() if isinstance(value, str) else value


def as_headers(entries):
    """What to_pylist gives for a list of structs or for a map, as headers."""
    pairs = [(entry["key"], entry["value"]) if isinstance(entry, dict) else entry for entry in entries or ()]
    return [(key if isinstance(key, str) else key.decode(), as_bytes(value)) for key, value in pairs]


def expected(table):
    """The same as `records`, from pyarrow's own reading."""
    found = {}
    columns = {name: table[name] for name in table.column_names}
    if "timestamp" in columns:
        columns["timestamp"] = plain(columns["timestamp"]).cast(pa.int64())
    lists = {name: column.to_pylist() for name, column in columns.items()}
    for row in range(table.num_rows):
        at = {name: values[row] for name, values in lists.items()}
        found.setdefault(at.get("partition", 0), []).append(
            (as_bytes(at["value"]), as_bytes(at.get("key")), as_headers(at.get("headers")), at.get("timestamp"))
        )
    return found


def plain(column):
    """Without dictionaries and runs."""
    return pa.chunked_array([pa.array(column.to_pylist(), innermost(column.type))])


def innermost(kind):
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind
