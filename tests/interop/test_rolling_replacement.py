"""Three nodes of Apache Kafka become three of ours under load, and no client notices: what docs/operations.md says of moving from there.

- On the directories that they have, one at a time, and back: a node is stopped, the other broker is started on its server.properties
  and its directory, and the next one's turn is when nothing is under-replicated.
- By nodes of ours that join, take over partitions and votes, while those of Apache Kafka go.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_kafka
import pytest
from clients_at_work import KINDS, ClientsAtWork
from java_clients import JavaClients
from nodes import free_ports

from fastq import Admin, FastqError

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

NODES, NEW_NODES = (1, 2, 3), (4, 5, 6)
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "5",
}
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""It is to start quickly, and not to take both cores from the clients."""


class Place:
    """A node of the cluster: its configuration and directory, and the broker that runs on them, Apache Kafka's or ours."""

    def __init__(self, node_id: int, path: Path, kafka: apache_kafka.ApacheKafka) -> None:
        self.node_id, self.kafka = node_id, kafka
        self.ours: subprocess.Popen[bytes] | None = None
        self._log = path / f"ours-{node_id}.log"

    def start(self, *, ours: bool) -> None:
        if not ours:
            self.kafka.start(timeout=120)
            return
        command = [sys.executable, "-m", "fastq_broker", "--config", str(self.kafka.write_config())]
        with self._log.open("ab") as log:
            self.ours = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def refused(self) -> None:
        """Its file is tried while it runs, and it keeps the other kind away."""
        command = [sys.executable, "-m", "fastq_broker", "--config", str(self.kafka.write_config())]
        tried = subprocess.run([*command, "--check-config"], capture_output=True, text=True, timeout=60, check=False)
        assert tried.returncode == 0 and f"node.id={self.node_id}" in tried.stdout, tried.stderr
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 1 and "the port is in use" in told.stderr, told.stderr

    def stop(self) -> None:
        self.kafka.stop()
        process, self.ours = self.ours, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0, self.log_text()
            finally:
                process.kill()

    def kill(self) -> None:
        self.kafka.kill()
        process, self.ours = self.ours, None
        if process is not None:
            process.kill()
            process.wait()

    def log_text(self) -> str:
        ours = self._log.read_text() if self._log.exists() else ""
        return f"== node {self.node_id}, Apache Kafka ==\n{self.kafka.log_text()[-6000:]}\n== ours ==\n{ours[-9000:]}"


