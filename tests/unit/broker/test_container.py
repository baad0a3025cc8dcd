"""`fastq-broker container`: variables become settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.container import defaults, format_arguments, main, settings_of, unknown_variables
from fastq_broker.controller.storage import MetaProperties
from nodes import free_ports

from fastq import Admin

APACHE = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_NUM_PARTITIONS": "3",
    "KAFKA_HEAP_OPTS": "-Xmx1g",
}
"""As the README of Apache Kafka's image has it."""


def test_names() -> None:
    told, passed = settings_of(
        {"KAFKA_LOG_RETENTION_MS": "5", "KAFKA_A__B_C___D": "x", "PATH": "/bin", "CLUSTER_ID": "i"}
    )
    assert (told, passed) == ({"log.retention.ms": "5", "a_b.c-d": "x"}, [])


@pytest.mark.parametrize(
    "variable",
    ["KAFKA_HEAP_OPTS", "KAFKA_JMX_PORT", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_TOOLS_LOG4J_LOGLEVEL", "KAFKA_VERSION"],
)
def test_what_is_for_a_jvm_is_passed_over(variable: str) -> None:
    assert settings_of({variable: "x"}) == ({}, [])


@pytest.mark.parametrize(
    "variable",
    [
        "KAFKA_PORT",
        "KAFKA_SERVICE_HOST",
        "KAFKA_SERVICE_PORT_CLIENTS",
        "KAFKA_PORT_9092_TCP_ADDR",
        "KAFKA_UI_SERVICE_PORT",
    ],
)
def test_what_kubernetes_sets_is_named_and_passed_over(variable: str) -> None:
    assert settings_of({variable: "tcp://10.0.0.1:9092"}) == ({}, [variable])


def test_a_container_has_clients_on_both_sides() -> None:
    assert defaults({}, "kafka-1")["advertised.listeners"] == "HOST://localhost:9092,CONTAINERS://kafka-1:19092"
    assert defaults({"listeners": "PLAINTEXT://:1"}, "kafka-1") == {}


@pytest.mark.parametrize(
    ("settings", "advertised"),
    [
        ({"advertised.listeners": "PLAINTEXT://kafka.example.com:9092"}, "PLAINTEXT://kafka.example.com:9092"),
        ({"advertised.listeners": "kafka.example.com:9094"}, "PLAINTEXT://kafka.example.com:9094"),
        ({"advertised.host.name": "kafka.example.com"}, "PLAINTEXT://kafka.example.com:9092"),
        ({"inter.broker.listener.name": "PLAINTEXT", "advertised.host.name": "k"}, "PLAINTEXT://k:9092"),
        ({"advertised.listeners": "HOST://h:9092,CONTAINERS://c:19092"}, "HOST://h:9092,CONTAINERS://c:19092"),
    ],
)
def test_what_is_advertised_alone_is_of_the_listener_that_it_names(settings: dict[str, str], advertised: str) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": "d", **defaults(settings, "kafka-1"), **settings})
    assert ",".join(map(str, config.advertised_listeners)) == advertised


def test_the_first_controller_is_formatted_as_such() -> None:
    assert format_arguments({"process.roles": "broker,controller"}, "id")[:4] == [
        "format",
        "--cluster-id",
        "id",
        "--standalone",
    ]
    voters = {"process.roles": "broker,controller", "controller.quorum.voters": "1@a:1"}
    assert "--standalone" not in format_arguments(voters, "id")
    assert "--standalone" not in format_arguments({"process.roles": "broker"}, "id")
    assert "--standalone" in format_arguments({}, "id"), "a node has both roles where none is named"


def run(tmp_path: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastq_broker", "container", "--data-dir", str(tmp_path / "data")]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    return subprocess.Popen(
        command, env={**plain, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_variables_of_apache_kafkas_image_start_a_node(tmp_path: Path) -> None:
    port = free_ports(2)
    environment = {
        **APACHE,
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{port}",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{port + 1}",
        "KAFKA_SERVICE_HOST": "10.0.0.1",
    }
    for _ in range(2):  # the second start finds its directory
        process = run(tmp_path, environment)
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("fastq-broker ready"):
            assert line, process.communicate()
        with Admin(bootstrap_servers=f"127.0.0.1:{port}") as admin:
            cluster = admin.describe_cluster()
            assert (cluster.cluster_id, cluster.nodes[0].host) == ("5L6g3nShT-eMCtK--X86sw", "localhost")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
        assert "KAFKA_SERVICE_HOST: passed over" in log


def test_a_lone_container_takes_the_cluster_it_is_given(tmp_path: Path) -> None:
    port = free_ports(1)
    environment = {"CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw", "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}"}
    for _ in range(2):
        process = run(tmp_path, environment)
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("fastq-broker ready"):
            assert line, process.communicate()
        with Admin(bootstrap_servers=f"127.0.0.1:{port}") as admin:
            assert admin.describe_cluster().cluster_id == environment["CLUSTER_ID"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_a_variable_that_is_no_setting_refuses_the_start(tmp_path: Path) -> None:
    process = run(tmp_path, {"KAFKA_LOG_RETENTION_HUORS": "5"})
    _, log = process.communicate(timeout=30)
    assert process.returncode == 2 and log.startswith("fastq-broker container: KAFKA_LOG_RETENTION_HUORS: ")
    assert "log.retention.hours" in log


def test_every_variable_that_is_none_is_named() -> None:
    told, _ = settings_of({"KAFKA_": "", "KAFKA_A_B__C___D": "1", "KAFKA_NODE_ID": "1"})
    words = unknown_variables(told)
    assert "KAFKA_ names no setting" in words and "KAFKA_A_B__C___D: unknown broker setting a.b_c-d" in words
    assert "NODE_ID" not in words


def test_the_directory_of_another_cluster_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MetaProperties("5L6g3nShT-eMCtK--X86sw", 1, bytes(16)).write(tmp_path)
    environment = {"CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw", "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:9"}
    assert main(["--data-dir", str(tmp_path)], environment) == 2
    assert f"{tmp_path} belongs to cluster 5L6g3nShT-eMCtK--X86sw" in capsys.readouterr().err
