"""Access controls: what there are, one more, one less; where the cluster has an authorizer.

Rules: they are about everybody, so users of some topics do not see them. What would be kept without effect is not made. What is deleted is
exactly the one of its row, by all of its fields, whatever they are. A cluster without an authorizer is no error: the page says so.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from starlette.responses import Response

from fastq.admin import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.users import Role
from fastq.console.visit import BadValue, Pager, Visit
from fastq.errors import FastqError, SecurityDisabled
from fastq.words import acl_remarks, check_acl_operation, check_principal

NAME_MAX = 1_000
NOT_MADE = ("UNKNOWN", "ANY", "MATCH")
"""Words of filters, and of what this release has no name for."""
E = TypeVar("E", bound=IntEnum)


def _words(kind: type[IntEnum]) -> list[str]:
    return [member.name for member in kind if member.name not in NOT_MADE]


async def overview(visit: Visit) -> Response:
    """All of them, or those that have a text in their name or principal."""
    visit.check_everywhere("What the access controls say")
    query = visit.text("q", NAME_MAX).strip()
    try:
        found = await visit.cluster.admin.describe_acls()
        told = ""
    except SecurityDisabled:
        found, told = [], "This cluster has no authorizer: everybody who can connect may do everything."
    shown = [acl for acl in found if query.lower() in f"{acl.name}\n{acl.principal}".lower()]
    return visit.page(
        "acls.html",
        pager=Pager(visit, shown),
        q=query,
        told=told,
        kinds=_words(AclResourceType),
        patterns=_words(AclPatternType),
        operations=_words(AclOperation),
        permissions=_words(AclPermission)[::-1],
    )


def _of_form(visit: Visit) -> Acl:
    def chosen(name: str, kind: type[E]) -> E:
        return kind[visit.choice(name, _words(kind))]

    name, principal, host = (visit.text(field, NAME_MAX) for field in ("name", "principal", "host"))
    if not name:
        raise BadValue("name is missing; * is all of a kind")
    return Acl(
        chosen("kind", AclResourceType),
        name,
        principal,
        chosen("operation", AclOperation),
        chosen("permission", AclPermission),
        host or "*",
        chosen("pattern", AclPatternType),
    )


def _told(acl: Acl) -> str:
    kind, pattern = acl.resource_type.name.lower(), " prefixed" if acl.pattern_type is AclPatternType.PREFIXED else ""
    return f"{acl.permission.name.lower()} {acl.principal} from {acl.host}: {acl.operation.name.lower()} of {kind}{pattern} {acl.name}"


async def create(visit: Visit) -> Response:
    """Make one; one that is there already is no error."""
    visit.check_everywhere("An access control")
    for field in ("name", "principal", "host"):
        visit.check_edges(field)
    acl = _of_form(visit)
    try:
        check_principal(acl.principal)
        check_acl_operation(*(word.name.lower().replace("_", "-") for word in (acl.resource_type, acl.operation)))
    except ValueError as wrong:
        raise BadValue(str(wrong)) from None
    error = (await visit.cluster.admin.create_acls([acl]))[acl].error
    return _done(visit, "Create access control", acl, error, is_made=error is None)


async def delete(visit: Visit) -> Response:
    """Delete exactly one."""
    visit.check_everywhere("An access control")
    acl = _of_form(visit)
    wanted = AclFilter(
        acl.resource_type, acl.name, acl.principal, acl.operation, acl.permission, acl.host, acl.pattern_type
    )
    outcome = (await visit.cluster.admin.delete_acls([wanted]))[wanted]
    if outcome.error is None and not outcome.value:
        raise BadValue(f"nothing was deleted: there is no {_told(acl)}")
    return _done(visit, "Delete access control", acl, outcome.error)


def _done(visit: Visit, what: str, acl: Acl, error: FastqError | None, *, is_made: bool = False) -> Response:
    visit.audit(what.lower(), error, acl=_told(acl))
    remarks = acl_remarks(acl.name, acl.host, prefixed=acl.pattern_type is AclPatternType.PREFIXED) if is_made else []
    rows: list[tuple[str, object]] = [(_told(acl), error), *(("remark", text) for text in remarks)]
    return visit.result(what, rows, visit.url("acls"))


ROUTES: Routes = [
    ("GET", CLUSTER + "/acls", Role.VIEWER, overview),
    ("POST", CLUSTER + "/acls/create", Role.ADMIN, create),
    ("POST", CLUSTER + "/acls/delete", Role.ADMIN, delete),
]
