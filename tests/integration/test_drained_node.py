"""Replicas that are taken from a node while it is down: when it is back, its disk has their space again, and it keeps what is its own."""

from __future__ import annotations

import time
from pathlib import Path

from fastq import Admin, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.testing import Broker, Cluster


def logs_of(node: Broker, topic: str) -> list[str]:
    return sorted(path.name for path in Path(node.data_dir).glob(f"{topic}-?"))


def test_what_was_reassigned_while_a_node_was_down_is_deleted_when_it_is_back(tmp_path: Path) -> None:
    with (
        Cluster(3, tmp_path, {"broker.session.timeout.ms": 4000}) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers, default_api_timeout_ms=60_000) as admin,
    ):
        placed = {0: [1, 2], 1: [1, 2]}
        admin.create_topics([NewTopic(name="orders", replica_assignments=placed)]).results()
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for partition in placed:
                producer.send("orders", b"kept", partition=partition).result(20)
        cluster.wait_in_sync()
        gone = cluster.node(2)
        assert logs_of(gone, "orders") == ["orders-0", "orders-1"]
        gone.kill()
        admin.alter_partition_reassignments({TopicPartition("orders", 1): [1, 3]}).results()
        while admin.list_partition_reassignments():
            time.sleep(0.02)
        gone.start()
        cluster.wait_in_sync()
        assert logs_of(gone, "orders") == ["orders-0"]
        assert "1 logs are of partitions that were given to other nodes" in gone.log
