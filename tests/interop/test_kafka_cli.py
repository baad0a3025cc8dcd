"""The command line against Apache Kafka: its broker for our commands, its tools beside ours."""

from __future__ import annotations

import json
import re

import apache_kafka
import pytest

from fastq.cli import main

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


def said(capfd: pytest.CaptureFixture[str], servers: str, *arguments: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main([*arguments, "--bootstrap", servers]) == code
    out, err = capfd.readouterr()
    return out if code == 0 else err


def test_versions_are_those_that_kafkas_tool_tells(capfd: pytest.CaptureFixture[str], servers: str) -> None:
    name = "org.apache.kafka.tools.BrokerApiVersionsCommand"
    printed = apache_kafka.run_tool(name, "--bootstrap-server", servers).stdout
    line = re.compile(r"\s(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[(?:usable: (\d+)|unusable|unsupported)\]")
    theirs = {
        api: (int(key), int(low), int(high or low), None if used is None else int(used))
        for api, key, low, high, used in line.findall(printed.replace("[usable: ]", "[unusable]"))
    }
    rows = json.loads(said(capfd, servers, "api-versions", "--json"))
    ours = {row["api"]: (row["key"], row["min"], row["max"], str(row["used"])) for row in rows}
    assert len(theirs) > 40
    told = {api: (key, low, high, str(used or 0)) for api, (key, low, high, used) in theirs.items() if api in ours}
    assert {api: ours[api] for api in told} == told
    assert set(ours) - {"MirrorAppend", "MirrorPull"} <= set(theirs), "two APIs are told to fastq's clients alone"


def test_subscriptions_to_metrics(capfd: pytest.CaptureFixture[str], kafka_servers: str) -> None:
    named = (
        "--interval-ms",
        "5000",
        "--metrics",
        "org.apache.kafka.",
        "--match",
        "client_id=a.*",
        "--match",
        "client_software_name=fastq",
    )
    said(capfd, kafka_servers, "client-metrics", "set", "latency", *named)
    assert json.loads(said(capfd, kafka_servers, "client-metrics", "list", "--json")) == ["latency"]
    (row,) = json.loads(said(capfd, kafka_servers, "client-metrics", "describe", "--json"))
    assert row == {
        "name": "latency",
        "interval.ms": "5000",
        "metrics": "org.apache.kafka.",
        "match": "client_id=a.*,client_software_name=fastq",
    }
    tool = "org.apache.kafka.tools.ClientMetricsCommand"
    theirs = apache_kafka.run_tool(tool, "--bootstrap-server", kafka_servers, "--describe", "--name", "latency").stdout
    assert "interval.ms=5000" in theirs
    assert "bad" in said(capfd, kafka_servers, "client-metrics", "set", "bad", "--interval-ms", "1", code=1)
    said(capfd, kafka_servers, "client-metrics", "delete", "latency")
    assert said(capfd, kafka_servers, "client-metrics", "list") == ""
    assert "fastq client-metrics list" in said(capfd, kafka_servers, "client-metrics", "delete", "latency", code=1)
