"""Offsets of several groups at once, in the console: planned, then reset as planned."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from console_served import Browser, Served

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.console.pages.resets import GROUPS_MAX
from fastq.console.users import Users, hash_password
from fastq.testing import Broker

PLANNED = re.compile(r'name="offsets" hidden>\s*([^<]*)<')
EVIL = "\n<b>'\":0:7"


@pytest.fixture
def filled(shared_broker: Broker, make_topic: Callable[..., str]) -> tuple[str, list[str], list[str]]:
    """Two topics with ten records a partition, and groups that have committed 4 in the first, in both, and in none."""
    servers = shared_broker.bootstrap_servers
    topics = [make_topic(servers, 2), make_topic(servers, 2)]
    groups = [f"{topics[0]}-one", f"{topics[0]}-two{EVIL}", f"{topics[0]}-none"]
    with Producer(bootstrap_servers=servers) as producer, Admin(bootstrap_servers=servers) as admin:
        for topic in topics:
            for n in range(20):
                producer.send(topic, b"x", partition=n % 2)
        producer.flush()
        for group, read in ((groups[0], topics[:1]), (groups[1], topics)):
            admin.alter_group_offsets(group, {TopicPartition(t, n): 4 for t in read for n in range(2)}).results()
    return servers, topics, groups


def committed(admin: Admin, group: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tp, outcome in sorted(admin.list_group_offsets(group).items()):
        assert outcome.value is not None
        found.setdefault(tp.topic, []).append(outcome.value.offset)
    return found


def test_groups_are_reset_as_planned(browser: Browser, filled: tuple[str, list[str], list[str]]) -> None:
    servers, topics, groups = filled
    listed = browser.get("/c/test/groups", params={"q": topics[0]}).text
    assert listed.count('type="checkbox" name="group"') == 2 and "<b>'" not in listed
    page = browser.get("/c/test/groups/reset", params={"group": groups}).text
    assert page.count('name="group"') == 3 and "<b>'" not in page
    with Admin(bootstrap_servers=servers) as admin:
        shown = browser.submit("/c/test/groups/reset", "/c/test/groups/plan", group=groups, to="latest")
        assert (
            shown.status_code == 200
            and "it has committed nothing in any topic" in shown.text
            and "<b>'" not in shown.text
        )
        assert "Reset 6 offsets as planned" in shown.text
        assert committed(admin, groups[0]) == {topics[0]: [4, 4]}  # nothing is written yet
        found = PLANNED.search(shown.text)
        assert found
        plan = html.unescape(found[1])
        done = browser.submit("/c/test/groups/reset", "/c/test/groups/reset", offsets=plan)
        assert done.status_code == 200 and done.text.count(">done<") == 6
        assert committed(admin, groups[0]) == {topics[0]: [10, 10]}
        assert committed(admin, groups[1]) == {topic: [10, 10] for topic in topics}
        # Of one topic alone, and never in one that a group has not committed in.
        shown = browser.submit(
            "/c/test/groups/reset",
            "/c/test/groups/plan",
            more=groups[0],
            group=groups[1],
            topics=topics[1],
            to="earliest",
        )
        assert "it has committed nothing in these topics" in shown.text and "Reset 2 offsets" in shown.text


def test_a_group_with_members_is_left_out(browser: Browser, filled: tuple[str, list[str], list[str]]) -> None:
    servers, topics, groups = filled
    with Consumer(topics[0], bootstrap_servers=servers, group_id=groups[0], auto_offset_reset="earliest") as consumer:
        while not consumer.poll(timeout=10):
            pass
        shown = browser.submit("/c/test/groups/reset", "/c/test/groups/plan", group=groups[:2], to="shift", value="-1")
        assert "it has 1 member, whose offsets" in shown.text
        assert "Reset 4 offsets" in shown.text
        # A member that came after the plan keeps its group's offsets, and nobody else's.
        plan = [[groups[0], [[topics[0], [[0, 1]]]]], [groups[1], [[topics[0], [[0, 1]]]]]]
        done = browser.submit("/c/test/groups/reset", "/c/test/groups/reset", offsets=json.dumps(plan))
        assert done.text.count(">done<") == 1 and 'class="bad"' in done.text


def test_plans_that_are_none(browser: Browser, filled: tuple[str, list[str], list[str]]) -> None:
    page, group, topic = "/c/test/groups/reset", filled[2][0], filled[1][0]
    for wrong in (
        "", "x", "[]", "{}", "7", "[" * 5_000, json.dumps([[group, [[topic, [[0, -1]]]]]]), json.dumps([[group, [[topic, [[0, 2**63]]]]]]),
        json.dumps([[group, [[topic, [["0", 1]]]]]]), json.dumps([[group, [[topic, [[True, 1]]]]]]), json.dumps([[7, [[topic, [[0, 1]]]]]]),
        json.dumps([[group, [[7, [[0, 1]]]]]]), json.dumps([[group]]), json.dumps([["g", []]] * 2)[:-1],
        json.dumps([[f"g{n}", [["t", [[0, 1]]]]] for n in range(GROUPS_MAX + 1)]),
    ):  # fmt: skip
        answer = browser.submit(page, page, offsets=wrong)
        assert answer.status_code == 400 and "those of a plan" in answer.text, wrong[:100]
    for fields, words in (
        ({"to": "latest"}, "choose groups"),
        ({"to": "latest", "more": "\n".join(f"g{n}" for n in range(GROUPS_MAX + 1))}, "too many for one plan"),
        ({"to": "there", "more": "g"}, "to is one of"),
        ({"to": "time", "value": "x", "more": "g"}, "value"),
    ):
        answer = browser.submit(page, "/c/test/groups/plan", **fields)
        assert answer.status_code == 400 and words in answer.text, fields


def test_users_of_some_topics_reset_those(
    served: Callable[..., Served], filled: tuple[str, list[str], list[str]], tmp_path: Path
) -> None:
    _, topics, groups = filled
    path = tmp_path / "users"
    path.write_text(f"pat:operator:{hash_password('patpat')}:{topics[0]}\n")
    with Browser(served(users=Users.load(path)).url) as browser:
        assert browser.log_in("pat", "patpat").status_code == 303
        page = "/c/test/groups/reset"
        shown = browser.submit(page, "/c/test/groups/plan", group=groups[1], to="latest").text
        assert topics[0] in shown and topics[1] not in shown
        assert (
            browser.submit(page, "/c/test/groups/plan", group=groups[1], topics=topics[1], to="latest").status_code
            == 404
        )
        plan = json.dumps([[groups[1], [[topics[1], [[0, 1]]]]]])
        assert browser.submit(page, page, offsets=plan).status_code == 404
