"""Replicas that go to other directories of their nodes, in a cluster that is written to meanwhile: nothing is lost, and where they are is
told.

Rules: three nodes, each with two directories. A rate of one byte a second keeps a move under way for as long as a test wants: followers get
one batch a fetch, and the next one when the rate allows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from fastq import Consumer, Producer
from fastq.admin import Admin, ConfigResource, ConfigSource, NewTopic, ResourceType, TopicPartitionReplica
from fastq.cli import main
from fastq.errors import InvalidReplicaAssignment, InvalidReplicationFactor, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.testing import Cluster

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(3, tmp_path_factory.mktemp("cluster"), {"replica.fetch.max.bytes": 1})
    for node in made.nodes:
        node.config["log.dirs"] = f"{node.data_dir},{node.data_dir}-two"
    with made:
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as made:
        yield made


def until(happened: Callable[[], bool]) -> None:
    """A node that has not heard of a topic yet is asked again."""
    deadline = time.monotonic() + 20
    while True:
        with suppress(UnknownTopicOrPartition):
            if happened():
                return
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


def make_slow(cluster: Cluster, admin: Admin) -> None:
    """A byte a second, for moves: set, and known to every node, as one that has not heard of it would be done at once."""
    admin.set_configs(ALL_BROKERS, {RATE: "1"})
    nodes = [ConfigResource.broker(node.node_id) for node in cluster.nodes]
    until(lambda: all(settings[RATE].value == "1" for settings in admin.describe_configs(nodes).results().values()))


def test_a_move_under_load_and_past_a_change_of_leaders_loses_nothing(cluster: Cluster, admin: Admin) -> None:
    """All three replicas move at once, so the leader's, one that becomes the leader, and one that only follows; one of the nodes is killed
    amid it."""
    admin.create_topics(
        [NewTopic(name="moved", partitions=1, replication_factor=3, configs={"segment.bytes": "1048576"})]
    ).results()
    with Load(cluster.bootstrap_servers, "moved") as load:
        load.more()
        moves = moves_of(places(admin, "moved"), cluster, "moved")
        make_slow(cluster, admin)
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


class Shell:
    """The command, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = main(arguments)
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return out + err


@pytest.fixture
def fastq(cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("FASTQ_BOOTSTRAP", cluster.bootstrap_servers)
    return Shell(capsys)


def own_settings(admin: Admin, *resources: ConfigResource) -> dict[str, dict[str, str | None]]:
    """What is set of throttles, by topic or node."""
    found = admin.describe_configs(resources).results()
    own = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    return {
        resource.name: {
            name: entry.value
            for name, entry in entries.items()
            if entry.source in own and ("throttled" in name or name == RATE)
        }
        for resource, entries in found.items()
    }


def test_log_dirs_move_and_the_list_that_shows_its_copy(cluster: Cluster, admin: Admin, fastq: Shell) -> None:
    admin.create_topics([NewTopic(name="by-hand", replica_assignments={0: [2]})]).results()
    with Load(cluster.bootstrap_servers, "by-hand") as load:
        load.more()
    ((_, path),) = moves_of({2: places(admin, "by-hand")[2]}, cluster, "by-hand").items()
    make_slow(cluster, admin)
    told = fastq("log-dirs", "move", "by-hand:0", "--to", path)
    assert told == f"begun 1 move to {path}: by-hand-0 of node 2; fastq log-dirs shows the copies\n"
    again = fastq("log-dirs", "move", "by-hand:0", "--to", path)
    assert again == "begun nothing\non the way there before: by-hand-0 of node 2\n"
    rows = json.loads(fastq("log-dirs", "--topic", "by-hand", "--json"))
    (copy,) = [row for row in rows if row["state"] == "copy"]
    assert (copy["broker"], copy["directory"], copy["partition"]) == (2, path, "by-hand-0") and copy["lag"] > 0
    admin.set_configs(ALL_BROKERS, {RATE: None})
    until(lambda: places(admin, "by-hand")[2] == {path: False})
    assert fastq("log-dirs", "move", "by-hand:0", "--to", path) == "begun nothing\nthere already: by-hand-0 of node 2\n"
    assert "no log directory /nowhere is there" in fastq("log-dirs", "move", "by-hand", "--to", "/nowhere", code=1)
    elsewhere = str(cluster.node(1).data_dir)
    told = fastq("log-dirs", "move", "by-hand", "--to", elsewhere, code=1)
    assert f"by-hand-0 has replicas on nodes 2, and {elsewhere} is a directory of 1" in told
    assert "by-hand-7 is not there" in fastq("log-dirs", "move", "by-hand:7", "--to", path, code=1)


def test_reassign_throttles_what_moves_until_it_is_verified(
    cluster: Cluster, admin: Admin, fastq: Shell, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(name="bounded", replica_assignments={0: [1, 2]})]).results()
    with Load(cluster.bootstrap_servers, "bounded") as load:
        load.more()
    ((_, path),) = moves_of({2: places(admin, "bounded")[2]}, cluster, "bounded").items()
    moves = tmp_path / "moves.json"
    place = {"topic": "bounded", "partition": 0, "replicas": [2, 3], "log_dirs": [path, "any"]}
    moves.write_text(json.dumps({"partitions": [place]}))
    bounds = ["--throttle", "1", "--replica-alter-log-dirs-throttle", "1"]
    resources = [
        ConfigResource.topic("bounded"),
        *(ConfigResource(ResourceType.BROKER, str(node)) for node in (1, 2, 3)),
    ]
    rates = {"leader.replication.throttled.rate": "1", "follower.replication.throttled.rate": "1"}
    fewer = tmp_path / "fewer.json"
    fewer.write_text(json.dumps({"partitions": [{"topic": "bounded", "partition": 0, "replicas": [3]}]}))
    told = fastq("partitions", "reassign", "--execute", str(fewer), "--same-factor", "--throttle", "5", code=1)
    assert "nothing was begun; --verify takes the throttles away" in told
    until(lambda: own_settings(admin, resources[3])["3"] == dict.fromkeys(rates, "5"))
    assert "throttles were taken away" in fastq("partitions", "reassign", "--verify", str(fewer), code=1)
    assert "throttled until --verify" in fastq("partitions", "reassign", "--execute", str(moves), *bounds)
    throttled = {
        "bounded": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        },
        "1": rates,
        "2": {**rates, RATE: "1"},
        "3": rates,
    }
    until(lambda: own_settings(admin, *resources) == throttled)  # as each node has heard of it
    assert "1 under way" in fastq("partitions", "reassign", "--verify", str(moves), code=1)
    assert own_settings(admin, *resources) == throttled
    assert admin.list_partition_reassignments()
    assert "throttles were taken away" in fastq("partitions", "reassign", "--cancel", str(moves))
    until(lambda: own_settings(admin, *resources) == {resource.name: {} for resource in resources})
    bounds = ["--throttle", "100000000", "--replica-alter-log-dirs-throttle", "100000000"]
    fastq("partitions", "reassign", "--execute", str(moves), *bounds)
    until(lambda: not admin.list_partition_reassignments() and places(admin, "bounded")[2] == {path: False})
    told = fastq("partitions", "reassign", "--verify", str(moves), "--preserve-throttles")
    assert "1 done" in told and "taken away" not in told
    until(lambda: own_settings(admin, *resources)["2"].get(RATE) == "100000000")
    assert "throttles were taken away" in fastq("partitions", "reassign", "--verify", str(moves))
    until(lambda: own_settings(admin, *resources) == {resource.name: {} for resource in resources})
    assert places(admin, "bounded")[3] and not places(admin, "bounded")[1]


