"""What the admin clients do with access control lists, written once: operations of `fastq.net.operations`, by the rules of `core.py`.

Rules of this file:
- Any broker is asked what there is; what changes is asked of the controller, or of a broker that forwards it.
- Answers to creations and deletions come in the order of what was asked for, and name nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from fastq.admin.acl_types import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType
from fastq.admin.cluster import until_settled
from fastq.admin.core import Answers, _error, per_item
from fastq.admin.types import Outcomes, check_kind
from fastq.arguments import items_of
from fastq.errors import FastqError
from fastq.net.operations import ANY, CONTROLLER, Call, Operation
from fastq.protocol import messages as m

E = TypeVar("E", bound=IntEnum)


def describe_acls(wanted: AclFilter) -> Operation[list[Acl]]:
    """DescribeAcls; raises SecurityDisabled where there is no authorizer."""
    check_kind("which access controls", wanted, AclFilter, 'an AclFilter, as AclFilter(principal="User:alice")')
    request = m.DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response: m.DescribeAclsResponse = yield from until_settled(Call(ANY, request), _top_error)
    return sorted(
        (
            _acl(found.resource_type, found.resource_name, found.pattern_type, acl)
            for found in response.resources
            for acl in found.acls
        ),
        key=_order,
    )


def create_acls(acls: Sequence[Acl]) -> Operation[Outcomes[Acl, None]]:
    """CreateAcls: one that is there already is no error."""
    acls = items_of(acls, Acl, "access controls", "[Acl(...)]")

    def send(left: list[Acl]) -> Operation[Answers[Acl, None]]:
        request = m.CreateAclsRequest(
            creations=[
                m.CreateAclsRequest.AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in left
            ]
        )
        response: m.CreateAclsResponse = yield Call(CONTROLLER, request)
        # One that is not answered is told so by `per_item`.
        return {
            acl: _error(result.error_code, result.error_message) if result.error_code else None
            for acl, result in zip(left, response.results, strict=False)
        }

    return per_item(acls, send)


def delete_acls(filters: Sequence[AclFilter]) -> Operation[Outcomes[AclFilter, tuple[Acl, ...]]]:
    """DeleteAcls; what each filter has deleted. Of a filter some of whose ACLs cannot be deleted it is the first error."""
    filters = items_of(filters, AclFilter, "filters", '[AclFilter(principal="User:alice")]')

    def send(left: list[AclFilter]) -> Operation[Answers[AclFilter, tuple[Acl, ...]]]:
        request = m.DeleteAclsRequest(
            filters=[
                m.DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=wanted.resource_type,
                    resource_name_filter=wanted.name,
                    pattern_type_filter=wanted.pattern_type,
                    principal_filter=wanted.principal,
                    host_filter=wanted.host,
                    operation=wanted.operation,
                    permission_type=wanted.permission,
                )
                for wanted in left
            ]
        )
        response: m.DeleteAclsResponse = yield Call(CONTROLLER, request)
        return {wanted: _deleted(result) for wanted, result in zip(left, response.filter_results, strict=False)}

    return per_item(filters, send)


def _deleted(result: m.DeleteAclsResponse.DeleteAclsFilterResult) -> tuple[Acl, ...] | FastqError:
    if result.error_code:
        return _error(result.error_code, result.error_message)
    for acl in result.matching_acls:
        if acl.error_code:
            return _error(acl.error_code, acl.error_message)
    found = (_acl(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls)
    return tuple(sorted(found, key=_order))


def _top_error(response: m.DescribeAclsResponse) -> FastqError | None:
    return _error(response.error_code, response.error_message) if response.error_code else None


def _acl(
    resource_type: int,
    name: str,
    pattern_type: int,
    acl: m.DescribeAclsResponse.AclDescription | m.DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> Acl:
    return Acl(
        _named(AclResourceType, resource_type),
        name,
        acl.principal,
        _named(AclOperation, acl.operation),
        _named(AclPermission, acl.permission_type),
        acl.host,
        _named(AclPatternType, pattern_type),
    )


def _named(kind: type[E], number: int) -> E:
    """What a number is called; UNKNOWN (0) where this release has no name for it."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _order(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    return acl.resource_type, acl.name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
