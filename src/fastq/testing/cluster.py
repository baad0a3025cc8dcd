"""A cluster for tests: real `fastq-broker` nodes, each a process on free ports of this machine, gone when the test is.

    from fastq.testing import Cluster

    with Cluster(nodes=3) as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.leader("orders", 0).kill()

Rules: every node is a `fastq.testing.Broker`, with its switches, its log, and its `kill`, `stop`, `start` and `restart`. The first three
are controllers and brokers, the others brokers. The directories are formatted by the command, as a user does it, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fastq.admin import Admin, ElectionType
from fastq.arguments import int_of
from fastq.errors import UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.protocol.uuid import random_uuid, uuid_to_str
from fastq.testing import (
    READY_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Broker,
    BrokerFailed,
    broker_environment,
    directory_of,
    environment_of,
    settings_of,
    temporary_dir,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastq.admin import TopicDescription

_FORMAT = "import json, sys; from fastq_broker.format import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"
CONTROLLERS_MAX = 3
NODES_MAX = 100
LOOPBACK = "127.0.0.1"
HEARD_TIMEOUT_S = 3.0
"""How long a topic that one node has may be news to another one."""


class Cluster:
    """Some broker processes that are one cluster; a context manager. Not for use by two threads at once.

    `nodes`: how many, 1 or more. `data_dir`: where their directories are made (None: a temporary directory, removed at the end; with
    `in_memory` one that is in memory, where the system has such a place); a cluster that was there goes on, at the same ports. `config`:
    settings of all nodes, by Kafka name or in Python's spelling; unless they say otherwise, topics have three replicas, or as many as
    there are nodes, of which two have to be in sync. `env`: of all processes. ValueError for less than one node or more
    than 100, and for a directory of another number of nodes.
    """

    def __init__(
        self,
        nodes: int = 3,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        in_memory: bool = False,
    ) -> None:
        nodes = int_of(nodes, "nodes", 1, NODES_MAX)
        given, self._env = settings_of(config), environment_of(env)
        self._own_dir = data_dir is None
        self.data_dir = directory_of(data_dir) if data_dir is not None else temporary_dir(in_memory)
        few = min(nodes, 3)
        settings = {
            "default.replication.factor": few,
            "min.insync.replicas": min(few, 2),
            "offsets.topic.replication.factor": few,
            "transaction.state.log.replication.factor": few,
            "transaction.state.log.min.isr": min(few, 2),
            **{name.replace("_", "."): value for name, value in given.items()},
        }
        ports = _ports(self.data_dir, nodes)
        self._controllers = {number: controller for number, (_, controller) in ports.items() if controller is not None}
        self.nodes = tuple(
            Node(number, self.data_dir / f"node-{number}", port, self._settings(number, settings), env=self._env)
            for number, (port, _) in ports.items()
        )
        """The nodes, with the ids from 1 on, in their order."""

    def _settings(self, number: int, shared: Mapping[str, object]) -> dict[str, object]:
        own: dict[str, object] = {"node.id": number, "process.roles": "broker"}
        if number in self._controllers:
            own["process.roles"] = "broker,controller"
            own["controller.listeners"] = f"CONTROLLER://{LOOPBACK}:{self._controllers[number]}"
        own["controller.listener.names"] = "CONTROLLER"
        own["controller.quorum.bootstrap.servers"] = ",".join(
            f"{LOOPBACK}:{port}" for port in self._controllers.values()
        )
        return {**shared, **own}

    # -- what there is

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes for clients: host:port, ..."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def log(self) -> str:
        """What the nodes have logged so far, one after the other."""
        return "".join(f"--- node {node.node_id} at {node.bootstrap_servers}\n{node.log}" for node in self.nodes)

    def node(self, node_id: int) -> Broker:
        """The node of that id. KeyError."""
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise KeyError(f"no node {node_id}: they are 1 to {len(self.nodes)}")

    def leader(self, topic: str, partition: int = 0, *, timeout: float = READY_TIMEOUT_S) -> Broker:
        """The node that leads a partition, as the running nodes know it. RuntimeError when none does; fastq's errors."""
        with Admin(bootstrap_servers=self._running(), default_api_timeout_ms=round(timeout * 1000)) as admin:
            leader = self._described(admin, topic).partitions[partition].leader
        if leader is None:
            raise RuntimeError(f"{topic}-{partition} has no leader now")
        return self.node(leader.node_id)

    def active_controller(self, *, timeout: float = READY_TIMEOUT_S) -> Broker:
        """The node whose controller is active, as the running nodes know it."""
        with Admin(bootstrap_servers=self._running(), default_api_timeout_ms=round(timeout * 1000)) as admin:
            return self.node(admin.describe_quorum().leader_id)

    def change_leader(self, topic: str, partition: int = 0, *, timeout: float = READY_TIMEOUT_S) -> Broker:
        """Give a partition another leader, the next of its replicas, and answer that node. RuntimeError where it has one replica only, or
        the next one is not in sync; fastq's errors."""
        tp = TopicPartition(topic, partition)
        with Admin(bootstrap_servers=self._running(), default_api_timeout_ms=round(timeout * 1000)) as admin:
            found = self._described(admin, topic).partitions[partition]
            replicas = list(found.replicas)
            if len(replicas) < 2:
                raise RuntimeError(f"{tp} has no other replica: {replicas}")
            at = 0 if found.leader is None else replicas.index(found.leader.node_id) + 1
            order = replicas[at:] + replicas[:at]
            admin.alter_partition_reassignments({tp: order}).results()
            admin.elect_leaders(ElectionType.PREFERRED, [tp])[tp].result()
        return self.leader(topic, partition, timeout=timeout)

    def _running(self) -> str:
        running = [node.bootstrap_servers for node in self.nodes if node.running]
        if not running:
            raise RuntimeError("no node of the cluster runs")
        return ",".join(running)

    # -- life

    def start(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """Start the nodes that do not run, and wait until each says that it is ready. Raises BrokerFailed with its log."""
        self._format()
        starting = [node for node in self.nodes if not node.running]
        for node in starting:
            node.launch()
        for node in starting:
            node.wait_ready(timeout)
        return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop the nodes with SIGTERM, all at once. Raises BrokerFailed for the first that does not end, or not with 0, when all have
        ended."""
        failed: BrokerFailed | None = None
        for node in self.nodes:
            node.terminate()
        deadline = time.monotonic() + timeout
        controllers = [node for node in self.nodes if node.node_id in self._controllers]
        while sum(node.running for node in controllers) > len(controllers) // 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for node in self.nodes:
            if node.running:
                node.terminate()  # without a majority of the controllers there is nobody who would let it go
        for node in self.nodes:
            try:
                node.stop(timeout)
            except BrokerFailed as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def restart(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """A rolling restart: each node is stopped cleanly and started again, and its replicas are in sync before the next one's turn.
        Raises BrokerFailed."""
        for node in self.nodes:
            node.restart()
            self.wait_in_sync(timeout)
        return self

    def wait_in_sync(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until all replicas of all partitions are in sync. Raises BrokerFailed that names some that are not."""
        deadline = time.monotonic() + timeout
        with Admin(bootstrap_servers=self._running(), default_api_timeout_ms=round(timeout * 1000)) as admin:
            while behind := self._behind(admin):
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"not all replicas are in sync after {timeout} s: {', '.join(behind[:10])}\n{self.log}"
                    )
                time.sleep(0.02)

    @staticmethod
    def _described(admin: Admin, topic: str) -> TopicDescription:
        """A topic, of which the node that is asked may not have heard yet. UnknownTopicOrPartition."""
        deadline = time.monotonic() + HEARD_TIMEOUT_S
        while True:
            try:
                return admin.describe_topic(topic)
            except UnknownTopicOrPartition:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    @staticmethod
    def _behind(admin: Admin) -> list[str]:
        """The partitions some of whose replicas are out of sync, and topics that the node that was asked has not heard of yet."""
        behind = []
        for topic, found in admin.describe_topics(list(admin.list_topics(include_internal=True))).items():
            if isinstance(found.error, UnknownTopicOrPartition):
                behind.append(topic)
                continue
            behind += [
                f"{topic}-{each.index}" for each in found.result().partitions if len(each.isr) < len(each.replicas)
            ]
        return behind

    def kill(self) -> None:
        """End all nodes with SIGKILL, as a loss of power would end the machine's processes."""
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        """End what still runs, and remove the temporary directory."""
        with contextlib.suppress(BrokerFailed):
            self.stop()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            self.close()
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = None
        try:
            self.stop()
        except BrokerFailed as error:
            failed = error
        self.close()
        if exc is not None:
            sys.stderr.write(f"{self.log}---\n")
        elif failed is not None:
            raise failed

    def _format(self) -> None:
        """Give the directories that have none their cluster and its first controllers, all at once. Raises BrokerFailed."""
        if all((node.data_dir / "meta.properties").exists() for node in self.nodes):
            return
        cluster = uuid_to_str(random_uuid())
        voters = ",".join(
            f"{number}@{LOOPBACK}:{port}:{uuid_to_str(random_uuid())}" for number, port in self._controllers.items()
        )
        calls = []
        for node in self.nodes:
            how = (
                ["--initial-controllers", voters] if node.node_id in self._controllers else ["--no-initial-controllers"]
            )
            calls.append(node.format_arguments("--cluster-id", cluster, *how))
        formatting = _formatting(calls, self._env)
        said = formatting.communicate(timeout=READY_TIMEOUT_S)[0]
        if formatting.returncode != 0:
            raise BrokerFailed(f"the directories in {self.data_dir} were not formatted: {said}")


