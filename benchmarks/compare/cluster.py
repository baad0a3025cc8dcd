"""Three fastq nodes (`fastq-broker --nodes 3`) against three combined Apache Kafka nodes of 512 MiB heap: every record on all of them.

    python benchmarks/compare/cluster.py [--rounds 3] [--quick]

Rules
- One cluster runs at a time, made anew each round, the sides in turn; directories are formatted before the clock starts. Replication
  factor 3, min.insync.replicas 2, acks=all, everything else at its default: Kafka's time-outs on both sides.
- The bulk loads are the broker comparison's own: requests of 900 kB, of the mix and of records that are all alike, frames made before, on
  plain sockets, six partitions, five in flight to each leader. CPU and memory are those of all processes of a side, fastq's supervisor too.
- A gap is the longest time between two acknowledgements that one producer sees, which sends a record at a time to a partition that the
  ended node led.
- `--quick` is for looking whether it runs: one round, less load, nothing is saved.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from latency_runs import STAMP, pace
from support import ApacheKafka, cpu_seconds, interleave, medians, rss_bytes, save, touch_memory

from broker import BATCH_BYTES, TOUCHED_TIMES, bulk_batches, check_produced, produce_frame, receive_frame, send_frames

# isort: split
from apache_kafka import free_port

from fastq import Admin, Producer
from fastq._native.records import build_batch
from fastq.errors import FastqError
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import DescribeQuorumRequest
from fastq.protocol.uuid import random_uuid, uuid_to_str

NODES = (1, 2, 3)
TOPIC, PARTITIONS = "bulk", 6
TOPIC_CONFIG = {"min.insync.replicas": "2"}
BULK_BYTES = 1 << 30
RATE, PACED_S = 5_000, 10
REQUESTS_PER_S = 500
LOOK_S = 0.01
START_S = 120.0
EAGER: Mapping[str, Any] = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 20}
"""Who waits for a cluster to start asks often: a client's usual pauses grow to a second, and would be what is measured."""


class Cluster(Protocol):
    """Three nodes at work."""

    servers: str
    """All of them, as clients take it."""

    def pids(self) -> dict[int, int]:
        """The process of each node."""

    def others(self) -> list[int]:
        """Processes that belong to it and are no node."""

    def kill(self, node: int) -> None:
        """End a node as a crash would."""

    def end(self, node: int) -> None:
        """Ask a node to stop (SIGTERM), and wait until it has."""

    def start(self, node: int) -> None:
        """Have a node that ended be there again, sooner or later."""


