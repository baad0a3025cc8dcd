"""The files in ops/: each name that the dashboard and the alerts use is one that a running broker tells, each way out is there, and what
the containers are told makes a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import free_ports, running

from fastq import Admin, Consumer, Producer
from fastq.testing import Broker

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\b(?:kafka|fastq|process)_[a-z_]+\b")


def told(url: str) -> set[str]:
    """The names of samples and families that a node tells."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=20).read().decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    return families | {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and line[0] != "#"}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    found: set[str] = set()
    with Broker(in_memory=True, metrics=True) as broker:
        servers = broker.bootstrap_servers
        with Producer(bootstrap_servers=servers) as producer:
            producer.send("seen", b"value").result(20)
        with Consumer("seen", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(timeout=20)) == 1
            consumer.commit()
        found |= told(broker.metrics_url)
    port = free_ports(9)
    with running(tmp_path_factory.mktemp("ops"), port, 1000, "--metrics-listen", f"127.0.0.1:{port + 6}") as nodes:
        nodes.ready()
        for at in range(3):
            found |= told(f"http://127.0.0.1:{port + 6 + at}")
    yield found


def test_every_panel_shows_what_there_is(names: set[str]) -> None:
    dashboard = json.loads((ROOT / "ops" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    used = {name for each in expressions for name in NAME.findall(each)}
    assert used - names == set()
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_every_alert_is_about_what_there_is_and_has_a_way_out(names: set[str]) -> None:
    text = (ROOT / "ops" / "prometheus-alerts.yml").read_text()
    alerts, expressions = re.findall(r"- alert: (\w+)", text), re.findall(r"expr: (.+)", text)
    runbooks = re.findall(r"runbook: (\S+)", text)
    assert len(alerts) == len(set(alerts)) == len(expressions) == len(runbooks) > 10
    used = {name for each in expressions for name in NAME.findall(each)}
    assert used - names == set()
    for runbook in runbooks:
        page, _, anchor = runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, (
            runbook
        )


def test_what_dashboards_for_apache_kafka_ask_for_is_there(names: set[str]) -> None:
    manager = (
        "underreplicatedpartitions",
        "underminisrpartitioncount",
        "offlinereplicacount",
        "leadercount",
        "partitioncount",
    )
    assert {f"kafka_server_replicamanager_{name}" for name in manager} <= names
    assert {"kafka_server_replicamanager_isrshrinks_total", "kafka_consumergroup_lag"} <= names


def test_three_containers_are_one_cluster(tmp_path: Path) -> None:
    """The variables of the compose file, with places of this machine for those of its network."""
    text = (ROOT / "ops" / "compose-cluster.yml").read_text()
    first = free_ports(9)
    nodes = []
    for number, service in enumerate(re.split(r"^  node-\d:\n", text, flags=re.MULTILINE)[1:]):
        told = dict(re.findall(r"^      ([A-Z_]+): \"?([^\"\n]+)\"?$", service, re.MULTILINE))
        for key, value in told.items():
            value = re.sub(r"node-(\d):19093", lambda at: f"127.0.0.1:{first + 5 + int(at[1])}", value)
            value = re.sub(r"node-\d:19092|(?<=CONTAINERS://):19092", f"127.0.0.1:{first + 3 + number}", value)
            value = re.sub(r"(?<=CONTROLLER://):19093", f"127.0.0.1:{first + 6 + number}", value)
            told[key] = re.sub(r"localhost:909\d|(?<=HOST://):909\d", f"127.0.0.1:{first + number}", value)
        command = [sys.executable, "-m", "fastq_broker", "container", "--data-dir", str(tmp_path / str(number))]
        nodes.append(
            subprocess.Popen(
                command, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
    try:
        for node in nodes:
            assert node.stdout is not None
            assert any(line.startswith("fastq-broker ready") for line in iter(node.stdout.readline, ""))
        with Admin(bootstrap_servers=f"127.0.0.1:{first}") as admin:
            cluster = admin.describe_cluster()
            assert (len(cluster.nodes), cluster.cluster_id) == (3, "5L6g3nShT-eMCtK--X86sw")
            admin.create_topic("spread", 3, 3)
        with Producer(bootstrap_servers=f"127.0.0.1:{first}", acks="all") as producer:
            producer.send("spread", b"value").result(20)
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
