"""Two people with one console, each in a browser of their own: what the second one does to what the first has changed meanwhile.

Rules: ann is admin, olga operator, and their forms are open at the same time. Whoever is second is told what it was and what it is, and
begins anew from there; what the first did stays, as a client that asks the cluster finds. Every page is sound for those who see nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ConfigResource
from fastq.testing import Broker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Served, becomes

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.users import Users, hash_password

pytestmark = pytest.mark.one_node  # its brokers, of one node or of three, are its own

ROLES = {"ann": "admin", "anton": "admin", "olga": "operator"}
HASHES = {name: hash_password(name * 2) for name in ROLES}


def roles(path: Path, **changed: str) -> Path:
    """The file of users; the password is the name twice."""
    lines = [f"{name}:{role}:{HASHES[name]}" for name, role in {**ROLES, **changed}.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)
    return path


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return roles(tmp_path / "users")


@pytest.fixture
def console(shared_broker: Broker, users: Path) -> Iterator[str]:
    cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers})
    served = Served(ConsoleConfig((cluster,), port=0, picture_s=0.0, users=Users.load(users)))
    yield served.url.rstrip("/")
    served.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Chromium, Chromium]]:
    with Chromium(tmp_path_factory.mktemp("one")) as one, Chromium(tmp_path_factory.mktemp("other")) as other:
        for browser in (one, other):
            browser.screen(1280, 900)
        yield one, other


@pytest.fixture
def browsers(two: tuple[Chromium, Chromium]) -> Iterator[tuple[Chromium, Chromium]]:
    yield two
    for browser in two:
        browser.go("about:blank")
        troubles, browser.troubles[:] = list(browser.troubles), []
        assert all("409" in trouble or "403" in trouble for trouble in troubles), troubles


@pytest.fixture
def admin(shared_broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        yield admin


def log_in(browser: Chromium, console: str, name: str) -> None:
    browser.go(f"{console}/login")
    browser.fill("[name=name]", name)
    browser.fill("[name=password]", name * 2)
    browser.click("main button.primary")
    browser.until_text(f"{name} ({ROLES[name]})")


def form(action: str, field: str = "button") -> str:
    return f"form[action$='/{action}'] {field}"


def refused(browser: Chromium, heading: str, *words: str) -> None:
    """The page says so, and is sound."""
    browser.until(f"document.querySelector('h1')?.textContent == {heading!r}")
    told = browser.run("document.querySelector('[role=alert]').textContent")
    assert all(word in told for word in words), told
    assert not browser.violations()


def test_of_two_who_change_one_setting_the_second_is_told(
    browsers: tuple[Chromium, Chromium], console: str, admin: Admin
) -> None:
    topic, key = "two-settings", "max.message.bytes"
    admin.create_topic(topic)

    def value() -> str | None:
        resource = ConfigResource.topic(topic)
        return admin.describe_configs([resource])[resource].result()[key].value

    def change(browser: Chromium, to: str) -> None:
        browser.fill(form("set-config", "[name=key]"), key)
        browser.fill(form("set-config", "[name=value]"), to)
        browser.click(form("set-config"))

    first, second = browsers
    for browser, name in zip(browsers, ("ann", "anton"), strict=True):
        log_in(browser, console, name)
        browser.go(f"{console}/c/test/topics/{topic}/settings")
    change(first, "3000")
    first.until_text("done")
    change(second, "2000")
    refused(second, "Changed meanwhile", f"{key} is 3000 now, and was not there when this form was made")
    assert value() == "3000"
    second.click("main a[href$='/settings']")  # the page again, with what is there
    second.until_text("3000")
    change(second, "2000")
    second.until_text("done")
    assert becomes(lambda: value() == "2000")


def test_of_two_who_reset_one_group_the_second_is_told(
    browsers: tuple[Chromium, Chromium], console: str, admin: Admin, shared_broker: Broker
) -> None:
    topic, group = "two-resets", "two resets & more"
    place = TopicPartition(topic, 0)
    admin.create_topic(topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        for _ in range(9):
            producer.send(topic, b"x")
    admin.alter_group_offsets(group, {place: 4}).results()

    def committed() -> int | None:
        found = admin.list_group_offsets(group).results()[place]
        return found and found.offset

    def plan(browser: Chromium, to: str) -> None:
        browser.choose(form("group/plan", "[name=to]"), to)
        browser.click(form("group/plan"))
        browser.until_text("Nothing is written yet")

    first, second = browsers
    for browser, name, to in ((first, "ann", "earliest"), (second, "olga", "latest")):
        log_in(browser, console, name)
        browser.go(f"{console}/c/test/groups?q=two+resets")
        browser.click("tbody td a")
        plan(browser, to)
    first.click(form("group/reset"))
    first.until_text("done")
    assert committed() == 0
    second.click(form("group/reset"))
    refused(second, "Changed meanwhile", f"what {group} has committed of {place} is 0 now, and was 4 when")
    assert committed() == 0
    second.click("main a[href*='/group?id=']")  # the group, for the plan is of before
    plan(second, "latest")
    second.click(form("group/reset"))
    second.until_text("done")
    assert committed() == 9


def test_a_topic_that_another_has_made_anew_is_not_deleted(
    browsers: tuple[Chromium, Chromium], console: str, admin: Admin
) -> None:
    topic = "two-lives"
    admin.create_topic(topic)
    first, second = browsers
    for browser, name in zip(browsers, ("ann", "anton"), strict=True):
        log_in(browser, console, name)
        browser.go(f"{console}/c/test/topics/{topic}")
        browser.fill(form(f"{topic}/delete", "[name=confirm]"), topic)
    first.click(form(f"{topic}/delete"))
    first.until_text("done")
    assert becomes(lambda: topic not in admin.list_topics())
    first.go(f"{console}/c/test/new-topic")
    first.fill("[name=name]", topic)
    first.click("main button.primary")
    first.until_text("done")
    assert becomes(lambda: topic in admin.list_topics())
    second.click(form(f"{topic}/delete"))
    refused(second, "Changed meanwhile", f"the topic {topic} was deleted and made again: its id is ")
    assert topic in admin.list_topics()


def test_who_has_lost_a_role_meanwhile_does_nothing_with_the_form_that_is_open(
    browsers: tuple[Chromium, Chromium], console: str, admin: Admin, users: Path
) -> None:
    group = "two-roles"
    admin.create_topic(group)
    admin.alter_group_offsets(group, {TopicPartition(group, 0): 0}).results()
    first, second = browsers
    for browser, name in zip(browsers, ("ann", "anton"), strict=True):
        log_in(browser, console, name)
        browser.go(f"{console}/c/test/group?id={group}")
        browser.fill(form("group/delete", "[name=confirm]"), group)
    roles(users, anton="operator")
    second.click(form("group/delete"))
    refused(second, "Not allowed", "This needs the role admin; anton is operator.")
    assert group in admin.list_groups()
    second.click("main a[href*='/group?id=']")
    second.until_text("Reset offsets")
    assert not second.run(f"document.querySelector({form('group/delete')!r})")
    first.click(form("group/delete"))
    first.until_text("done")
    assert becomes(lambda: group not in admin.list_groups())
