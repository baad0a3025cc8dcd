"""Apache Kafka's VerifiableProducer and VerifiableConsumer are the oracle of `fastq verify`: the same lines, keys and order."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_kafka
import pytest

from fastq import Admin, errors
from fastq.admin import NewTopic
from fastq.cli import main
from fastq.cli.verify import java_class
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]
CLASSES = {
    "produce": "org.apache.kafka.tools.VerifiableProducer",
    "consume": "org.apache.kafka.tools.VerifiableConsumer",
}
MEASURED = ("timestamp", "avg_throughput", "message")


def lines_of(text: str) -> list[dict[str, Any]]:
    """Lines as they are compared: with the order of their keys, without what is measured and the words of errors."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]  # others: its log
    return [{key: ... if key in MEASURED else value for key, value in line.items()} for line in lines]


def both(
    capfd: pytest.CaptureFixture[str], broker: Broker, side: str, *arguments: object, group: str | None = None
) -> list[list[dict[str, Any]]]:
    """What Kafka's tool says and what ours does, which get the same options, but a group each."""
    words = ["--bootstrap-server", broker.bootstrap_servers, *map(str, arguments)]
    groups = [[], []] if group is None else [["--group-id", f"{group}-theirs"], ["--group-id", f"{group}-ours"]]
    theirs = apache_kafka.run_tool(CLASSES[side], *words, *groups[0]).stdout
    capfd.readouterr()
    assert main(["verify", side, *words, *groups[1]]) == 0
    return [lines_of(theirs), lines_of(capfd.readouterr().out)]


def same(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    assert [[*line.items()] for line in theirs] == [[*line.items()] for line in ours]


def made(broker: Broker, name: str) -> str:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1)]).results()
    return name


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--value-prefix", 3, "--repeating-keys", 2, "--message-create-time", 1_000_000),
        ("--acks", 1, "--throughput", 1000),
    ],
    ids=str,
)
def test_producers(
    capfd: pytest.CaptureFixture[str], quick_broker: Broker, new_topic_name: Callable[[], str], more: tuple[object, ...]
) -> None:
    topic = made(quick_broker, new_topic_name())
    theirs, ours = both(capfd, quick_broker, "produce", "--topic", topic, "--max-messages", 20, *more)
    assert len(theirs) == 23
    for line in ours[1:-2]:
        line["offset"] -= 20
    same(theirs, ours)


def test_what_cannot_be_sent(capfd: pytest.CaptureFixture[str], quick_broker: Broker) -> None:
    same(*both(capfd, quick_broker, "produce", "--topic", "bad topic", "--max-messages", 2))


@pytest.mark.parametrize("protocol", ["classic", "CONSUMER"])
@pytest.mark.parametrize("more", [("--verbose",), ("--enable-autocommit",)], ids=str)
def test_consumers(
    capfd: pytest.CaptureFixture[str],
    quick_broker: Broker,
    new_topic_name: Callable[[], str],
    more: tuple[str, ...],
    protocol: str,
) -> None:
    """A read by each of them, of one batch, so that each poll is of as much: --max-messages ends it amid one."""
    topic = made(quick_broker, new_topic_name())
    assert main(["produce", topic, "--bootstrap", quick_broker.bootstrap_servers, "--file", __file__]) == 0
    words = ("--topic", topic, "--group-protocol", protocol, "--max-messages", 15, *more)
    same(*both(capfd, quick_broker, "consume", *words, group=topic))


def test_the_same_order_at_a_termination(
    capfd: pytest.CaptureFixture[str], quick_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    topic = made(quick_broker, new_topic_name())
    words = ["--bootstrap-server", quick_broker.bootstrap_servers, "--topic", topic, "--group-id"]
    assert main(["verify", "produce", "--max-messages", "9", *words[:-1]]) == 0
    with apache_kafka.started_tool(CLASSES["consume"], *words, f"{topic}-theirs") as theirs:
        wait_for_commit(theirs)
    ours: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "fastq", "verify", "consume", *words, f"{topic}-ours"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ours.append(line)
            if "offsets_committed" in line:
                process.terminate()
    same(lines_of("".join(theirs)), lines_of("".join(ours)))


def wait_for_commit(lines: list[str]) -> None:
    deadline = time.monotonic() + 60
    while not any("offsets_committed" in line for line in lines):
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)


def test_errors_have_the_names_of_kafkas_classes() -> None:
    source = Path(__file__).with_name("ErrorClasses.java")
    command = ["java", "-cp", apache_kafka.class_path(), str(source)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    theirs = {int(code): name for code, name in (line.split() for line in printed.splitlines())}
    ours = {code: java_class(errors.error_for_code(code)) for code in theirs}
    assert ours == theirs
