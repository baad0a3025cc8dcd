"""Transactions over the nodes of a cluster: coordinator, leaders of partitions and a group's coordinator on different ones, and killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from nodes import COUNT, Nodes, children, free_ports, running

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.errors import ConfigError, FastqError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PARTITIONS = 6
FACTOR = {"min.insync.replicas": "2"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running(tmp_path / "data", free_ports(2 * COUNT)) as nodes:
        nodes.ready()
        with Admin(bootstrap_servers=nodes.servers) as admin:
            for name in ("from", "to"):
                admin.create_topic(name, PARTITIONS, 3, configs=FACTOR)
        yield nodes


def fill(servers: str, numbers: range) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in numbers:
            producer.send("from", b"%d" % number, partition=number % PARTITIONS)


def committed(servers: str) -> list[int]:
    """What readers of committed records see, partition by partition."""
    found: list[int] = []
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed") as reader:
        reader.assign([TopicPartition("to", number) for number in range(PARTITIONS)])
        found += [int(record.value or b"") for record in reader.read_to_end()]
    return found


class Copier(threading.Thread):
    """Copies from one topic to the other in transactions that hold the offsets too, until nothing is left; begins anew after an error."""

    def __init__(self, servers: str, name: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.servers, self.name_, self.stop_ = servers, name, stop
        self.random = Random(name)
        self.ended: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        while not self.stop_.is_set():
            try:
                with (
                    Producer(bootstrap_servers=self.servers, transactional_id=self.name_) as producer,
                    Consumer(
                        "from",
                        bootstrap_servers=self.servers,
                        group_id="copy",
                        auto_offset_reset="earliest",
                        isolation_level="read_committed",
                        enable_auto_commit=False,
                    ) as consumer,
                ):
                    while not self.stop_.is_set():
                        self.one(producer, consumer)
            except ConfigError:
                raise
            except FastqError as error:
                self.ended[type(error).__name__] += 1

    def one(self, producer: Producer, consumer: Consumer) -> None:
        records = consumer.poll(timeout=0.5, max_records=self.random.randint(1, 200))
        if not records:
            return
        with suppress(_Abort), producer.transaction(consumer=consumer):
            for record in records:
                producer.send("to", record.value, partition=(record.partition + 1) % PARTITIONS)
            if self.random.random() < 0.1:
                self.ended["aborted"] += 1
                raise _Abort
        self.ended["ended"] += 1


class _Abort(Exception):
    pass


def copy_through(nodes: Nodes, count: int, kills: int, random: Random) -> None:
    """Copy while nodes are killed: every record is there once."""
    fill(nodes.servers, range(count // 2))
    stop = threading.Event()
    copiers = [Copier(nodes.servers, f"copier-{number}", stop) for number in range(2)]
    try:
        for round_ in range(1, kills + 1):
            time.sleep(random.uniform(1, 4))
            victim = children(nodes.process.pid)[f"node-{random.randint(1, COUNT)}"]
            os.kill(victim, random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            nodes.says("RUNNING after RECOVERY", COUNT + round_)
        fill(nodes.servers, range(count // 2, count))
        until = time.monotonic() + 90
        while time.monotonic() < until and len(committed(nodes.servers)) < count:
            time.sleep(0.5)
    finally:
        stop.set()
        for copier in copiers:
            copier.join(90)
    assert not any(copier.is_alive() for copier in copiers)
    seen = Counter(committed(nodes.servers))
    doubled = {number: times for number, times in seen.items() if times > 1}
    lost = sorted(set(range(count)) - seen.keys())
    assert not doubled and not lost, (doubled, lost[:20], [copier.ended for copier in copiers])


@pytest.mark.slow
def test_records_are_copied_once_though_a_node_is_killed(nodes: Nodes) -> None:
    copy_through(nodes, 2000, 1, Random(2))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_records_are_copied_once_whoever_is_killed(nodes: Nodes) -> None:
    copy_through(nodes, 60_000, 20, Random(3))
