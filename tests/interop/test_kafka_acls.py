"""Access controls in Apache Kafka with its authorizer: asked for, made and deleted by our admin client and our command beside Kafka's, and
copied by the mirror."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import apache_kafka
import pytest
from waiting import until

from fastq.admin import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType, Admin
from fastq.cli import main
from fastq.cli.acls import COLUMNS
from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.errors import InvalidRequest
from fastq.mirror.acls import copy_acls
from fastq.mirror.config import parse_config
from fastq.testing import Broker
from fastq.words import ACL_OPERATIONS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "console"))

from console_served import Browser, Served

pytestmark = [pytest.mark.one_node, pytest.mark.kafka]  # beside one node of Apache Kafka

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, GROUP, ALLOW, DENY = AclResourceType.TOPIC, AclResourceType.GROUP, AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, ALL, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL, AclOperation.DESCRIBE
PREFIXED = AclPatternType.PREFIXED
KAFKAS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("acls") / "data"
    with apache_kafka.ApacheKafka(path, heap="512m", properties=AUTHORIZER) as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture(scope="module")
def tools() -> Iterator[apache_kafka.Tools]:
    with apache_kafka.Tools() as machine:
        yield machine


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    """Of a cluster that has no access controls yet."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_acls([AclFilter()]).results()
        settle(admin)
        yield admin


def settle(admin: Admin) -> None:
    """Wait until the node answers by what has been changed: its controller tells that it is done before the node knows of it."""
    last = Acl(GROUP, "settled", "User:nobody", READ)
    wanted = AclFilter(name=last.name)
    admin.create_acls([last]).results()
    until(lambda: admin.describe_acls(wanted) == [last])
    admin.delete_acls([wanted]).results()
    until(lambda: admin.describe_acls(wanted) == [])


def test_the_admin_client_makes_finds_and_deletes_them(servers: str) -> None:
    alice = Acl(TOPIC, "made", "User:alice", READ)
    bob = Acl(TOPIC, "made", "User:bob", DESCRIBE, DENY, "10.0.0.1")
    many = Acl(GROUP, "team-", "User:alice", READ, pattern_type=PREFIXED)
    empty = Acl(TOPIC, "", "User:alice", READ)
    with Admin(bootstrap_servers=servers) as admin:
        outcomes = admin.create_acls([alice, empty, bob, many])
        assert list(outcomes) == [alice, empty, bob, many]
        assert list(outcomes.errors) == [empty] and isinstance(outcomes.errors[empty], InvalidRequest)
        assert not admin.create_acls([alice]).errors, "one that is there is no error"
        settle(admin)
        assert admin.describe_acls(AclFilter(name="made")) == [alice, bob]
        matching = AclFilter(GROUP, name="team-a", pattern_type=AclPatternType.MATCH)
        assert admin.describe_acls(matching) == [many]
        assert admin.describe_acls(AclFilter(principal="User:bob", permission=DENY)) == [bob]
        nobody = AclFilter(principal="User:nobody")
        assert admin.delete_acls([AclFilter(TOPIC, "made"), nobody]).results() == {
            AclFilter(TOPIC, "made"): (alice, bob),
            nobody: (),
        }
        settle(admin)
        assert admin.describe_acls() == [many]


def test_the_mirror_copies_those_of_its_topics_but_for_writing(servers: str) -> None:
    """Of this cluster to itself, under other names."""
    mine = [
        Acl(TOPIC, "orders", "User:reader", READ),
        Acl(TOPIC, "orders", "User:writer", WRITE),
        Acl(TOPIC, "orders", "User:owner", ALL),
        Acl(TOPIC, "orders", "User:stranger", ALL, DENY),
        Acl(TOPIC, "other", "User:reader", READ),
        Acl(TOPIC, "*", "User:everything", READ),
        Acl(TOPIC, "ord", "User:prefix", READ, pattern_type=PREFIXED),
        Acl(GROUP, "orders", "User:reader", READ),
    ]
    side = {"alias": "A", "bootstrap.servers": servers}
    config = parse_config({"source": side, "target": {**side, "alias": "B"}, "mirror": {"topics": ["orders"]}})
    expected = [
        Acl(TOPIC, "A.orders", "User:owner", READ),
        Acl(TOPIC, "A.orders", "User:reader", READ),
        Acl(TOPIC, "A.orders", "User:stranger", ALL, DENY),
    ]
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_acls(mine).results()
        settle(admin)
        copied = copy_acls(config, admin, admin, {"orders": "A.orders"})
        assert (set(copied.made), copied.errors, copied.why_not) == (set(expected), {}, "")
        settle(admin)
        assert admin.describe_acls(AclFilter(name="A.orders")) == expected
        assert copy_acls(config, admin, admin, {"orders": "A.orders"}).made == (), "they are there"
        with Broker(in_memory=True) as ours, Admin(bootstrap_servers=ours.bootstrap_servers) as other:
            for sides, alias in (((admin, other), "B"), ((other, admin), "A")):
                assert copy_acls(config, *sides, {"orders": "A.orders"}).why_not.startswith(
                    f"{alias} has no authorizer"
                )


