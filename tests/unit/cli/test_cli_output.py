"""What programs read: every command's `--output`, and how documents look in each shape."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastq.cli import partitions
from fastq.cli.entry import build_parser
from fastq.cli.output import print_json, print_records
from fastq.metadata import TopicPartition

ROWS = [
    {"topic": "a,b", "replicas": [1, 2], "rack": None, "ok": True},
    {"topic": 'say "x"\n', "replicas": [], "rack": "r-1", "lag": 0.5},
]


def shown(capsys: pytest.CaptureFixture[str], document: object, shape: str) -> str:
    capsys.readouterr()
    print_json(document, shape)
    return capsys.readouterr().out


def test_csv_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(csv.DictReader(io.StringIO(shown(capsys, ROWS, "csv"))))
    assert found == [
        {"topic": "a,b", "replicas": "[1, 2]", "rack": "", "ok": "true", "lag": ""},
        {"topic": 'say "x"\n', "replicas": "[]", "rack": "r-1", "ok": "", "lag": "0.5"},
    ]
    assert shown(capsys, {"a": 1, "b": {"c": b"\xff"}}, "csv") == 'a,b\n1,"{""c"": {""base64"": ""/w==""}}"\n'
    assert shown(capsys, ["x", "y"], "csv") == "value\nx\ny\n"
    assert shown(capsys, [], "csv") == ""


def test_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "topic": "logs",
        "no": "off",
        "number": "12",
        "time": "2026-11-23",
        "size": 1.5,
        "none": None,
        "ok": True,
        "empty": [],
        "nothing": {},
        "text": 'a: "b" # c\n\x85',
        "replicas": [1, 2],
        "rows": [{"a": {"b": "x y"}, "c": [[1], "z"]}],
    }
    assert shown(capsys, document, "yaml").splitlines() == [
        "topic: logs",
        '"no": "off"',
        'number: "12"',
        'time: "2026-11-23"',
        "size: 1.5",
        "none: null",
        "ok: true",
        "empty: []",
        "nothing: {}",
        'text: "a: \\"b\\" # c\\n\\u0085"',
        "replicas:",
        "  - 1",
        "  - 2",
        "rows:",
        "  - a:",
        '      b: "x y"',
        "    c:",
        "      - - 1",
        "      - z",
    ]
    assert shown(capsys, "x", "yaml") == "x\n"


def test_rows_in_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(["a"], [{"a": 1, "more": 2}], "")
    assert capsys.readouterr().out == "A\n1\n"
    print_records(["a"], [{"a": 1, "more": 2}], "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "more": 2}]
    print_records(["a"], [{"a": 1, "more": 2}], "csv")
    assert capsys.readouterr().out == "a,more\n1,2\n"
    print_records(["a", "b"], [], "csv")
    assert capsys.readouterr().out == "a,b\n", "who reads it knows the columns where there is nothing, too"
    print_json(["x"], "csv", ["topic"])
    assert capsys.readouterr().out == "topic\nx\n"


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for child in action.choices.values():
            yield from leaves(child)
    if not below:
        yield parser


# Records are a line each; a file's faults are beside its rows.
OWN_JSON = (
    "fastq consume",
    "fastq produce",
    "fastq dump-log",
)


@pytest.mark.parametrize("parser", list(leaves(build_parser())), ids=lambda parser: parser.prog)
def test_who_prints_json_prints_the_others_too(parser: argparse.ArgumentParser) -> None:
    options = parser._option_string_actions
    if "--json" in options and parser.prog not in OWN_JSON:
        assert "--output" in options


@pytest.mark.parametrize(
    ("shape", "text"), [("csv", "moving,throttles_taken_away"), ("yaml", "moving:"), ("json", "{")]
)
def test_what_a_rebalance_verifies_comes_in_the_shape_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shape: str, text: str
) -> None:
    admin = SimpleNamespace(list_partition_reassignments=lambda: {TopicPartition("t", 0): None})
    monkeypatch.setattr(partitions, "opened_admin", lambda _: nullcontext(admin))
    monkeypatch.setattr(partitions, "described", lambda *_: {"t": None})
    asked = SimpleNamespace(drain=None, replication_factor=None, topic=None, json=shape)
    assert partitions._verify_moves(cast("Any", asked)) == 1
    assert capsys.readouterr().out.startswith(text)
