"""Formats and filters of `fastq consume`: what they make of a record, and what is told of those that are none."""

from __future__ import annotations

import pytest

from fastq import Record
from fastq.cli.consume_filter import parse_filter
from fastq.cli.consume_format import parse_format
from fastq.cli.output import UsageError


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> Record:
    return Record("logs", 3, 42, 1_700_000_000_000, 0, key, value, headers)


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("%t-%p@%o %T", b"logs-3@42 1700000000000"),
        (r"%k:%K %s:%S\n", b"k:1 v:1\n"),
        (r"%R%s", b"\x00\x00\x00\x01v"),
        (r"100%% \x41\t\\", b"100% A\t\\"),
        ("%h", b"a=1,b=NULL"),
        ("", b""),
    ],
)
def test_letters(form: str, shown: bytes) -> None:
    assert parse_format(form)(record(headers=(("a", b"1"), ("b", None)))) == shown


def test_what_is_null_is_nothing_and_has_no_size() -> None:
    assert parse_format("[%k|%K|%s|%S|%R]")(record(None, None)) == b"[|-1||-1|\xff\xff\xff\xff]"


@pytest.mark.parametrize("form", ["%x", "a%", "\\q", "\\"])
def test_an_unknown_letter_is_named(form: str) -> None:
    with pytest.raises(UsageError, match="is not known; letters are %t"):
        parse_format(form)


ORDER = b'{"order": {"price": 12.5, "lines": [{"sku": "a=b"}, {"sku": "c"}]}, "ok": true}'


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("value.order.price>10", True),
        ("value.order.price > 12.5", False),
        ("value.order.price>=12.5", True),
        ("value.order.price<=12", False),
        ("value.order.price<100", True),
        ("value.order.lines[1].sku=c", True),
        ("value.order.lines[*].sku=c", True),
        ("value.order['price']=12.50", True),
        ("value.order.lines[0].sku=a=b", True),
        ("value.order.price!=12.5", False),
        ("value.nothing?", False),
        ("value.ok?", True),
        ("value~price", True),
        ("key=k", True),
        ("key!=k", False),
        ("headers.trace=77", True),
        ("headers.trace?", True),
        ("headers.other?", False),
        ("timestamp>=1700000000000", True),
        ("timestamp<2001-01-01T00:00:00", False),
    ],
)
def test_filters(text: str, fits: bool) -> None:
    assert parse_filter(text)(record(ORDER, headers=(("trace", b"77"),))) is fits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "are expected, as in value.order.price>10"),
        ("value", "are expected"),
        ("__import__('os')=1", "are expected"),
        ("value.a?b", "nothing is expected behind"),
        ("timestamp>soon", "milliseconds since 1970"),
        ("timestamp.a=1", "compared with a time"),
        ("timestamp~1", "compared with a time"),
        ("value" + "[0]" * 40 + "=1", "up to 32 steps"),
    ],
)
def test_what_is_no_filter(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_filter(text)
    assert words in str(caught.value)


def test_bytes_that_are_no_text_are_filtered_without_an_error() -> None:
    assert parse_filter("value.a=1")(record(b"\xff\xfe", None)) is False
    assert parse_filter("value~x")(record(None, None)) is False
