"""What the commands share: tables, JSON, bytes as text, progress and complaints on standard error.

Rules: nothing here talks to a broker. `options.json` is the shape in which programs read (one of SHAPES; `--json` is short for the first),
"" for people: a table. CSV has a line of names; what is nested is JSON in its cell. Sizes are shown in powers of 1024, rates in records a
second. In JSON, bytes that are UTF-8 are a string, and others an object `{"base64": "..."}`: what is shown can always be turned back.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ENCODINGS = ("auto", "utf-8", "base64")


class UsageError(ValueError):
    """Arguments that make no sense together, or a value that is none; exit code 2."""


INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1


def is_whole(text: str, high: int = INT32_MAX) -> bool:
    """Whether a text is a number of 0 to `high`, which the protocol carries, in plain digits (int() takes others, and str.isdigit() knows
    more than it does)."""
    return text.isascii() and text.isdigit() and len(text) < 30 and int(text) <= high


def whole(low: int = 0, high: int = INT32_MAX) -> Callable[[str], int]:
    """The type of options that take a whole number in a range: by default what the protocol has for ids and partitions."""

    def parse(text: str) -> int:
        digits = text.removeprefix("-") if low < 0 else text
        # Of more digits int() would say so in words of its own.
        found = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 4300 else None
        if found is None or not low <= found <= high:
            bounds = f"of {low} or more" if found is None or found < low else f"of {high} at most"
            raise argparse.ArgumentTypeError(f"a number {bounds} is expected, not {text!r}")
        return found

    return parse


count = whole(1, INT64_MAX)
"""The type of options that take a number of things."""


def sent(text: str, what: str = "text") -> str:
    """The type of texts that a request carries: what is no Unicode it could not, and Kafka's strings have INT16_MAX bytes at most."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"a {what} in Unicode is expected, not {text!r}") from None
    if size > INT16_MAX:
        raise argparse.ArgumentTypeError(f"a {what} of {INT16_MAX:,} bytes at most is expected, not one of {size:,}")
    return text


def nonempty(text: str) -> str:
    """The type of what is called by a name: a variable of a shell that is not set gives an empty one."""
    if not text:
        raise argparse.ArgumentTypeError("a name is expected, not an empty text")
    return sent(text, "name")


def is_name(text: object) -> bool:
    """Whether something that a file says can be sent as a name."""
    try:
        return isinstance(text, str) and 0 < len(text.encode()) <= INT16_MAX
    except UnicodeEncodeError:
        return False


def read_text(path: Path) -> str:
    """The text of a file of UTF-8, with a mark at its beginning or without; of standard input for `-`. UsageError names what is none."""
    if str(path) == "-":
        return sys.stdin.read() if sys.stdin is not None else ""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {data[error.start]:#04x} at position {error.start} is no UTF-8: save it as UTF-8"
        ) from None


def of_known(texts: Sequence[str], known: Sequence[str], option: str) -> list[str]:
    """What an option names, as it is spelt among what is known; UsageError with the nearest that is, or with all."""
    spelt = {name.lower(): name for name in known}
    for text in texts:
        if text.lower() not in spelt:
            near = difflib.get_close_matches(text.lower(), spelt, n=1)
            hint = f"did you mean {spelt[near[0]]}?" if near else f"it is one of {', '.join(known)}"
            raise UsageError(f"{option} {text!r} is not known, {hint}")
    return [spelt[text.lower()] for text in texts]


def seconds(text: str) -> float:
    """The type of options that take a time."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"a number of seconds is expected, not {text!r}")
    return found


def rate(text: str) -> float:
    """The type of options that take records a second."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"records a second are expected, more than 0, not {text!r}")
    return found


LINE_CHARACTERS_MAX = 2000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """What is complained of, whatever it quotes: control characters as escapes, so that no name moves the terminal's cursor, and the middle
    of what is longer than LINE_CHARACTERS_MAX left out, as both ends say what is wrong."""
    if len(text) > LINE_CHARACTERS_MAX:
        half = LINE_CHARACTERS_MAX // 2
        text = f"{text[:half]}...({len(text) - 2 * half:,} characters left out)...{text[-half:]}"
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def complain(text: str) -> None:
    """A line on standard error, over a line of progress if one is there."""
    if sys.stderr is None:
        return
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}fastq: {one_line(text)}", file=sys.stderr, flush=True)


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


SHAPES = ("json", "csv", "yaml")


def _shape(text: str) -> str:
    if text not in ("table", *SHAPES):
        raise argparse.ArgumentTypeError(f"one of table, {', '.join(SHAPES)} is expected, not {text!r}")
    return "" if text == "table" else text


