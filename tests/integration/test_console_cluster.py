"""The console on a cluster of three: moves that somebody has written, leaders that are not the preferred ones, and a node that is gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fastq import Admin, TopicPartition
from fastq.testing import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Browser, Served, becomes

from fastq.console.config import ClusterConfig, ConsoleConfig

pytestmark = pytest.mark.one_node

MOVES = re.compile(r'name="moves" hidden>\n([^<]*)<')


def test_moves_leaders_and_a_node_that_is_gone(tmp_path: Path) -> None:
    with Cluster(3, tmp_path) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", replica_assignments={0: [1, 2], 1: [2, 3]})
        cluster.wait_in_sync()
        test = ClusterConfig("test", {"bootstrap.servers": cluster.bootstrap_servers})
        console = Served(ConsoleConfig((test,), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as browser:
                _moves(browser, admin)
                _leaders(browser, admin)
                cluster.node(3).kill()
                page = lambda: browser.get("/c/test").text  # noqa: E731
                assert becomes(lambda: '<td class="bad">fenced</td>' in page() or page().count(">running<") == 2)
                assert browser.get("/c/test/topics/orders").status_code == 200
        finally:
            console.close()


def _moves(browser: Browser, admin: Admin) -> None:
    page = "/c/test/partitions"
    for wrong, words in (
        ("orders:0:1,9", "there is no node 9; there are 1, 2, 3"),
        ("orders:7:1", "orders-7: there is no such partition"),
        ("orders:0:1,1", "twice"),
        ("orders", "topic:partition:node,node"),
    ):
        answer = browser.submit(page, page + "/plan", moves=wrong)
        assert answer.status_code == 400 and words in answer.text, answer.text
    unchanged = browser.submit(page, page + "/plan", moves="orders:0:1,2")
    assert "nothing is to be moved" in unchanged.text and not MOVES.search(unchanged.text)
    shown = browser.submit(page, page + "/plan", moves="orders:0:3,2\norders:1:2,3\n")
    found = MOVES.search(shown.text)
    assert found and found[1].split() == ["orders:0:3,2"] and "<td>1, 2</td><td>3, 2</td>" in shown.text
    assert admin.describe_topic("orders").partitions[0].replicas == (1, 2)  # nothing has begun
    assert browser.submit(page, page + "/reassign", moves=found[1]).status_code == 200
    moved = lambda: admin.describe_topic("orders").partitions[0].replicas == (3, 2)  # noqa: E731
    assert becomes(moved) and becomes(lambda: "no partition moves" in browser.get(page).text)


def _leaders(browser: Browser, admin: Admin) -> None:
    page, place = "/c/test/topics/orders", TopicPartition("orders", 1)
    admin.alter_partition_reassignments({place: [3, 2]}).results()  # another order of the same replicas elects nobody
    assert becomes(lambda: "1 partition is not led" in browser.get(page).text)
    answer = browser.submit(page, page + "/elect")
    assert answer.status_code == 200 and "orders-1" in answer.text
    assert becomes(lambda: "not led" not in browser.get(page).text)
    assert admin.describe_topic("orders").partitions[1].leader.node_id == 3
    assert "led by it already" in browser.submit("/c/test/partitions", page + "/elect").text
