"""docs/tools.md: each line's two commands on one broker of ours, and what they print or do beside each other.

Rules: the words are the page's, but for the names of files and the numbers of records. What is printed is read into the same values from
both sides, as the words around them are each tool's own; of a command that changes something the cluster is read after it. A line that is
compared elsewhere names the test.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_kafka
import pytest

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import ConfigResource, OffsetSpec
from fastq.cli import main
from fastq.errors import UnknownTopicOrPartition
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"
ROWS = {
    ours: theirs
    for theirs, ours in re.findall(r"^\| `([^`]*)`.* \| `([^`]*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
}
PARTITIONS, RECORDS = 3, 120
"""Of the topic `logs`, and of each partition."""

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "kafka-topics.sh": f"{TOOLS}TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-producer.sh": f"{TOOLS}ConsoleProducer",
    "kafka-console-consumer.sh": f"{TOOLS}consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": f"{TOOLS}consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets.sh": f"{TOOLS}GetOffsetShell",
    "kafka-delete-records.sh": f"{TOOLS}DeleteRecordsCommand",
    "kafka-log-dirs.sh": f"{TOOLS}LogDirsCommand",
    "kafka-reassign-partitions.sh": f"{TOOLS}reassign.ReassignPartitionsCommand",
    "kafka-leader-election.sh": f"{TOOLS}LeaderElectionCommand",
    "kafka-producer-perf-test.sh": f"{TOOLS}ProducerPerformance",
    "kafka-consumer-perf-test.sh": f"{TOOLS}ConsumerPerformance",
    "kafka-metadata-quorum.sh": f"{TOOLS}MetadataQuorumCommand",
    "kafka-features.sh": f"{TOOLS}FeatureCommand",
    "kafka-cluster.sh": f"{TOOLS}ClusterTool",
    "kafka-transactions.sh": f"{TOOLS}TransactionsCommand",
    "kafka-dump-log.sh": f"{TOOLS}DumpLogSegments",
}
STORAGE = "tests/interop/test_kafka_storage_tool.py"
ACLS = "tests/interop/test_kafka_acls.py"
USERS = "tests/interop/test_kafka_users.py"
ELSEWHERE = {
    "fastq perf latency logs --records 1000": "tests/integration/test_cli.py::test_perf_latency",
    "fastq verify produce --topic logs --max-messages 1000": "tests/interop/test_kafka_verifiable.py::test_producers",
    "fastq verify consume --topic logs --group-id g": "tests/interop/test_kafka_verifiable.py::test_consumers",
    "fastq-broker --config server.properties": f"{STORAGE}::test_our_broker_starts_on_a_directory_of_apache_kafkas",
    "fastq-broker stop --node-id 1": "tests/integration/test_broker_stop.py::test_a_node_is_found_and_stopped",
    "fastq-broker format -t ID -c server.properties --standalone": f"{STORAGE}::test_the_same_files_for_the_same_arguments",
    "fastq-broker info -c server.properties": f"{STORAGE}::test_the_same_files_for_the_same_arguments",
    "fastq-broker random-uuid": f"{STORAGE}::test_the_same_files_for_the_same_arguments",
    "fastq metadata tree /image --file FILE": "tests/interop/test_kafka_metadata_shell.py::test_our_log",
    "fastq metadata find": "tests/integration/test_cli_metadata.py::test_a_live_cluster_and_its_files_tell_the_same",
    "fastq api-versions": "tests/interop/test_kafka_cli.py::test_versions_are_those_that_kafkas_tool_tells",
    "fastq client-metrics list": "tests/interop/test_kafka_cli.py::test_subscriptions_to_metrics",
    "fastq acls add --allow User:alice --operation read --topic logs": f"{ACLS}::test_our_command_makes_what_kafkas_does",
    "fastq acls add --allow User:alice --consumer --topic logs --group g": f"{ACLS}::test_our_command_makes_what_kafkas_does",
    "fastq acls list --topic logs": f"{ACLS}::test_our_command_lists_and_removes_what_kafkas_does",
    "fastq acls remove --topic logs": f"{ACLS}::test_our_command_lists_and_removes_what_kafkas_does",
    "fastq configs show --client app": f"{USERS}::test_quotas_of_either_side_are_the_same",
    "fastq configs set --client app consumer_byte_rate=2048": f"{USERS}::test_quotas_of_either_side_are_the_same",
    "fastq configs set --user carol SCRAM-SHA-512=[iterations=4096]": f"{USERS}::test_the_command_sets_credentials_and_shows_no_secret",
    "fastq replicas verify logs": "tests/integration/test_cli_cluster.py::test_replicas_are_compared",
}

Read = Callable[[str], object]


class Case(NamedTuple):
    """How the two are compared. `after`: by what the cluster is then; else `theirs` and `ours` read what is printed. `more` end a command
    that goes on by itself; `numbers` stand for the page's."""

    theirs: Read = str
    ours: Read = json.loads
    after: Callable[[Admin], object] | None = None
    without_logs: bool = False
    more: tuple[tuple[str, ...], tuple[str, ...]] = ((), ("--json",))
    numbers: tuple[str, str] = ("", "")
    stdin: str = ""
    code: int = 0


