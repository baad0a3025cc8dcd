"""Users' SCRAM credentials and quotas of clients: what there are, set, taken away; where the cluster has them.

Rules: they are about everybody, and admins' alone. A password is in no page, no line of the audit log and no error; what the cluster tells
of a credential is its mechanism and iterations. A cluster that has no logins, or holds nobody to a quota, is no error: the page says so.
"""

from __future__ import annotations

import asyncio
import re

from starlette.responses import Response

from fastq.admin import (
    ClientQuotaEntity,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.seen import check_same
from fastq.console.users import Role
from fastq.console.visit import BadValue, Pager, Refused, Visit
from fastq.errors import FastqError, UnsupportedVersion

NAME_MAX = 1_000
ITERATIONS_MIN, ITERATIONS_DEFAULT, ITERATIONS_MAX = 4_096, 8_192, 16_384
"""Kafka's bounds."""
MECHANISMS = tuple(kind.name for kind in ScramMechanism if kind)[::-1]
KINDS = (ClientQuotaEntity.USER, ClientQuotaEntity.CLIENT_ID, ClientQuotaEntity.IP)
QUOTAS = {
    "producer_byte_rate": "bytes a second that a node takes",
    "consumer_byte_rate": "bytes a second that a node gives",
    "request_percentage": "per cent of a thread's time on a node",
    "controller_mutation_rate": "partitions a second that are made or deleted",
    "connection_creation_rate": "connections a second from an address",
}
_VALUE = re.compile(r"\d{1,18}(\.\d{1,9})?", re.ASCII)


async def credentials(visit: Visit) -> Response:
    """All users with credentials, or those that have a text in their name."""
    visit.check_everywhere("Credentials of users")
    query = visit.text("q", NAME_MAX).strip()
    admin = visit.cluster.admin
    found, told = {}, ""
    try:
        described, apis = await asyncio.gather(admin.describe_user_scram_credentials(), admin.api_versions())
        found = {user: outcome.value or () for user, outcome in described.items()}
        if "SaslHandshake" not in apis:
            told = "This cluster has no listeners with SASL: nobody logs in, and credentials would keep nobody out."
    except UnsupportedVersion as error:
        told = f"This cluster tells of no credentials: {error}"
    rows = [(user, of) for user, of in sorted(found.items()) if query.lower() in user.lower()]
    return visit.page(
        "users.html",
        pager=Pager(visit, rows),
        q=query,
        told=told,
        mechanisms=MECHANISMS,
        iterations=(ITERATIONS_MIN, ITERATIONS_DEFAULT, ITERATIONS_MAX),
    )


def _of_form(visit: Visit) -> tuple[str, ScramMechanism]:
    user = visit.text("user", NAME_MAX)
    if not user:
        raise BadValue("user is missing")
    return user, ScramMechanism[visit.choice("mechanism", MECHANISMS)]


async def set_credential(visit: Visit) -> Response:
    """Set a credential; instead of the one of its mechanism that there may be, where the form says so."""
    visit.check_everywhere("A credential")
    visit.check_edges("user")
    user, mechanism = _of_form(visit)
    iterations = visit.number("iterations", ITERATIONS_DEFAULT, low=ITERATIONS_MIN, high=ITERATIONS_MAX)
    password = visit.text("password", NAME_MAX)
    if visit.text("again", NAME_MAX) != password:
        raise BadValue("the two passwords are not the same")
    try:
        change = UserScramCredentialUpsertion(user, password, mechanism, iterations)
    except ValueError as error:
        raise BadValue(str(error)) from None
    admin = visit.cluster.admin
    known = (await admin.describe_user_scram_credentials([user]))[user].value or ()
    if not visit.flag("replace") and any(one.mechanism is mechanism for one in known):
        raise Refused(
            f"Nothing was done: {user} has a credential of {mechanism.name} already, and the box to replace it is empty."
        )
    outcome = (await admin.alter_user_scram_credentials([change]))[user]
    visit.audit("set credential", outcome.error, user=user, mechanism=mechanism.name, iterations=iterations)
    return visit.result("Set credential", [(f"{user}: {mechanism.name}", outcome.error)], visit.url("users"))


async def delete_credential(visit: Visit) -> Response:
    """Take a credential away."""
    visit.check_everywhere("A credential")
    user, mechanism = _of_form(visit)
    change = UserScramCredentialDeletion(user, mechanism)
    outcome = (await visit.cluster.admin.alter_user_scram_credentials([change]))[user]
    visit.audit("delete credential", outcome.error, user=user, mechanism=mechanism.name)
    return visit.result("Delete credential", [(f"{user}: {mechanism.name}", outcome.error)], visit.url("users"))


# -- quotas ------------------------------------------------------------------------------------------------------------------


async def quotas(visit: Visit) -> Response:
    """All quotas, or those of whom a text is in the name."""
    visit.check_everywhere("Quotas of clients")
    query = visit.text("q", NAME_MAX).strip()
    admin = visit.cluster.admin
    found, told = {}, ""
    try:
        found = await admin.describe_client_quotas()
        any_of_all = ClientQuotaEntity({ClientQuotaEntity.CLIENT_ID: "fastq-console"})
        asked = await admin.alter_client_quotas({any_of_all: {"producer_byte_rate": 1.0}}, validate_only=True)
        if isinstance(asked[any_of_all].error, UnsupportedVersion):
            told = "This cluster holds nobody to a quota: none can be set."
    except UnsupportedVersion as error:
        told = f"This cluster tells of no quotas: {error}"
    rows = [
        (of, key, _shown(value))
        for of, values in found.items()
        for key, value in values.items()
        if query.lower() in str(of).lower()
    ]
    return visit.page("quotas.html", pager=Pager(visit, rows), q=query, told=told, kinds=KINDS, quotas=QUOTAS)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:,.9f}".rstrip("0").rstrip(".")


