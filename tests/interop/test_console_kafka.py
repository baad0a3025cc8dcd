"""The console's pages and actions, against Apache Kafka as against our broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastq import Admin, Producer, TopicPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Browser, Served, becomes

from fastq.console.config import ClusterConfig, ConsoleConfig


@pytest.fixture
def browser(servers: str) -> Iterator[Browser]:
    cluster = ClusterConfig("test", {"bootstrap.servers": servers})
    console = Served(ConsoleConfig((cluster,), port=0, picture_s=0.0))
    with Browser(console.url) as client:
        yield client
    console.close()


def test_pages_and_actions(browser: Browser, servers: str, new_topic_name: Callable[[], str]) -> None:
    name, group = new_topic_name(), new_topic_name()
    made = browser.submit(
        "/c/test/new-topic", "/c/test/create-topic", name=name, partitions="2", configs="retention.ms=-1"
    )
    assert made.status_code == 200, made.text
    page = f"/c/test/topics/{name}"
    sent = browser.submit(f"{page}/produce", f"{page}/produce", partition="1", key="k", value='{"a": 1}')
    assert f"{name}-1 at offset 0" in sent.text
    with Producer(bootstrap_servers=servers, transactional_id=group) as producer:
        producer.begin_transaction()
        producer.send(name, b"x", partition=0).result()
        producer.commit_transaction()
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(name, 1): 0}).results()
        node = admin.describe_cluster().nodes[0].node_id
    assert "Metadata quorum" in browser.get("/c/test").text and "not told" not in browser.get("/c/test").text
    for path, words in (
        (f"/c/test/nodes/{node}", "log.retention"),
        (f"/c/test/topics?q={name}", "1 in all"),
        (f"{page}/settings", "dynamic topic"),
        (page, "In sync"),
        (f"{page}/offsets", "Size of leader"),
        (f"{page}/replicas", "OnlineReplica"),
        (f"/c/test/group?id={group}", "<dt>Lag</dt><dd>1</dd>"),
        (f"/c/test/groups?q={group}", "Empty"),
        (f"/c/test/transactions?q={group}&hanging=1", "CompleteCommit"),
        (f"/c/test/transaction?id={group}", "CompleteCommit"),
        ("/c/test/partitions", "no partition moves"),
        ("/c/test/partitions/proposal", "Nothing has begun"),
    ):
        answer = browser.get(path)
        assert answer.status_code == 200 and words in answer.text, (path, answer.text)
    with browser.stream(
        "GET", f"{page}/records/scan", params={"path": "$.a", "value": "1", "from": "earliest"}
    ) as stream:
        lines = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert [row["offset"] for row in lines[0]] == [0] and lines[-1]["ended"] == "all was looked at"
    assert browser.submit(page, f"{page}/add-partitions", total="3").status_code == 200
    assert browser.submit(page, f"{page}/set-config", key="retention.ms", default="1").status_code == 200
    plan = browser.submit(page, "/c/test/group/plan", id=group, topic=name, to="latest")
    assert f"{name}:1:1" in plan.text
    assert browser.submit(page, "/c/test/group/reset", id=group, offsets=f"{name}:1:1").status_code == 200
    assert browser.submit(page, "/c/test/partitions/elect").status_code == 200
    aside = new_topic_name()
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(aside)
        replicas = ",".join(map(str, admin.describe_topic(name).partitions[0].replicas))
    assert becomes(lambda: browser.get(f"/c/test/topics/{aside}").status_code == 200)
    copied = browser.submit(page, f"{page}/copy", target=aside, places="1:0")
    assert f"{aside}-0 at offset 0" in copied.text, copied.text
    assert json.loads(browser.get(f"/c/test/topics/{aside}/ends").text)["value"] == 1
    assert json.loads(browser.get(f"/c/test/group/lag?id={group}").text)["value"] == 0
    assert "led by it already" in browser.submit(page, f"{page}/elect").text
    unchanged = browser.submit(page, "/c/test/partitions/plan", moves=f"{name}:0:{replicas}")
    assert "nothing is to be moved" in unchanged.text, unchanged.text
    assert "the first offset is 1" in browser.submit(page, f"{page}/purge", confirm=name).text
    assert browser.submit(page, "/c/test/group/delete", id=group, confirm=group).status_code == 200
    assert browser.submit(page, f"{page}/delete", confirm=name).status_code == 200
    assert becomes(lambda: browser.get(page).status_code == 404)
