"""What the commands share: tables, JSON, bytes as text, progress and complaints on standard error.

Rules: nothing here talks to a broker. Sizes are shown in powers of 1024, rates in records a second. In JSON, bytes that are UTF-8 are a
string, and others an object `{"base64": "..."}`: what is shown can always be turned back.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

ENCODINGS = ("auto", "utf-8", "base64")


class UsageError(ValueError):
    """Arguments that make no sense together, or a value that is none; exit code 2."""


def count(text: str) -> int:
    """The type of options that take a number of things: 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of 1 or more is expected, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """The type of options that take a time."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"a number of seconds is expected, not {text!r}")
    return found


def complain(text: str) -> None:
    """A line on standard error, over a line of progress if one is there."""
    if sys.stderr is None:
        return
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}fastq: {text}", file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """A number of things in words: `1 record`, `2,000 records`."""
    things = thing if number == 1 else f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number:,} {things}"


class Subparsers:
    """The part of argparse's sub-parser action that the commands use, with one look for all help pages."""

    def __init__(self, commands: Any) -> None:
        self._commands = commands

    def add(self, name: str, summary: str, example: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = self._commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        return parser


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def key_values(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dictionary; a clear error for what has no `=`."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} takes KEY=VALUE, not {pair!r}")
        found[key.strip()] = value.strip()
    return found


def shown_in_json(data: bytes | None, encoding: str = "auto") -> str | dict[str, str] | None:
    """Bytes as JSON shows them: text, or where they are no UTF-8 (or with `base64`: always) an object that says so. `utf-8`: always
    text, with what cannot be read replaced."""
    if data is None:
        return None
    if encoding != "base64":
        try:
            return bytes(data).decode("utf-8", "strict" if encoding == "auto" else "replace")
        except UnicodeDecodeError:
            pass
    return {"base64": base64.b64encode(data).decode("ascii")}


def add_encoding_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--encoding", default="auto", choices=ENCODINGS, help=help_text)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, sort_keys=False, default=_jsonable))


def _jsonable(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return shown_in_json(bytes(value))
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table with left-aligned text and right-aligned numbers; the header alone when there are no rows."""
    cells = [[_shown(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    numeric = [bool(rows) and all(isinstance(row[at], (int, float)) for row in rows) for at in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    print(line([name.upper() for name in columns]))
    for row in cells:
        print(line(row))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def print_records(columns: Sequence[str], rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """The same rows as a table or, with `--json`, as one JSON array."""
    if as_json:
        print_json([dict(row) for row in rows])
    else:
        print_table(columns, [[row[name] for name in columns] for row in rows])


def print_facts(facts: Mapping[str, object], as_json: bool) -> None:
    """What there is one of: a line each or, with `--json`, one object whose keys have underscores."""
    if as_json:
        print_json({name.replace(" ", "_").replace("-", "_"): value for name, value in facts.items()})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name.ljust(width)}  {_shown(value)}")


def shown_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


class Progress:
    """One line on standard error, rewritten at most ten times a second; silent where that is no terminal."""

    def __init__(self, label: str, total: int | None = None, *, shown: bool = True) -> None:
        self._label = label
        self._total = total
        self._live = shown and sys.stderr is not None and sys.stderr.isatty()
        self._started = self._shown = time.monotonic()

    def update(self, done: int) -> None:
        now = time.monotonic()
        if not self._live or now - self._shown < 0.1:
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-9)
        of = f" of {self._total:,}" if self._total else ""
        print(f"\r{self._label} {done:,}{of}  {rate:,.0f}/s\x1b[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
