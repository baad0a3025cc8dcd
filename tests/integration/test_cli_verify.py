"""`fastq verify` against a broker: every event is told, in Kafka's words. tests/interop compares them with what Kafka's tools write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fastq import Consumer
from fastq.cli import main
from fastq.testing import Broker

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def verify(shared_broker: Broker, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a side in this process and answers its lines, times taken away."""

    def run(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert main(["verify", *map(str, arguments), "--bootstrap-server", shared_broker.bootstrap_servers]) == code
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert all(list(line)[:2] == ["timestamp", "name"] and line.pop("timestamp") > 1.7e12 for line in lines)
        return lines

    return run


def test_every_record_is_told_on_both_sides(
    verify: Run, shared_broker: Broker, new_topic_name: Callable[[], str]
) -> None:
    topic = new_topic_name()
    lines = verify("produce", "--topic", topic, "--max-messages", 50, "--value-prefix", 7, "--repeating-keys", 3,
                   "--message-create-time", 1_000_000)  # fmt: skip
    sent = lines[1:-2]
    assert [line["name"] for line in (lines[0], *lines[-2:])] == ["startup_complete", "shutdown_complete", "tool_data"]
    assert {line["name"] for line in sent} == {"producer_send_success"}
    assert sorted((line["value"], line["key"]) for line in sent) == sorted((f"7.{n}", str(n % 3)) for n in range(50))
    assert {key: lines[-1][key] for key in ("sent", "acked", "target_throughput")} == {
        "sent": 50,
        "acked": 50,
        "target_throughput": -1,
    }
    with Consumer(topic, bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        stored = {(r.partition, r.offset): (r.value, r.timestamp_ms) for r in consumer.read_to_end()}
    assert {place: value.decode() for place, (value, _) in stored.items() if value is not None} == {
        (line["partition"], line["offset"]): line["value"] for line in sent
    }
    assert all(1_000_000 <= stamp < 1_100_000 for _, stamp in stored.values())

    group = new_topic_name()
    member = ("consume", "--topic", topic, "--group-id", group, "--group-protocol", "consumer", "--verbose")
    lines = verify(*member, "--max-messages", 50)
    told = [line for line in lines if line["name"] == "record_data"]
    assert {(line["partition"], line["offset"]): line["value"] for line in told} == {
        (line["partition"], line["offset"]): line["value"] for line in sent
    }
    assert [line["name"] for line in lines[-3:]] == ["partitions_revoked", "shutdown_complete", "shutdown_requested"]
    committed = {(at["topic"], at["partition"]): at["offset"] for line in lines for at in line.get("offsets", ())}
    with Consumer(bootstrap_servers=shared_broker.bootstrap_servers, group_id=group) as consumer:
        found = consumer.committed(committed)
    assert {place: at.offset for place, at in found.items() if at is not None} == committed
    assert sum(committed.values()) == 50


def test_a_record_that_fails_is_told(verify: Run) -> None:
    lines = verify("produce", "--topic", "bad topic", "--max-messages", 2)
    assert [line["name"] for line in lines[1:-2]] == ["producer_send_error"] * 2
    assert lines[1]["exception"] == "class org.apache.kafka.common.errors.InvalidTopicException"
    assert (lines[-1]["sent"], lines[-1]["acked"]) == (2, 0)


@pytest.mark.parametrize("side", ["produce", "consume"])
def test_a_termination_ends_in_order(shared_broker: Broker, new_topic_name: Callable[[], str], side: str) -> None:
    more = (
        ("--throughput", "0") if side == "produce" else ("--group-id", new_topic_name(), "--group-protocol", "consumer")
    )
    command = [sys.executable, "-m", "fastq", "verify", side, "--topic", new_topic_name(), *more]
    command += ["--bootstrap-server", shared_broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = [json.loads(line)["name"] for line in process.stdout]
    assert '"startup_complete"' in first
    assert process.returncode == 143
    if side == "produce":
        assert rest[-2:] == ["shutdown_complete", "tool_data"]
    else:
        assert [name for name in rest if name.startswith("shutdown")] == ["shutdown_requested", "shutdown_complete"]