class FastqNodes:
    """`fastq-broker --nodes 3`: its supervisor starts again what ends."""

    def __init__(self, folder: Path) -> None:
        first = _free_ports(2 * len(NODES))
        self.servers = ",".join(f"127.0.0.1:{first + at}" for at in range(len(NODES)))
        self._log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "fastq_broker", "--nodes", str(len(NODES)), "--data-dir", str(folder / "data")]
        self._process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{first}"], stdout=subprocess.DEVNULL, stderr=self._log
        )

    def pids(self) -> dict[int, int]:
        pid, found = self._process.pid, {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            told = re.search(rb"log\.dirs=[^\0]*?node-(\d+)", Path(f"/proc/{child}/cmdline").read_bytes())
            if told is not None:
                found[int(told[1])] = int(child)
        return found

    def others(self) -> list[int]:
        return [self._process.pid]

    def kill(self, node: int) -> None:
        os.kill(self.pids()[node], signal.SIGKILL)

    def end(self, node: int) -> None:
        pid = self.pids()[node]
        os.kill(pid, signal.SIGTERM)
        while self.pids().get(node) == pid:
            time.sleep(LOOK_S)

    def start(self, node: int) -> None:
        pass

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()


class KafkaNodes:
    """Three of Apache Kafka's own, of one static quorum."""

    patience_s = START_S
    """How long one may take to start."""

    def __init__(self, folder: Path) -> None:
        controllers = {node: free_port() for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        cluster_id = uuid_to_str(random_uuid())
        self._nodes: dict[int, ApacheKafka] = {}
        for node in NODES:
            port = free_port()
            properties = {
                "node.id": str(node),
                "controller.quorum.bootstrap.servers": None,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[node]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "offsets.topic.replication.factor": "3",
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
            }
            made = ApacheKafka(folder / str(node), properties=properties, heap="512m", cluster_id=cluster_id)
            made.port, made.controller_port = port, controllers[node]
            self._nodes[node] = made
        self.servers = ",".join(node.bootstrap_servers for node in self._nodes.values())
        with ThreadPoolExecutor() as pool:
            list(pool.map(ApacheKafka.format, self._nodes.values()))

    def start_all(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(self.patience_s), self._nodes.values()))

    def pids(self) -> dict[int, int]:
        return {number: node.pid for number, node in self._nodes.items() if node.running}

    def others(self) -> list[int]:
        return []

    def kill(self, node: int) -> None:
        self._nodes[node].kill()

    def end(self, node: int) -> None:
        self._nodes[node].stop()

    def start(self, node: int) -> None:
        self._nodes[node].start(self.patience_s)

    def close(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(ApacheKafka.stop, self._nodes.values()))


@contextmanager
def started(side: str) -> Iterator[tuple[Cluster, float]]:
    """A cluster from empty directories, and when its start began."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{side}-"))
    cluster: FastqNodes | KafkaNodes | None = None
    try:
        if side == "fastq":
            begun = time.perf_counter()
            cluster = FastqNodes(folder)
        else:
            cluster = KafkaNodes(folder)
            begun = time.perf_counter()
            starting = threading.Thread(target=cluster.start_all, daemon=True)
            starting.start()
        yield cluster, begun
    finally:
        if cluster is not None:
            cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> int:
    for first in range(23000, 60000, 97):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for at, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + at))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return first
    raise OSError(f"no {count} free ports in a row")


def patiently(attempt: Callable[[], Any], seconds: float = START_S) -> Any:
    """Try until it works."""
    until = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (FastqError, OSError, EOFError):
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)


# -- what is asked of a cluster


def call(servers: str, request: Any, version: int) -> Any:
    """What any of the servers answers."""
    error: Exception = OSError("no server")
    for address in servers.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), 2) as sock:
                sock.sendall(encode_request(1, "bench", request, version))
                frame = receive_frame(sock, bytearray(1 << 16))
                return decode_response(bytes(frame), request.API_KEY, version)[1]
        except (OSError, ConnectionError) as problem:
            error = problem
    raise error


def active_controller(servers: str) -> int:
    """The node that leads the metadata quorum."""
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    response = call(servers, DescribeQuorumRequest(topics=[topic]), 0)
    return int(response.topics[0].partitions[0].leader_id)


def leaders(servers: str, topic: str) -> dict[int, int]:
    with Admin(bootstrap_servers=servers) as admin:
        found = admin.describe_topic(topic).partitions
    return {each.index: -1 if each.leader is None else each.leader.node_id for each in found}


def settled(servers: str, topics: tuple[str, ...] = (TOPIC,)) -> None:
    """Wait until all three are in sync and lead what they should."""

    def look() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            for topic in topics:
                for each in admin.describe_topic(topic).partitions:
                    if len(each.isr) < len(NODES):
                        raise OSError("not in sync")

    patiently(look)


# -- figures


def first_record(cluster: Cluster, begun: float) -> float:
    """From the start to the first acknowledged record; in seconds."""

    def create() -> None:
        with Admin(
            bootstrap_servers=cluster.servers, request_timeout_ms=2000, default_api_timeout_ms=2000, **EAGER
        ) as admin:
            admin.create_topic(TOPIC, PARTITIONS, len(NODES), configs=TOPIC_CONFIG)

    patiently(create)
    with Producer(bootstrap_servers=cluster.servers, acks="all", **EAGER) as producer:
        producer.send(TOPIC, b"first", partition=0).result(60)
    return time.perf_counter() - begun


def all_pids(cluster: Cluster) -> list[int]:
    return [*cluster.pids().values(), *cluster.others()]


def bulk(cluster: Cluster, total_bytes: int, shape: str = "mix") -> dict[str, float]:
    """Requests of 900 kB with acks=all, five in flight to each leader, which get one for each of their partitions in turn."""
    os.sync()
    touch_memory(TOUCHED_TIMES * len(NODES) * total_bytes)
    led: dict[int, list[int]] = {}
    for partition, leader in leaders(cluster.servers, TOPIC).items():
        led.setdefault(leader, []).append(partition)
    batches = bulk_batches(shape)
    by_leader = {
        leader: [produce_frame(TOPIC, batch, -1, partition) for batch in batches for partition in partitions]
        for leader, partitions in led.items()
    }
    places = addresses(cluster.servers)
    pids = all_pids(cluster)
    share = total_bytes // BATCH_BYTES // len(by_leader)
    cpu, start = sum(map(cpu_seconds, pids)), time.perf_counter()
    with ThreadPoolExecutor() as pool:
        size = sum(pool.map(lambda each: send_frames(places[each[0]], each[1], share), by_leader.items()))
    seconds = time.perf_counter() - start
    cpu = sum(map(cpu_seconds, pids)) - cpu
    return {"MB_per_s": size / 1e6 / seconds, "cpu_s_per_GB": cpu / (size / 1e9)}


def addresses(servers: str) -> dict[int, tuple[str, int]]:
    """Node ids are in the order of the addresses."""
    split = [address.rpartition(":") for address in servers.split(",")]
    return {node: (host, int(port)) for node, (host, _, port) in zip(NODES, split, strict=True)}


def waits(servers: str, topic: str, seconds: float) -> list[int]:
    """5,000 records a second, each acknowledged by all; the times from send to acknowledgement, in ns. Those of the first fifth of a
    second, in which it connects, are left out."""
    waited: deque[int] = deque()
    with Producer(bootstrap_servers=servers, acks="all", linger_ms=0) as producer:
        for value in pace(int(RATE * seconds), RATE):
            stamp = STAMP.unpack_from(value)[0]
            producer.send(topic, value).add_done_callback(
                lambda done, stamp=stamp: waited.append(time.monotonic_ns() - stamp)  # type: ignore[misc]
            )
    return list(waited)[RATE // 5 :]


def request_waits(address: tuple[str, int], topic: str, seconds: float) -> list[int]:
    """The same records in REQUESTS_PER_S requests of raw bytes, from when each was due to its acknowledgement by all, in ns: the wait for
    the leader and its replicas, without what a client needs of a core that others use too."""
    now_ms = time.time_ns() // 1_000_000
    per_request = RATE // REQUESTS_PER_S
    frames = [
        produce_frame(topic, bytes(build_batch([(now_ms, None, os.urandom(100), ())] * per_request)), -1)
        for _ in range(100)
    ]
    room, gap_ns = bytearray(1 << 16), 1_000_000_000 // REQUESTS_PER_S
    due_each: deque[int] = deque()
    waited: list[int] = []
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def take_until(end_ns: int) -> None:
            while (left_ns := end_ns - time.monotonic_ns()) > 0 or due_each:
                if not select.select([sock] if due_each else [], [], [], max(left_ns, 0) / 1e9)[0]:
                    return
                check_produced(receive_frame(sock, room))
                waited.append(time.monotonic_ns() - due_each.popleft())

        start_ns = time.monotonic_ns()
        for number in range(int(REQUESTS_PER_S * seconds)):
            due_ns = start_ns + number * gap_ns
            take_until(due_ns)
            due_each.append(due_ns)
            sock.sendall(frames[number % len(frames)])
        while due_each:
            take_until(time.monotonic_ns() + 1_000_000_000)
    return waited[REQUESTS_PER_S // 5 :]


def percentile_ms(waited: list[int], share: float) -> float:
    ordered = sorted(waited)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6


def paced(cluster: Cluster, seconds: float) -> dict[str, float]:
    waited = waits(cluster.servers, TOPIC, seconds)
    return {"p50_ms": percentile_ms(waited, 0.5), "p99_ms": percentile_ms(waited, 0.99)}


class Sending:
    """One record at a time into one partition, and when each was acknowledged."""

    def __init__(self, servers: str, partition: int) -> None:
        self._servers, self._partition = servers, partition
        self._ended = threading.Event()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while len(self.times) < 20:
            time.sleep(LOOK_S)

    def _run(self) -> None:
        with Producer(
            bootstrap_servers=self._servers,
            acks="all",
            linger_ms=0,
            delivery_timeout_ms=60_000,
            request_timeout_ms=10_000,
        ) as producer:
            while not self._ended.is_set():
                producer.send(TOPIC, b"one", partition=self._partition).result(90)
                self.times.append(time.perf_counter())
                time.sleep(0.002)

    def gap(self, since: float) -> float:
        """Wait until records go through again for a second; the longest time between two since then, in seconds."""
        while not self.times or self.times[-1] < since + 1 or self._longest(since)[1] > self.times[-1] - 1:
            time.sleep(LOOK_S)
        self._ended.set()
        self._thread.join(90)
        return self._longest(since)[0]

    def _longest(self, since: float) -> tuple[float, float]:
        """The longest time, and when it ended. One that goes on counts."""
        seen = [each for each in self.times if each >= since - 1]
        seen.append(time.perf_counter())
        return max((after - before, after) for before, after in pairwise(seen))


def leader_gap(cluster: Cluster, how: Callable[[int], None], *, not_node: int | None = None) -> float:
    """The gap when a partition's leader is ended, one that is not the active controller: that is another figure."""
    settled(cluster.servers)
    led = [(partition, leader) for partition, leader in leaders(cluster.servers, TOPIC).items() if leader >= 0]
    partition, node = next(((partition, leader) for partition, leader in led if leader != not_node), led[0])
    sending = Sending(cluster.servers, partition)
    since = time.perf_counter()
    how(node)
    gap = sending.gap(since)
    cluster.start(node)
    patiently(lambda: _all_there(cluster))
    settled(cluster.servers)
    return gap


def _all_there(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.servers) as admin:
        if len(admin.describe_cluster().nodes) < len(NODES):
            raise OSError("a node is missing")


def controller_gap(cluster: Cluster) -> float:
    """From the active controller's end to the first topic that can be made; in seconds."""
    node = patiently(lambda: active_controller(cluster.servers))
    servers = ",".join(
        f"{host}:{port}" for number, (host, port) in addresses(cluster.servers).items() if number != node
    )
    with Admin(bootstrap_servers=servers, request_timeout_ms=500, default_api_timeout_ms=500) as admin:
        number = 0

        def warm_up() -> None:
            nonlocal number
            number += 1
            admin.create_topic(f"before-{number}", 1, 2)

        patiently(warm_up)
        since = time.perf_counter()
        cluster.kill(node)
        while True:
            number += 1
            try:
                admin.create_topic(f"after-{number}", 1, 1)
                break
            except FastqError:
                time.sleep(LOOK_S)
    gap = time.perf_counter() - since
    cluster.start(node)
    patiently(lambda: _all_there(cluster))
    settled(cluster.servers)
    return gap


def measure(side: str, bulk_bytes: int, paced_s: float) -> dict[str, float]:
    with started(side) as (cluster, begun):
        figures = {"first_record_s": first_record(cluster, begun)}
        time.sleep(3)
        figures["idle_rss_MiB"] = sum(map(rss_bytes, all_pids(cluster))) / 2**20
        settled(cluster.servers)
        bulk(cluster, bulk_bytes // 8)  # to warm up: the JVM compiles
        for shape in ("mix", "alike"):
            figures |= {f"{shape}_{key}": value for key, value in bulk(cluster, bulk_bytes, shape).items()}
        paced(cluster, 2)
        figures |= paced(cluster, paced_s)
        controller = active_controller(cluster.servers)
        figures["end_gap_s"] = leader_gap(cluster, cluster.end, not_node=controller)
        controller = active_controller(cluster.servers)
        figures["kill_gap_s"] = leader_gap(cluster, cluster.kill, not_node=controller)
        figures["controller_gap_s"] = controller_gap(cluster)
    return figures


SHOWN: Mapping[str, str] = {
    "first_record_s": "from empty to the first acknowledged record, s",
    "idle_rss_MiB": "three idle nodes, MiB",
    "mix_MB_per_s": "900 kB requests of the mix, acks=all: MB/s",
    "mix_cpu_s_per_GB": "the same, CPU-seconds a GB",
    "alike_MB_per_s": "900 kB requests of records that are all alike: MB/s",
    "alike_cpu_s_per_GB": "the same, CPU-seconds a GB",
    "p50_ms": "5,000 records/s, p50 to the acknowledgement, ms",
    "p99_ms": "the same, p99, ms",
    "end_gap_s": "a leader is stopped: longest gap, s",
    "kill_gap_s": "a leader is killed: longest gap, s",
    "controller_gap_s": "the active controller is killed: first change of metadata, s",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["fastq", "apache-kafka"])
    options = parser.parse_args()
    share = 8 if options.quick else 1
    sides = {
        name: (lambda name=name: measure(name, BULK_BYTES // share, PACED_S / share))  # type: ignore[misc]
        for name in ("fastq", "apache-kafka")
        if options.only in (None, name)
    }
    rounds = interleave(sides, 1 if options.quick else options.rounds)
    middle = {name: medians(found) for name, found in rounds.items()}
    for key, words in SHOWN.items():
        print(f"{words:<64}", "  ".join(f"{name} {found[key]:,.3g}" for name, found in middle.items()))
    if len(middle) == 2 and not options.quick:
        ratio = {key: middle["fastq"][key] / middle["apache-kafka"][key] for key in SHOWN}
        print(save("cluster", {"medians": middle, "ratio": ratio, "rounds": rounds}))


if __name__ == "__main__":
    main()
