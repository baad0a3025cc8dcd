"""Transactions that go on while the partitions that hold them move between nodes, and while a directory of a node is gone: every record is
there once, and none hangs in an open transaction.

Rules: three nodes with two directories each, two replicas a partition, so that a move is a copy. A directory is gone when it has
another name: what is made in it fails, as on a disk that was pulled out."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from test_transactions_nodes import PARTITIONS, Copier, committed, fill

from fastq import Admin, TopicPartition
from fastq.admin import NewTopic, TopicPartitionReplica
from fastq.errors import FastqError
from fastq.testing import Cluster

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="renames what is in use"), pytest.mark.slow]

SETTINGS = {
    "offsets.topic.replication.factor": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 2,
    "min.insync.replicas": 1,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
}
INTERNAL = ("__transaction_state", "__consumer_offsets")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(3, tmp_path / "cluster", SETTINGS)
    for node in made.nodes:
        node.config["log.dirs"] = f"{node.data_dir},{node.data_dir}-two"
    with made:
        with Admin(bootstrap_servers=made.bootstrap_servers) as admin:
            topics = [NewTopic(name=name, partitions=PARTITIONS, replication_factor=2) for name in ("from", "to")]
            admin.create_topics(topics).results()
        yield made


def ends(cluster: Cluster, count: int, copiers: list[Copier], stop: threading.Event) -> None:
    """Let the copying end: every record once, and nothing open."""
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until and len(committed(cluster.bootstrap_servers)) < count:
            time.sleep(0.3)
    finally:
        stop.set()
        for copier in copiers:
            copier.join(90)
    assert not any(copier.is_alive() for copier in copiers)
    seen = Counter(committed(cluster.bootstrap_servers))
    doubled = {number: times for number, times in seen.items() if times > 1}
    lost = sorted(set(range(count)) - seen.keys())
    assert not doubled and not lost, (doubled, lost[:20], [copier.ended for copier in copiers])
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        states = {name: item.state for name, item in admin.list_transactions().items()}
        assert len(states) == len(copiers) and all(
            state.startswith(("Complete", "Empty")) for state in states.values()
        ), states
        assert not admin.find_hanging_transactions()


def at_work(cluster: Cluster, count: int) -> tuple[list[Copier], threading.Event]:
    """Copiers that have begun to copy so many records."""
    fill(cluster.bootstrap_servers, range(count))
    stop = threading.Event()
    copiers = [Copier(cluster.bootstrap_servers, f"copier-{number}", stop) for number in range(2)]
    deadline = time.monotonic() + 60
    while not any(copier.ended["ended"] for copier in copiers) and time.monotonic() < deadline:
        time.sleep(0.05)
    return copiers, stop


def other_replicas(admin: Admin, random: Random) -> dict[TopicPartition, list[int]]:
    """Another place for each partition of the coordinators and of the data."""
    plan = {}
    for name, outcome in admin.describe_topics([*INTERNAL, "to"]).items():
        for partition in outcome.result().partitions:
            replicas = list(partition.replicas)
            new = ({1, 2, 3} - set(replicas)).pop()
            plan[TopicPartition(name, partition.index)] = random.sample([new, random.choice(replicas)], 2)
    return plan


def test_partitions_and_coordinators_move(cluster: Cluster, soak: bool) -> None:
    rounds, each, random = 12 if soak else 3, 500, Random(3)
    copiers, stop = at_work(cluster, each)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for number in range(1, rounds):
            admin.alter_partition_reassignments(other_replicas(admin, random)).results()
            fill(cluster.bootstrap_servers, range(number * each, (number + 1) * each))
            deadline = time.monotonic() + 60
            while admin.list_partition_reassignments() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not admin.list_partition_reassignments()
    ends(cluster, rounds * each, copiers, stop)


@pytest.mark.parametrize("topic", [pytest.param("to", marks=pytest.mark.soak), "__transaction_state"])
def test_the_directory_of_a_leader_is_gone(cluster: Cluster, topic: str, soak: bool) -> None:
    count = 4000 if soak else 1000
    copiers, stop = at_work(cluster, count // 2)
    leader = cluster.leader(topic, 0)
    folders = [Path(name) for name in str(leader.config["log.dirs"]).split(",")]
    folder = next(one for one in folders if (one / f"{topic}-0").exists())
    metadata = folders[0]
    if folder == metadata:  # that one ends the node's controller too, and so the node
        folder = folders[1]
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.alter_replica_log_dirs({TopicPartitionReplica(topic, 0, leader.node_id): str(folder)}).results()
        while not (folder / f"{topic}-0").exists():
            time.sleep(0.05)
    away = folder.with_name(f"{folder.name}-pulled-out")
    folder.rename(away)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if cluster.leader(topic, 0) is not leader:
                break
        except (FastqError, RuntimeError):
            pass
        time.sleep(0.1)
    else:
        raise AssertionError(f"node {leader.node_id} still leads {topic}-0 without its directory\n{leader.log[-3000:]}")
    offline = [line for line in leader.log.splitlines() if " ERROR " in line]
    assert any(str(folder) in line for line in offline), offline
    fill(cluster.bootstrap_servers, range(count // 2, count))
    leader.kill()
    away.rename(folder)
    leader.start()
    cluster.wait_in_sync()
    ends(cluster, count, copiers, stop)
