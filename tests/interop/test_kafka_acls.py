"""Access controls in Apache Kafka with its authorizer: asked for, made and deleted by our admin client, and copied by the mirror."""

from __future__ import annotations

from collections.abc import Iterator

import apache_kafka
import pytest

from fastq.admin import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType, Admin
from fastq.errors import InvalidRequest
from fastq.mirror.acls import copy_acls
from fastq.mirror.config import parse_config
from fastq.testing import Broker

pytestmark = [pytest.mark.one_node, pytest.mark.kafka]

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, GROUP, ALLOW, DENY = AclResourceType.TOPIC, AclResourceType.GROUP, AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, ALL, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL, AclOperation.DESCRIBE
PREFIXED = AclPatternType.PREFIXED


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("acls") / "data"
    with apache_kafka.ApacheKafka(path, heap="512m", properties=AUTHORIZER) as kafka:
        yield kafka.bootstrap_servers


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
        assert admin.describe_acls(AclFilter(name="made")) == [alice, bob]
        matching = AclFilter(GROUP, name="team-a", pattern_type=AclPatternType.MATCH)
        assert admin.describe_acls(matching) == [many]
        assert admin.describe_acls(AclFilter(principal="User:bob", permission=DENY)) == [bob]
        nobody = AclFilter(principal="User:nobody")
        assert admin.delete_acls([AclFilter(TOPIC, "made"), nobody]).results() == {
            AclFilter(TOPIC, "made"): (alice, bob),
            nobody: (),
        }
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
        copied = copy_acls(config, admin, admin, {"orders": "A.orders"})
        assert (set(copied.made), copied.errors, copied.why_not) == (set(expected), {}, "")
        assert admin.describe_acls(AclFilter(name="A.orders")) == expected
        assert copy_acls(config, admin, admin, {"orders": "A.orders"}).made == (), "they are there"
        with Broker(in_memory=True) as ours, Admin(bootstrap_servers=ours.bootstrap_servers) as other:
            for sides, alias in (((admin, other), "B"), ((other, admin), "A")):
                assert copy_acls(config, *sides, {"orders": "A.orders"}).why_not.startswith(
                    f"{alias} has no authorizer"
                )
