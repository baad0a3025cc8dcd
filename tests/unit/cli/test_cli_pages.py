"""Every command of `fastq` and `fastq-broker` that a page or an alert rule names is there, with the options that it names.

Rules: commands of blocks and between backquotes, up to a comment, a pipe or a redirection. What stands for a value is not looked at: pages
that are walked by other tests prove that.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastq_broker import __main__ as broker_command
from fastq_broker import container, repair, stop
from fastq_broker import format as storage

from fastq.cli.entry import build_parser

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "ops" / "prometheus-alerts.yml"
PAGES = sorted(  # but for the reference, which is made
    [
        ROOT / "README.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    ]
)
NAMED = re.compile(r"(?:^|`|\$\(|until )fastq ([a-z][^`\n|>#;)]*)", re.MULTILINE)
OF_THE_BROKER = re.compile(r"(?:^|`|\$\(|&& )fastq-broker ((?!ready on )[a-z-][^`\n|>#;)]*)", re.MULTILINE)
SECTION = re.compile(r"^```python\n.*?^```", re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `fastq` of each command."""
    for found in NAMED.finditer(SECTION.sub("", text)):
        yield found[1].split()


def problem(words: list[str], parser: argparse.ArgumentParser) -> str | None:
    """What of a command is not there."""
    while True:
        actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not actions or not words or words[0].startswith("-"):
            break
        if words[0] not in actions[0].choices:
            return f"{parser.prog} has no {words[0]}"
        parser, words = actions[0].choices[words[0]], words[1:]
    options = {option for action in parser._actions for option in action.option_strings}
    named = [word.partition("=")[0].rstrip(".,:") for word in words if word.startswith("--") and word != "--"]
    return next((f"{parser.prog} has no {each}" for each in named if each not in options), None)


def problem_of_the_broker(words: list[str]) -> str | None:
    """The same of a command of the broker's."""
    if words[0].startswith("-"):
        return problem(words, broker_command._parser())
    if words[0] not in broker_command.COMMANDS:
        return f"fastq-broker has no {words[0]}"
    if words[0] in ("container", "repair"):
        return problem(words[1:], (container if words[0] == "container" else repair)._parser())
    return problem(words, (stop if words[0] in ("stop", "status") else storage)._parser())


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return build_parser()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_command_that_is_named_is_there(page: Path, parser: argparse.ArgumentParser) -> None:
    found = {" ".join(words): problem(words, parser) for words in commands(page.read_text(encoding="utf-8"))}
    assert {command: why for command, why in found.items() if why} == {}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_command_of_the_broker_that_is_named_is_there(page: Path) -> None:
    text = SECTION.sub("", page.read_text(encoding="utf-8"))
    found = {words: problem_of_the_broker(words.split()) for words in OF_THE_BROKER.findall(text)}
    assert {command: why for command, why in found.items() if why} == {}


def test_every_alert_whose_summary_names_a_command_names_one_that_is_there(parser: argparse.ArgumentParser) -> None:
    found = [words.split() for words in re.findall(r": fastq ([a-z -]+) says", ALERTS.read_text(encoding="utf-8"))]
    assert found and [problem(words, parser) for words in found] == [None] * len(found)


def test_what_is_not_there_is_found(parser: argparse.ArgumentParser) -> None:
    text = "`fastq topics list` and\n\nfastq topics lst\nfastq quorum status --jsn | x\nfastq nothing # --all\n"
    assert [problem(words, parser) for words in commands(text)] == [
        None,
        "fastq topics has no lst",
        "fastq quorum status has no --jsn",
        "fastq has no nothing",
    ]
    text = "`fastq-broker --nodes 3 --dir d`\nfastq-broker stop --data-dir d\n$(fastq-broker infos)\nfastq-broker repair --exec\n"
    assert [problem_of_the_broker(words.split()) for words in OF_THE_BROKER.findall(text)] == [
        "fastq-broker has no --dir",
        None,
        "fastq-broker has no infos",
        "fastq-broker repair has no --exec",
    ]
