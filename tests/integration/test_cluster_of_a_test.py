"""`fastq.testing.Cluster`: nodes that are found, broken one by one, and go on where they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastq import Consumer, Producer
from fastq.testing import BrokerFailed, Cluster


def test_its_nodes_fail_one_by_one_and_the_next_cluster_goes_on(tmp_path: Path) -> None:
    with Cluster(3, tmp_path) as cluster:
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("orders", b"one").result(20)
            leader = cluster.leader("orders")
            leader.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
            assert producer.send("orders", b"two").result(20).offset == 1
            assert leader.faults_left() == {}
            second = cluster.change_leader("orders")
            assert second is not leader
            second.kill()
            assert producer.send("orders", b"three").result(30).offset == 2
            assert cluster.leader("orders") not in (second,)
            with pytest.raises(BrokerFailed, match="orders-0"):
                cluster.wait_in_sync(timeout=0.1)
            second.start()
            cluster.wait_in_sync()
            assert cluster.active_controller() in cluster.nodes
        addresses = cluster.bootstrap_servers
    with pytest.raises(ValueError, match="of a cluster of 3 nodes, not 2"):
        Cluster(2, tmp_path)
    with Cluster(3, tmp_path) as cluster:
        assert cluster.bootstrap_servers == addresses
        with Consumer("orders", bootstrap_servers=addresses, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.read_to_end()] == [b"one", b"two", b"three"]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nodes is 1 to 100, got 0"):
        Cluster(0)
    with pytest.raises(KeyError, match="no node 2: they are 1 to 1"):
        Cluster(1, tmp_path / "one").node(2)
    with pytest.raises(RuntimeError, match="no node of the cluster runs"):
        Cluster(1, tmp_path / "none").leader("orders")
    with pytest.raises(BrokerFailed, match=r"no\.such\.key"):
        Cluster(1, tmp_path / "bad", {"no.such.key": 1, "process.roles": "x"}).start()