def _formatting(calls: list[list[str]], env: Mapping[str, str]) -> subprocess.Popen[str]:
    """One process, at work, that runs `fastq-broker format` with each of these arguments: its start costs more than what it does."""
    return subprocess.Popen(
        [sys.executable, "-c", _FORMAT, json.dumps(calls)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=broker_environment(env),
    )


class Node(Broker):
    """One node of a cluster: a `Broker` whose settings are in a file beside its directory."""

    def __init__(
        self, node_id: int, data_dir: Path, port: int, settings: Mapping[str, object], env: Mapping[str, str]
    ) -> None:
        super().__init__(data_dir, host=LOOPBACK, port=port, node_id=node_id, env=env)
        controller = settings.get("controller.listeners")
        listeners = f"PLAINTEXT://{LOOPBACK}:{port}" + (f",{controller}" if controller else "")
        self.config = {**settings, "listeners": listeners, "log.dirs": data_dir}
        self.config.pop("controller.listeners", None)
        self._file = data_dir.with_suffix(".properties")

    def _arguments(self) -> list[str]:
        lines = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}\n"
            for name, value in self.config.items()
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(lines), encoding="utf-8")
        return [sys.executable, "-m", "fastq_broker", "--config", str(self._file)]

    def format(self, *arguments: str) -> subprocess.Popen[str]:
        """The command that formats its directory, at work."""
        return _formatting([self.format_arguments(*arguments)], self.env)

    def format_arguments(self, *arguments: str) -> list[str]:
        """The arguments of that command."""
        return ["format", *self._arguments()[3:], *arguments]