def _entity(visit: Visit) -> ClientQuotaEntity:
    """Whom a form is about: for each kind a name, or the box that means all who have none of their own."""
    entries: dict[str, str | None] = {}
    for kind in KINDS:
        name, is_default = visit.text(kind, NAME_MAX), visit.flag(f"{kind}-default")
        if name and is_default:
            raise BadValue(f"{kind} is a name, or the default of all, and not both")
        if name or is_default:
            entries[kind] = name or None
    if not entries:
        raise BadValue(f"whom it is for is missing: {', '.join(KINDS)}")
    return ClientQuotaEntity(entries)


async def set_quota(visit: Visit) -> Response:
    """Set one quota; without a value, take it away."""
    visit.check_everywhere("A quota")
    of, key, text = _entity(visit), visit.choice("key", QUOTAS), visit.text("value", 40).strip()
    is_gone = visit.flag("gone")
    for kind in () if is_gone else KINDS:
        visit.check_edges(kind)
    if not is_gone and not _VALUE.fullmatch(text):
        raise BadValue(f"value is a number such as 1048576 or 12.5, not {text!r}")
    value, admin = None if is_gone else float(text), visit.cluster.admin
    before = (await admin.describe_client_quotas()).get(of, {}).get(key)
    if visit.text("seen", 40):
        check_same(f"{key} of {of}", visit.text("seen", 40), None if before is None else _shown(before))
    error: FastqError | None = (await admin.alter_client_quotas({of: {key: value}}))[of].error
    what = "Take quota away" if is_gone else "Set quota"
    visit.audit(what.lower(), error, entity=str(of), key=key, value=value)
    done = f"done: {_shown(value)}, and was {_shown(before)}"  # whoever sets one sees whose it takes the place of
    return visit.result(what, [(f"{of}: {key}", error or done)], visit.url("quotas"))


ROUTES: Routes = [
    ("GET", CLUSTER + "/users", Role.ADMIN, credentials),
    ("POST", CLUSTER + "/users/set", Role.ADMIN, set_credential),
    ("POST", CLUSTER + "/users/delete", Role.ADMIN, delete_credential),
    ("GET", CLUSTER + "/quotas", Role.ADMIN, quotas),
    ("POST", CLUSTER + "/quotas/set", Role.ADMIN, set_quota),
]
