"""What admins alone see and change: credentials, quotas, settings of nodes, and the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served

from fastq.admin import (
    Acl,
    AclOperation,
    AclResourceType,
    AsyncAdmin,
    Outcome,
    Outcomes,
    ScramCredentialInfo,
    ScramMechanism,
)
from fastq.console import audit
from fastq.console.audit import AuditLog
from fastq.console.users import Users
from fastq.errors import UnsupportedVersion

GOOD = {"user": "alice", "mechanism": "SCRAM_SHA_512", "password": "geheim", "again": "geheim"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"user": ""}, "user is missing"),
        ({"user": "x" * 1_001}, "the most is 1,000"),
        ({"user": "alice "}, "user begins or ends with a blank"),
        ({"mechanism": "PLAIN"}, "mechanism is one of"),
        ({"iterations": "4095"}, "from 4,096 to 16,384"),
        ({"iterations": "1000000"}, "from 4,096 to 16,384"),
        ({"again": "geheimm"}, "not the same"),
        ({"password": "", "again": ""}, "is empty"),
        ({"password": "geheim\u00a0", "again": "geheim\u00a0"}, "RFC 4013"),
        ({"password": "geheim" * 300, "again": "geheim" * 300}, "the most is 1,000"),
        ({}, "no listeners with SASL"),
    ],
    ids=str,
)
def test_a_credential_that_cannot_be_is_a_sentence_without_its_secret(
    served: Callable[..., Served], tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    log = tmp_path / "audit"
    with Browser(served(audit_log=log).url) as browser:
        answer = browser.submit("/c/test/new-topic", "/c/test/users/set", **{**GOOD, **wrong})
        assert answer.status_code == (400 if wrong else 200) and words in answer.text, answer.text
        assert "geheim" not in answer.text and "geheim" not in log.read_text()
        line = json.loads(log.read_text())
        assert line["outcome"] != "done" and words in line["outcome"]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "whom it is for is missing"),
        ({"user": "a", "user-default": "1"}, "and not both"),
        ({"user": "a", "key": "speed"}, "key is one of"),
        *(
            ({"user": "a", "value": value}, "value is a number")
            for value in ("", "-1", "1e3", "nan", "1_0", "٣", "1" * 30)
        ),
        ({"user": "a", "value": "x" * 50}, "the most is 40"),
        ({"user": "a"}, "enforces no quotas"),
        ({"user": "a", "ip": "1.2.3.4"}, "should not be combined"),
        ({"ip": "nowhere", "key": "connection_creation_rate"}, "not a valid IP"),
    ],
    ids=str,
)
def test_a_quota_that_cannot_be_is_a_sentence(browser: Browser, form: dict[str, str], words: str) -> None:
    answer = browser.submit(
        "/c/test/new-topic", "/c/test/quotas/set", **{"key": "producer_byte_rate", "value": "5", **form}
    )
    assert answer.status_code in (200, 400) and words in answer.text, answer.text


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"key": "log.dirs", "value": "/etc"}, "fixed while a node runs"),
        ({"key": "nonsense", "value": "1"}, "one of the node&#39;s settings"),
        ({"key": "", "value": "1"}, "one of the node&#39;s settings"),
        ({"key": "log.retention.ms", "value": "soon"}, "log.retention.ms"),
        ({"key": "log.retention.ms", "value": "1", "of": "some"}, "of is one of node, all"),
    ],
    ids=str,
)
def test_a_setting_of_a_node_that_cannot_be_is_a_sentence(browser: Browser, form: dict[str, str], words: str) -> None:
    answer = browser.submit("/c/test/new-topic", "/c/test/nodes/1/set-config", **form)
    assert answer.status_code in (400, 409) and words in answer.text, answer.text


ACL = {
    "kind": "TOPIC", "name": "t", "principal": "User:a", "operation": "READ", "permission": "ALLOW", "pattern": "LITERAL",
}  # fmt: skip


@pytest.fixture
def acls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """A cluster with an authorizer: what it was asked to make, and to delete."""
    asked: dict[str, list[Any]] = {"made": [], "deleted": []}

    async def create(_: object, acls: list[Any]) -> Any:
        asked["made"] += acls
        return Outcomes(dict.fromkeys(acls, Outcome(None)))

    async def delete(_: object, filters: list[Any]) -> Any:
        asked["deleted"] += filters
        return Outcomes({wanted: Outcome([wanted]) for wanted in filters})

    monkeypatch.setattr(AsyncAdmin, "create_acls", create)
    monkeypatch.setattr(AsyncAdmin, "delete_acls", delete)
    return asked


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "GROUP", "operation": "WRITE"}, "a group knows no write: it is one of all, read"),
        ({"kind": "CLUSTER", "operation": "READ"}, "a cluster knows no read"),
        ({"principal": ":User:a"}, "User:alice"),
        ({"principal": "User:"}, "User:alice"),
        ({"principal": "User:a "}, "principal begins or ends with a blank"),
        ({"name": "\tt"}, "name begins or ends with a blank"),
        ({"host": " "}, "host begins or ends with a blank"),
        ({"name": "x" * 1_001}, "the most is 1,000"),
    ],
    ids=str,
)
def test_an_access_control_without_effect_is_not_made(
    browser: Browser, acls: dict[str, list[Any]], wrong: dict[str, str], words: str
) -> None:
    answer = browser.submit("/c/test/new-topic", "/c/test/acls/create", **{**ACL, **wrong})
    assert answer.status_code == 400 and words in answer.text and not acls["made"], answer.text


def test_an_access_control_that_means_something_else_is_told_and_any_is_deleted(
    browser: Browser, acls: dict[str, list[Any]]
) -> None:
    def create(**fields: str) -> str:
        return browser.submit("/c/test/new-topic", "/c/test/acls/create", **{**ACL, **fields}).text

    assert "remark" not in create() and "remark" not in create(host="10.0.0.1")
    assert "is no address: Kafka compares" in create(host="localhost")
    assert "names that begin with a star" in create(name="*", pattern="PREFIXED")
    assert len(acls["made"]) == 4
    odd = {**ACL, "kind": "GROUP", "operation": "WRITE", "name": " t", "host": "x "}  # made by other means
    assert ">done<" in browser.submit("/c/test/new-topic", "/c/test/acls/delete", **odd).text
    (deleted,) = acls["deleted"]
    assert (deleted.name, deleted.host) == (" t", "x ")


def test_an_access_control_that_has_no_name_here_is_shown(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(*_: object, **__: object) -> Any:
        known = Acl(AclResourceType.TOPIC, "t", "User:a", AclOperation.READ)
        kind, operation = (
            replace(known, resource_type=AclResourceType.UNKNOWN),
            replace(known, operation=AclOperation.UNKNOWN),
        )
        return [known, kind, operation]

    monkeypatch.setattr(AsyncAdmin, "describe_acls", describe)
    page = browser.get("/c/test/acls").text
    assert page.count(">unknown<") == 2 and page.count(">Delete<") == 1


def test_a_quota_of_a_name_with_blanks_is_taken_away_and_none_is_set(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def alter(_: object, changes: Any) -> Any:
        asked.extend(changes)
        return Outcomes(dict.fromkeys(changes, Outcome(None)))

    monkeypatch.setattr(AsyncAdmin, "alter_client_quotas", alter)
    fields = {"user": " a", "key": "producer_byte_rate"}
    answer = browser.submit("/c/test/new-topic", "/c/test/quotas/set", **fields, value="5")
    assert answer.status_code == 400 and "user begins or ends with a blank" in answer.text and not asked
    assert ">done" in browser.submit("/c/test/new-topic", "/c/test/quotas/set", **fields, gone="1").text
    assert [of.entries for of in asked] == [{"user": " a"}]


def test_clusters_that_are_too_old_for_either_are_told(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_old(*_: object, **__: object) -> Any:
        raise UnsupportedVersion("an old one")

    monkeypatch.setattr(AsyncAdmin, "describe_user_scram_credentials", too_old)
    monkeypatch.setattr(AsyncAdmin, "describe_client_quotas", too_old)
    for page, words in (("users", "tells of no credentials"), ("quotas", "tells of no quotas")):
        text = browser.get(f"/c/test/{page}").text
        assert words in text and "an old one" in text and 'method="post" action="/c' not in text


def test_many_users_are_paged_and_searched(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(*_: object, **__: object) -> Any:
        info = (ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), ScramCredentialInfo(ScramMechanism.UNKNOWN, 1))
        return Outcomes({f"<i>{n:05}": Outcome(info) for n in range(10_000)})

    monkeypatch.setattr(AsyncAdmin, "describe_user_scram_credentials", many)
    page = browser.get("/c/test/users").text
    assert "10,000 in all, page 1 of 200" in page and "<i>" not in page
    # What has no name here is shown, and cannot be named to be deleted.
    assert page.count(">UNKNOWN<") == page.count(">Delete<") == 50
    assert "1 in all" in browser.get("/c/test/users", params={"q": "07777"}).text


def test_the_audit_log_is_shown_newest_first_and_searched(
    served: Callable[..., Served], users: Users, tmp_path: Path
) -> None:
    log = tmp_path / "audit"
    with Browser(served(users=users, audit_log=log).url) as ann:
        ann.log_in("ann", "annann")
        ann.submit("/c/test/new-topic", "/c/test/create-topic", name="<i>ü", partitions="1")
        with log.open("a") as file:  # torn lines, and what is none of ours
            file.write('{"time": "x"\n[]\n{"on": 1}\n{"on": {}, "outcome": null}\n' + "[" * 10_000 + "\n")
        page = ann.get("/audit").text
        assert page.index("create-topic") < page.index("login") and "&lt;i&gt;" in page and "<i>" not in page
        assert "login" not in ann.get("/audit", params={"q": "Create-Topic"}).text.split("<tbody>")[1]
        assert "no line has" in ann.get("/audit", params={"q": "nothing"}).text
        log.unlink()
        assert "cannot be read" in ann.get("/audit").text
    with Browser(served(users=users).url) as olga:
        olga.log_in("olga", "olgaolga")
        page = olga.get("/c/test").text
        assert "/audit" not in page and "/users" not in page and olga.get("/audit").status_code == 403


def test_admins_of_some_topics_see_nothing_that_is_about_all(served: Callable[..., Served], tmp_path: Path) -> None:
    file = tmp_path / "users"
    from fastq.console.users import hash_password

    file.write_text(f"part:admin:{hash_password('partpart')}:pub-*\n")
    with Browser(served(users=Users.load(file)).url) as part:
        part.log_in("part", "partpart")
        assert "/audit" not in part.get("/c/test").text
        for page in ("/audit", "/c/test/users", "/c/test/quotas"):
            assert part.get(page).status_code == 403, page
        for action in ("users/set", "users/delete", "quotas/set", "nodes/1/set-config"):
            answer = part.submit("/c/test/new-topic", f"/c/test/{action}", key="log.retention.ms", value="1")
            assert answer.status_code == 403 and "is about all topics" in answer.text, action


def test_the_end_of_a_long_log_is_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "RECENT_BYTES", 2_000)
    log = AuditLog(tmp_path / "audit")
    for n in range(100):
        log.write(who="ann", address="", what=f"thing {n:03}", cluster=None, on={"n": n}, outcome="done")
    found = [line["what"] for line in log.recent()]
    assert 5 < len(found) < 50 and found == [f"thing {99 - n:03}" for n in range(len(found))]
    assert [line["on"]["n"] for line in log.recent("THING 098")] == [98]
    log.close()
    memory = AuditLog()
    for n in range(audit.RECENT_LINES + 5):
        memory.write(who="ann", address="", what=f"thing {n}", cluster=None, on={}, outcome="done")
    assert len(memory.recent()) == audit.RECENT_LINES and memory.recent("ü") == []
