"""Clicked on a cluster of three: a move that is planned, begun and stopped, and leaders that are not the preferred ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from chromium import Chromium

from fastq import Admin, TopicPartition
from fastq.testing import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Served, becomes

from fastq.console.config import ClusterConfig, ConsoleConfig

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own


def test_a_move_is_begun_and_stopped_and_leaders_are_elected(tmp_path: Path) -> None:
    with Cluster(3, tmp_path / "nodes") as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", replica_assignments={0: [1, 2], 1: [2, 1]})
        assert becomes(lambda: "orders" in admin.list_topics())
        cluster.wait_in_sync()
        config = ClusterConfig("test", {"bootstrap.servers": cluster.bootstrap_servers})
        served = Served(ConsoleConfig((config,), port=0, picture_s=0.0))
        try:
            with Chromium(tmp_path / "profile") as browser:
                browser.screen(1280, 900)
                url = f"{served.url}c/test"
                _elected(browser, url, admin)
                _moved(browser, url, cluster, admin)
                assert browser.troubles == []
        finally:
            served.close()


def _elected(browser: Chromium, url: str, admin: Admin) -> None:
    admin.alter_partition_reassignments({TopicPartition("orders", 0): [2, 1]}).results()  # which elects nobody
    assert becomes(lambda: admin.describe_topic("orders").partitions[0].replicas == (2, 1))
    browser.go(f"{url}/topics/orders")
    browser.until_text("1 partition is not led by the preferred replica")
    browser.click("form[action$='/orders/elect'] button")
    browser.until_text("orders-0")
    assert becomes(lambda: admin.describe_topic("orders").partitions[0].leader.node_id == 2)


def _moved(browser: Chromium, url: str, cluster: Cluster, admin: Admin) -> None:
    place = TopicPartition("orders", 0)
    browser.go(f"{url}/partitions")
    browser.fill("[name=moves]", "orders:0:2,3")
    browser.click("form[action$='/plan'] button")
    browser.until_text("What nodes would have")
    assert browser.run("document.querySelectorAll('svg.bars rect').length") == 12
    cluster.node(3).kill()  # so that it cannot end before it is stopped
    browser.click("form[action$='/reassign'] button")
    browser.click("dialog button.danger")
    browser.until_text("Go on")
    assert "begun" in browser.text(), browser.text()
    assert becomes(lambda: place in admin.list_partition_reassignments())
    browser.go(f"{url}/partitions")
    browser.click("form[action$='/cancel'] button")
    browser.click("dialog button.danger")
    browser.until_text("Cancel reassignment")
    assert becomes(lambda: not admin.list_partition_reassignments())
    assert becomes(lambda: admin.describe_topic("orders").partitions[0].replicas == (2, 1))
