"""Replicas that go to other directories of their nodes, in a cluster that is written to meanwhile: nothing is lost, and where they are is
told.

Rules: three nodes, each with two directories. A rate of one byte a second keeps a move under way for as long as a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fastq import Consumer, Producer
from fastq.admin import Admin, ConfigResource, NewTopic, ResourceType, TopicPartitionReplica
from fastq.metadata import TopicPartition
from fastq.testing import Cluster

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(3, tmp_path_factory.mktemp("cluster"))
    for node in made.nodes:
        node.config["log.dirs"] = f"{node.data_dir},{node.data_dir}-two"
    with made:
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as made:
        yield made


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def places(admin: Admin, topic: str) -> dict[int, dict[str, bool]]:
    """By node: the directories that have partition 0, and whether it is still a copy there."""
    found = admin.describe_log_dirs(topics=[topic]).results()
    return {
        node: {one.path: replica.is_future for one in directories for replica in one.replicas}
        for node, directories in found.items()
    }


def moves_of(before: dict[int, dict[str, bool]], cluster: Cluster, topic: str) -> dict[TopicPartitionReplica, str]:
    """Each replica to the directory that it is not in."""
    moves = {}
    for node, held in before.items():
        (current,) = held
        one, two = str(cluster.node(node).config["log.dirs"]).split(",")
        moves[TopicPartitionReplica(topic, 0, node)] = two if current == one else one
    return moves


class Load:
    """A producer at work; `acknowledged` are its values in the order of their offsets."""

    def __init__(self, servers: str, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.error: BaseException | None = None
        self._servers, self._topic, self._over = servers, topic, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        try:
            with Producer(bootstrap_servers=self._servers, acks="all") as producer:
                while not self._over.is_set():
                    values = [b"%d " % (len(self.acknowledged) + at) * 1000 for at in range(20)]
                    for future in [producer.send(self._topic, value, partition=0) for value in values]:
                        future.result(60)
                    self.acknowledged += values
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def more(self) -> None:
        """Wait until some more is acknowledged."""
        enough = len(self.acknowledged) + 100
        until(lambda: len(self.acknowledged) >= enough or self.error is not None)


def test_a_move_under_load_and_past_a_change_of_leaders_loses_nothing(cluster: Cluster, admin: Admin) -> None:
    """All three replicas move at once, so the leader's, one that becomes the leader, and one that only follows; one of the nodes is killed
    amid it."""
    admin.create_topics(
        [NewTopic(name="moved", partitions=1, replication_factor=3, configs={"segment.bytes": "1048576"})]
    ).results()
    with Load(cluster.bootstrap_servers, "moved") as load:
        load.more()
        moves = moves_of(places(admin, "moved"), cluster, "moved")
        admin.set_configs(ALL_BROKERS, {RATE: "1"})
        admin.alter_replica_log_dirs(moves).results()
        until(lambda: all(len(held) == 2 for held in places(admin, "moved").values()))
        former = cluster.leader("moved")
        assert cluster.change_leader("moved") is not former
        load.more()
        former.kill()
        load.more()
        former.start()
        assert all(len(held) == 2 for held in places(admin, "moved").values())
        admin.set_configs(ALL_BROKERS, {RATE: None})
        wanted = {replica.broker_id: {path: False} for replica, path in moves.items()}
        until(lambda: places(admin, "moved") == wanted)
        load.more()
    cluster.wait_in_sync()
    (leader,) = {cluster.leader("moved").node_id}
    cluster.node(leader).restart()
    cluster.wait_in_sync()
    assert places(admin, "moved") == wanted
    for _ in range(3):  # as each of them has it
        cluster.change_leader("moved")
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("moved", 0)])
            assert [record.value for record in consumer.read_to_end()] == load.acknowledged
