"""Cordoned log directories (KIP-1066): our node and Apache Kafka's say and do the same; its controller hears of those of our broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import apache_kafka
import pytest
from test_brokers_under_kafka import formatted, free_ports, node, ready, with_suppressed
from test_kafka_controller import started
from waiting import until

from fastq import Admin
from fastq.admin import ConfigResource, NewTopic, TopicPartitionReplica
from fastq.errors import (
    FastqError,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
)
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]
NAME = "cordoned.log.dirs"
OURS = 11


def ours(path: Path) -> Broker:
    return Broker(data_dir=f"{path / 'one'},{path / 'two'}")


@pytest.fixture(params=["fastq", "apache-kafka"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """One node with two log directories."""
    if request.param == "fastq":
        with ours(tmp_path) as broker:
            yield broker.bootstrap_servers
    else:
        properties = {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}
        with apache_kafka.ApacheKafka(tmp_path / "one", heap="512m", properties=properties) as kafka:
            yield kafka.bootstrap_servers


class Cordons:
    """One broker's, asked for and looked at."""

    def __init__(self, admin: Admin, node_id: int) -> None:
        self.admin, self.node_id = admin, node_id
        self._looks = itertools.count()

    def error_of(self, value: str, broker: int | None) -> type[FastqError] | None:
        try:
            self.admin.set_configs(ConfigResource.broker(broker), {NAME: value})
        except FastqError as error:
            return type(error)
        return None

    def told(self) -> set[str]:
        (found,) = self.admin.describe_log_dirs([self.node_id]).results().values()
        return {one.path for one in found if one.is_cordoned}

    def create(self, name: str) -> set[str] | type[FastqError]:
        """Where the logs of a new topic are, or why there is none."""
        error = self.admin.create_topics([NewTopic(name=name, partitions=4, replication_factor=1)])[name].error
        if error is not None:
            return type(error)
        held: dict[str, int] = {}

        def all_there() -> bool:
            held.clear()
            for one in self.admin.describe_log_dirs([self.node_id]).results()[self.node_id]:
                held[one.path] = sum(replica.topic_partition.topic == name for replica in one.replicas)
            return sum(held.values()) == 4

        until(all_there)
        return {path for path, count in held.items() if count}

    def until_created(self, wanted: bool) -> None:
        """Wait until topics are made, or are not any more."""
        until(lambda: (self.create(f"look-{next(self._looks)}") is not InvalidReplicationFactor) is wanted)

    def move(self, topic: str, path: str) -> type[FastqError] | None:
        replica = TopicPartitionReplica(topic, 0, self.node_id)
        error = self.admin.alter_replica_log_dirs({replica: path}).errors.get(replica)
        return None if error is None else type(error)


def test_one_node_with_two_directories(servers: str, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    with Admin(bootstrap_servers=servers) as admin:
        cordons = Cordons(admin, 1)
        assert cordons.create("before") == {one, two} and cordons.told() == set()
        for wrong in ("/nowhere", f"{one},/nowhere", f"*,{one}"):
            assert cordons.error_of(wrong, 1) is InvalidRequest
        assert cordons.error_of(one, None) is InvalidRequest, "it is no setting of all brokers"
        assert cordons.error_of(one, 1) is None
        until(lambda: cordons.told() == {one})
        assert cordons.create("during") == {two}
        assert cordons.move("during", one) is InvalidReplicaAssignment
        assert cordons.move("not-there-yet", one) is InvalidReplicaAssignment
        assert cordons.move("during", two) is None
        assert cordons.error_of("*", 1) is None
        until(lambda: cordons.told() == {one, two})
        cordons.until_created(False)
        assert cordons.error_of("", 1) is None
        until(lambda: cordons.told() == set())
        cordons.until_created(True)
        assert cordons.move("later", one) is not InvalidReplicaAssignment


def test_kafkas_tool_cordons(tmp_path: Path) -> None:
    two = str(tmp_path / "two")
    with ours(tmp_path) as broker:
        place = ("--bootstrap-server", broker.bootstrap_servers)
        whom = ("--entity-type", "brokers", "--entity-name", "1")
        apache_kafka.run_tool("kafka.admin.ConfigCommand", *place, "--alter", *whom, "--add-config", f"{NAME}=[{two}]")
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            until(lambda: Cordons(admin, 1).told() == {two})


def test_a_controller_of_apache_kafka_hears_of_ours(tmp_path: Path) -> None:
    cluster_id = apache_kafka.random_cluster_id()
    kafka = started(tmp_path / "kafka", cluster_id)
    (port,) = free_ports(1)
    with ExitStack() as ending:
        ending.callback(with_suppressed(kafka.stop))
        file = formatted(tmp_path, OURS, port, kafka, cluster_id)
        one, two = str(tmp_path / f"ours-{OURS}"), str(tmp_path / "two")
        file.write_text(file.read_text().replace(f"log.dirs={one}", f"log.dirs={one},{two}\n{NAME}={one}"))
        ready(ending.enter_context(node(file)), file)
        with Admin(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=60_000) as admin:
            cordons = Cordons(admin, OURS)
            until(lambda: bool(admin.describe_cluster().nodes))
            assert cordons.told() == {one} and cordons.create("first") == {two}
            assert cordons.error_of("/nowhere", OURS) is InvalidRequest, "Kafka's controller does not know our paths"
            assert cordons.error_of("*", OURS) is None
            cordons.until_created(False)
            assert cordons.error_of(two, OURS) is None
            until(lambda: cordons.told() == {two})
            cordons.until_created(True)
            assert cordons.create("second") == {one}
