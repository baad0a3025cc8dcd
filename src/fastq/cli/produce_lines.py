"""`fastq produce`: what a line of the input says of its record: a value, a value with key and headers before it, or JSON.

Rules: a line is what stands before a line feed, or a carriage return and one; everything else is the record's. `--json` takes what
`fastq consume --json` prints, and what `kcat -J` does: an object with value (or payload), key, headers and timestamp_ms (or ts), where
bytes that are no text are `{"base64": "..."}`. Topic and offset are passed over; the partition too, unless it is asked for. What is no
record raises BadLine, which says why.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fastq.cli.output import INT32_MAX, INT64_MAX, UsageError
from fastq.errors import FastqError

Headers = list[tuple[str, bytes | None]]


class BadLine(ValueError):
    """A line that is no record."""


class Parsed(NamedTuple):
    """A record to send. `headers` are its own; those of the command come before them."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = []  # noqa: RUF012  # it is never changed
    timestamp_ms: int | None = None
    partition: int | None = None


class Schemas(NamedTuple):
    """What makes bytes of the documents that keys and values are; None where they are bytes themselves."""

    key: Callable[[Any], bytes] | None = None
    value: Callable[[Any], bytes] | None = None


NO_SCHEMAS = Schemas()


def line_parser(options: argparse.Namespace, schemas: Schemas = NO_SCHEMAS) -> Callable[[bytes], Parsed]:
    """What makes a record of a line. Raises UsageError for options that make no sense together."""
    splits = {"--key-separator": options.key_separator, "--header-separator": options.header_separator}
    for option, text in splits.items():
        if text == "":
            raise UsageError(f"{option} is empty: a text that stands between the parts of a line is expected")
    if not options.json:
        if options.keep_partition:
            raise UsageError("--keep-partition needs --json: other lines say no partition")
        return _Plain(options, schemas)
    others = {**splits, "--null-marker": options.null_marker, "--key": options.key}
    given = [option for option, text in others.items() if text is not None]
    if options.encoding != "utf-8":
        given.append("--encoding")
    if given:
        raise UsageError(f"--json and {given[0]} exclude each other: JSON says itself what is what")
    if options.keep_partition and options.partition is not None:
        raise UsageError("--keep-partition and --partition exclude each other")
    return lambda line: _of_json(line, schemas, keep_partition=options.keep_partition)


def without_end(line: bytes) -> bytes:
    """A line without what ends it."""
    return line[:-2] if line.endswith(b"\r\n") else line[:-1] if line.endswith(b"\n") else line


class _Plain:
    """[headers, separator,] [key, separator,] value."""

    def __init__(self, options: argparse.Namespace, schemas: Schemas) -> None:
        self._key_separator = _bytes(options.key_separator)
        self._header_separator = _bytes(options.header_separator)
        self._key, self._null = _bytes(options.key), _bytes(options.null_marker)
        decoded: Callable[[bytes], bytes] = _of_base64 if options.encoding == "base64" else bytes
        self._of_key = decoded if schemas.key is None else partial(_of_text, "key", schemas.key)
        self._of_value = decoded if schemas.value is None else partial(_of_text, "value", schemas.value)
        if self._key is not None and schemas.key is not None:
            self._key = self._of_key(self._key)

    def __call__(self, line: bytes) -> Parsed:
        headers: Headers = []
        key, value = self._key, line
        if self._header_separator is not None:
            head, found, tail = value.partition(self._header_separator)
            if not found:
                raise BadLine(f"no {self._header_separator.decode()!r} ends its headers: {line[:60]!r}")
            headers, value = _headers(head), tail
        if self._key_separator is not None:
            head, found, tail = value.partition(self._key_separator)
            if found:
                key, value = self._of_key(head), tail
            elif key is None:
                hint = "--key gives one to lines without"
                raise BadLine(f"no {self._key_separator.decode()!r} ends its key ({hint}): {line[:60]!r}")
        return Parsed(None if value == self._null else self._of_value(value), key, headers)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _headers(text: bytes) -> Headers:
    """NAME=VALUE, separated by commas, as --format's %h shows them; NULL is null."""
    found: Headers = []
    for part in text.split(b",") if text else ():
        name, equals, value = part.partition(b"=")
        try:
            decoded = name.decode()
        except UnicodeDecodeError:
            decoded = ""
        if not equals or not decoded:
            raise BadLine(f"headers are NAME=VALUE,..., not {text[:60]!r}")
        found.append((decoded, None if value == b"NULL" else value))
    return found