def add_json_option(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """`--output`, and `--json` for what is asked for most; `again`: the command above has them too, and what it was given counts."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--output",
        dest="json",
        default=argparse.SUPPRESS if again else "table",
        type=_shape,
        metavar="table|json|csv|yaml",
        help="what to print (default: a table)",
    )
    shape.add_argument(
        "--json",
        dest="json",
        action="store_const",
        const="json",
        default=argparse.SUPPRESS,
        help="short for --output json",
    )


_SECRET = ("password", "secret", "scram", "jaas", "keystore.key")


def is_secret(value: str, name: str = "") -> bool:
    """Whether nobody else is to read a value, by its own words or by the name of its setting, however that is misspelt."""
    words = f"{name} {value}".lower()
    return any(part in words for part in _SECRET)


def told(value: str, name: str = "") -> str:
    """A value as messages have it, in quotes; `[hidden]` for what may be a secret."""
    return "[hidden]" if is_secret(value, name) else repr(value)


def key_values(pairs: Sequence[str], option: str, *, once: bool = False) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dictionary; a clear error for what has no `=`, and with `once` for a key that is there again."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            word = re.match(r"[\w.-]*", pair)  # and no more of it: what follows may be a secret
            assert word is not None
            begins = "" if word[0] == pair else "what begins with "
            raise UsageError(f"{option} takes KEY=VALUE, not {begins}{word[0]!r}")
        if once and key in found:
            raise UsageError(
                f"{option} names {key} twice, with {told(found[key], key)} and {told(value, key)}: give it once"
            )
        found[key] = value
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


def print_json(document: Any, shape: str = "json", columns: Sequence[str] = ()) -> None:
    """A document for programs, as JSON or in another of SHAPES. `columns` are those that CSV has in any case, and the first one's name is
    that of values which are no objects."""
    if shape == "csv":
        print_csv(document, columns)
    elif shape == "yaml":
        print("\n".join(as_yaml(json.loads(json.dumps(document, default=_jsonable)))))
    else:
        print(json.dumps(document, indent=2, sort_keys=False, default=_jsonable))


def print_json_stream(
    head: Mapping[str, object], name: str, rows: Iterable[object], tail: Callable[[], Mapping[str, object]]
) -> None:
    """A JSON document with a list that is written as it comes: what stands before it, its name and items, what `tail` answers behind it."""
    print("{")
    for key, value in head.items():
        print(f"  {json.dumps(key)}: {json.dumps(value, default=_jsonable)},")
    print(f"  {json.dumps(name)}: [", end="")
    count = 0
    for count, row in enumerate(rows, 1):
        text = json.dumps(row, indent=2, default=_jsonable).replace("\n", "\n    ")
        print(f"{',' if count > 1 else ''}\n    {text}", end="")
    print("\n  ]" if count else "]", end="")
    for key, value in tail().items():
        print(f",\n  {json.dumps(key)}: {json.dumps(value, default=_jsonable)}", end="")
    print("\n}")


def print_csv(document: Any, columns: Sequence[str] = ()) -> None:
    """A row for each of a list, or one for all; the columns are these, and all other names that there are."""
    import csv

    rows = document if isinstance(document, (list, tuple)) else [document]
    only = columns[0] if columns else "value"
    rows = [row if isinstance(row, Mapping) else {only: row} for row in rows]
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    if names:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: object) -> object:
    if value is None or isinstance(value, (str, int, float)):
        return str(value).lower() if isinstance(value, bool) else value
    return json.dumps(value, default=_jsonable, ensure_ascii=False)


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])
_TO_ESCAPE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


def as_yaml(value: Any) -> Iterator[str]:
    """Lines of a document of what JSON has. A text that could be taken for something else is quoted as in JSON, which YAML reads."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            if isinstance(below, (dict, list)) and below:
                yield f"{_scalar(str(key))}:"
                yield from (f"  {line}" for line in as_yaml(below))
            else:
                yield f"{_scalar(str(key))}: {_scalar(below)}"
    elif isinstance(value, list) and value:
        for below in value:
            for at, line in enumerate(as_yaml(below)):
                yield f"  {line}" if at else f"- {line}"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _jsonable(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return shown_in_json(bytes(value))
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, widths_of: int | None = None) -> None:
    """A table with left-aligned text and right-aligned numbers; the header alone when there are no rows. `widths_of`: how many rows say
    how wide it is, and are held; each of the others is printed as it comes, and a wider cell of it pushes its line. None: all."""
    rows = iter(rows)
    first = list(itertools.islice(rows, widths_of))
    cells = [[_shown(value) for value in row] for row in first]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    numeric = [bool(first) and all(isinstance(row[at], (int, float)) for row in first) for at in range(len(columns))]

    def line(values: Iterable[str]) -> str:
        padded = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    print(line(name.upper() for name in columns))
    for row in cells:
        print(line(row))
    for more in rows:
        print(line(map(_shown, more)))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def print_records(columns: Sequence[str], rows: Sequence[Mapping[str, object]], shape: str) -> None:
    """The same rows as a table or, for programs, as one array."""
    if shape:
        print_json([dict(row) for row in rows], shape, columns)
    else:
        print_table(columns, [[row[name] for name in columns] for row in rows])


def print_facts(facts: Mapping[str, object], shape: str) -> None:
    """What there is one of: a line each or, for programs, one object whose keys have underscores."""
    if shape:
        print_json({name.replace(" ", "_").replace("-", "_"): value for name, value in facts.items()}, shape)
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


def columns(stream: Any) -> int:
    """The width of the terminal that a stream is; 80 where it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


WAITING_S = 1.0


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
        # A line that wraps could not be written over.
        line = f"{self._label} {done:,}{of}  {rate:,.0f}/s"[: max(columns(sys.stderr) - 1, 0)]
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Waiting:
    """For what tells nothing before its end: one line on standard error with how long it takes, once that is more than a second; silent
    where that is no terminal. A context manager; `told`, if there is one, is asked in another thread what stands behind the label."""

    def __init__(self, label: str, told: Callable[[], str] | None = None) -> None:
        self._label = label
        self._told = told
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._tell, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _tell(self) -> None:
        began, shown = time.monotonic(), False
        while not self._ended.wait(WAITING_S):
            done = "" if self._told is None else self._told()
            line = f"{self._label}{done}  {time.monotonic() - began:.0f} s"[: max(columns(sys.stderr) - 1, 0)]
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
            shown = True
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