def rows(*names: str) -> Read:
    """Of JSON rows of ours about the topic, these fields."""
    return lambda text: sorted(
        tuple(row[name] for name in names) for row in json.loads(text) if str(row.get("topic", "logs")) == "logs"
    )


def found(pattern: str) -> Read:
    """Groups of a pattern, with numbers as such."""

    def read(text: str) -> object:
        return sorted(
            tuple(int(part) if part.isdigit() else part for part in match.groups())
            for match in re.finditer(pattern, text, re.MULTILINE)
        )

    return read


def lines(text: str) -> object:
    return sorted(line for line in text.splitlines() if re.match(r"\d-\d+$", line))


def topics(admin: Admin) -> object:
    return {name: len(topic.result().partitions) for name, topic in admin.describe_topics(admin.list_topics()).items()}


def settings(admin: Admin) -> object:
    entries = admin.describe_configs([ConfigResource.topic("logs")])[ConfigResource.topic("logs")].result()
    return {name: entry.value for name, entry in entries.items() if entry.source.name == "DYNAMIC_TOPIC_CONFIG"}


def ends(admin: Admin) -> object:
    (described,) = admin.describe_topics(["logs"]).values()
    places = [TopicPartition("logs", part.index) for part in described.result().partitions]
    first = admin.list_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
    last = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
    return sum(info.result().offset for info in first.values()), sum(info.result().offset for info in last.values())


