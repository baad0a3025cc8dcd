"""Which access controls a mirror's target is to have, and what is said of those that cannot be made."""

from __future__ import annotations

from typing import Any

from fastq.admin import Acl, AclOperation, AclPatternType, AclPermission, AclResourceType, Outcome
from fastq.admin.acl_types import AclFilter
from fastq.admin.acls import create_acls, delete_acls, describe_acls
from fastq.admin.types import Outcomes
from fastq.errors import ClusterAuthorizationFailed, ErrorCode, SecurityDisabled, UnknownServerError
from fastq.mirror.acls import copy_acls, in_words, wanted_acls
from fastq.mirror.config import parse_config
from fastq.protocol import messages as m

TOPIC, ALLOW, DENY = AclResourceType.TOPIC, AclPermission.ALLOW, AclPermission.DENY
TARGETS = {"t": "A.t"}


def acl(operation: AclOperation, permission: AclPermission = ALLOW, name: str = "t", **more: Any) -> Acl:
    return Acl(TOPIC, name, "User:u", operation, permission, **more)


def test_what_allows_to_write_is_left_out_and_what_allows_all_allows_to_read() -> None:
    kinds = [kind for kind in AclOperation if kind > AclOperation.ANY]
    allowed = {found.operation for found in wanted_acls([acl(kind) for kind in kinds], TARGETS)}
    assert allowed == set(kinds) - {AclOperation.WRITE, AclOperation.ALL}
    denied = wanted_acls([acl(kind, DENY) for kind in kinds], TARGETS)
    assert denied == {acl(kind, DENY, "A.t") for kind in kinds}
    assert wanted_acls([acl(AclOperation.ALL)], TARGETS) == {acl(AclOperation.READ, name="A.t")}
    others = [
        acl(AclOperation.READ, name="other"),
        acl(AclOperation.READ, name="*"),
        acl(AclOperation.READ, pattern_type=AclPatternType.PREFIXED),
        acl(AclOperation.UNKNOWN),
        acl(AclOperation.READ, AclPermission.UNKNOWN),
        Acl(AclResourceType.GROUP, "t", "User:u", AclOperation.READ),
    ]
    assert wanted_acls(others, TARGETS) == set()


class FakeAdmin:
    """One side: what it has, or why it does not say."""

    def __init__(self, *found: Acl, error: Exception | None = None, refused: Acl | None = None) -> None:
        self.found, self.error, self.refused = set(found), error, refused

    def describe_acls(self, wanted: AclFilter) -> list[Acl]:
        if self.error is not None:
            raise self.error
        return list(self.found)

    def create_acls(self, wanted: list[Acl]) -> Outcomes[Acl, None]:
        self.found |= {acl for acl in wanted if acl != self.refused}
        refused: Outcome[None] = Outcome(error=ClusterAuthorizationFailed("no"))
        return Outcomes({acl: refused if acl == self.refused else Outcome(None) for acl in wanted})


def copied(source: Any, target: Any) -> Any:
    side = {"bootstrap.servers": "127.0.0.1:1"}
    sides = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}}
    return copy_acls(parse_config({**sides, "mirror": {"topics": ["t"]}}), source, target, TARGETS)


def test_what_is_missing_is_made_and_what_is_refused_told() -> None:
    read, describe = acl(AclOperation.READ), acl(AclOperation.DESCRIBE)
    there = acl(AclOperation.READ, name="A.t")
    refused = acl(AclOperation.DESCRIBE, name="A.t")
    target = FakeAdmin(refused=refused)
    found = copied(FakeAdmin(read, describe), target)
    assert (found.made, list(found.errors), target.found) == ((there,), [refused], {there})
    assert copied(FakeAdmin(read), target).made == ()
    assert in_words(there) == "User:u may READ topic A.t from *"
    assert in_words(acl(AclOperation.ALL, DENY)) == "User:u may not ALL topic t from *"


def test_a_side_without_an_authorizer_is_no_error() -> None:
    off = FakeAdmin(error=SecurityDisabled("off"))
    assert copied(off, FakeAdmin()).why_not.startswith("A has no authorizer")
    assert copied(FakeAdmin(), off).why_not.startswith("B has no authorizer")


def answered(operation: Any, response: Any) -> Any:
    """What an operation makes of one response."""
    call = next(operation)
    try:
        operation.send([response] if isinstance(call, list) else response)
    except StopIteration as done:
        return done.value
    raise AssertionError("it asks again")


def test_the_answers_of_brokers() -> None:
    read, write = acl(AclOperation.READ), acl(AclOperation.WRITE)
    entry = m.DescribeAclsResponse.AclDescription(principal="User:u", host="*", operation=99, permission_type=3)
    resource = m.DescribeAclsResponse.DescribeAclsResource(
        resource_type=2, resource_name="t", pattern_type=3, acls=[entry]
    )
    found = answered(describe_acls(AclFilter()), m.DescribeAclsResponse(resources=[resource]))
    assert found == [acl(AclOperation.UNKNOWN)], "a number of a later release"
    # Of two, one is answered.
    refused = m.CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="off")
    outcomes = answered(create_acls([read, write]), m.CreateAclsResponse(results=[refused]))
    assert isinstance(outcomes[read].error, SecurityDisabled) and isinstance(outcomes[write].error, UnknownServerError)
    matching = m.DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, resource_type=2, resource_name="t", pattern_type=3
    )
    results = [
        m.DeleteAclsResponse.DeleteAclsFilterResult(matching_acls=[matching]),
        m.DeleteAclsResponse.DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED),
    ]
    filters = [AclFilter(name="a"), AclFilter(name="b")]
    deleted = answered(delete_acls(filters), m.DeleteAclsResponse(filter_results=results))
    assert [type(deleted[wanted].error) for wanted in filters] == [ClusterAuthorizationFailed, SecurityDisabled]
