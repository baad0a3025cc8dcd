"""What `fastq consume` makes of a record: keys and values decoded, and lines of text, JSON or CSV, or rows of a Parquet file.

Rules: what is decoded is JSON from there on, for filters too: text of it where a style takes bytes, the document in JSON. In CSV null
is empty, and an empty text is quoted. A Parquet file has the columns of `fastq.read_topic`, with headers, holds ROWS_MAX rows or
ROWS_BYTES at once in memory, and is whole at whatever end the command comes to.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastq.cli.consume_format import parse_format
from fastq.cli.output import Progress, UsageError, shown_in_json

if TYPE_CHECKING:
    from fastq import Record

ROWS_MAX, ROWS_BYTES = 50_000, 32 << 20
CSV_COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


class Shown(NamedTuple):
    """A record as it is shown: with its decoded key and value as JSON's text, and as documents."""

    record: Record
    key: Any
    value: Any


# -- decoding


def decoder(options: argparse.Namespace) -> Callable[[Record], Shown]:
    """What reads keys and values as the options say. Raises UsageError."""
    encoding = options.encoding
    if options.decode:
        return _of_internal_topics(options)
    if options.schema_registry is not None:
        from fastq.cli.schemas import SchemaReader, opened_registry

        reader = SchemaReader(opened_registry(options.schema_registry))

        def by_schema(record: Record) -> Shown:
            parts = []
            for part, data in (("key", record.key), ("value", record.value)):
                framed, document = reader.read(record, part, data)
                parts.append((_text(document), document) if framed else (data, shown_in_json(data, encoding)))
            (key, key_document), (value, value_document) = parts
            return Shown(_with(record, key, value), key_document, value_document)

        return by_schema
    return lambda record: Shown(record, shown_in_json(record.key, encoding), shown_in_json(record.value, encoding))


def _of_internal_topics(options: argparse.Namespace) -> Callable[[Record], Shown]:
    from fastq.cli.internal_records import DECODERS, decoder_for

    strange = [topic for topic in options.topics if decoder_for(topic) is None]
    if strange:
        known = ", ".join(each.topic for each in DECODERS.values())
        raise UsageError(f"--decode knows Kafka's own topics, {known}, and not {strange[0]}")

    def decode(record: Record) -> Shown:
        found = decoder_for(record.topic)
        if found is None:  # one of those that a pattern brought
            return Shown(record, shown_in_json(record.key), shown_in_json(record.value))
        key, value = found.decode(record.key, record.value)
        return Shown(_with(record, _text(key), _text(value)), key, value)

    return decode


def _with(record: Record, key: bytes | None, value: bytes | None) -> Record:
    from fastq import Record

    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
        key,
        value,
        record.headers,
        record.leader_epoch,
    )


def _text(document: Any) -> bytes | None:
    return None if document is None else _bytes(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _bytes(text: str) -> bytes:
    """JSON in UTF-8. Half of a surrogate pair, which JSON may have and UTF-8 cannot, stays the escape that it was."""
    return text.encode("utf-8", "backslashreplace")


# -- showing


def shower(options: argparse.Namespace) -> Callable[[Shown], bytes]:
    """What makes a record's bytes in the style that was asked for. Raises UsageError."""
    if options.format is not None:
        parts = parse_format(options.format)
        return lambda shown: parts(shown.record)
    if options.output == "json":
        return lambda shown: _json_line(as_document(shown, options.encoding))
    if options.output == "csv":
        return lambda shown: csv_line(as_document(shown, options.encoding).values())
    if options.decode and not options.verbose and options.key_separator is None:
        return lambda shown: _json_line({"key": shown.key, "value": shown.value})
    return lambda shown: _plain_line(shown.record, options)


def _json_line(document: dict[str, Any]) -> bytes:
    return _bytes(json.dumps(document, ensure_ascii=False) + "\n")


def _plain_line(record: Record, options: argparse.Namespace) -> bytes:
    encoding = options.encoding
    value = _plain(record.value, encoding, b"null")
    if options.verbose:
        head = f"{record.topic}-{record.partition}@{record.offset} {record.timestamp_ms} "
        return head.encode() + _plain(record.key, encoding, b"null") + b" " + value + b"\n"
    if options.key_separator is not None:
        separator: str = options.key_separator
        return _plain(record.key, encoding, b"") + separator.encode() + value + b"\n"
    return value + b"\n"


def _plain(data: bytes | None, encoding: str, null: bytes) -> bytes:
    if data is None:
        return null
    if encoding == "base64":
        return base64.b64encode(data)
    return data if encoding == "auto" else data.decode("utf-8", "replace").encode()


def as_document(shown: Shown, encoding: str) -> dict[str, Any]:
    """A record as JSON shows it; see `shown_in_json` for its bytes."""
    record = shown.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": shown.key,
        "value": shown.value,
        "headers": [[key, shown_in_json(value, encoding)] for key, value in record.headers],
    }