def _ports(data_dir: Path, nodes: int) -> dict[int, tuple[int, int | None]]:
    """The ports of each node and of its controller: those that a directory's controllers know each other by, or free ones. ValueError
    where the directory is of another number of nodes."""
    files = {number: data_dir / f"node-{number}.properties" for number in range(1, nodes + 1)}
    known = len(list(data_dir.glob("node-*.properties")))
    if known not in (0, nodes):
        raise ValueError(
            f"{data_dir} is of a cluster of {known} nodes, not {nodes}: give nodes={known}, or an empty directory"
        )
    if known:
        return {number: _ports_in(path) for number, path in files.items()}
    with contextlib.ExitStack() as stack:  # ports that nobody listens on now
        found = [
            stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(nodes + min(nodes, CONTROLLERS_MAX))
        ]
        ports = [each.getsockname()[1] for each in found]
    return {number: (ports.pop(), ports.pop() if number <= CONTROLLERS_MAX else None) for number in files}


def _ports_in(path: Path) -> tuple[int, int | None]:
    """The ports that a node's file names."""
    found = dict(re.findall(r"(PLAINTEXT|CONTROLLER)://[^:,]+:(\d+)", path.read_text(encoding="utf-8")))
    return int(found["PLAINTEXT"]), int(found["CONTROLLER"]) if "CONTROLLER" in found else None