def _of_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadLine(f"no base64 ({error}): {text[:60]!r}") from None


def _of_text(name: str, write: Callable[[Any], bytes], text: bytes) -> bytes:
    """What a schema makes of JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"{name}: JSON is expected with a schema ({error}): {text[:60]!r}") from None
    return _of_document(name, write, document)


def _of_document(name: str, write: Callable[[Any], bytes], document: Any) -> bytes:
    try:
        return write(document)
    except FastqError:  # the registry's, which says nothing of the line
        raise
    except Exception as error:  # the formats' libraries have errors of their own
        raise BadLine(f"{name}: it does not fit its schema: {type(error).__name__} {error}") from None


def _of_json(line: bytes, schemas: Schemas, *, keep_partition: bool) -> Parsed:
    try:
        text, errors = line.decode(), "strict"
    except UnicodeDecodeError:  # kcat puts bytes that are no text into its JSON as they are: so they are got back
        text, errors = line.decode("utf-8", "surrogateescape"), "surrogateescape"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"no JSON ({error}): {line[:60]!r}") from None
    if not isinstance(document, dict) or not document.keys() & {"value", "payload"}:
        raise BadLine(f'an object with a "value" or a "payload" is expected, not {line[:60]!r}')
    partition = document.get("partition") if keep_partition else None

    def data(name: str, given: Any, write: Callable[[Any], bytes] | None) -> bytes | None:
        return _data(name, given, errors) if write is None or given is None else _of_document(name, write, given)

    return Parsed(
        data("value", document.get("value", document.get("payload")), schemas.value),
        data("key", document.get("key"), schemas.key),
        _json_headers(document.get("headers"), errors),
        _whole("timestamp_ms", document.get("timestamp_ms", document.get("ts")), INT64_MAX),
        _whole("partition", partition, INT32_MAX),
    )


def _data(name: str, given: Any, errors: str) -> bytes | None:
    """A text, bytes that are said so, or null. What else JSON has goes out as JSON."""
    if given is None:
        return None
    if isinstance(given, dict) and given.keys() == {"base64"} and isinstance(given["base64"], str):
        try:
            return base64.b64decode(given["base64"], validate=True)
        except ValueError as error:  # binascii.Error, or characters beyond ASCII
            raise BadLine(f'"{name}": no base64 ({error}): {given["base64"][:60]!r}') from None
    try:
        text = (
            given
            if isinstance(given, str)
            else json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        )
        return text.encode("utf-8", errors)
    except RecursionError as error:  # writing may go a level less deep than reading
        raise BadLine(f'"{name}": {error}') from None
    except UnicodeEncodeError as error:
        raise BadLine(f'"{name}": no text: {error.reason}') from None
    except ValueError:  # Python reads NaN and Infinity, and takes 1e999 for the latter
        raise BadLine(f'"{name}": JSON has no such number (NaN, Infinity, or beyond 1.8e308): {given!r:.60}') from None


def _json_headers(given: Any, errors: str) -> Headers:
    """Pairs, as `fastq consume --json` has them; names and values in turn, as kcat has; or an object."""
    if given is None:
        return []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if isinstance(pairs, list) and pairs and all(isinstance(item, str) or item is None for item in pairs):
        pairs = list(zip(pairs[::2], pairs[1::2], strict=True)) if len(pairs) % 2 == 0 else None
    if not isinstance(pairs, list):
        raise BadLine('"headers": pairs [["name", "value"], ...] are expected')
    found: Headers = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadLine('"headers": pairs [["name", "value"], ...] are expected')
        _data("headers", pair[0], "strict")
        found.append((pair[0], _data("headers", pair[1], errors)))
    return found


def _whole(name: str, given: Any, most: int) -> int | None:
    if given is None or (name == "timestamp_ms" and given == -1):  # a record that has no time
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= most:
        raise BadLine(f'"{name}": a whole number is expected, not {given!r}')
    return given
