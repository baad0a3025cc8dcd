"""Where the two commands of a line of docs/tools.md run, one after the other, and the page's section of what both said.

Rules: words are the page's, but for names of files, numbers of records, and what ends a command that goes on by itself. What a command
printed stands in the page as it came, of long outputs the first lines, with one address and one place of files in all of them; numbers, ids
and times are another's run's. So a page is out of date when something else than those differs (`even`).
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import apache_kafka
import pytest
from fastq_broker.__main__ import main as broker_main

from fastq import Admin
from fastq.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"
TITLE = "## What both say"
ROW = re.compile(r"^\| `([^`]*)` \| `([^`]*)` \|$", re.MULTILINE)
LINES = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
"""Kafka's script and its words -> ours."""
PARTITIONS, RECORDS = 3, 120
"""Of the topic `logs`, and of each partition."""
SHOWN_LINES, SHOWN_COLUMNS = 8, 180

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "connect-mirror-maker.sh": "org.apache.kafka.connect.mirror.MirrorMaker",
    "kafka-acls.sh": f"{TOOLS}AclCommand",
    "kafka-broker-api-versions.sh": f"{TOOLS}BrokerApiVersionsCommand",
    "kafka-client-metrics.sh": f"{TOOLS}ClientMetricsCommand",
    "kafka-cluster.sh": f"{TOOLS}ClusterTool",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": f"{TOOLS}consumer.ConsoleConsumer",
    "kafka-console-producer.sh": f"{TOOLS}ConsoleProducer",
    "kafka-consumer-groups.sh": f"{TOOLS}consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test.sh": f"{TOOLS}ConsumerPerformance",
    "kafka-delete-records.sh": f"{TOOLS}DeleteRecordsCommand",
    "kafka-dump-log.sh": f"{TOOLS}DumpLogSegments",
    "kafka-e2e-latency.sh": f"{TOOLS}EndToEndLatency",
    "kafka-features.sh": f"{TOOLS}FeatureCommand",
    "kafka-get-offsets.sh": f"{TOOLS}GetOffsetShell",
    "kafka-groups.sh": f"{TOOLS}GroupsCommand",
    "kafka-leader-election.sh": f"{TOOLS}LeaderElectionCommand",
    "kafka-log-dirs.sh": f"{TOOLS}LogDirsCommand",
    "kafka-metadata-quorum.sh": f"{TOOLS}MetadataQuorumCommand",
    "kafka-metadata-shell.sh": "org.apache.kafka.shell.MetadataShell",
    "kafka-producer-perf-test.sh": f"{TOOLS}ProducerPerformance",
    "kafka-reassign-partitions.sh": f"{TOOLS}reassign.ReassignPartitionsCommand",
    "kafka-replica-verification.sh": f"{TOOLS}ReplicaVerificationTool",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-streams-application-reset.sh": f"{TOOLS}StreamsResetter",
    "kafka-topics.sh": f"{TOOLS}TopicCommand",
    "kafka-transactions.sh": f"{TOOLS}TransactionsCommand",
    "kafka-verifiable-consumer.sh": f"{TOOLS}VerifiableConsumer",
    "kafka-verifiable-producer.sh": f"{TOOLS}VerifiableProducer",
}
WITHOUT_SERVERS = ("kafka-dump-log.sh", "kafka-metadata-shell.sh", "kafka-storage.sh", "kafka-server-start.sh")
SERVERS_BEHIND = ("kafka-cluster.sh",)
"""What takes the option of the servers behind its action."""
ALONE = ("kafka-verifiable-producer.sh", "kafka-verifiable-consumer.sh")
"""What says its last lines when its virtual machine ends."""
LOGGED = re.compile(r"\d{4}-\d\d-\d\d\S* .*(WARN|ERROR) |SLF4J|\s+at \S+\(|The consumer rebalance protocol \(KIP-848\)")
"""What a tool's log has beside what it says, and where in it an error was."""


class Said(NamedTuple):
    """What a command printed for people, and what it means, which is compared."""

    printed: str
    meaning: object