def keys(admin: Admin) -> object:
    with Consumer("logs", bootstrap_servers=admin.config.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        return sorted((record.key, record.value) for record in consumer.read_to_end() if record.key is not None)


def committed(admin: Admin) -> object:
    return {str(place): offset.result().offset for place, offset in admin.list_group_offsets("g").items()}


def leaders(admin: Admin) -> object:
    (described,) = admin.describe_topics(["logs"]).values()
    return [(part.leader.node_id if part.leader else None, part.replicas) for part in described.result().partitions]


ALL = str(PARTITIONS * RECORDS)
CASES = {
    "fastq topics create logs --partitions 3": Case(after=topics, without_logs=True, more=((), ())),
    "fastq topics list": Case(
        lambda text: sorted(name for name in re.findall(r"^\w+$", text, re.MULTILINE) if name in ("logs", "other")),
        lambda text: sorted(json.loads(text)),
    ),
    "fastq topics describe logs": Case(
        found(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)"),
        lambda text: [(r["partition"], r["leader"], *r["replicas"], *r["isr"]) for r in json.loads(text)],
    ),
    "fastq topics delete logs": Case(after=topics, more=((), ())),
    "fastq configs show --topic logs": Case(
        found(r"^  (\S+)=(\S+) sensitive"),
        lambda text: [(r["name"], int(r["value"])) for r in json.loads(text) if r["source"] == "dynamic-topic-config"],
    ),
    "fastq configs set --topic logs retention.ms=1000": Case(after=settings, more=((), ())),
    "fastq produce logs": Case(after=ends, more=((), ()), stdin="one\ntwo\n"),
    "fastq produce logs --key-separator :": Case(after=keys, more=((), ()), stdin="a:one\nb:two:three\n"),
    "fastq consume logs --from-beginning": Case(lines, lines, more=(("--max-messages", ALL), ("--max-records", ALL))),
    "fastq consume --include 'log.*' --group g": Case(
        lines, lines, more=(("--max-messages", "330"), ("--max-records", "330"))
    ),
    "fastq groups list": Case(
        lambda text: sorted(text.split()), lambda text: sorted(row["group"] for row in json.loads(text))
    ),
    "fastq groups describe g": Case(
        found(r"^g +logs +(\d+) +(\d+) +(\d+) +(\d+)"), rows("partition", "committed", "end", "lag")
    ),
    "fastq groups describe --all-groups": Case(
        found(r"^g +logs +(\d+) +(\d+) +(\d+) +(\d+)"), rows("partition", "committed", "end", "lag")
    ),
    "fastq groups reset-offsets g --to-earliest --execute": Case(after=committed, more=((), ())),
    "fastq offsets logs": Case(found(r"^logs:(\d+):(\d+)$"), rows("partition", "offset")),
    "fastq topics delete-records --file FILE": Case(after=ends, more=((), ())),
    "fastq log-dirs": Case(
        lambda text: sorted(
            (log["partition"], log["size"])
            for line in text.splitlines()
            if line.startswith("{")
            for place in json.loads(line)["brokers"][0]["logDirs"]
            for log in place["partitions"]
            if log["partition"].startswith("logs-")
        ),
        lambda text: sorted(
            (row["partition"], row["bytes"]) for row in json.loads(text) if row["partition"].startswith("logs-")
        ),
    ),
    "fastq partitions reassign --execute FILE": Case(after=leaders, more=((), ())),
    "fastq partitions elect preferred --all": Case(after=leaders, more=((), ())),
    "fastq perf produce logs --records 1000000 --size 100": Case(
        found(r"^(300) records sent"),
        lambda text: [(json.loads(text)["records"],)],
        numbers=("1000000", "300"),
    ),
    "fastq perf consume logs --records 1000000": Case(
        lambda text: int(text.splitlines()[-1].split(", ")[4]) >= 300,
        lambda text: json.loads(text)["records"] >= 300,
        numbers=("1000000", "300"),
    ),
    "fastq quorum status": Case(
        lambda text: (re.findall(r"(?:ClusterId|LeaderId): +(\S+)", text), re.findall(r'"id": (\d+)', text)),
        lambda text: (
            [str(json.loads(text)[name]) for name in ("cluster_id", "leader")],
            [str(voter) for voter in json.loads(text)["voters"]],
        ),
    ),
    "fastq cluster features": Case(
        lambda text: {
            name: int(level)
            for name, level in re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\d+)", text, re.MULTILINE)
            if name != "metadata.version"  # told by its name there
        },
        lambda text: {row["feature"]: row["level"] for row in json.loads(text) if row["feature"] != "metadata.version"},
    ),
    "fastq cluster describe": Case(lambda text: text.split()[-1], lambda text: json.loads(text)["cluster_id"]),
    "fastq cluster unregister 3": Case(
        lambda text: "Broker ID 3 is not currently registered" in text,
        lambda text: "Broker ID 3 is not currently registered" in text,
        code=1,
    ),
    "fastq transactions list": Case(
        found(r"^(\S+)\s+1\s+(\d+)\s+(\w+)"), rows("transactional_id", "producer_id", "state")
    ),
    "fastq dump-log FILE --records": Case(
        found(r"offset: (\d+) .* payload: (\S+)$"),
        lambda text: [(entry["offset"], entry["value"]) for entry in json.loads(text)["entries"]],
    ),
}