def told_by_kafka(printed: str) -> list[tuple[str, ...]]:
    """The rows of what `kafka-acls.sh` lists."""
    found, resource = [], ("", "", "")
    for line in printed.splitlines():
        if of := re.search(r"resourceType=(\w+), name=(.*), patternType=(\w+)\)", line):
            resource = (of[1], of[2], of[3])
        if acl := re.search(r"principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)", line):
            found.append((*resource, acl[1], acl[4], acl[3], acl[2]))
    return sorted(set(found))  # what it adds, it lists too


def said(capfd: pytest.CaptureFixture[str], servers: str, arguments: str) -> list[tuple[str, ...]]:
    """The rows that our command prints."""
    capfd.readouterr()
    code = main(["acls", *shlex.split(arguments), "--json", "--bootstrap", servers])
    out, error = capfd.readouterr()
    assert code == 0, error
    return sorted(tuple(row[name] for name in COLUMNS) for row in json.loads(out))


WHO = "--allow-principal User:alice --allow-principal User:*", "--allow User:alice --allow User:*"
PAGE_LINES = [
    ("--allow-principal User:alice --operation Read --topic logs", "--allow User:alice --operation read --topic logs"),
    (
        "--allow-principal User:alice --consumer --topic logs --group g",
        "--allow User:alice --consumer --topic logs --group g",
    ),
]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        *PAGE_LINES,
        (
            f"{WHO[0]} --producer --topic logs --topic more --transactional-id t",
            f"{WHO[1]} --producer --topic logs --topic more --transactional-id t",
        ),
        (f"{WHO[0]} --producer --consumer --topic l --group g", f"{WHO[1]} --producer --consumer --topic l --group g"),
        (
            "--deny-principal User:bob --deny-host 10.0.0.1 --operation DescribeConfigs --operation all --topic * "
            "--resource-pattern-type prefixed",
            "--deny User:bob --host 10.0.0.1 --operation DescribeConfigs --operation ALL --topic * --prefixed",
        ),
        (
            "--allow-principal User:a --operation IdempotentWrite --cluster",
            "--allow User:a --operation idempotent_write --cluster",
        ),
        (
            "--allow-principal User:a --operation DescribeTokens --user-principal User:b",
            "--allow User:a --operation describe-tokens --user-principal User:b",
        ),
        (
            "--allow-principal User:a --operation Describe --delegation-token d",
            "--allow User:a --operation describe --delegation-token d",
        ),
    ],
)
def test_our_command_makes_what_kafkas_does(
    theirs: str, ours: str, servers: str, admin: Admin, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    code, printed = tools.run(KAFKAS, "--bootstrap-server", servers, "--add", *shlex.split(theirs))
    assert code == 0, printed
    settle(admin)
    expected = admin.describe_acls()
    admin.delete_acls([AclFilter()]).results()
    rows = said(capfd, servers, f"add {ours}")
    settle(admin)
    assert expected and admin.describe_acls() == expected
    assert rows == said(capfd, servers, "list") == told_by_kafka(printed)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("", ""),
        *((same, same) for same in ("--topic logs", "--principal User:bob", "--topic logs --topic * --group g")),
        *(
            (f"--topic logs --resource-pattern-type {kind}", f"--topic logs --pattern {kind}")
            for kind in ("literal", "match", "any")
        ),
        ("--topic lo --resource-pattern-type prefixed", "--topic lo --pattern prefixed"),
    ],
)
def test_our_command_lists_and_removes_what_kafkas_does(
    theirs: str, ours: str, servers: str, admin: Admin, tools: apache_kafka.Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    there = [
        Acl(TOPIC, "logs", "User:alice", READ),
        Acl(TOPIC, "logs", "User:bob", DESCRIBE, DENY, "10.0.0.1"),
        Acl(TOPIC, "lo", "User:bob", ALL, pattern_type=PREFIXED),
        Acl(TOPIC, "logs", "User:carol", WRITE, pattern_type=PREFIXED),
        Acl(TOPIC, "*", "User:dora", READ),
        Acl(GROUP, "g", "User:alice", READ),
    ]
    admin.create_acls(there).results()
    settle(admin)
    code, printed = tools.run(KAFKAS, "--bootstrap-server", servers, "--list", *shlex.split(theirs))
    assert code == 0, printed
    listed = said(capfd, servers, f"list {ours}")
    assert listed and listed == told_by_kafka(printed)
    if "--principal" in theirs or not theirs:  # Kafka's removes by a resource alone
        return
    code, printed = tools.run(KAFKAS, "--bootstrap-server", servers, "--remove", "--force", *shlex.split(theirs))
    assert code == 0, printed
    settle(admin)
    left = admin.describe_acls()
    admin.create_acls(there).results()
    settle(admin)
    assert said(capfd, servers, f"remove {ours}") == listed
    settle(admin)
    assert admin.describe_acls() == left and len(left) < len(there)


def test_what_our_command_removes_is_narrowed_down(
    servers: str, admin: Admin, capfd: pytest.CaptureFixture[str]
) -> None:
    alice, bob = Acl(TOPIC, "logs", "User:alice", READ), Acl(TOPIC, "logs", "User:bob", WRITE, DENY)
    admin.create_acls([alice, bob]).results()
    for nobodys in ("--operation write --permission allow", "--host 10.0.0.1", "--principal User:nobody --topic logs"):
        assert said(capfd, servers, f"remove {nobodys}") == []
        assert main(["acls", "remove", *nobodys.split(), "--bootstrap", servers]) == 0
        assert "nothing is removed" in capfd.readouterr().err
    said(capfd, servers, "remove --permission deny")
    settle(admin)
    assert admin.describe_acls() == [alice]
    said(capfd, servers, "remove --all")
    settle(admin)
    assert admin.describe_acls() == []


def test_our_command_knows_the_operations_that_kafkas_does(servers: str, tools: apache_kafka.Tools) -> None:
    for kind, known in ACL_OPERATIONS.items():
        option = {"user": "user-principal"}.get(kind, kind)
        name = [] if kind == "cluster" else ["User:a" if kind == "user" else "a"]
        wrong = "Read" if "read" not in known else "CreateTokens"
        arguments = ["--add", "--allow-principal", "User:a", "--operation", wrong, f"--{option}", *name]
        _, printed = tools.run(KAFKAS, "--bootstrap-server", servers, *arguments)
        (told,) = re.findall(r"only supports operations \[?([\w, ]+)", printed)
        assert set(told.split(", ")) == {each.upper().replace("-", "_") for each in ("all", *known)}, kind


def test_the_console_makes_shows_and_deletes_them(servers: str, admin: Admin) -> None:
    console = Served(ConsoleConfig((ClusterConfig("test", {"bootstrap.servers": servers}),), port=0, picture_s=0.0))
    page = "/c/test/acls"
    fields = {
        "kind": "TOPIC", "name": "team-", "principal": "User:alice", "operation": "READ", "permission": "ALLOW", "pattern": "PREFIXED",
    }  # fmt: skip
    try:
        with Browser(console.url) as browser:
            assert "no access control is there yet" in browser.get(page).text
            for wrong in (
                {"kind": "ANY"},
                {"name": ""},
                {"principal": "alice"},
                {"principal": ":User:alice"},
                {"principal": "User:alice "},
                {"kind": "GROUP", "operation": "WRITE"},  # it would be kept, without effect
                {"operation": "fly"},
                {"pattern": "MATCH"},
            ):
                assert browser.submit(page, f"{page}/create", **{**fields, **wrong}).status_code == 400, wrong
            assert browser.submit(page, f"{page}/create", **fields).status_code == 200
            made = Acl(TOPIC, "team-", "User:alice", READ, pattern_type=PREFIXED)
            other = Acl(TOPIC, "team-", "User:alice", WRITE, DENY, "10.0.0.1")
            admin.create_acls([other]).results()
            until(lambda: admin.describe_acls() == sorted([made, other], key=lambda acl: acl.pattern_type))
            text = browser.get(page, params={"q": "ALICE"}).text
            assert "and all that begin so" in text and ">deny<" in text and "10.0.0.1" in text
            assert "no access control has bob" in browser.get(page, params={"q": "bob"}).text
            assert browser.submit(page, f"{page}/delete", **fields, host="*").status_code == 200
            until(lambda: admin.describe_acls() == [other])
            again = browser.submit(page, f"{page}/delete", **fields, host="*")
            assert again.status_code == 400 and "nothing was deleted" in again.text
            refused = browser.submit(page, f"{page}/create", **{**fields, "kind": "CLUSTER", "operation": "ALTER"})
            assert refused.status_code == 200 and 'class="bad"' in refused.text, "what Kafka refuses is told"
    finally:
        console.close()
