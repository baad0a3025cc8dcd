"""Groups, transactions, and which nodes have partitions, in the console."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import AsyncAdmin, Outcome, Outcomes
from fastq.console.users import Users
from fastq.errors import LeaderNotAvailable
from fastq.testing import Broker

OFFSETS = re.compile(r'name="offsets" hidden>\s*([^<]*)<')


def written(servers: str, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(count):
            producer.send(topic, b"x", partition=n % 2)


def test_a_group_is_shown_with_its_members_and_lag(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers, 2)
    group = f"{topic}/of <b>"
    written(servers, topic, 20)
    with Consumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", client_id="reader-7"
    ) as consumer:
        read = 0
        while read < 20:
            read += len(consumer.poll(timeout=10))
        consumer.commit()
        written(servers, topic, 6)
        listed = browser.get("/c/test/groups", params={"q": topic}).text
        assert "&lt;b&gt;" in listed and "<b>" not in listed and "Stable" in listed
        page = browser.get("/c/test/group", params={"id": group}).text
        assert "reader-7" in page and "<dt>Lag</dt><dd>6</dd>" in page
        answer = browser.submit("/c/test/new-topic", "/c/test/group/reset", id=group, offsets=f"{topic}:0:0")
        assert "has members" in answer.text  # which keep their offsets
    assert browser.get("/c/test/group", params={"id": "there-is-none"}).status_code == 404


def test_offsets_are_planned_then_reset_as_planned(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str], new_topic_name: Callable[[], str]
) -> None:
    servers = shared_broker.bootstrap_servers
    topics, group = [make_topic(servers, 2), make_topic(servers, 2)], new_topic_name()
    for topic in topics:
        written(servers, topic, 20)
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topics[0], n): 4 for n in range(2)}).results()
        page = f"/c/test/group?id={group}"

        def committed() -> list[int]:
            found = admin.list_group_offsets(group).results()
            return [
                found[TopicPartition(topic, n)].offset
                for topic in topics
                for n in range(2)
                if TopicPartition(topic, n) in found
            ]

        for to, value, after in (
            ("latest", "", 10),
            ("shift", "-3", 1),
            ("offset", "99", 10),
            ("time", "0", 0),
            ("earliest", "", 0),
        ):
            shown = browser.submit(page, "/c/test/group/plan", id=group, topic=topics[0], to=to, value=value)
            assert shown.status_code == 200 and committed() == [4, 4]
            found = OFFSETS.search(shown.text)
            assert found and found[1].split() == [f"{topics[0]}:{n}:{after}:4" for n in range(2)], to
        shown = browser.submit(
            page, "/c/test/group/plan", id=group, topic=topics[0], more=topics[1], to="offset", value="7"
        )
        found = OFFSETS.search(shown.text)
        assert found and browser.submit(page, "/c/test/group/reset", id=group, offsets=found[1]).status_code == 200
        assert committed() == [7, 7, 7, 7]
        for wrong in ("x", f"{topics[0]}:0", f"{topics[0]}:0:-1", f"{topics[0]}:0:1:x", f"{topics[0]}:0:none"):
            assert browser.submit(page, "/c/test/group/reset", id=group, offsets=wrong).status_code == 400, wrong
        assert browser.submit(page, "/c/test/group/plan", id=group, to="latest").status_code == 400
        assert (
            browser.submit(page, "/c/test/group/plan", id=group, topic=topics[0], to="shift", value="x").status_code
            == 400
        )
        assert browser.submit(page, "/c/test/group/delete", id=group, confirm="else").status_code == 400
        assert browser.submit(page, "/c/test/group/delete", id=group, confirm=group).status_code == 200
        assert group not in admin.list_groups()


def test_transactions_and_moves_are_shown(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, transactional_id=f"tx/{topic}") as producer:
        producer.begin_transaction()
        producer.send(topic, b"x").result()
        listed = browser.get("/c/test/transactions", params={"q": topic, "hanging": "1"}).text
        assert "Ongoing" in listed and "none hangs" in listed
        shown = browser.get("/c/test/transaction", params={"id": f"tx/{topic}"}).text
        assert f"{topic}-0" in shown
        producer.abort_transaction()
    assert browser.get("/c/test/transaction", params={"id": "none"}).status_code == 404
    answer = browser.submit("/c/test/new-topic", "/c/test/transactions/abort", topic=topic, partition="0", start="77")
    assert answer.status_code == 400 and "begins at offset 77" in answer.text
    page = "/c/test/partitions"
    assert "no partition moves" in browser.get(page).text
    assert browser.submit(page, page + "/elect").status_code == 200
    assert "The balancer" in browser.get(page + "/proposal").text
    assert browser.get(page + "/proposal", params={"drain": "99"}).status_code == 400
    assert browser.submit(page, page + "/cancel", topic=topic, partition="0").status_code == 409
    for wrong in ("x", "a:b:c", f"{topic}:0:", f"{topic}:0:1;2"):
        assert browser.submit(page, page + "/reassign", moves=wrong).status_code == 400, wrong
    assert "99" in browser.submit(page, page + "/reassign", moves=f"{topic}:0:99").text


def test_users_of_some_topics_move_nothing_else(
    served: Callable[..., Served], shared_broker: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    servers, log = shared_broker.bootstrap_servers, tmp_path / "audit"
    hidden, group = make_topic(servers), "console-bounded"
    seen = f"pub-{hidden}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(seen)
        admin.alter_group_offsets(group, {TopicPartition(hidden, 0): 0, TopicPartition(seen, 0): 0}).results()
    only_pub = Users.load(_users(tmp_path))
    with Browser(served(users=only_pub, audit_log=log).url) as browser:
        assert browser.log_in("pat", "patpat").status_code == 303
        page = f"/c/test/group?id={group}"
        text = browser.get(page).text
        assert seen in text and f">{hidden}<" not in text
        assert browser.submit(page, "/c/test/group/plan", id=group, topic=hidden, to="latest").status_code == 404
        assert browser.submit(page, "/c/test/group/reset", id=group, offsets=f"{hidden}:0:0").status_code == 404
        assert browser.submit(page, "/c/test/group/plan", id=group, topic=seen, to="latest").status_code == 200
        assert browser.submit(page, "/c/test/group/delete", id=group, confirm=group).status_code == 403
        for action in ("elect", "reassign"):
            assert browser.submit(page, f"/c/test/partitions/{action}").status_code == 403
        assert browser.get("/c/test/partitions/proposal").status_code == 403
    outcomes = [json.loads(line)["outcome"] == "done" for line in log.read_text().splitlines()]
    assert outcomes == [True, False, False, True, False, False, False]


def _users(folder: Path) -> Path:
    from fastq.console.users import hash_password

    path = folder / "users"
    path.write_text(f"pat:admin:{hash_password('patpat')}:pub-*\n")
    return path


def test_nothing_moves_where_a_throttle_cannot_be_set_and_what_is_set_is_told(
    served: Callable[..., Served],
    shared_broker: Broker,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """To a node that is not there: its own throttle is refused, that of the other and of the topic are there by then."""
    monkeypatch.setattr("fastq.console.clusters.API_TIMEOUT_S", 1.0)
    topic, log = make_topic(shared_broker.bootstrap_servers), tmp_path / "audit"
    with Browser(served(audit_log=log).url) as browser:
        answer = browser.submit("/c/test/new-topic", "/c/test/partitions/reassign", moves=f"{topic}:0:99", throttle="5")
        assert answer.status_code == 200 and "Nothing has begun to move" in answer.text, answer.text
        assert (
            f"topic {topic}</td><td>throttled, until" in answer.text and 'broker 99</td><td class="bad">' in answer.text
        )
        assert json.loads(log.read_text().splitlines()[-1])["outcome"] != "done"
        answer = browser.submit("/c/test/new-topic", "/c/test/partitions/unthrottle")
        assert f"topic {topic}</td><td>done" in answer.text


def test_a_lag_that_lacks_a_partition_says_so(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(shared_broker.bootstrap_servers, 2), AsyncAdmin.list_offsets
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.alter_group_offsets(f"of-{topic}", {TopicPartition(topic, n): 0 for n in range(2)}).results()

    async def without_the_last(*asked: Any, **how: Any) -> Any:
        told = await ends(*asked, **how)
        return Outcomes({tp: Outcome(error=LeaderNotAvailable()) if tp.partition else one for tp, one in told.items()})

    page = f"/c/test/group?id=of-{topic}"
    assert "<dt>Lag</dt><dd>0</dd>" in browser.get(page).text
    monkeypatch.setattr(AsyncAdmin, "list_offsets", without_the_last)
    assert "<dt>Lag</dt><dd>0 <small>without 1 partition that is not told</small></dd>" in browser.get(page).text
