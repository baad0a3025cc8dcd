"""Who may see and change what, with --read-only and without: all pages and actions, all roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_served import Browser, Served

from fastq import Admin
from fastq.admin import (
    AsyncAdmin,
    ClientQuotaEntity,
    Outcome,
    Outcomes,
    ScramCredentialInfo,
    ScramMechanism,
)
from fastq.console.pages import ROUTES
from fastq.console.pages.routes import CLUSTER, TOPIC
from fastq.console.users import Role, Users, hash_password
from fastq.metadata import TopicPartition
from fastq.testing import Broker

READ_ONLY = "This console only shows: it was started with --read-only."
ADMINS = {"/audit", CLUSTER + "/users", CLUSTER + "/quotas", CLUSTER + "/partitions/proposal"}
"""Pages that show what admins alone may see."""
FORMS = {CLUSTER + "/new-topic", TOPIC + "/produce", TOPIC + "/copy", CLUSTER + "/groups/reset"}
"""Pages that are forms of changes."""
NAMES = {Role.VIEWER: "vera", Role.OPERATOR: "olga", Role.ADMIN: "ann"}


@pytest.fixture(scope="module")
def all_topics(tmp_path_factory: pytest.TempPathFactory) -> Users:
    """One user of each role, of all topics."""
    path = Path(tmp_path_factory.mktemp("console")) / "users"
    path.write_text("".join(f"{name}:{role.name.lower()}:{hash_password(name * 2)}\n" for role, name in NAMES.items()))
    return Users.load(path)


def asked(browser: Browser, method: str, path: str, topic: str) -> str:
    """What a page or an action answers a role that it is not for, or a console that only shows; "let in" for all else."""
    place = path.format(cluster="test", topic=topic, node=1, mirror="none")
    headers = {"accept": "text/event-stream, text/plain"}
    with browser.stream(method, place, data={"x": "1"} if method == "POST" else None, headers=headers) as answer:
        told = answer.read().decode() if answer.status_code == 403 else ""
    return told if told == READ_ONLY or "needs the role" in told else "let in"


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("role", Role, ids=lambda role: role.name.lower())
def test_each_role_is_let_in_where_it_may_be(
    served: Callable[..., Served],
    shared_broker: Broker,
    new_topic_name: Callable[[], str],
    all_topics: Users,
    role: Role,
    read_only: bool,
) -> None:
    topic, name = new_topic_name(), NAMES[role]
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(topic)
    assert {path for method, path, least, _ in ROUTES if method == "GET" and least > Role.VIEWER} == ADMINS | FORMS
    wanted, found = {}, {}
    with Browser(served(users=all_topics, read_only=read_only).url) as browser:
        browser.log_in(name, name * 2)
        for method, path, least, _ in ROUTES:
            changes = method == "POST" or path in FORMS
            words = f"This needs the role {least.name.lower()}; {name} is {role.name.lower()}."
            wanted[method, path] = words if role < least else READ_ONLY if read_only and changes else "let in"
            found[method, path] = asked(browser, method, path, topic)
    assert found == wanted


@pytest.fixture
def much(monkeypatch: pytest.MonkeyPatch, shared_broker: Broker, new_topic_name: Callable[[], str]) -> str:
    """A topic of a cluster with something to change on each page of admins."""
    topic = new_topic_name()
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(topic)

    async def credentials(*_: object, **__: object) -> Any:
        return Outcomes({"alice": Outcome((ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),))})

    async def quotas(*_: object, **__: object) -> Any:
        return {ClientQuotaEntity({"user": "alice"}): {"producer_byte_rate": 5.0}}

    async def alter(_: object, changes: Any, **__: object) -> Any:
        return Outcomes(dict.fromkeys(changes, Outcome(None)))

    async def versions(*_: object, **__: object) -> Any:
        return {"SaslHandshake": (0, 1)}

    monkeypatch.setattr(AsyncAdmin, "describe_user_scram_credentials", credentials)
    monkeypatch.setattr(AsyncAdmin, "describe_client_quotas", quotas)
    monkeypatch.setattr(AsyncAdmin, "alter_client_quotas", alter)
    monkeypatch.setattr(AsyncAdmin, "api_versions", versions)
    monkeypatch.setattr("fastq.admin.balance.plan_balance", lambda *_: {TopicPartition(topic, 0): (1, 2)})
    return topic


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_an_admin_sees_the_same_without_the_forms_of_changes(
    served: Callable[..., Served], all_topics: Users, much: str, tmp_path: Path, read_only: bool
) -> None:
    console = served(users=all_topics, audit_log=tmp_path / "audit", read_only=read_only)
    base = f"/c/test/topics/{much}"
    with_forms = {
        "/c/test/users": "alice",
        "/c/test/quotas": "alice",
        "/c/test/partitions/proposal": f"{much}-0",
        "/c/test/partitions": "Propose moves",
        base: "Leader",
        f"{base}/settings": "retention.ms",
        "/c/test/nodes/1": "node.id",
    }
    without = {
        "/audit": "login",
        f"/c/test/topics?q={much}": much,
        "/c/test/acls": "Access",
        "/c/test/groups": "Groups",
    }
    with Browser(console.url) as browser:
        browser.log_in("ann", "annann")
        for page, words in {**with_forms, **without}.items():
            text = browser.get(page).text
            assert words in text and 'href="/audit"' in text, page
            if page != "/audit":  # which is of no cluster
                assert 'href="/c/test/users"' in text and 'href="/c/test/quotas"' in text, page
            main = text.partition("<main")[2]
            assert ('method="post"' in main) is (page in with_forms and not read_only), page
            assert not read_only or 'class="danger"' not in main, page
