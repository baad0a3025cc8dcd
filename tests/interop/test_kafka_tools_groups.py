"""Apache Kafka's Java consumers and its group tools against our broker, both protocols; and Java beside us in one group.

Rules: a tool costs a start of a JVM, so what does not depend on another runs beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import apache_kafka
import pytest
from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import ResourceType
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

RECORDS, WAIT_S = 100, 90.0
FIRST_MS = 1_700_000_000_000
TOOLS = "org.apache.kafka.tools."
GROUPS = "consumer.group.ConsumerGroupCommand"
ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@pytest.fixture(scope="module")
def servers(quick_broker: Broker) -> str:
    return quick_broker.bootstrap_servers


@pytest.fixture
def topic(servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of two partitions with a hundred records, all of them in the first."""
    name = make_topic(servers, partitions=2)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=FIRST_MS + number)
    return name


def tool(name: str, servers: str, *arguments: str) -> str:
    return str(apache_kafka.run_tool(TOOLS + name, "--bootstrap-server", servers, *arguments, timeout=WAIT_S).stdout)


def together(*calls: tuple[str, ...]) -> list[str]:
    """What the tools print, started at the same time."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [call.result() for call in [threads.submit(tool, *call) for call in calls]]


def events(lines: str) -> list[dict[str, Any]]:
    """What the verifiable tools print."""
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def row(table: str, *first: str) -> list[str]:
    """The one line of a printed table that begins with these words."""
    (line,) = [line.split() for line in table.splitlines() if tuple(line.split()[: len(first)]) == first]
    return line


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    with Admin(bootstrap_servers=servers) as admin:
        found = {tp: outcome.result() for tp, outcome in admin.list_group_offsets(group).items()}
    return {tp.partition: place.offset for tp, place in found.items() if tp.topic == topic and place is not None}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_consumers_read_as_groups(servers: str, topic: str, protocol: str) -> None:
    wanted = ("--command-property", f"group.protocol={protocol}")
    printed, _, performed, verified = together(
        ("consumer.ConsoleConsumer", servers, "--topic", topic, "--group", f"console-{protocol}", "--from-beginning",
         "--max-messages", str(RECORDS), "--timeout-ms", "60000", *wanted),
        ("VerifiableProducer", servers, "--topic", f"{topic}-verified", "--max-messages", str(RECORDS)),
        ("ConsumerPerformance", servers, "--topic", topic, "--num-records", str(RECORDS), "--group", f"perf-{protocol}",
         "--timeout", "60000", *wanted),
        ("VerifiableConsumer", servers, "--topic", f"{topic}-verified", "--max-messages", str(RECORDS),
         "--group-id", f"verifiable-{protocol}", "--group-protocol", protocol),
    )  # fmt: skip
    assert printed.splitlines() == [str(number) for number in range(RECORDS)]
    assert performed.splitlines()[1].split(", ")[4] == str(RECORDS)
    seen = events(verified)
    assert sum(event["count"] for event in seen if event["name"] == "records_consumed") == RECORDS
    assert all(event["success"] for event in seen if event["name"] == "offsets_committed")
    assert committed(servers, f"console-{protocol}", topic)[0] == RECORDS
    assert committed(servers, f"perf-{protocol}", topic)[0] == RECORDS
    assert sum(committed(servers, f"verifiable-{protocol}", f"{topic}-verified").values()) == RECORDS


def test_group_command_on_groups_with_a_member(servers: str, topic: str) -> None:
    kinds = ("classic", "consumer")
    members = [
        Consumer(topic, bootstrap_servers=servers, group_id=f"live-{kind}", group_protocol=kind,
                 auto_offset_reset="earliest", client_id="ours")
        for kind in kinds
    ]  # fmt: skip
    try:
        for member in members:
            assert len(member.poll(max_records=RECORDS, timeout=WAIT_S)) == RECORDS
            member.commit({TopicPartition(topic, 0): 60})
        groups = ("--group", "live-classic", "--group", "live-consumer")
        listed, states, offsets, described, detailed, state = together(
            (GROUPS, servers, "--list", "--type"),
            (GROUPS, servers, "--list", "--state", "stable"),
            (GROUPS, servers, "--describe", *groups),
            (GROUPS, servers, "--describe", *groups, "--members", "--verbose"),
            ("GroupsCommand", servers, "--list"),
            (GROUPS, servers, "--describe", *groups, "--state"),
        )
        for kind, member in zip(kinds, members, strict=True):
            group, member_id = f"live-{kind}", member.group_metadata().member_id
            assert row(listed, group)[1] == kind.capitalize()
            assert row(states, group)[1] == "Stable"
            assert row(offsets, group, topic, "0")[3:7] == ["60", str(RECORDS), str(RECORDS - 60), member_id]
            assert row(described, group, member_id)[3:5] == ["ours", "2"]
            assert f"{topic}:0,1" in "".join(row(described, group, member_id)).replace("(", ":").replace(")", "")
            assert row(detailed, group)[1:3] == [kind.capitalize(), "consumer"]
            assert row(state, group)[-2:] == ["Stable", "1"]
    finally:
        for member in members:
            member.close()


def test_group_command_resets_and_deletes(servers: str, topic: str, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        for group in ("one", "two", "three", "four"):
            admin.alter_group_offsets(group, {TopicPartition(topic, index): 0 for index in range(2)})
    at = datetime.fromtimestamp((FIRST_MS + 30) / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    plan = tmp_path / "plan.csv"
    plan.write_text(f'"{topic}",0,17\n')
    reset = ("--reset-offsets", "--topic", topic)
    dry, *_ = together(
        (GROUPS, servers, "--group", "one", *reset, "--to-latest", "--dry-run"),
        (GROUPS, servers, "--group", "two", *reset, "--to-datetime", at, "--execute"),
        (GROUPS, servers, "--group", "three", *reset, "--shift-by", "40", "--execute"),
        (GROUPS, servers, "--group", "four", "--reset-offsets", "--from-file", str(plan), "--execute"),
    )
    assert row(dry, "one", topic, "0")[-1] == str(RECORDS)
    assert [committed(servers, group, topic)[0] for group in ("one", "two", "three", "four")] == [0, 30, 40, 17]
    together(
        (GROUPS, servers, "--group", "one", "--delete"),
        (GROUPS, servers, "--group", "two", "--delete-offsets", "--topic", f"{topic}:0"),
    )
    with Admin(bootstrap_servers=servers) as admin:
        assert "one" not in admin.list_groups()
    assert committed(servers, "two", topic) == {1: 0}


@pytest.mark.parametrize("kind", ["range", "cooperative-sticky", "consumer"])
def test_java_and_ours_in_one_group(servers: str, topic: str, kind: str) -> None:
    """Java's member takes the half of the partitions that ours gives up, reads it, and gives it back as it leaves."""
    group, protocol = f"mixed-{kind}", "consumer" if kind == "consumer" else "classic"
    more: dict[str, Any] = {} if kind == "consumer" else {"partition_assignment_strategy": kind}
    theirs = ["--topic", topic, "--group-id", group, "--group-protocol", protocol]
    theirs += [] if kind == "consumer" else ["--assignment-strategy", ASSIGNORS[kind]]
    with Consumer(topic, bootstrap_servers=servers, group_id=group, group_protocol=protocol,
                  auto_offset_reset="earliest", **more) as consumer:  # fmt: skip
        assert len(consumer.poll(max_records=RECORDS, timeout=WAIT_S)) == RECORDS
        consumer.commit()
        java = apache_kafka.started_tool(TOOLS + "VerifiableConsumer", "--bootstrap-server", servers, *theirs)
        with java as lines:
            until(lambda: consumer.poll(timeout=0.1) == [] and len(consumer.assignment()) == 1)
            (other,) = wait_for(lines, consumer, "partitions_assigned")["partitions"]
            assert {TopicPartition(other["topic"], other["partition"]), *consumer.assignment()} == {
                TopicPartition(topic, index) for index in range(2)
            }
            with Producer(bootstrap_servers=servers) as producer:
                producer.send(topic, b"for Java", partition=other["partition"]).result(30)
            wait_for(lines, consumer, "offsets_committed")
        until(lambda: consumer.poll(timeout=0.1) == [] and len(consumer.assignment()) == 2)


def wait_for(lines: list[str], consumer: Consumer, name: str) -> dict[str, Any]:
    """The last event of a name that tells of something, once there is one; our member goes on polling meanwhile."""
    found: list[dict[str, Any]] = []

    def seen() -> bool:
        consumer.poll(timeout=0.1)
        told = [event for event in events("".join(lines)) if event["name"] == name]
        found[:] = [event for event in told if event.get("partitions", True)]
        return bool(found)

    until(seen)
    return found[-1]


def test_config_command_on_groups(servers: str) -> None:
    entity = ("--bootstrap-server", servers, "--entity-type", "groups")
    name, key = "kafka.admin.ConfigCommand", "consumer.session.timeout.ms"
    apache_kafka.run_tool(name, *entity, "--entity-name", "billing", "--alter", "--add-config", f"{key}=50000")
    for more in (("--entity-name", "billing"), ()):  # without a name: of all groups that have settings
        described = apache_kafka.run_tool(name, *entity, *more, "--describe").stdout
        assert "configs for group billing" in described.lower()
        assert f"{key}=50000" in described
    apache_kafka.run_tool(name, *entity, "--entity-name", "billing", "--alter", "--delete-config", key)
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.list_config_resources([ResourceType.GROUP]) == []
