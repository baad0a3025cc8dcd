"""Heartbeats of a mirror with the same offsets: fail-over and fail-back go both ways, heartbeats only ever one."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrors import running
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.cli import main
from fastq.errors import PolicyViolation
from fastq.mirror.comparison import compare_all
from fastq.mirror.config import MirrorConfig, load_config
from fastq.mirror.failover import fail_back, fail_over, reversed_config
from fastq.mirror.names import HEARTBEATS
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

FILE = """
[source]
alias = "east"
bootstrap.servers = "{}"
[target]
alias = "west"
bootstrap.servers = "{}"
[mirror]
topics = ["orders"]
names = "identity"
offsets = "same"
lanes = 2
refresh_interval_ms = 200
heartbeat_interval_ms = 20
"""


def end_in_target(mirror: MirrorConfig, topic: str) -> int:
    """Where the first partition ends; -1 where there is no such topic."""
    with Admin(mirror.target.common) as admin:
        if topic not in admin.list_topics():
            return -1
        tp = TopicPartition(topic, 0)
        return admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result().offset


def run_until_heartbeats_arrive(mirror: MirrorConfig, copy: str) -> None:
    before = end_in_target(mirror, copy)

    def arrived() -> bool:
        return end_in_target(mirror, copy) > max(before, 0) and end_in_target(mirror, "orders") >= 0

    with running(mirror):
        until(arrived)
        (told,) = compare_all(mirror, [HEARTBEATS])
        assert told.result == "same", told


def test_heartbeats_go_on_once_the_mirror_has_been_failed_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soon = {"group.initial.rebalance.delay.ms": 0}
    path = tmp_path / "mirror.toml"
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        path.write_text(FILE.format(source.bootstrap_servers, target.bootstrap_servers))
        config = load_config(path)
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("orders")
        for mirror in (config, reversed_config(config)) * 2:
            copy = f"{mirror.source.alias}.{HEARTBEATS}"
            run_until_heartbeats_arrive(mirror, copy)
            missing = fail_over(mirror).missing
            assert missing is not None and {tp.topic for tp in missing} == {"orders"}, (
                "heartbeats go on, and miss nothing"
            )
            with Producer(mirror.target.common) as other, pytest.raises(PolicyViolation):
                other.send(copy, b"of nobody else", key=b"key").result()
            assert {tp.topic for tp in fail_back(mirror).partitions} == {"orders"}
        source.stop()
        assert main(["mirror", "status", "--config", str(path)]) == 3
    assert "the last heartbeat of east that has arrived in west was sent " in capsys.readouterr().err
