"""What a node does about its disk and its descriptors, as one of three: what one that is alone does, and the cluster goes on."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from nodes import COUNT, free_ports, running
from raw_kafka import RawConnection, fetch

from fastq import Admin, Consumer, Producer
from fastq.admin import NewTopic
from fastq.protocol.messages import MetadataRequest
from fastq.testing import Cluster

ROWS = 3000


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(3, tmp_path, {"broker.session.timeout.ms": 4000})


@pytest.mark.parametrize("leads", [True, False], ids=["of the leader", "of a follower"])
def test_a_log_that_is_not_whole_after_a_clean_stop(cluster: Cluster, leads: bool) -> None:
    """Who leads it, or follows, waits for the thread that recovers it, and all is as before on all nodes."""
    node = 1 if leads else 2
    with cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="logs", replica_assignments={0: [1, 2, 3]})]).results()
        values = [b"%01000d" % number for number in range(ROWS)]
        with Producer(bootstrap_servers=cluster.bootstrap_servers, batch_size=2000) as producer:
            producer.send_many("logs", values)
        cluster.wait_in_sync()
        cluster.stop()
        log = Path(cluster.node(node).data_dir) / "logs-0"
        (log / f"{0:020d}.index").unlink()
        with (log / f"{0:020d}.log").open("ab") as file:
            file.write(b"\x17" * 1000)
        cluster.start()
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("logs", b"after").result(60)
        cluster.wait_in_sync()
        assert "logs-0 is whole now" in cluster.node(node).log
        with Consumer("logs", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.read_to_end()] == [*values, b"after"]
        for each in cluster.nodes:
            with RawConnection(each.bootstrap_servers) as connection:
                assert fetch(connection, "logs", ROWS, replica_id=-2).error_code in (0, 6)
        assert "Traceback" not in cluster.log


def test_metadata_that_is_asked_of_any_node_makes_a_topic(cluster: Cluster) -> None:
    """An auto-creating request answers with the new topic, also of a node that is not the active controller: once the topic is made by
    that one, and known here."""
    with cluster:
        for node in cluster.nodes:
            name = f"made-by-{node.node_id}"
            with RawConnection(node.bootstrap_servers) as connection:
                asked = MetadataRequest(
                    topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
                )
                (topic,) = connection.call(asked, 9).topics
                assert (topic.error_code, topic.name) == (0, name), node.node_id
                (partition,) = topic.partitions
                assert sorted(partition.replica_nodes) == [1, 2, 3] and partition.leader_id in (1, 2, 3)


def test_idle_connections_at_one_of_three_take_nothing_from_storage_and_replication(tmp_path: Path) -> None:
    port = free_ports(2 * COUNT)
    with running(tmp_path, port, 9000, open_files=256) as nodes:
        nodes.ready()
        with (
            Admin(bootstrap_servers=nodes.servers) as admin,
            Producer(bootstrap_servers=nodes.servers) as producer,
            contextlib.ExitStack() as idle,
        ):
            config = {"durability": "fsync"}
            admin.create_topics([NewTopic(name="logs", partitions=30, replication_factor=3, configs=config)]).results()
            for partition in range(30):
                producer.send("logs", b"before", partition=partition).result(60)
            refused = 0
            for _ in range(316):
                sock = idle.enter_context(socket.create_connection(("127.0.0.1", port + 1), timeout=20))
                sock.settimeout(0.01)
                try:
                    refused += sock.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionError:
                    refused += 1
            assert 316 - refused <= 256 // 2
            for partition in range(30):
                producer.send("logs", b"after", partition=partition).result(60)
            described = admin.describe_topic("logs").partitions
            assert [sorted(each.isr) for each in described] == [[1, 2, 3]] * 30
        assert nodes.says("a connection was refused")
        assert not [line for line in nodes.log if "offline" in line or "EMFILE" in line or "Traceback" in line]
