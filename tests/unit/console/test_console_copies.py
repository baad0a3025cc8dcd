"""Records set aside and replayed, and the numbers of charts."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.console.clusters import Cluster
from fastq.console.config import ClusterConfig
from fastq.console.copying import COPY_MAX, GAP_MAX, ORIGIN_HEADER, _runs, read_at
from fastq.console.users import Users
from fastq.testing import Broker

PLACES = re.compile(r'name="places" hidden>\n([^<]*)<')


def read(servers: str, topic: str) -> list[Any]:
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        return list(consumer.read_to_end())


def test_what_is_found_is_set_aside_and_replayed_as_it_is(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    source, aside = make_topic(servers, 2), make_topic(servers, 2)
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(1_300):
            value = b"bad \xff%d" % n if n in (3, 4, 1_299) else b"fine %d" % n
            producer.send(source, value, key=b"k%d" % n, headers=[("h", None), ("h", b"\0")], partition=1)
        producer.send(source, None, key=b"bad", partition=0)
    page = f"/c/test/topics/{source}/copy"
    assert "any case" in browser.get(page, params={"text": "bad"}).text
    wanted = {"target": aside, "text": "bad", "from": "earliest", "limit": "100", "tell_origin": "1"}
    shown = browser.submit(page, f"{page}/plan", **wanted)
    found = PLACES.search(shown.text)
    assert shown.status_code == 200 and found and "Copy 4 records to" in shown.text
    assert sorted(found[1].split()) == ["0:0", "1:1299", "1:3", "1:4"] and read(servers, aside) == []
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(source, 1): 4}).results()
    answer = browser.submit(page, page, target=aside, places=found[1], tell_origin="1", keep_partition="1")
    assert "not there any more" in answer.text and answer.text.count(f"{aside}-") == 3
    copies = {(record.partition, record.key): record for record in read(servers, aside)}
    assert set(copies) == {(0, b"bad"), (1, b"k4"), (1, b"k1299")}
    assert copies[0, b"bad"].value is None and copies[1, b"k4"].value == b"bad \xff4"
    assert copies[1, b"k4"].headers == (("h", None), ("h", b"\0"), (ORIGIN_HEADER, f"{source}:1:4".encode()))
    back = browser.submit(page, f"/c/test/topics/{aside}/copy", target=source, places="0:0")  # and back again
    assert back.status_code == 200 and len(read(servers, source)) == 1_300 - 4 + 2


def test_a_copy_is_refused_with_a_sentence(
    browser: Browser, shared_broker: Broker, make_topic: Callable[..., str]
) -> None:
    servers = shared_broker.bootstrap_servers
    source, target = make_topic(servers), make_topic(servers)
    page = f"/c/test/topics/{source}/copy"
    good = {"target": target, "places": "0:0"}
    for wrong, status, words in (
        ({"target": ""}, 400, "target is missing"), ({"target": source}, 400, "the topic itself"),
        ({"target": "there-is-none"}, 404, "there-is-none"), ({"places": ""}, 400, "not 0"), ({"places": "0"}, 400, "partition:offset"),
        ({"places": "0:-1"}, 400, "partition:offset"), ({"places": "7:0"}, 400, "there is no 7"),
        ({"places": "0:1 " * (COPY_MAX + 1)}, 400, "1,001"),
    ):  # fmt: skip
        answer = browser.submit(page, page, **{**good, **wrong})
        assert (answer.status_code, words in answer.text) == (status, True), (wrong, answer.text)
    assert "not there any more" in browser.submit(page, page, **good).text  # an empty topic


def test_offsets_that_lie_apart_are_asked_for_apart() -> None:
    assert list(_runs([])) == [] and list(_runs([1, 2, 2 + GAP_MAX])) == [[1, 2, 2 + GAP_MAX]]
    assert list(_runs([1, 2 + GAP_MAX, 9_999])) == [[1], [2 + GAP_MAX], [9_999]]


def test_a_slow_broker_is_not_an_empty_one(
    shared_broker: Broker, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that brings nothing says nothing of whether the record is there."""
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    place = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(3):
            producer.send(topic, b"%d" % n)
    polls = 0

    async def check() -> None:
        cluster = Cluster(ClusterConfig("x", {"bootstrap.servers": servers}), 2.0)
        async with cluster.reader() as consumer:
            poll = consumer.poll

            async def slow(**arguments: Any) -> Any:
                nonlocal polls
                polls += 1
                return await poll(**arguments) if polls > 3 else []

            monkeypatch.setattr(consumer, "poll", slow)
            found = await read_at(cluster, consumer, place, [1, 2, 9], time.monotonic() + 20)
            assert found[9] is None and (found[1].value, found[2].value) == (b"1", b"2") and polls > 3
            assert await read_at(cluster, consumer, place, [1, 9], time.monotonic() - 1) == {9: None}
        await cluster.close()

    asyncio.run(check())


def test_charts_count_what_a_user_may_see(
    browser: Browser, served: Callable[..., Served], users: Users, shared_broker: Broker, make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:  # fmt: skip
    servers = shared_broker.bootstrap_servers
    hidden, group = make_topic(servers, 2), make_topic(servers)
    seen = f"pub-{hidden}"
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        admin.create_topic(seen, configs={"retention.ms": "-1"})
        for n in range(5):
            producer.send(hidden, b"x", partition=n % 2)
        producer.send(seen, b"x")
        producer.flush()
        admin.alter_group_offsets(group, {TopicPartition(hidden, 0): 1, TopicPartition(seen, 0): 0}).results()
    told = json.loads(browser.get(f"/c/test/topics/{hidden}/ends").text)
    assert (told["value"], told["of"]) == (5, 2)
    assert json.loads(browser.get("/c/test/group/lag", params={"id": group}).text)["value"] == 3
    with Browser(served(users=users).url) as vera:
        vera.log_in("vera", "veravera")
        assert vera.get(f"/c/test/topics/{hidden}/ends").status_code == 404
        assert json.loads(vera.get("/c/test/group/lag", params={"id": group}).text)["value"] == 1
