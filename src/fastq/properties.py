"""Java's properties files, what Kafka's servers and tools are configured with, and TOML's tables as the same keys.

Rules: text in, texts by key out; what a key means, and whether it is known, is its reader's. The broker reads its server.properties
here, the command line its --command-config.
"""

from __future__ import annotations

import codecs
import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastq.errors import ConfigError, MissingPackage

_NOT_UTF8 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def toml() -> Any:
    """The module that reads TOML: the standard library's from Python 3.11 on, tomli, the same parser, in 3.10. Called where there is such a
    file, and no earlier. Raises MissingPackage."""
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise MissingPackage.needed("a TOML file", "tomli", error) from error


def settings_text(path: Path) -> str:
    """The text of a file of settings: UTF-8, with a mark at its beginning or without. Properties may be ISO-8859-1 too, as which Java reads
    them. Raises ConfigError that says of what the file is, and what to do; it does not name the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
    if data.startswith(_NOT_UTF8):
        raise ConfigError("it is UTF-16 or UTF-32: save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data.decode("iso-8859-1")
        if path.suffix != ".toml" and not _NO_TEXT.search(text):
            return text
        raise ConfigError(
            f"byte {data[error.start]:#04x} at position {error.start} is no UTF-8: save it as UTF-8"
        ) from None


def parse_properties(text: str, repeated: list[str] | None = None) -> dict[str, str]:
    """Java's properties: `#` and `!` comments, `=`, `:` or blank after the key, `\\` escapes and continues a line. Of a key that is there
    more than once the last value holds, as in Java; `repeated` gets a sentence for each time, with both lines."""
    found: dict[str, str] = {}
    places: dict[str, int] = {}
    for number, line in _logical_lines(text):
        key, position = _take_key(line)
        rest = line[position:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        name, value = _unescape(key), _unescape(rest)
        if repeated is not None and name in found:
            repeated.append(f"{name} is in line {places[name]} and again in line {number}: the last one holds")
        found[name], places[name] = value, number
    return found


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A TOML document with Kafka's names: its dotted keys are tables in tables."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


_LINE_END = re.compile("\r\n|\r|\n")


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with continuations joined, without comments and blank lines, each with the number of its first."""
    lines: list[tuple[int, str]] = []
    pending, began = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        # splitlines() knows ends that Java does not, a form feed among them.
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        began = began if pending else number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending += line[:-1]
            continue
        lines.append((began, pending + line))
        pending = ""
    return [*lines, (began, pending)] if pending else lines


def _take_key(line: str) -> tuple[str, int]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return line[:position], min(position, len(line))


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        escape = text[position]
        position += 1
        if escape == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or not set(digits) <= _HEXADECIMAL:
                raise ConfigError(f"\\u{digits} is not a character: four hexadecimal digits must follow \\u")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escape, escape))
    return "".join(out)
