"""Kafka's metadata shell is the oracle of `fastq metadata --file`: the same tree of the same log, ours and Apache Kafka's."""

from __future__ import annotations

import re
import time
from pathlib import Path

import apache_kafka
import pytest

from fastq import Admin
from fastq.admin import ConfigResource
from fastq.cli import main
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]
SHELL = "org.apache.kafka.shell.MetadataShell"
LOG = Path("__cluster_metadata-0") / "00000000000000000000.log"


def theirs(log: Path, *words: str) -> list[str]:
    """What the shell prints; it may read before the log is loaded, and is asked again then."""
    for _ in range(5):
        lines = apache_kafka.run_tool(SHELL, "--snapshot", str(log), *words).stdout.splitlines()
        told = [line for line in lines if line and not re.match(r"\d{4}-\d\d-\d\dT.* ERROR ", line)]
        if len(told) > 40:
            return told
    raise AssertionError(told)


def ours(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capfd.readouterr()
    assert main(["metadata", *words]) == 0
    return capfd.readouterr().out.splitlines()


def comparable(lines: list[str]) -> list[str]:
    """Without what ours leaves out or has more of: secrets, quotas' values and default entities, and absent from empty."""
    found, quotas = [], False
    for line in lines:
        if not line.startswith(" "):
            quotas = line == "clientQuotas:"
        if not quotas:
            line = re.sub(r"salt=.*, iterations", "iterations", line)
            found.append(line.replace("cordonedDirectories=null", "cordonedDirectories=[]"))
    return found


def test_our_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        Broker(data_dir=tmp_path / "data") as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        admin.create_topic("logs", 12, 1, configs={"retention.ms": "1000"})
        admin.create_topic("gone", 1, 1)
        admin.delete_topic("gone")
        admin.set_configs(ConfigResource.broker(None), {"log.retention.ms": "5000"})
        admin.set_configs(ConfigResource.broker(1), {"log.cleaner.threads": "2"})
    log = tmp_path / "data" / LOG
    assert comparable(ours(capfd, "tree", "/image", "--file", str(log))) == comparable(theirs(log, "tree", "/image"))
    assert comparable(ours(capfd, "find", "/image", "--file", str(log))) == comparable(theirs(log, "find", "/image"))


def test_apache_kafkas_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with apache_kafka.ApacheKafka(tmp_path / "data", heap="512m", properties=properties) as kafka:
        servers = ("--bootstrap-server", kafka.bootstrap_servers)
        users = ("--alter", "--entity-type", "users", "--entity-name", "bob", "--add-config")
        apache_kafka.run_tool("kafka.admin.ConfigCommand", *servers, *users, "SCRAM-SHA-256=[password=x]")
        apache_kafka.run_tool("kafka.admin.ConfigCommand", *servers, *users, "producer_byte_rate=1024")
        acl = ("--add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "logs")
        apache_kafka.run_tool("org.apache.kafka.tools.AclCommand", *servers, *acl)
        apache_kafka.run_tool(
            "org.apache.kafka.tools.TopicCommand", *servers, "--create", "--topic", "logs", "--partitions", "2"
        )
        time.sleep(0.1)
    log = tmp_path / "data" / LOG
    found = ours(capfd, "tree", "/image", "--file", str(log))
    assert comparable(found) == comparable(theirs(log, "tree", "/image"))
    assert any("principal=User:bob" in line for line in found)
    at = found.index("clientQuotas:")
    assert found[at : at + 4] == ["clientQuotas:", "  user(bob):", "    producer_byte_rate:", "      1024.0"]
