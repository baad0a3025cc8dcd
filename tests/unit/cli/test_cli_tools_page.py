"""docs/tools.md: every script of Kafka's is on it, and every command of ours that it names is there, with these arguments."""

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
SCRIPTS = """
connect-distributed connect-mirror-maker connect-plugin-path connect-standalone kafka-acls kafka-broker-api-versions kafka-client-metrics
kafka-cluster kafka-configs kafka-console-consumer kafka-console-producer kafka-console-share-consumer kafka-consumer-groups
kafka-consumer-perf-test kafka-delegation-tokens kafka-delete-records kafka-dump-log kafka-e2e-latency kafka-features kafka-get-offsets
kafka-groups kafka-jmx kafka-leader-election kafka-log-dirs kafka-metadata-quorum kafka-metadata-shell kafka-producer-perf-test
kafka-reassign-partitions kafka-replica-verification kafka-run-class kafka-server-start kafka-server-stop kafka-share-consumer-perf-test
kafka-share-groups kafka-storage kafka-streams-application-reset kafka-streams-groups kafka-topics kafka-transactions
kafka-verifiable-consumer kafka-verifiable-producer kafka-verifiable-share-consumer trogdor
"""
"""Those of Kafka 4.3's bin/."""
LINES = [shlex.split(ours) for _, ours in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def test_every_script_is_on_the_page_once_with_a_command_or_with_the_reason_why_not() -> None:
    text = PAGE.read_text(encoding="utf-8")
    with_command = {theirs.split()[0] for theirs, _ in ROW.findall(text)}
    without = text.partition("## Scripts without a command\n")[2].partition("\n## ")[0]
    reasons = re.findall(r"^\| (`.*`) \| (.{20,}) \|$", without, re.MULTILINE)
    named = [script for scripts, _ in reasons for script in re.findall(r"`([^`]*)`", scripts)]
    assert len(named) == len(set(named)) and not with_command & set(named)
    assert sorted(with_command | set(named)) == [f"{script}.sh" for script in SCRIPTS.split()]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_takes_what_the_page_says(words: list[str]) -> None:
    command, *arguments = words
    if command == "fastq":
        build_parser().parse_args(arguments)
        return
    assert command == "fastq-broker"
    parsers = {"stop": stop._parser, "format": storage._parser, "info": storage._parser, "random-uuid": storage._parser}
    parsers.get(arguments[0], broker._parser)().parse_args(arguments)
