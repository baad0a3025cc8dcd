"""The schema registry of a cluster: subjects, their versions, what differs between two, and compatibility.

Rules: the registry is the one of the console's configuration; no address comes from a request. It is asked in threads. Subjects are about
topics by a custom that nobody has to keep, so users of some topics do not see them. Two versions are compared line by line, as they are
shown, COMPARED_MAX lines at most.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.users import Role
from fastq.console.visit import BadValue, Pager, Visit

if TYPE_CHECKING:
    from fastq.schema_registry import Schema, SchemaRegistryClient

SUBJECT_MAX, SCHEMA_MAX, COMPARED_MAX = 1_000, 1 << 20, 5_000
LEVELS = ("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE")
T = TypeVar("T")


def _client(visit: Visit) -> SchemaRegistryClient | None:
    visit.check_everywhere("What the schema registry has")
    registry = visit.console.registry(visit.cluster)
    return None if registry is None else registry.client


def _needed(visit: Visit) -> SchemaRegistryClient:
    client = _client(visit)
    if client is None:
        raise BadValue("this console knows no schema registry of this cluster")
    return client


async def _in_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(call, *arguments)


async def subjects(visit: Visit) -> Response:
    """All subjects, or those that have a text in their name."""
    client, query = _client(visit), visit.text("q", SUBJECT_MAX).strip()
    found: list[str] = []
    level = ""
    if client is not None:
        found, level = await asyncio.gather(_in_thread(client.subjects), _in_thread(client.compatibility))
    pager = Pager(visit, sorted(name for name in found if query.lower() in name.lower()))
    return visit.page("schemas.html", has_registry=client is not None, pager=pager, q=query, level=level)


async def subject(visit: Visit) -> Response:
    """A version of a subject, and what is different in another one."""
    client, name = _needed(visit), visit.text("id", SUBJECT_MAX)
    versions, level = await asyncio.gather(_in_thread(client.versions, name), _in_thread(client.compatibility, name))
    version = visit.number("version", max(versions, default=0), low=1, high=2**31 - 1)
    found = await _in_thread(client.version, name, version)
    other = visit.number("with", 0, high=2**31 - 1)
    lines: list[tuple[str, str]] | None = None
    if other:
        before = await _in_thread(client.version, name, other)
        lines = await _in_thread(_compared, _lines(before.schema), _lines(found.schema))
    return visit.page(
        "schema.html",
        name=name,
        versions=versions,
        level=level,
        levels=LEVELS,
        found=found,
        text="\n".join(_lines(found.schema)),
        other=other,
        lines=lines,
    )


def _lines(schema: Schema) -> list[str]:
    """As it is shown: JSON with a line for each thing."""
    if schema.schema_type != "PROTOBUF":
        try:
            return json.dumps(json.loads(schema.text), indent=2, ensure_ascii=False).splitlines()
        except (ValueError, RecursionError):
            pass
    return schema.text.splitlines()


def _compared(before: list[str], now: list[str]) -> list[tuple[str, str]]:
    """Lines, each with "+", "-" or " "."""
    if max(len(before), len(now)) > COMPARED_MAX:
        raise BadValue(f"schemas of more than {COMPARED_MAX:,} lines are not compared")
    return [(line[0], line[2:]) for line in difflib.ndiff(before, now) if line[0] != "?"]


async def set_level(visit: Visit) -> Response:
    """Set the compatibility level of a subject."""
    client, name = _needed(visit), visit.text("id", SUBJECT_MAX)
    level = visit.choice("level", LEVELS)
    await _in_thread(client.set_compatibility, level, name)
    visit.audit("set compatibility", subject=name, level=level)
    return visit.result("Set compatibility", [(f"{name}: {level}", None)], _url(visit, name))


async def check(visit: Visit) -> Response:
    """Whether a schema could follow the latest version: nothing is registered."""
    from fastq.schema_registry import Schema

    client, name = _needed(visit), visit.text("id", SUBJECT_MAX)
    text = visit.text("schema", SCHEMA_MAX)
    latest = await _in_thread(client.version, name, max(await _in_thread(client.versions, name)))
    wanted = Schema(text, latest.schema.schema_type, latest.schema.references)
    fits = await _in_thread(client.compatible, name, wanted)
    visit.audit("check schema", subject=name)
    told = f"it may follow version {latest.version}" if fits else f"it may not follow version {latest.version}"
    return visit.result("Check a schema", [(name, told)], _url(visit, name))


def _url(visit: Visit, name: str) -> str:
    from urllib.parse import quote

    return f"{visit.url('schema')}?id={quote(name, safe='')}"


ROUTES: Routes = [
    ("GET", CLUSTER + "/schemas", Role.VIEWER, subjects),
    ("GET", CLUSTER + "/schema", Role.VIEWER, subject),
    ("POST", CLUSTER + "/schema/level", Role.ADMIN, set_level),
    ("POST", CLUSTER + "/schema/check", Role.OPERATOR, check),
]
