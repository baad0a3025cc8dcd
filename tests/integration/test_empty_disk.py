"""A broker that comes back with an empty disk leads nothing that it has no records of, and gets them from who has them (KIP-966)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.testing import Cluster

VALUES = [b"%d" % number for number in range(500)]


@pytest.mark.slow
def test_who_has_lost_its_disk_waits_for_who_has_the_records(tmp_path: Path) -> None:
    """The other replica stops cleanly, this one loses its disk: it comes back first, and does not lead."""
    settings = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 300}
    with Cluster(4, tmp_path / "cluster", settings) as cluster:
        lost, keeper = cluster.node(4), cluster.node(1)
        others = f"{cluster.node(2).bootstrap_servers},{cluster.node(3).bootstrap_servers}"
        with Admin(bootstrap_servers=others) as admin:
            admin.create_topics([NewTopic(name="kept", replica_assignments={0: [4, 1]})]).results()
            with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
                producer.send_many("kept", VALUES).result(30)
            keeper.stop()
            lost.kill()
            shutil.rmtree(lost.data_dir)
            made = lost.format("--cluster-id", str(admin.describe_cluster().cluster_id), "--no-initial-controllers")
            said, _ = made.communicate(timeout=60)
            assert made.returncode == 0, said
            lost.start()
            deadline = time.monotonic() + 30
            while 4 not in {node.node_id for node in admin.describe_cluster().nodes}:
                assert time.monotonic() < deadline, lost.log
                time.sleep(0.05)
            waiting = admin.describe_topic("kept").partitions[0]
            assert waiting.leader is None and not waiting.isr and list(waiting.elr or ()) == [1]
            keeper.start()
            cluster.wait_in_sync()
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("kept", 0)])
            assert [record.value for record in consumer.read_to_end()] == VALUES
        cluster.change_leader("kept")  # the one that had lost them
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("kept", 0)])
            assert [record.value for record in consumer.read_to_end()] == VALUES