@pytest.fixture(scope="module")
def tools() -> Iterator[apache_kafka.Tools]:
    with apache_kafka.Tools() as machine:
        yield machine


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": 0}
    with Broker(data_dir=tmp_path_factory.mktemp("page") / "data", config=config) as running:
        with (
            Producer(bootstrap_servers=running.bootstrap_servers, transactional_id="t") as producer,
            producer.transaction(),
        ):
            producer.send("other", b"1")
        yield running


def begin(broker: Broker, admin: Admin, *, with_logs: bool) -> None:
    """The topic with its records and a group that has read ten of each partition, or nothing of it."""
    try:
        admin.delete_topics(["logs"]).results()
    except UnknownTopicOrPartition:
        pass
    if not with_logs:
        return
    admin.create_topic("logs", PARTITIONS, 1, configs={"segment.bytes": "9999999"})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            for number in range(RECORDS):
                producer.send("logs", b"%d-%d" % (partition, number), partition=partition)
    admin.alter_group_offsets("g", {("logs", partition): 10 for partition in range(PARTITIONS)})  # type: ignore[arg-type]


def test_every_line_of_the_page_is_compared() -> None:
    assert not CASES.keys() & ELSEWHERE.keys()
    assert CASES.keys() | ELSEWHERE.keys() == ROWS.keys()
    for place in ELSEWHERE.values():
        file, name = place.split("::")
        assert f"def {name}(" in (PAGE.parents[1] / file).read_text(encoding="utf-8"), place


@pytest.mark.parametrize("line", CASES)
def test_both_do_the_same(
    line: str,
    broker: Broker,
    tools: apache_kafka.Tools,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    case = CASES[line]
    assert broker.data_dir is not None
    files = {"fastq dump-log FILE --records": Path(broker.data_dir) / "logs-0" / "00000000000000000000.log"}
    file = files.get(line, tmp_path / "file.json")
    place = {"topic": "logs", "partition": 0}
    if line not in files:
        extra: dict[str, Any] = {"replicas": [1]} if "reassign" in line else {"offset": 100}
        file.write_text(json.dumps({"version": 1, "partitions": [place | extra]}))

    def words(text: str) -> list[str]:
        names = {"FILE": str(file), case.numbers[0] or "FILE": case.numbers[1] or str(file)}
        return [names.get(word, word) for word in shlex.split(text)]

    servers = ["--bootstrap-server", broker.bootstrap_servers]
    results = []
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for ours in (False, True):
            begin(broker, admin, with_logs=not case.without_logs)
            script, *arguments = words(line if ours else ROWS[line])
            if ours:
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin.encode())))
                capfd.readouterr()
                code = main(
                    [
                        *arguments,
                        *case.more[1],
                        *(() if script == "fastq" and "dump-log" in line else ("--bootstrap", servers[1])),
                    ]
                )
                out, error = capfd.readouterr()
                assert code == case.code, error
                printed = error if code else out
            else:
                behind = script in ("kafka-cluster.sh",)
                given = [*arguments[:1], *servers, *arguments[1:]] if behind else [*servers, *arguments]
                given = arguments if script == "kafka-dump-log.sh" else given
                if case.stdin:
                    printed = apache_kafka.run_tool(CLASSES[script], *given, *case.more[0], stdin=case.stdin).stdout
                else:
                    _, printed = tools.run(CLASSES[script], *given, *case.more[0])
            read = case.ours if ours else case.theirs
            results.append(case.after(admin) if case.after is not None else read(printed))
    theirs, mine = results
    assert mine == theirs and mine is not None
    assert mine or case.after is not None, "nothing was compared"
