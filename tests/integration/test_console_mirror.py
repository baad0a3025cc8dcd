"""The console beside a mirror that runs, between two brokers: what its page says is what has arrived."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mirrors import configured, running
from waiting import until

from fastq import Admin, Producer
from fastq.testing import Broker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Browser, Served

from fastq.console.config import ClusterConfig, ConsoleConfig

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


def test_the_page_of_a_mirror_that_runs(shared_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastq.console.mirrors.LOOK_S", 0.2)
    monkeypatch.setattr("fastq.console.mirrors.RATES_S", 0.1)
    monkeypatch.setattr("fastq.console.mirrors.LATE_S", 1.0)
    source, topic = shared_broker.bootstrap_servers, "console-mirrored"
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as other, Admin(bootstrap_servers=source) as admin:
        admin.create_topic(topic, 2)
        config = configured((shared_broker, other), [topic], alias="console", heartbeat_interval_ms=0)
        cluster = ClusterConfig("west", {"bootstrap.servers": other.bootstrap_servers})
        console = Served(ConsoleConfig((cluster,), port=0, mirrors={"one": config}))
        try:
            with Browser(console.url) as browser:
                page = lambda: browser.get("/mirrors/one").text  # noqa: E731
                assert "no mirror from console has run there" in page()
                with Producer(bootstrap_servers=source) as producer:
                    for n in range(20):
                        producer.send(topic, b"%d" % n, partition=n % 2)
                with running(config):
                    until(
                        lambda: "<dt>Lag, in records</dt><dd>0</dd>" in page() and page().count(">mirrored</td>") == 2
                    )
                    assert f"console.{topic}" in page() and "none" not in browser.get("/mirrors/one/lag").text
                with Producer(bootstrap_servers=source) as producer:
                    producer.send(topic, b"later", partition=1).result()
                until(lambda: "<dt>Lag, in records</dt><dd>1</dd>" in page())
                other.kill()
                until(lambda: "One of the two clusters does not answer" in page() or "It cannot be looked at" in page())
        finally:
            console.close()