class Stage:
    """A broker, and both kinds of commands. Not thread-safe."""

    def __init__(
        self,
        admin: Admin,
        tools: apache_kafka.Tools,
        data_dir: Path,
        path: Path,
        capfd: pytest.CaptureFixture[str],
        patch: pytest.MonkeyPatch,
    ) -> None:
        self.admin, self.tools, self.data_dir, self.path = admin, tools, data_dir, path
        self.servers = str(admin.config.bootstrap_servers[0])
        self._capfd, self._patch = capfd, patch

    def kafkas(self, script: str, *words: str, stdin: str = "") -> str:
        """What one of Kafka's tools prints, errors too; of the words, a file that is not of this directory is it."""
        if script in WITHOUT_SERVERS:
            given = list(words)
        else:
            at = 1 if script in SERVERS_BEHIND else 0
            option = "--broker-list" if script == "kafka-replica-verification.sh" else "--bootstrap-server"
            given = [*words[:at], option, self.servers, *words[at:]]
        if stdin or script in ALONE:
            return apache_kafka.run_tool(CLASSES[script], *given, stdin=stdin or None).stdout
        _, printed = self.tools.run(CLASSES[script], *given)
        return printed.replace("null\nKafkaTools$Ended\n", "")  # how a tool of the machine ends that catches all

    def ours(self, program: str, *words: str, stdin: str = "", code: int = 0) -> str:
        """What a command of ours prints on standard output; on standard error when that is all."""
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        talks = (
            program == "fastq" and words[0] != "dump-log" and "--file" not in (words if words[0] == "metadata" else ())
        )
        self._capfd.readouterr()
        run = main if program == "fastq" else broker_main
        found = run([*words, *(["--bootstrap", self.servers] if talks else [])])
        out, error = self._capfd.readouterr()
        assert found == code, out + error
        return out or error


def java(main_class: str, *words: str, log: Path | None = None) -> subprocess.Popen[str]:
    """A tool that goes on until it is ended."""
    logging = [] if log is None else [f"-Dlog4j2.configurationFile={log}"]
    command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *logging]
    return subprocess.Popen(
        [*command, "-cp", apache_kafka.class_path(), main_class, *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


# -- the section of the page


def block(line: str, theirs: str, ours: str, places: Sequence[tuple[str, str]]) -> str:
    """Both commands with what they printed, as the page has it."""
    return f"```text\n$ {line}\n{_shown(theirs, places)}$ {LINES[line]}\n{_shown(ours, places)}```\n"


def _shown(printed: str, places: Sequence[tuple[str, str]]) -> str:
    for found, name in places:
        # What is a cell of a table keeps its width.
        printed = re.sub(rf"{re.escape(found)}( +)(?=  )", lambda cell, name=name: name.ljust(len(cell[0])), printed)
        printed = printed.replace(found, name)
    lines = [line.rstrip() for line in printed.expandtabs(4).splitlines() if line.strip()]
    lines = [line for line in lines if not LOGGED.match(line)]
    more = [f"... ({len(lines) - SHOWN_LINES} more)"] if len(lines) > SHOWN_LINES + 1 else []
    cut = [line if len(line) <= SHOWN_COLUMNS else f"{line[:SHOWN_COLUMNS]}..." for line in lines]
    return "".join(f"{line}\n" for line in (*(cut[:SHOWN_LINES] if more else cut), *more))


def even(text: str) -> str:
    """A block without what another run has otherwise: numbers, ids, how wide a column is for them, and what a set of Java's comes first."""
    text = re.sub(r"\b(?=[\w-]*[A-Z\d_-])[\w-]{22}\b", "ID", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"-?\d[\d,.]*( [KMGT]iB)?", "N", text)
    return "\n".join(sorted(re.sub(r"[ -]{2,}", "  ", text).splitlines()))


def blocks_of(page: str) -> dict[str, str]:
    """The blocks that a page has, by Kafka's line."""
    section = page.partition(f"{TITLE}\n")[2].partition("\n## ")[0]
    return {
        line: found
        for found, line in re.findall(r"(```text\n\$ ([^\n]*)\n.*?^```\n)", section, re.DOTALL | re.MULTILINE)
    }


def with_blocks(page: str, made: dict[str, str]) -> str:
    """The page with these in place of what it has, in the order of its table."""
    head, title, rest = page.partition(f"{TITLE}\n")
    body, _, tail = rest.partition("\n## ")
    introduction = body.partition("```text\n")[0].rstrip("\n")
    there = blocks_of(page) | made
    text = "\n".join(there[line] for line in LINES if line in there)
    return f"{head}{title}{introduction}\n\n{text}\n## {tail}"
