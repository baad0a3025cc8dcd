"""Forms of two browsers that were open at the same time: who comes second neither undoes nor overwrites unseen what the first has done."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from console_served import Browser, Served

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import (
    AsyncAdmin,
    ClientQuotaEntity,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    Outcome,
    Outcomes,
    PartitionReassignment,
    ScramCredentialInfo,
    ScramMechanism,
)
from fastq.console.config import ClusterConfig
from fastq.console.seen import set_here
from fastq.schema_registry import Schema, SchemaRegistryClient
from fastq.testing import Broker, SchemaRegistry

FORM = re.compile(r'<form[^>]* method="post" action="([^"]+)"[^>]*>(.*?)</form>', re.S)
HIDDEN = re.compile(
    r'<input type="hidden" name="([\w-]+)" value="([^"]*)">|<textarea name="(\w+)" hidden>\n([^<]*)</textarea>'
)


def forms(page: httpx.Response) -> dict[str, dict[str, str]]:
    """The forms of a page by where they lead, the first of each, with what they carry unseen."""
    assert page.status_code == 200, page.text
    found: dict[str, dict[str, str]] = {}
    for action, inner in FORM.findall(page.text):
        values = {a or b: html.unescape(x or y) for a, x, b, y in HIDDEN.findall(inner)}
        found.setdefault(html.unescape(action), values)
    return found


def send(browser: Browser, action: str, form: dict[str, str], **typed: Any) -> httpx.Response:
    return browser.post(action, data={**form, **typed}, headers={"origin": str(browser.base_url).rstrip("/")})


@pytest.fixture
def topic(shared_broker: Broker, make_topic: Callable[..., str]) -> str:
    return make_topic(shared_broker.bootstrap_servers)


def test_a_setting_that_was_changed_meanwhile_stays(browser: Browser, topic: str) -> None:
    page = f"/c/test/topics/{topic}"
    action, key = f"{page}/set-config", "max.message.bytes"
    first, second = (forms(browser.get(f"{page}/settings"))[action] for _ in range(2))
    assert send(browser, action, first, key=key, value="3000").status_code == 200
    for typed in ({"value": "2000"}, {"default": "1"}):
        answer = send(browser, action, second, key=key, **typed)
        assert answer.status_code == 409 and f"{key} is 3000 now, and was not there" in answer.text, answer.text
    assert send(browser, action, second, key="retention.ms", value="1").status_code == 200  # another one, as it was
    now = forms(browser.get(f"{page}/settings"))[action]
    assert send(browser, action, now, key=key, default="1").status_code == 200
    assert "is not there now, and was 3000" in send(browser, action, now, key=key, value="1").text
    assert ">3000<" not in browser.get(f"{page}/settings").text
    for wrong in ("x", "[]", "{}", '{"topic":7}', "[" * 10_000):
        answer = send(browser, action, {**now, "seen": wrong}, key=key, value="1")
        assert answer.status_code == 400 and "seen is what the page has shown" in answer.text, wrong


def test_who_is_second_is_led_to_the_page_and_to_no_other_place(browser: Browser, topic: str) -> None:
    page, here = f"/c/test/topics/{topic}", str(browser.base_url).rstrip("/")
    stale = {**forms(browser.get(f"{page}/settings"))[f"{page}/set-config"], "seen": '{"topic":{"retention.ms":"1"}}'}
    settings, groups = f"{page}/settings", "/c/test/groups?q=a%20%22b"
    for referer, link in (
        (here + settings, settings),
        (here + groups, groups),
        (f"{here}/c/test/group/plan", ""),  # which is no page without its form
        (f"{here}//elsewhere.example/c/test/groups", ""),
        ("http://elsewhere.example/c/test/groups", ""),
        ("http://[", ""),
        ("javascript:alert(1)", ""),
        ("", ""),
    ):
        answer = browser.post(
            f"{page}/set-config",
            data={**stale, "key": "retention.ms", "value": "2"},
            headers={"origin": here, "referer": referer},
        )
        assert answer.status_code == 409 and "Changed meanwhile" in answer.text
        found = re.search(r'<a class="button" href="([^"]*)">Open the page again', answer.text)
        assert (html.unescape(found[1]) if found else "") == link, referer


def test_a_nodes_setting_that_was_changed_meanwhile_stays(browser: Browser, shared_broker: Broker) -> None:
    page, action, key = "/c/test/nodes/1", "/c/test/nodes/1/set-config", "compression.gzip.level"
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        for of, resource in (("node", ConfigResource.broker(1)), ("all", ConfigResource.broker(None))):
            stale = forms(browser.get(page))[action]
            assert send(browser, action, stale, key=key, value="5", of=of).status_code == 200
            try:
                answer = send(browser, action, stale, key=key, value="4", of=of)
                assert answer.status_code == 409 and f"{key} is 5 now" in answer.text, answer.text
            finally:
                admin.set_config(resource, key, None)


def test_no_form_carries_a_secret() -> None:
    def entry(name: str, *, secret: bool) -> ConfigEntry:
        source = ConfigSource.DYNAMIC_BROKER_CONFIG
        synonyms = (ConfigSynonym(name, "value", source), ConfigSynonym("another", "value", source))
        return ConfigEntry(name, None, source, is_sensitive=secret, synonyms=synonyms)

    found = set_here([entry("a", secret=False), entry("b", secret=True)], ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert found == {"a": "value", "b": None}
    assert set_here([entry("a", secret=False)], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG) == {}


@pytest.mark.parametrize("what, typed", [("delete", {}), ("purge", {}), ("add-partitions", {"total": "3"})])
def test_a_topic_that_was_made_anew_is_another_one(
    browser: Browser, shared_broker: Broker, topic: str, what: str, typed: dict[str, str]
) -> None:
    servers, page = shared_broker.bootstrap_servers, f"/c/test/topics/{topic}"
    stale = forms(browser.get(page))[f"{page}/{what}"]
    typed = {"confirm": topic, **typed}
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        admin.delete_topic(topic)
        assert send(browser, f"{page}/{what}", stale, **typed).status_code == 404
        admin.create_topic(topic, 1)
        producer.send(topic, b"kept").result()
        answer = send(browser, f"{page}/{what}", stale, **typed)
        assert (
            answer.status_code == 409 and f"the topic {topic} was deleted and made again: its id is" in answer.text
        ), answer.text
        assert len(admin.describe_topic(topic).partitions) == 1
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.read_to_end()] == [b"kept"]
    assert send(browser, f"{page}/{what}", forms(browser.get(page))[f"{page}/{what}"], **typed).status_code == 200


@pytest.mark.parametrize("before", [None, 4])
def test_offsets_that_moved_since_the_plan_stay(
    browser: Browser, shared_broker: Broker, topic: str, before: int | None
) -> None:
    servers, group, place = shared_broker.bootstrap_servers, f"{topic}-group", TopicPartition(topic, 0)
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        for _ in range(10):
            producer.send(topic, b"x")
        producer.flush()
        if before is not None:
            admin.alter_group_offsets(group, {place: before}).results()
        one, several = "/c/test/group/reset", "/c/test/groups/reset"
        planned = {"id": group, "topic": topic, "group": group, "to": "latest"}
        plan = forms(browser.submit("/c/test/new-topic", "/c/test/group/plan", **planned))[one]
        plans = forms(browser.submit("/c/test/new-topic", "/c/test/groups/plan", **planned)).get(several)
        assert (plans is None) == (before is None)  # several are reset where they have committed
        admin.alter_group_offsets(group, {place: 7}).results()
        then = "not there" if before is None else str(before)
        words = f"what {group} has committed of {place} is 7 now, and was {then}"
        answer = send(browser, one, plan)
        assert answer.status_code == 409 and words in answer.text, answer.text
        if plans is not None:
            answer = send(browser, several, plans)
            assert answer.status_code == 200 and words in answer.text and ">done<" not in answer.text
        found = admin.list_group_offsets(group).results()[place]
        assert found is not None and found.offset == 7
        plan = forms(browser.submit("/c/test/new-topic", "/c/test/group/plan", **planned))[one]
        assert ">done<" in send(browser, one, plan).text


def test_a_group_that_has_members_since_the_plan_keeps_its_offsets(
    browser: Browser, shared_broker: Broker, topic: str
) -> None:
    servers, group = shared_broker.bootstrap_servers, f"{topic}-group"
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"x").result()
    plan = forms(browser.submit("/c/test/new-topic", "/c/test/group/plan", id=group, topic=topic, to="earliest"))[
        "/c/test/group/reset"
    ]
    with Consumer(topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest") as consumer:
        while not consumer.poll(timeout=10):
            pass
        answer = send(browser, "/c/test/group/reset", plan)
        assert ">done<" not in answer.text and "member" in answer.text, answer.text


def test_moves_are_begun_from_where_the_plan_saw_them(
    browser: Browser, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, token = "/c/test/partitions/reassign", browser.token("/c/test/new-topic")
    moving: dict[TopicPartition, Any] = {}
    begun: list[Any] = []

    async def reassignments(*_: object, **__: object) -> Any:
        return moving

    async def begin(_: object, moves: dict[TopicPartition, Any]) -> Any:
        begun.append(moves)
        return Outcomes(dict.fromkeys(moves, Outcome(None)))

    monkeypatch.setattr(AsyncAdmin, "list_partition_reassignments", reassignments)
    monkeypatch.setattr(AsyncAdmin, "alter_partition_reassignments", begin)
    place = TopicPartition(topic, 0)

    def sent(action: str, **values: str) -> httpx.Response:
        return send(browser, action, {"token": token}, **values)

    answer = sent(action, moves=f"{topic}:0:2:3,1")  # another one was planned, begun and done in between
    assert answer.status_code == 409 and f"replicas of {place} is 1 now, and was 3,1" in answer.text and not begun
    answer = sent(action, moves=f"{topic}:7:2:1")
    assert answer.status_code == 409 and "is not there now" in answer.text and not begun
    moving[place] = PartitionReassignment((4, 5, 1), (4, 5), (1,))
    for moves in (f"{topic}:0:2:1", f"{topic}:0:2"):
        answer = sent(action, moves=moves)
        assert answer.status_code == 409 and f"the move of {place} is 4,5 now" in answer.text and not begun
    cancel = "/c/test/partitions/cancel"
    answer = sent(cancel, topic=topic, partition="0", seen="2,3")
    assert answer.status_code == 409 and f"the move of {place} is 4,5 now, and was 2,3" in answer.text and not begun
    form = forms(browser.get("/c/test/partitions"))[cancel]
    assert form["seen"] == "4,5" and ">done<" in send(browser, cancel, form).text and begun.pop() == {place: None}
    moving.clear()
    answer = send(browser, cancel, form)
    assert answer.status_code == 409 and "is not there now" in answer.text and not begun
    assert "begun" in sent(action, moves=f"{topic}:0:2:1").text and begun == [{place: [2]}]
    assert sent(action, moves="").status_code == 400


def test_throttles_of_moves_that_begin_while_they_are_looked_for_stay(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def reassignments(*_: object, **__: object) -> Any:
        nonlocal asked
        asked += 1
        return {TopicPartition("t", 0): None} if asked > 1 else {}

    monkeypatch.setattr(AsyncAdmin, "list_partition_reassignments", reassignments)
    answer = browser.submit("/c/test/new-topic", "/c/test/partitions/unthrottle")
    assert answer.status_code == 403 and "Partitions move still" in answer.text and asked == 2


def test_a_level_that_was_changed_meanwhile_stays(served: Callable[..., Served], shared_broker: Broker) -> None:
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient(registry.url)
        client.register("a", Schema('"string"'))
        cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers}, registry.url)
        with Browser(served(clusters=(cluster,)).url) as browser:
            action = "/c/test/schema/level"
            first, second = (forms(browser.get("/c/test/schema?id=a"))[action] for _ in range(2))
            assert send(browser, action, first, level="FULL").status_code == 200
            answer = send(browser, action, second, level="NONE")
            assert answer.status_code == 409 and "the compatibility of a is FULL now, and was BACKWARD" in answer.text
            assert client.compatibility("a") == "FULL"


def test_a_credential_is_replaced_where_that_is_said(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[ScramCredentialInfo] = []
    altered: list[Any] = []

    async def describe(*_: object, **__: object) -> Any:
        return Outcomes({"alice": Outcome(tuple(there))})

    async def alter(_: object, changes: list[Any]) -> Any:
        altered.append(changes)
        return Outcomes({"alice": Outcome(None)})

    monkeypatch.setattr(AsyncAdmin, "describe_user_scram_credentials", describe)
    monkeypatch.setattr(AsyncAdmin, "alter_user_scram_credentials", alter)
    form = {"user": "alice", "mechanism": "SCRAM_SHA_512", "password": "geheim", "again": "geheim"}

    def sent(**values: str) -> httpx.Response:
        return browser.submit("/c/test/new-topic", "/c/test/users/set", **form, **values)

    there.append(ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096))
    assert ">done<" in sent().text and altered.pop()
    there.append(ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096))
    answer = sent()
    assert (
        answer.status_code == 403 and "alice has a credential of SCRAM_SHA_512 already" in answer.text and not altered
    )
    assert ">done<" in sent(replace="1").text and altered


def test_a_quota_that_takes_the_place_of_another_is_told(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    of = ClientQuotaEntity({"user": "alice"})
    there: dict[ClientQuotaEntity, dict[str, float]] = {}

    async def describe(*_: object, **__: object) -> Any:
        return there

    async def alter(_: object, changes: dict[ClientQuotaEntity, dict[str, float | None]], **options: bool) -> Any:
        if not options:
            there.update({of: {key: value for key, value in changes[of].items() if value is not None}})
        return Outcomes(dict.fromkeys(changes, Outcome(None)))

    monkeypatch.setattr(AsyncAdmin, "describe_client_quotas", describe)
    monkeypatch.setattr(AsyncAdmin, "alter_client_quotas", alter)
    page, action = "/c/test/quotas", "/c/test/quotas/set"
    typed = {"user": "alice", "key": "producer_byte_rate"}
    assert "done: 1,048,576, and was none" in browser.submit(page, action, value="1048576", **typed).text
    stale = forms(browser.get(page))[action]
    assert stale["gone"] == "1"
    assert "done: 5, and was 1,048,576" in browser.submit(page, action, value="5", **typed).text
    answer = send(browser, action, stale)
    assert answer.status_code == 409 and "is 5 now, and was 1,048,576" in answer.text and there[of]
    fresh = forms(browser.get(page))[action]
    assert "done: none, and was 5" in send(browser, action, fresh).text and not there[of]
    answer = send(browser, action, fresh)
    assert answer.status_code == 409 and "is not there now" in answer.text
