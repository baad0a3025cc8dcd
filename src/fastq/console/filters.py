"""Which records somebody looks for: a text, or a path into one part, a comparison and a value. Data, never code.

Rules: a text is looked for in keys, values, and names and values of headers; in the bytes where these are what is shown, else in what
is shown, so that no search finds what a mask hides. What is found is a number where JSON says so, or where a key, header or text is
written as JSON writes one: "007" and "1_000" are texts. Numbers are compared as numbers, all else as texts; "text =" and "text !="
compare what is written, letter by letter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastq.console import paths
from fastq.console.decoding import Field, Row

PARTS = ("value", "key", "headers")
COMPARISONS = ("=", "!=", "text =", "text !=", "contains", "<", ">", "exists")
NUMBER_LENGTH_MAX = 40
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Filter:
    """`text` is empty, or looked for; `path` is None, or compared. Both must hold."""

    text: str = ""
    ignore_case: bool = False
    part: str = "value"
    path: paths.Path | None = None
    comparison: str = "="
    value: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether every record fits."""
        return not self.text and self.path is None

    @property
    def is_of_bytes(self) -> bool:
        """Whether `may_fit` has the last word about the text; what is upper and lower case beyond ASCII, a decoded text says."""
        return not self.ignore_case or self.text.isascii()

    def may_fit(self, record: Any) -> bool:
        """Whether the bytes of a record have the text: to be asked only where the bytes are what is shown."""
        if not self.text:
            return True
        needle = self.text.encode("utf-8", "surrogatepass")
        if not self.is_of_bytes:
            return True
        parts: Iterator[bytes | None] = _bytes_of(record)
        if self.ignore_case:
            needle = needle.lower()
            return any(needle in part.lower() for part in parts if part)
        return any(needle in part for part in parts if part)

    def fits(self, row: Row, *, text_checked: bool = False) -> bool:
        """Whether a record fits, as it is shown; `text_checked`: its bytes have the text."""
        has_text = not self.text or text_checked or self._has_text(row)
        return has_text and (self.path is None or self._compares(row))

    def _has_text(self, row: Row) -> bool:
        needle = self.text.lower() if self.ignore_case else self.text
        return any(needle in (text.lower() if self.ignore_case else text) for text in _texts_of(row))

    def _compares(self, row: Row) -> bool:
        assert self.path is not None
        if self.part == "headers":
            name, rest = (self.path[0], self.path[1:]) if self.path else (None, ())
            fields = [field for header, field in row.headers if name in (None, header)]
        else:
            fields, rest = [row.key if self.part == "key" else row.value], self.path
        found = [value for field in fields for value in _found(field, rest)]
        if self.comparison == "exists":
            return bool(found)
        if self.comparison.endswith("!="):
            equal = self.comparison.replace("!", "")
            return bool(found) and not any(_compare(value, equal, self.value) for value in found)
        return any(_compare(value, self.comparison, self.value) for value in found)


def _bytes_of(record: Any) -> Iterator[bytes | None]:
    yield record.value
    yield record.key
    for name, value in record.headers:
        yield name.encode("utf-8", "surrogatepass")
        yield value


def _texts_of(row: Row) -> Iterator[str]:
    for field in (row.value, row.key):
        yield field.text
    for name, field in row.headers:
        yield name
        yield field.text


def _found(field: Field, path: paths.Path) -> Iterator[Any]:
    if field.has_document:
        yield from paths.find(path, field.document)
    elif not path:
        yield field.text


def _compare(found: Any, comparison: str, wanted: str) -> bool:
    text = _text(found)
    if comparison == "contains":
        return wanted in text
    if comparison == "text =":
        return text == wanted
    number, other = _number(found), _number(wanted)
    if number is not None and other is not None:
        return number == other if comparison == "=" else number < other if comparison == "<" else number > other
    return text == wanted if comparison == "=" else text < wanted if comparison == "<" else text > wanted


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value) if len(value) <= NUMBER_LENGTH_MAX else None
        return None if match is None else float(value) if match[1] or match[2] else int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
