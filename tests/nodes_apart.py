"""Three nodes, each a process of its own behind proxies that can cut one off from another, for tests of what a cluster stands.

Rules
- Nodes and clients know each other by the ports of proxies. A connection's source is told by the client id of its first request,
  `broker-<id>-...`; clients are the source CLIENTS.
- A cut has a direction: what goes from one to the other is held, as packets are that are dropped and sent again. When it is healed, what
  was held arrives, or the connections that it has held up are reset.
- Each node has a small disk of its own, which can be filled.
- Every process is ended by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fastq_broker.controller.storage import format_directories
from nodes import free_ports
from small_disk import SmallDisk

from fastq import Admin, FastqError

NODES = (1, 2, 3)
CLIENTS = 0
CLUSTER = "a" * 22
SESSION_MS = 2000
DISK_MIB = 64
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 3000,
    "controller.quorum.fetch.timeout.ms": 1000,
    "controller.quorum.election.timeout.ms": 500,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
}


class Network:
    """Proxies, in an event loop in a thread of its own. Its methods are for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._cuts: set[tuple[int, int]] = set()
        self._healed = asyncio.Event()
        self._links: dict[asyncio.Task[None], tuple[int, int]] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def serve(self, port: int, node: int, target: int) -> None:
        """Who connects to `port` is connected to `target`, where a node listens."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._relay(reader, writer, node, target)
            writer.close()

        async def listen() -> None:
            self._servers.append(await asyncio.start_server(accepted, "127.0.0.1", port))

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int, target: int) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
        try:
            # Size, API, version, correlation id, and the length of the client id.
            head = await reader.readexactly(14)
            name = await reader.readexactly(max(0, int.from_bytes(head[12:], "big", signed=True)))
            found = re.match(rb"broker-(\d+)-", name)
            source = int(found[1]) if found else CLIENTS
            ways = [
                asyncio.create_task(self._pump(reader, there_writer, (source, node), head + name)),
                asyncio.create_task(self._pump(there_reader, writer, (node, source))),
            ]
            for task, way in zip(ways, [(source, node), (node, source)], strict=True):
                self._links[task] = way
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in ways:
                task.cancel()
                del self._links[task]
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            there_writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[int, int], data: bytes = b""
    ) -> None:
        with contextlib.suppress(OSError):
            while data or (data := await reader.read(1 << 16)):
                while way in self._cuts:
                    await self._healed.wait()
                writer.write(data)
                await writer.drain()
                data = b""

    def cut(self, *ways: tuple[int, int]) -> None:
        """From now on nothing goes from the first to the second of each."""
        self._call(lambda: self._cuts.update(ways))

    def heal(self, *, reset: bool) -> None:
        """All goes its way again; with `reset` the connections that were held up are closed."""

        def heal() -> None:
            if reset:
                for task, way in self._links.items():
                    if way in self._cuts:
                        task.cancel()
            self._cuts.clear()
            self._healed.set()
            self._healed.clear()

        self._call(heal)

    def _call(self, what: object) -> None:
        done = threading.Event()

        def run() -> None:
            what()  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def close(self) -> None:
        def stop() -> None:
            for server in self._servers:
                server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(10)
        self._loop.close()


class NodesApart:
    """The nodes. Not thread-safe."""

    def __init__(self, path: Path, **settings: object) -> None:
        first = free_ports(40)
        self.path = path
        self._library = path / "failing_sync.so"
        source = Path(__file__).with_name("failing_sync.c")
        compiler = sysconfig.get_config_var("CC").split()
        subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"], check=True)
        self.network = Network()
        self.disks: dict[int, SmallDisk] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = ",".join(f"127.0.0.1:{first + 20 + node}" for node in NODES)
        voters = ",".join(f"{node}@127.0.0.1:{first + 30 + node}" for node in NODES)
        for node in NODES:
            for own, public in ((node, 20 + node), (10 + node, 30 + node)):
                self.network.serve(first + public, node, first + own)
            place = path / f"disk-{node}"
            place.mkdir()
            disk = self.disks[node] = SmallDisk(place, DISK_MIB)
            format_directories([disk.seen_from_outside / "data"], node, CLUSTER)
            listeners = "PLAINTEXT://127.0.0.1:{},CONTROLLER://127.0.0.1:{}"
            own_settings = {
                "node.id": node,
                "log.dirs": place / "data",
                "listeners": listeners.format(first + node, first + 10 + node),
                "advertised.listeners": listeners.format(first + 20 + node, first + 30 + node),
                "controller.quorum.voters": voters,
            }
            lines = {**SETTINGS, **own_settings, **settings}.items()
            (path / f"node-{node}.properties").write_text("".join(f"{key}={value}\n" for key, value in lines))

    def start(self, node: int) -> None:
        config = str(self.path / f"node-{node}.properties")
        command = [*self.disks[node].enter, sys.executable, "-m", "fastq_broker", "--config", config]
        self._failing(node).unlink(missing_ok=True)
        environment = {**os.environ, "LD_PRELOAD": str(self._library), "FAILING_SYNC": str(self._failing(node))}
        with (self.path / f"node-{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)

    def start_what_ended(self) -> None:
        for node in NODES:
            if node not in self.processes or self.processes[node].poll() is not None:
                self.start(node)

    def signal(self, node: int, number: signal.Signals) -> None:
        self.processes[node].send_signal(number)

    def full_disk(self, node: int, seconds: float) -> None:
        """Nothing can be written for so long. The node stands it."""
        self.disks[node].fill()
        time.sleep(seconds)
        self.disks[node].make_room()
        assert self.processes[node].poll() is None, self.log_text()

    def fail_writes(self, node: int) -> None:
        """From now on the node's writes fail, until it is started again."""
        resource.prlimit(self.processes[node].pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def fail_syncs(self, node: int) -> None:
        """From now on the node's syncs fail, until it is started again."""
        self._failing(node).touch()

    def _failing(self, node: int) -> Path:
        return self.path / f"node-{node}.failing"

    def wait_for_end(self, node: int) -> None:
        self.processes[node].wait(60)

    def whole(self) -> None:
        """Wait until all nodes are there and all replicas are in sync."""
        end = time.monotonic() + 60
        missing = ["nothing was asked yet"]
        while missing:
            assert time.monotonic() < end, missing
            time.sleep(0.1)
            try:
                with Admin(bootstrap_servers=self.servers) as admin:
                    missing = list(_missing(admin))
            except FastqError as error:
                missing = [repr(error)]

    def log_text(self) -> str:
        texts = [(node, (self.path / f"node-{node}.log").read_text()[-20_000:]) for node in NODES]
        return "\n".join(f"== node {node} ==\n{text}" for node, text in texts)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for disk in self.disks.values():
            disk.close()
        self.network.close()


def _missing(admin: Admin) -> Iterator[str]:
    if len(admin.describe_cluster().nodes) < len(NODES):
        yield "a node"
    for name, outcome in admin.describe_topics(list(admin.list_topics(include_internal=True))).items():
        for partition in outcome.result().partitions:
            if len(partition.isr) < len(NODES):
                yield f"{name}-{partition.index} has {partition.isr} in sync"
