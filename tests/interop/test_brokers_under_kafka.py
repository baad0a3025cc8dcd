"""Our brokers, as processes, under a controller of Apache Kafka: records and transactions go through them, one is killed and one is stopped
in a controlled way, and what was acknowledged is read."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import apache_kafka
import pytest
from test_kafka_controller import CONTROLLER, started

from fastq import Admin, Consumer, Producer
from fastq.admin import NewTopic

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]
OURS = (11, 12, 13)
SETTINGS = {
    "broker.heartbeat.interval.ms": 300,  # the controller's sessions take 2 s, which is the default of this too
    "process.roles": "broker",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


def free_ports(count: int) -> list[int]:
    with ExitStack() as taken:
        return [taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@contextlib.contextmanager
def node(config: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, killed at the end; what it logs goes to a file beside its configuration."""
    command = [sys.executable, "-m", "fastq_broker", "--config", str(config)]
    with (
        config.with_suffix(".log").open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], config: Path) -> None:
    assert process.stdout is not None
    assert process.stdout.readline(), config.with_suffix(".log").read_text()


def formatted(path: Path, number: int, port: int, kafka: apache_kafka.ApacheKafka, cluster_id: str) -> Path:
    settings = {
        **SETTINGS,
        "node.id": number,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{kafka.controller_port}",
        "log.dirs": path / f"ours-{number}",
    }
    file = path / f"ours-{number}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "fastq_broker", "format", "--cluster-id", cluster_id, "--config", str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return file


def write(servers: str, name: str, kept: list[bytes]) -> None:
    """A committed and an aborted transaction."""
    with Producer(bootstrap_servers=servers, transactional_id=name) as producer:
        with producer.transaction():
            for number in range(50):
                producer.send("orders", b"%s-%d" % (name.encode(), number))
        kept += [b"%s-%d" % (name.encode(), number) for number in range(50)]
        producer.begin_transaction()
        producer.send("orders", b"aborted")
        producer.abort_transaction()


def test_processes_of_ours_are_brokers_of_a_controller_of_apache_kafka(tmp_path: Path) -> None:
    cluster_id = apache_kafka.random_cluster_id()
    kafka = started(tmp_path / "kafka", cluster_id)
    ports = free_ports(len(OURS))
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    with ExitStack() as ending:
        ending.callback(with_suppressed(kafka.stop))
        files = [formatted(tmp_path, *place, kafka, cluster_id) for place in zip(OURS, ports, strict=True)]
        running = [ending.enter_context(node(file)) for file in files]
        for process, file in zip(running, files, strict=True):
            ready(process, file)
        kept: list[bytes] = []
        with Admin(bootstrap_servers=servers, default_api_timeout_ms=60_000) as admin:
            while sorted(one.node_id for one in admin.describe_cluster().nodes) != list(OURS):
                time.sleep(0.02)  # whoever is asked hears of the others a little later
            admin.create_topics(
                [NewTopic(name="orders", partitions=3, replication_factor=3, configs={"min.insync.replicas": "1"})]
            ).results()
        write(servers, "first", kept)
        running[0].kill()
        write(servers, "killed", kept)
        running[1].send_signal(signal.SIGTERM)
        assert running[1].wait(60) == 0
        write(servers, "stopped", kept)
        again = ending.enter_context(node(files[0]))
        ready(again, files[0])
        with Consumer(
            "orders", bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            assert sorted(record.value or b"" for record in consumer.read_to_end()) == sorted(kept)


def with_suppressed(stop: Callable[[], object]) -> Callable[[], None]:
    def stopped() -> None:
        with contextlib.suppress(OSError):
            stop()

    return stopped