class Cluster:
    """Places, and the numbers of those that are there now."""

    def __init__(self, path: Path, *, static: bool) -> None:
        """With the voters of controller.quorum.voters, or with such as come and go, and two log directories a node."""
        self.path, self.static = path, static
        self.cluster_id, self.ports = random_uuid(), free_ports(40, anew=True)
        self.initial = ",".join(f"{node}@{self.controller_of(node)}:{random_uuid()}" for node in NODES)
        self.places = {node_id: self.place(node_id) for node_id in NODES}

    @property
    def servers(self) -> str:
        return ",".join(place.kafka.bootstrap_servers for place in self.places.values())

    def controller_of(self, node_id: int) -> str:
        return f"127.0.0.1:{self.ports + 20 + node_id}"

    def place(self, node_id: int) -> Place:
        kafka = apache_kafka.ApacheKafka(
            self.path / f"node-{node_id}",
            heap="512m",
            cluster_id=self.cluster_id,
            initial_controllers=None if self.static else self.initial,
            java_options=JAVA_OPTIONS,
        )
        kafka.port = self.ports + node_id
        kafka.properties |= SETTINGS | {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{kafka.bootstrap_servers},CONTROLLER://{self.controller_of(node_id)}",
            "advertised.listeners": f"PLAINTEXT://{kafka.bootstrap_servers}",
            "controller.quorum.bootstrap.servers": ",".join(map(self.controller_of, (*NODES, *NEW_NODES))),
        }
        if self.static:
            del kafka.properties["controller.quorum.bootstrap.servers"]
            named = ",".join(f"{node}@{self.controller_of(node)}" for node in NODES)
            kafka.properties["controller.quorum.voters"] = named
        else:
            kafka.properties["log.dirs"] += f",{kafka.data_dir}-more"
        return Place(node_id, self.path, kafka)

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda place: place.kafka.format(), self.places.values()))
            list(pool.map(lambda place: place.start(ours=False), self.places.values()))
        self.whole()

    def whole(self) -> None:
        """Wait until every node runs, follows the metadata, and every replica is in sync."""
        end = time.monotonic() + 120
        missing = ["nothing was asked yet"]
        while missing:
            assert time.monotonic() < end, missing
            time.sleep(0.2)
            try:
                with Admin(bootstrap_servers=self.servers) as admin:
                    missing = list(self._missing(admin))
            except FastqError as error:
                missing = [repr(error)]

    def _missing(self, admin: Admin) -> Iterator[str]:
        alive = {node.node_id for node in admin.describe_cluster().nodes}
        yield from (f"node {node_id}" for node_id in self.places if node_id not in alive)
        quorum = admin.describe_quorum()
        if {voter.node_id for voter in quorum.voters} != self.places.keys():
            yield f"voters {quorum.voters}"
        for voter in quorum.voters:
            if voter.log_end_offset < quorum.high_watermark:
                yield f"controller {voter.node_id} is at {voter.log_end_offset} of {quorum.high_watermark}"
        topics = admin.describe_topics(list(admin.list_topics(include_internal=True)))
        for name, outcome in topics.items():
            for partition in outcome.result().partitions:
                if len(partition.isr) < 3:
                    yield f"{name}-{partition.index} has {partition.isr} of {partition.replicas}"

    def command(self, *arguments: str) -> str:
        """What `fastq` prints."""
        command = [sys.executable, "-m", "fastq.cli", *arguments, "--bootstrap", self.servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def join(self, node_id: int) -> None:
        """A new node of ours comes, and votes."""
        place = self.places[node_id] = self.place(node_id)
        config = str(place.kafka.write_config())
        options = ["--cluster-id", self.cluster_id, "--no-initial-controllers", "--config", config]
        subprocess.run(
            [sys.executable, "-m", "fastq_broker", "format", *options], check=True, stdout=subprocess.DEVNULL
        )
        place.start(ours=True)
        directory = re.search(r"directory\.id=(\S+)", (self.path / f"node-{node_id}" / "meta.properties").read_text())
        assert directory is not None
        self.until(lambda: node_id in json.loads(self.command("quorum", "status", "--json"))["observers"])
        self.command("quorum", "add-controller", f"{node_id}@{self.controller_of(node_id)}:{directory[1]}")
        self.whole()

    def leave(self, node_id: int) -> None:
        """A node gives all away, votes no more, and goes."""
        self.command("partitions", "rebalance", "--drain", str(node_id), "--execute")
        self.until(lambda: self.command("partitions", "reassign", "--list").startswith("no partition moves"))
        self.command("quorum", "remove-controller", str(node_id))
        self.places[node_id].stop()
        del self.places[node_id]
        self.command("cluster", "unregister", str(node_id))
        self.whole()

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not what():
            assert time.monotonic() < end
            time.sleep(0.5)

    def kill(self) -> None:
        """The last two nodes of Apache Kafka would wait for a quorum before they stop."""
        for place in self.places.values():
            place.kill()


def random_uuid() -> str:
    """As Kafka makes them: none begins like an option of a command."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return random_uuid() if made.startswith("-") else made


@contextlib.contextmanager
def at_work(cluster: Cluster) -> Iterator[ClientsAtWork]:
    """Clients that work on a cluster while the block runs; then what they saw is checked."""
    protocol = "classic" if cluster.static else "consumer"
    work = ClientsAtWork(cluster.servers, copiers=(*KINDS, "java"), group_protocol=protocol)
    try:
        cluster.start()
        work.make_topics()
        work.start()
        yield work
        work.servers = cluster.servers
        work.finish()
        assert not work.anomalies(), work.anomalies()
        assert len(work.log.final) > 500
    except BaseException:
        print(*work.errors, sep="\n")
        print(*(place.log_text() for place in cluster.places.values()), sep="\n")
        raise
    finally:
        work.stop()
        cluster.kill()


def take_over(cluster: Cluster, place: Place, *, ours: bool, crash: bool = False) -> None:
    if crash:
        place.kill()
    else:
        place.stop()
    place.start(ours=ours)
    cluster.whole()


@pytest.mark.timeout(400)
def test_on_the_directories_that_they_have_and_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, static=True)
    with at_work(cluster) as work:
        cluster.places[1].refused()
        for ours in (True, False):
            for place in cluster.places.values():
                time.sleep(0.5)
                take_over(cluster, place, ours=ours)
                work.no_failure()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_after_crashes_and_with_clients_in_java(tmp_path: Path) -> None:
    """As above with voters that may come and go, and every second node is killed instead of stopped."""
    cluster = Cluster(tmp_path, static=False)
    with at_work(cluster) as work, JavaClients(cluster.servers, tmp_path) as java:
        for turn in range(4):
            for place in cluster.places.values():
                time.sleep(5)
                take_over(cluster, place, ours=turn % 2 == 0, crash=(turn + place.node_id) % 2 == 0)
                work.no_failure()
        java.check(work)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_by_nodes_that_join(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, static=False)
    with at_work(cluster) as work:
        for old, new in zip(NODES, NEW_NODES, strict=True):
            cluster.join(new)
            cluster.leave(old)
            work.no_failure()
        assert all(place.ours for place in cluster.places.values())