def cordon(admin: Admin, node: int, value: str | None) -> None:
    admin.set_configs(ConfigResource(ResourceType.BROKER, str(node)), {"cordoned.log.dirs": value})


def cordoned(admin: Admin) -> dict[int, set[str]]:
    """The directories that are, by the nodes that have any."""
    found = admin.describe_log_dirs().results()
    paths = {node: {one.path for one in directories if one.is_cordoned} for node, directories in found.items()}
    return {node: those for node, those in paths.items() if those}


def has_six_logs(admin: Admin, topic: str) -> bool:
    """Whether node 2 does."""
    return sum(len(one.replicas) for one in admin.describe_log_dirs([2], topics=[topic]).results()[2]) == 6


def test_nothing_new_comes_to_cordoned_directories(cluster: Cluster, admin: Admin, fastq: Shell) -> None:
    """One directory of node 2 and all of node 3: what is there stays and is served, and nothing comes to it, also past a restart."""
    one, two = (str(path) for path in cluster.node(2).config["log.dirs"].split(","))
    third = set(cluster.node(3).config["log.dirs"].split(","))
    admin.create_topics([NewTopic(name="there", partitions=6, replication_factor=3)]).results()
    cordon(admin, 2, one)
    cordon(admin, 3, "*")
    until(lambda: cordoned(admin) == {2: {one}, 3: third})

    def refused(name: str) -> bool:
        made = admin.create_topics([NewTopic(name=name, partitions=1, replication_factor=3)])
        return isinstance(made[name].error, InvalidReplicationFactor)

    until(lambda: refused("three"))
    for name in ("new", "newer"):
        admin.create_topics([NewTopic(name=name, partitions=6, replication_factor=2)]).results()
        until(partial(has_six_logs, admin, name))
        assert set(places(admin, name)[2]) == {two} and not places(admin, name)[3]
        if name == "new":
            cluster.node(2).restart()
            cluster.node(3).restart()
            cluster.wait_in_sync()
            until(lambda: cordoned(admin) == {2: {one}, 3: third})
            until(lambda: refused("three"))
    admin.create_topics([NewTopic(name="by-force", replica_assignments={0: [3]})]).results()
    until(lambda: len(places(admin, "by-force")[3]) == 1)
    with Load(cluster.bootstrap_servers, "there") as load:
        load.more()
    rows = json.loads(fastq("log-dirs", "--broker", "2", "--json"))
    assert {row["directory"]: row["state"] for row in rows if row["partition"] == "(all)"} == {
        one: "cordoned",
        two: "online",
    }
    moved = admin.alter_replica_log_dirs({TopicPartitionReplica("new", 0, 2): one})
    assert [type(error) for error in moved.errors.values()] == [InvalidReplicaAssignment]
    for node in (2, 3):
        cordon(admin, node, None)
    until(lambda: not cordoned(admin))
    until(lambda: not refused("three"))
