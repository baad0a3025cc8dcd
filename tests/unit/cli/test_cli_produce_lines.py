"""`fastq produce`: records of lines, and what is said of lines that are none."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from fastq.cli.entry import build_parser
from fastq.cli.produce import _Sent, _tell
from fastq.cli.produce_lines import BadLine, Parsed, line_parser, without_end


def parsed(line: bytes, *arguments: str) -> Parsed:
    return line_parser(build_parser().parse_args(["produce", "t", *arguments]))(line)


@pytest.mark.parametrize(
    ("line", "rest"), [(b"a\n", b"a"), (b"a\r\n", b"a"), (b"a\r\r\n", b"a\r"), (b"a\r", b"a\r"), (b"\n", b"")]
)
def test_one_end_of_a_line_is_taken_away(line: bytes, rest: bytes) -> None:
    assert without_end(line) == rest


def test_parts_of_a_line() -> None:
    split = ("--header-separator", ";", "--key-separator", ":")
    assert parsed(b"a=1,b==,c=NULL,d=;k:v:w;x", *split) == Parsed(
        b"v:w;x", b"k", [("a", b"1"), ("b", b"="), ("c", None), ("d", b"")]
    )
    assert parsed(b";v", *split, "--key", "all") == Parsed(b"v", b"all")
    assert parsed(b";:", *split) == Parsed(b"", b"")
    assert parsed(b"v", "--key-separator", ":", "--key", "other") == Parsed(b"v", b"other")
    assert parsed(b"k:NIL", "--key-separator", ":", "--null-marker", "NIL") == Parsed(None, b"k")
    assert parsed(b"/w==:/g==", "--key-separator", ":", "--encoding", "base64") == Parsed(b"\xfe", b"\xff")


@pytest.mark.parametrize(
    ("document", "record"),
    [
        ({"value": "v"}, Parsed(b"v")),
        ({"value": None, "key": "k"}, Parsed(None, b"k")),
        ({"value": {"base64": "/w=="}}, Parsed(b"\xff")),
        ({"value": {"base64": "/w==", "more": 1}}, Parsed(b'{"base64":"/w==","more":1}')),
        ({"value": [1, "\u00e9"]}, Parsed('[1,"\u00e9"]'.encode())),
        (
            {"payload": "v", "ts": 7, "tstype": "create", "headers": ["a", "1", "b", None]},
            Parsed(b"v", None, [("a", b"1"), ("b", None)], 7),
        ),
        ({"value": "v", "headers": [["a", "1"], ["a", None]]}, Parsed(b"v", None, [("a", b"1"), ("a", None)])),
        ({"value": "v", "headers": {"a": "1"}, "timestamp_ms": -1}, Parsed(b"v", None, [("a", b"1")])),
        ({"value": "v", "partition": 3}, Parsed(b"v")),
    ],
)
def test_records_of_json(document: dict[str, Any], record: Parsed) -> None:
    assert parsed(json.dumps(document).encode(), "--json") == record


def test_bytes_in_json_that_are_no_text_are_kept_as_they_are() -> None:
    line = b'{"payload": "\xff\xc3\xa9\\n", "key": "\xfe", "headers": ["a", "\xfd"]}'
    assert parsed(line, "--json") == Parsed(b"\xff\xc3\xa9\n", b"\xfe", [("a", b"\xfd")])


def test_a_partition_is_kept_where_that_is_asked_for() -> None:
    assert parsed(b'{"value": "v", "partition": 3}', "--json", "--keep-partition").partition == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "an object"),
        (b'{"key": 1}', "an object"),
        (b'{"value": {"base64": "?"}}', '"value": no base64'),
        ('{"value": {"base64": "\u00e9"}}'.encode(), '"value": no base64'),
        (b'{"value": "\\ud800"}', '"value": no text'),
        (b'{"value": 1e999}', '"value": JSON has no such number .*: inf$'),
        (b'{"value": [NaN]}', r'"value": JSON has no such number .*: \[nan\]$'),
        (b'{"value": 1, "key": -Infinity}', '"key": JSON has no such number'),
        (b'{"value": 1, "headers": {"a": 1e999}}', '"headers": JSON has no such number'),
        (b'{"value": 1, "headers": {"\xff": "a"}}', '"headers": no text'),
        (b'{"value": 1, "headers": ["a"]}', '"headers": pairs'),
        (b'{"value": 1, "headers": [[1, "a"]]}', '"headers": pairs'),
        (b'{"value": 1, "headers": 5}', '"headers": pairs'),
        (b'{"value": 1, "timestamp_ms": true}', '"timestamp_ms": a whole number'),
        (b'{"value": 1, "timestamp_ms": 1e400}', '"timestamp_ms": a whole number'),
        (b'{"value": 1, "partition": -1}', '"partition": a whole number'),
    ],
)
def test_what_is_no_record_is_told(line: bytes, words: str) -> None:
    with pytest.raises(BadLine, match=words):
        parsed(line, "--json", "--keep-partition")


def test_a_document_of_any_depth_is_a_record_or_said_not_to_be_one() -> None:
    """One that could just be read could not be written."""
    parse = line_parser(build_parser().parse_args(["produce", "t", "--json"]))
    refused = 0
    for depth in range(sys.getrecursionlimit()):
        try:
            parse(b'{"value": ' + b"[" * depth + b"]" * depth + b"}")
        except BadLine:
            refused += 1
    assert refused or sys.version_info >= (3, 12), "it goes deeper there"


@pytest.mark.parametrize("line", [b"no separator", b"a;v", b"=1;v", b"\xff=1;v"])
def test_what_has_no_headers_is_told(line: bytes) -> None:
    with pytest.raises(BadLine, match="headers"):
        parsed(line, "--header-separator", ";")


def test_what_has_no_key_is_told() -> None:
    with pytest.raises(BadLine, match=r"no ':' ends its key \(--key gives one to lines without\): b'value'"):
        parsed(b"value", "--key-separator", ":")


def test_what_was_not_acknowledged_is_told_in_grammatical_words(capsys: pytest.CaptureFixture[str]) -> None:
    options = build_parser().parse_args(["produce", "t"])
    for count in (1, 2):
        sent = _Sent(None)
        sent.count = count
        _tell(sent, options)
    assert capsys.readouterr().err.splitlines() == [
        "fastq: 0 of 1 record was acknowledged",
        "fastq: 0 of 2 records were acknowledged",
    ]