def csv_line(cells: Any) -> bytes:
    """A line of RFC 4180 that tells what is null from what is empty, as the library's writer does from Python 3.12 on alone."""
    return _bytes(",".join(map(_csv_cell, cells)) + "\n")


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not text or any(letter in text for letter in ',"\r\n') or text != text.strip():
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    return text


# -- where it goes


class Sink(Protocol):
    """What takes records. What was flushed stays, whatever comes then."""

    def write(self, shown: Shown) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Standard output, with a line of progress beside it where that is no terminal and what progress is told to is one."""

    def __init__(self, options: argparse.Namespace, show: Callable[[Shown], bytes]) -> None:
        self._show = show
        self._write = sys.stdout.buffer.write
        self._progress = Progress("records", shown=not sys.stdout.isatty())
        self._count = 0
        if options.output == "csv":
            self._write(csv_line(CSV_COLUMNS))

    def write(self, shown: Shown) -> None:
        self._write(self._show(shown))
        self._count += 1

    def flush(self) -> None:
        sys.stdout.flush()
        self._progress.update(self._count)

    def close(self) -> None:
        self._progress.close()


class ParquetFile:
    """Invariant: a row is in the file, or among those held, which `close` writes."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow  # type: ignore[import-untyped]  # it has no stubs
            import pyarrow.parquet  # type: ignore[import-untyped]
        except ImportError as error:
            raise UsageError(f"--parquet needs pyarrow: pip install pyarrow ({error})") from None
        from fastq._native.columns import ConsumerBatch

        self._arrow = pyarrow
        self._schema = ConsumerBatch().to_arrow(headers=True).schema
        self._file = path.open("wb")  # pyarrow's own errors of a path do not name it
        self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = self._count = 0
        self._progress = Progress("records")

    def write(self, shown: Shown) -> None:
        record = shown.record
        self._rows.append(
            (
                record.key,
                record.value,
                record.topic,
                record.partition,
                record.offset,
                record.timestamp_ms,
                record.timestamp_type,
                [{"key": name, "value": data} for name, data in record.headers],
            )
        )
        self._bytes += len(record.key or b"") + len(record.value or b"") + 100
        self._count += 1
        if len(self._rows) >= ROWS_MAX or self._bytes >= ROWS_BYTES:
            self._write_rows()

    def flush(self) -> None:
        self._progress.update(self._count)

    def _write_rows(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [
            self._arrow.array(column, self._arrow.int64()).cast(self._arrow.timestamp("ms", "UTC")).cast(field.type)
            if self._arrow.types.is_timestamp(field.type)
            else self._arrow.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()
        self._bytes = 0

    def close(self) -> None:
        self._progress.close()
        try:
            if self._rows:
                self._write_rows()
        finally:
            with self._file:
                self._writer.close()


def opened_sink(options: argparse.Namespace, show: Callable[[Shown], bytes]) -> Sink:
    """Where the records go. Raises UsageError, OSError."""
    return Lines(options, show) if options.parquet is None else ParquetFile(options.parquet)
