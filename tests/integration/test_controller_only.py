"""A node that is a controller only, and brokers that are no controllers, each with a configuration file of Apache Kafka's keys."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer
from fastq.protocol.uuid import random_uuid, uuid_to_str


def free_ports(count: int) -> list[int]:
    with ExitStack() as taken:
        return [taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def properties(path: Path, node: int, ports: list[int], controller: int, **more: str) -> Path:
    here = f"127.0.0.1:{ports[node - 1]}"
    roles, listeners = ("controller", f"CONTROLLER://{here}") if node == 1 else ("broker", f"PLAINTEXT://{here}")
    settings = {
        "process.roles": roles,
        "node.id": node,
        "listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": path / f"node-{node}",
        "offsets.topic.replication.factor": 2,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    file = path / f"node-{node}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


@contextmanager
def node(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastq_broker", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line


@pytest.mark.slow
def test_brokers_of_a_controller_that_is_none(tmp_path: Path) -> None:
    ports = free_ports(3)
    cluster = uuid_to_str(random_uuid())
    configs = [properties(tmp_path, number, ports, ports[0]) for number in (1, 2, 3)]
    for config in configs:
        command = [sys.executable, "-m", "fastq_broker", "format", "--cluster-id", cluster, "--config", str(config)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    with node(configs[0]) as controller, node(configs[1]) as first, node(configs[2]) as second:
        assert re.match(rf"fastq-broker ready on 127\.0\.0\.1:{ports[0]} in ", ready(controller))
        for process in (first, second):
            ready(process)
        servers = f"127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}"
        with Admin(bootstrap_servers=servers) as admin:
            while [one.node_id for one in admin.describe_cluster().nodes] != [2, 3]:
                # The first one has not heard of it yet.
                time.sleep(0.05)
            admin.create_topic("t", 2, 2)
        with Producer(bootstrap_servers=servers, acks="all") as producer:
            producer.send("t", b"one", partition=0).result(30)
            producer.send("t", b"two", partition=1).result(30)
        with Consumer("t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest") as consumer:
            values: set[bytes | None] = set()
            while len(values) < 2:
                values |= {record.value for record in consumer.poll(timeout=30)}
        assert values == {b"one", b"two"}
        for process in (second, first, controller):
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0 and "Traceback" not in log, log


@pytest.mark.slow
def test_replicas_in_a_directory_that_failed_do_not_come_back_in_sync(tmp_path: Path) -> None:
    """Their leaders are elsewhere, and the broker, which lives on, does not ask these for records that it could not write."""
    ports = free_ports(3)
    cluster = uuid_to_str(random_uuid())
    (tmp_path / "two").mkdir()
    directory = tmp_path / "two" / "lost"
    configs = [properties(tmp_path, number, ports, ports[0]) for number in (1, 2)]
    configs.append(properties(tmp_path, 3, ports, ports[0], log_dirs=f"{tmp_path / 'node-3'},{directory}"))
    for config in configs:
        command = [sys.executable, "-m", "fastq_broker", "format", "--cluster-id", cluster, "--config", str(config)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    with node(configs[0]) as controller, node(configs[1]) as first, node(configs[2]) as second:
        for process in (controller, first, second):
            ready(process)
        servers = f"127.0.0.1:{ports[1]}"
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("t", replica_assignments={partition: [3, 2] for partition in range(4)})
            deadline = time.monotonic() + 30
            while len(lost := {int(path.name[2:]) for path in directory.glob("t-*")}) < 2:
                assert time.monotonic() < deadline, lost
                time.sleep(0.05)
            time.sleep(1)  # the controller hears where they are
            directory.rename(tmp_path / "two" / "gone")
            with Producer(bootstrap_servers=servers, acks="1") as producer:
                producer.send("t", b"who notices", partition=min(lost)).result(30)
            time.sleep(2)  # for who would come back
            assert second.poll() is None
            partitions = admin.describe_topic("t").partitions
        assert {one.index: one.isr for one in partitions if one.index in lost} == dict.fromkeys(lost, (2,))
