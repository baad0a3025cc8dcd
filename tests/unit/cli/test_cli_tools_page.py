"""docs/tools.md: every command of ours that it names is there, with these arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import fastq_broker.__main__ as broker
import pytest
from fastq_broker import format as storage
from fastq_broker import stop

from fastq.cli.entry import build_parser

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tools.md"
ROW = re.compile(r"^\| `([^`]*)`.* \| `([^`]*)` \|$", re.MULTILINE)
LINES = [shlex.split(ours) for _, ours in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_lines() -> None:
    assert len(LINES) > 30


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_takes_what_the_page_says(words: list[str]) -> None:
    command, *arguments = words
    if command == "fastq":
        build_parser().parse_args(arguments)
        return
    assert command == "fastq-broker"
    parsers = {"stop": stop._parser, "format": storage._parser, "info": storage._parser, "random-uuid": storage._parser}
    parsers.get(arguments[0], broker._parser)().parse_args(arguments)
