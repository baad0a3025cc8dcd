"""`fastq consume --filter`: which records are shown, said as data: a part of a record, a comparison, a value.

    value.order.lines[0].price>10    key=customer-1    headers.trace?    value~timeout    timestamp>=2026-11-23T10:00:00

Rules: parts are key, value, headers and timestamp, and behind them a path into JSON as the console has it; comparisons are = != < <= > >=,
~ (contains) and ? (is there). Two numbers are compared as numbers, anything else as text. Nothing is evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.cli.output import UsageError
from fastq.words import read_time_ms

if TYPE_CHECKING:
    from fastq import Record

_FORM = re.compile(
    r"""(key|value|headers|timestamp)
        ((?:\.\*|\.[^.\[\]'"*\s=<>!~?]+|\[\d+\]|\['[^']*'\]|\["[^"]*"\]|\[\*\])*)
        \s*(!=|<=|>=|=|<|>|~|\?)\s*(.*)""",
    re.DOTALL | re.VERBOSE,
)
_NUMBERS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def milliseconds(text: str, option: str) -> int:
    """A time of an option, in ms since 1970. Raises UsageError."""
    try:
        return read_time_ms(text)
    except ValueError:
        raise UsageError(
            f"{option} takes milliseconds since 1970, or a date like 2026-11-21T10:00:00, not {text!r}"
        ) from None


def parse_filter(text: str) -> Callable[[Record], bool]:
    """Whether a record fits. Raises UsageError for what is none."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--filter {text!r}: key, value, headers or timestamp, a path into JSON, and a comparison (= != < <= > >= ~ ?) with a value "
            "are expected, as in value.order.price>10"
        )
    part, path, comparison, value = match.groups()
    if part == "timestamp":
        if path or comparison not in _NUMBERS:
            raise UsageError(f"--filter {text!r}: a timestamp is compared with a time, by = != < <= > >=")
        compare, time = _NUMBERS[comparison], milliseconds(value, f"--filter {text!r}: timestamp")
        return lambda record: bool(compare(record.timestamp_ms, time))
    return _of_part(text, part, path, comparison, value)


def _of_part(text: str, part: str, path: str, comparison: str, value: str) -> Callable[[Record], bool]:
    # The console's, which is no part of other commands' start.
    from fastq.console import paths
    from fastq.console.decoding import Row, decode
    from fastq.console.filters import Filter

    try:
        steps = paths.parse(f"${path}")
    except ValueError as error:
        raise UsageError(f"--filter {text!r}: {error}") from None
    if comparison == "?" and value:
        raise UsageError(f"--filter {text!r}: nothing is expected behind ?")
    word = {"~": "contains", "?": "exists"}.get(comparison, comparison.rstrip("=") or "=")
    word = "!=" if comparison == "!=" else word
    wanted = [Filter(part=part, path=steps, comparison=word, value=value)]
    if comparison in ("<=", ">="):
        wanted.append(Filter(part=part, path=steps, comparison="=", value=value))

    def fits(record: Record) -> bool:
        headers = tuple((name, decode(data)) for name, data in record.headers)
        row = Row(
            record.partition, record.offset, record.timestamp_ms, decode(record.key), decode(record.value), headers, 0
        )
        return any(each.fits(row) for each in wanted)

    return fits
