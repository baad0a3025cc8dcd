"""The console in a browser: every page in both colours and on a phone, what is done by mouse and keyboard, and what scripts of others get.

Rules: the browser is Debian's Chromium (`chromium.py`); axe-core finds no fault on any page, no page complains, and none is wider than its
screen. Brokers and consoles are real.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.schema_registry import Schema, SchemaRegistryClient
from fastq.testing import Broker, SchemaRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Served

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.masking import Mask
from fastq.console.metrics import Counters
from fastq.console.mirrors import WatchedMirror
from fastq.console.users import Users, hash_password
from fastq.mirror.config import parse_config
from fastq.mirror.report import MirrorStatus, PartitionStatus

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"`${alert(3)}"
TOPIC, GROUP = "browser-orders", f"browser-{EVIL}"
PHONE, DESK = (360, 740), (1280, 900)
MIRRORED = MirrorStatus(
    [
        PartitionStatus(TopicPartition(TOPIC, n), f"east.{TOPIC}", 7, 9, 2, 1.5, 0.0, state, (3, 5))
        for n, state in enumerate(("mirrored", f"stopped: {EVIL}"))
    ],
    {"refused": EVIL},
    None,
    0.4,
)


@pytest.fixture(scope="module")
def filled(shared_broker: Broker) -> Iterator[str]:
    """A broker with everything that a page shows: topics, records as markup, a group with a member, a transaction."""
    servers = shared_broker.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        topics = [NewTopic(name=f"browser.{n:03}", partitions=1) for n in range(60)]
        admin.create_topics([NewTopic(name=TOPIC, partitions=2, configs={"retention.ms": "-1"}), *topics]).results()
        with Producer(bootstrap_servers=servers) as producer:
            hidden = f"secret {EVIL}"
            for n in range(120):
                value = json.dumps({"id": n, "text": hidden, "lines": [{"price": n}] * 6})
                headers = [("trace", hidden.encode()), (EVIL, None)]
                producer.send(TOPIC, value.encode(), key=hidden.encode(), headers=headers, partition=0)
            for odd in (b"\xff\xfe\x00", None, b"line\nbreak", b"\xe2\x80\xae" + EVIL.encode()):
                producer.send(TOPIC, odd, partition=1)
        with Producer(bootstrap_servers=servers, transactional_id=GROUP) as producer:
            producer.begin_transaction()
            producer.send("browser.000", b"x").result()
            producer.commit_transaction()
        with Consumer(
            TOPIC, bootstrap_servers=servers, group_id=GROUP, client_id=EVIL, auto_offset_reset="earliest"
        ) as consumer:
            while not consumer.poll(timeout=10):
                pass
            consumer.commit()
            admin.alter_group_offsets("browser-idle", {TopicPartition(TOPIC, n): 1 for n in range(2)}).results()
            yield servers


AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NARROW = {**AVRO, "fields": [{"name": "must", "type": "int"}]}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "text", "type": "string", "default": EVIL}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """A schema registry with two versions of a subject."""
    with SchemaRegistry() as server:
        client = SchemaRegistryClient(server.url)
        for schema in (AVRO, WIDER):
            client.register("orders-value", Schema(json.dumps(schema)))
        client.register(EVIL, Schema('"string"'))
        yield server.url


def _served(servers: str, **settings: Any) -> Served:
    cluster = ClusterConfig("test", {"bootstrap.servers": servers})
    return Served(ConsoleConfig(**{"clusters": (cluster,), "port": 0, "picture_s": 0.0, **settings}))


@pytest.fixture(scope="module")
def console(filled: str, registry: str) -> Iterator[str]:
    sides = {
        side: {"alias": alias, "bootstrap.servers": filled} for side, alias in (("source", "east"), ("target", "west"))
    }
    cluster = ClusterConfig("test", {"bootstrap.servers": filled}, registry)
    served = _served(
        filled, clusters=(cluster,), mirrors={"east-west": parse_config({**sides, "mirror": {"topics": [TOPIC]}})}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchedMirror, "_asked", lambda _mirror: (MIRRORED, ""))
        yield served.url.rstrip("/")
        served.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Chromium) -> Iterator[Chromium]:
    chromium.screen(*DESK)
    chromium.troubles.clear()
    yield chromium
    assert not chromium.troubles


def pages() -> list[str]:
    from urllib.parse import quote

    group = quote(GROUP, safe="")
    return [
        "/c/test", "/c/test/topics", "/c/test/topics?q=browser.0&page=2", "/c/test/topics?q=nothing-has-this",
        f"/c/test/topics/{TOPIC}", f"/c/test/topics/{TOPIC}/offsets", f"/c/test/topics/{TOPIC}/replicas",
        f"/c/test/topics/{TOPIC}/settings", "/c/test/new-topic", f"/c/test/topics/{TOPIC}/records", f"/c/test/topics/{TOPIC}/produce",
        f"/c/test/topics/{TOPIC}/produce?partition=0&offset=3", f"/c/test/topics/{TOPIC}/copy",
        "/c/test/groups", f"/c/test/group?id={group}",
        "/c/test/group?id=browser-idle", "/c/test/transactions?hanging=1", f"/c/test/transaction?id={group}",
        "/c/test/partitions", "/c/test/partitions/proposal", "/c/test/nodes/1", "/c/test/acls", "/c/test/schemas",
        "/c/test/users", "/c/test/quotas", "/audit",
        "/c/test/schema?id=orders-value", "/c/test/schema?id=orders-value&version=2&with=1",
        f"/c/test/groups/reset?group={group}&group=browser-idle", "/mirrors", "/mirrors/east-west",
    ]  # fmt: skip


def check(browser: Chromium, where: str) -> None:
    """What holds for every page on every screen."""
    faults = browser.violations()
    assert not faults, (where, faults)
    wide = browser.run("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], (where, wide)
    assert not browser.run("document.querySelectorAll('main img, main script:not([src])').length"), where


@pytest.mark.parametrize("path", pages())
def test_every_page_on_every_screen(browser: Chromium, console: str, path: str) -> None:
    browser.go(console + path)
    for width, height, dark in ((*DESK, False), (*PHONE, True)):
        browser.screen(width, height, dark=dark, phone=dark)
        if path.endswith("/records"):
            browser.until("document.getElementById('told').textContent.includes('looked at, of')")
        check(browser, f"{path} at {width}, dark: {dark}")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


def test_errors_are_pages_too(browser: Chromium, console: str) -> None:
    for path in ("/nowhere", "/c/test/topics/there-is-none", "/c/test/topics?page=x"):
        browser.go(console + path)
        browser.until("document.querySelector('[role=alert]')")
        check(browser, path)
    assert all("status of 40" in trouble for trouble in browser.troubles)
    browser.troubles.clear()


def test_a_topic_from_its_making_to_its_end(browser: Chromium, console: str, filled: str) -> None:
    """Made, sent to, found, followed, changed and deleted as by somebody who only clicks and types."""
    browser.go(console + "/")
    browser.click("nav a[href$='/topics']")
    browser.until_text("Offsets held")
    browser.click("a[href$='/new-topic']")
    browser.fill("[name=name]", "browser-made")
    browser.fill("[name=partitions]", "2")
    browser.fill("[name=configs]", "retention.ms=-1")
    browser.click("main button.primary")
    browser.until_text("browser-made")
    browser.until_text("done")
    check(browser, "a result")
    browser.click("main p a")
    browser.click("a[href$='/settings']")
    browser.until_text("dynamic topic")
    browser.click("a[href$='/produce']")
    browser.until("!!document.querySelector('[name=value]')")
    browser.fill("[name=value]", '{"id": 7}')
    browser.click("main button.primary")
    browser.until_text("at offset 0")
    browser.click("main p a")  # to the record itself
    browser.until("document.getElementById('told').textContent.includes('1 found')")
    assert browser.run("document.getElementById('rows').innerText").split("\t")[4].strip() == '{ "id": 7 }'
    assert browser.run("[...document.querySelectorAll('#rows a')].map((a) => a.textContent)") == ["edit and send"]
    browser.click("#tail")
    browser.until("document.getElementById('told').textContent.startsWith('Following')")
    with Producer(bootstrap_servers=filled) as producer:
        producer.send("browser-made", EVIL.encode(), partition=browser.run("+document.forms.records.partition.value"))
    browser.until("document.getElementById('rows').rows.length === 1")
    browser.click("#stop")
    browser.until("document.getElementById('told').textContent.endsWith('Stopped.')")
    assert browser.run("document.getElementById('stop').disabled")
    browser.go(console + "/c/test/topics/browser-made")
    add = "form[action$='/add-partitions']"
    browser.fill(f"{add} [name=total]", "3")
    browser.press("Enter")
    browser.until_text("There is no way back")
    check(browser, "a question")
    browser.press("Escape")  # "No" is what a key press chooses
    browser.until("!document.querySelector('dialog')")
    browser.click(f"{add} button")
    browser.click("dialog button.danger")
    browser.until_text("3 partitions")
    browser.go(console + "/c/test/topics/browser-made")
    browser.fill("form[action$='/delete'] [name=confirm]", "browser-made")
    browser.press("Enter")
    browser.until_text("Delete topic")
    browser.until_text("done")


def test_a_search_and_its_stop(browser: Chromium, console: str) -> None:
    browser.go(f"{console}/c/test/topics/{TOPIC}/records")
    browser.until("document.getElementById('told').textContent.includes('looked at: ')")
    assert browser.run("document.getElementById('rows').innerText.includes('onerror=alert(1)')")
    browser.press("/")
    assert browser.run("document.activeElement.name") == "text"
    browser.choose("[name=partition]", "0")
    browser.choose("[name=from]", "earliest")
    browser.fill("[name=path]", "$.id")
    browser.fill("[name=value]", "77")
    browser.press("Enter")
    browser.until("document.getElementById('told').textContent.startsWith('1 found')")
    assert "value=77" in browser.run("location.search")  # a link to it can be sent to others
    browser.fill("[name=path]", "$.a[b]")
    browser.press("Enter")
    browser.until("document.getElementById('told').textContent.includes('not understood')")
    assert [trouble for trouble in browser.troubles if "400" not in trouble] == []
    browser.troubles.clear()


def test_offsets_are_reset_as_planned(browser: Chromium, console: str, filled: str) -> None:
    browser.go(console + "/c/test/group?id=browser-idle")
    browser.choose("[name=to]", "latest")
    browser.click("form[action$='/group/plan'] button")
    browser.until_text("Nothing is written yet")
    check(browser, "a plan")
    browser.click("main button.danger")
    browser.until_text("done")
    with Admin(bootstrap_servers=filled) as admin:
        assert admin.list_group_offsets("browser-idle").results()[TopicPartition(TOPIC, 0)].offset == 120


def test_several_groups_are_reset_as_planned(browser: Chromium, console: str, filled: str) -> None:
    browser.go(console + "/c/test/groups?q=browser-")
    browser.click("[name=group][value='browser-idle']")
    browser.click("form[action$='/groups/reset'] button")
    browser.until_text("Reset offsets of several groups")
    browser.choose("[name=to]", "earliest")
    browser.click("main button.primary")
    browser.until_text("Nothing is written yet")
    check(browser, "a plan of several")
    browser.click("main button.danger")
    browser.until_text("done")
    with Admin(bootstrap_servers=filled) as admin:
        assert admin.list_group_offsets("browser-idle").results()[TopicPartition(TOPIC, 0)].offset == 0


def test_the_keyboard_alone_gets_everywhere(browser: Chromium, console: str) -> None:
    browser.go(console + "/c/test/topics")
    browser.press("Tab")
    assert browser.run("document.activeElement.textContent") == "To the content"
    assert browser.run("document.activeElement.getBoundingClientRect().x") >= 0  # seen while it has the focus
    browser.press("Enter")
    browser.until("location.hash === '#main'")
    browser.press("Tab")
    assert browser.run("document.activeElement.name") == "q"
    browser.ask("Input.insertText", text=TOPIC)
    browser.press("Enter")
    browser.until(f"document.readyState === 'complete' && location.search.includes('q={TOPIC}')")
    reached = []
    for _ in range(40):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.textContent"))
        if reached[-1] == TOPIC:
            break
    assert reached[-1] == TOPIC and browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_schemas_are_compared_and_checked(browser: Chromium, console: str, registry: str) -> None:
    browser.go(console + "/c/test/schemas")
    browser.click("td a[href*='orders-value']")
    browser.until_text("Versions")
    browser.choose("[name=with]", "1")
    browser.click("main form.bar button")
    browser.until_text("from version 1 to 2")
    assert browser.run("document.querySelector('.diff ins').textContent.startsWith('+ ')")
    assert "onerror=alert(1)" in browser.run("document.querySelector('.diff').textContent")
    client = SchemaRegistryClient(registry)
    for schema, words in ((AVRO, "it may follow version 2"), (NARROW, "it may not follow version 2")):
        browser.go(console + "/c/test/schema?id=orders-value")
        browser.fill("[name=schema]", json.dumps(schema))
        browser.click("form[action$='/check'] button")
        browser.until_text(words)
    browser.go(console + "/c/test/schema?id=orders-value")
    browser.choose("[name=level]", "FULL")
    browser.click("form[action$='/level'] button")
    browser.until_text("orders-value: FULL")
    assert client.compatibility("orders-value") == "FULL" and client.versions("orders-value") == [1, 2]


def test_users_masks_and_read_only(browser: Chromium, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"vera:viewer:{hash_password('veravera')}\n")
    masks = (Mask.of(TOPIC, "value", "$.text"), Mask.of(TOPIC, "key", "$"), Mask.of(TOPIC, "header", "*"))
    served = _served(filled, users=Users.load(path), masks=masks, read_only=True)
    try:
        browser.go(served.url)
        check(browser, "login")
        browser.fill("[name=name]", "vera")
        browser.fill("[name=password]", "wrong")
        browser.press("Enter")
        browser.until_text("Name or password is wrong.")
        check(browser, "a refused login")
        browser.fill("[name=name]", "vera")
        browser.fill("[name=password]", "veravera")
        browser.press("Enter")
        browser.until_text("vera (viewer)")
        browser.until_text("read only")
        assert browser.run("document.cookie") == ""
        browser.screen(*PHONE, phone=True)
        check(browser, "logged in, on a phone")
        browser.go(f"{served.url}c/test/topics/{TOPIC}/records?partition=0")
        browser.until("document.getElementById('told').textContent.includes('looked at: ')")
        shown = browser.run("document.getElementById('rows').textContent")
        assert "secret" not in shown and "•••" in shown and "edit and send" not in shown
        assert not browser.run("!!document.querySelector('main form[method=post]')")
        browser.click("header form button")
        browser.until("location.pathname === '/login'")
    finally:
        served.close()
    assert [trouble for trouble in browser.troubles if "401" not in trouble] == []
    browser.troubles.clear()


def test_charts_follow_what_goes_on(browser: Chromium, console: str, filled: str) -> None:
    from urllib.parse import quote

    points = "document.querySelector('figure polyline')?.getAttribute('points')?.split(' ').length"
    browser.go(f"{console}/c/test/topics/{TOPIC}/offsets")
    place = "Math.round(document.body.getBoundingClientRect().height)"
    before = browser.run(place)
    browser.until(f"{points} >= 1")
    assert browser.run(place) == before  # nothing moves away from under a pointer
    assert "Records a second: 0; the most" in browser.text()
    check(browser, "a chart")
    browser.go(f"{console}/c/test/group?id={quote(GROUP, safe='')}")
    with Producer(bootstrap_servers=filled) as producer:
        for n in range(7):
            producer.send("browser.001", b"%d" % n).result()
    with Admin(bootstrap_servers=filled) as admin:
        admin.alter_group_offsets("browser-behind", {TopicPartition("browser.001", 0): 3}).results()
    browser.go(f"{console}/c/test/group?id=browser-behind")
    browser.until_text("Lag: 4; the most")
    assert browser.run("document.querySelector('figure svg').getAttribute('aria-label')").startswith("Lag: 4")


def test_a_chart_says_which_nodes_are_not_in_it(
    browser: Chromium, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = tuple(f"http://ann:geheim@kafka-{n}:9404/metrics?token=geheim" for n in range(8))
    silent, asked = set(urls[1:2]), iter(range(10**9))

    def page_of(url: str) -> Counters:
        if url in silent:
            raise OSError("refused")
        return {("fastq_request_bytes_total", "Produce", 0.0): 1e12 + next(asked) * 1_000}

    monkeypatch.setattr("fastq.console.metrics.page_of", page_of)
    cluster = ClusterConfig("test", {"bootstrap.servers": filled}, None, urls)
    served = _served(filled, clusters=(cluster,))
    caption = "document.querySelector('[data-field=request_bytes] figcaption').textContent"
    try:
        browser.go(f"{served.url}c/test")
        browser.until(
            f"{caption} === 'Bytes in a second: not known yet; without what is on node kafka-1:9404, not answering'"
        )
        browser.until(
            f"/: [1-9][0-9,.]*; the most .*; without what is on node kafka-1:9404, not answering$/.test({caption})"
        )
        check(browser, "a chart without a node")
        silent.clear()
        browser.until(f"/: [1-9][0-9,.]*; the most [^;]*$/.test({caption})")
        silent.update(urls)
        names = ", ".join(f"kafka-{n}:9404" for n in range(5))
        browser.until(
            f"{caption} === 'Bytes in a second: not known now; without what is on nodes {names} and 3 more, not answering'"
        )
        assert "geheim" not in browser.text()
    finally:
        served.close()


def test_records_are_set_aside(browser: Chromium, console: str) -> None:
    browser.go(f"{console}/c/test/topics/{TOPIC}/records")
    browser.until("document.getElementById('told').textContent.includes('looked at: ')")
    browser.fill("[name=path]", "$.id")
    browser.fill("[name=value]", "77")
    browser.click("#copy")
    browser.until("!!document.querySelector('[name=target]')")
    assert browser.run("document.querySelector('[name=value]').value") == "77"
    browser.fill("[name=target]", "browser.002")
    browser.press("Enter")
    browser.until_text("Copy 1 record to browser.002")
    check(browser, "a plan of a copy")
    browser.click("main button.danger")
    browser.until_text("browser.002-0 at offset 0")
