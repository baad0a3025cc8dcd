"""The schema registry of a cluster: subjects, their versions, what differs between two, and compatibility.

Rules: the registry is the one of the console's configuration; no address comes from a request, and no part of a path but a subject's
name. It is asked in threads that are waited for so long and no longer. Subjects are about topics by a custom that nobody has to keep, so
users of some topics do not see them. What a registry says is shown in bounds: SUBJECT_MAX characters of a name, SHOWN_MAX of a schema, the
newest VERSIONS_MAX versions. Two versions are compared line by line, as they are shown, COMPARED_MAX lines at most, and lines as a whole:
to look for what differs within them takes a minute for a few hundred.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.seen import check_same
from fastq.console.users import Role
from fastq.console.visit import BadValue, Pager, Visit

if TYPE_CHECKING:
    from fastq.console.decoding import Registry
    from fastq.schema_registry import Schema

SUBJECT_MAX, SCHEMA_MAX, COMPARED_MAX = 1_000, 1 << 20, 5_000
SHOWN_MAX, VERSIONS_MAX = 200_000, 500
LEVELS = ("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE")


def _registry(visit: Visit) -> Registry | None:
    visit.check_everywhere("What the schema registry has")
    return visit.console.registry(visit.cluster)


def _needed(visit: Visit) -> Registry:
    registry = _registry(visit)
    if registry is None:
        raise BadValue("this console knows no schema registry of this cluster")
    return registry


def _subject(visit: Visit) -> str:
    """A subject's name. Without one a path is another: of all subjects, or, behind a server that takes dots away, of the one above."""
    name = visit.text("id", SUBJECT_MAX)
    if name in ("", ".", ".."):
        raise BadValue(f"id is the name of a subject, not {name!r}")
    return name


async def subjects(visit: Visit) -> Response:
    """All subjects, or those that have a text in their name."""
    registry, query = _registry(visit), visit.text("q", SUBJECT_MAX).strip()
    found: list[str] = []
    level = ""
    if registry is not None:
        client = registry.client
        found, level = await asyncio.gather(registry.ask(client.subjects), registry.ask(client.compatibility))
    fitting = sorted(name for name in found if query.lower() in name.lower())
    shown = [name for name in fitting if len(name) <= SUBJECT_MAX]
    return visit.page(
        "schemas.html",
        has_registry=registry is not None,
        pager=Pager(visit, shown),
        q=query,
        level=level,
        too_long=len(fitting) - len(shown),
    )


async def subject(visit: Visit) -> Response:
    """A version of a subject, and what is different in another one."""
    registry, name = _needed(visit), _subject(visit)
    client = registry.client
    versions, level = await asyncio.gather(
        registry.ask(client.versions, name), registry.ask(client.compatibility, name)
    )
    version = visit.number("version", max(versions, default=0), low=1, high=2**31 - 1)
    found = await registry.ask(client.version, name, version)
    other = visit.number("with", 0, high=2**31 - 1)
    lines: list[tuple[str, str]] | None = None
    if other:
        before = await registry.ask(client.version, name, other)
        lines = await registry.ask(_compared, before.schema, found.schema)
    text = "\n".join(await registry.ask(_lines, found.schema))
    return visit.page(
        "schema.html",
        name=name,
        versions=sorted(versions)[-VERSIONS_MAX:],
        versions_left_out=max(0, len(versions) - VERSIONS_MAX),
        level=level,
        levels=LEVELS,
        found=found,
        text=text[:SHOWN_MAX],
        length=len(text),
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


def _compared(one: Schema, other: Schema) -> list[tuple[str, str]]:
    """Lines, each with "+", "-" or " "."""
    before, now = _lines(one), _lines(other)
    if max(len(before), len(now)) > COMPARED_MAX or max(len(one.text), len(other.text)) > SHOWN_MAX:
        raise BadValue(f"schemas of more than {COMPARED_MAX:,} lines, or {SHOWN_MAX:,} characters, are not compared")
    lines: list[tuple[str, str]] = []
    for kind, first, last, begin, end in difflib.SequenceMatcher(None, before, now).get_opcodes():
        if kind == "equal":
            lines += [(" ", line) for line in now[begin:end]]
        else:
            lines += [("-", line) for line in before[first:last]]
            lines += [("+", line) for line in now[begin:end]]
    return lines


async def set_level(visit: Visit) -> Response:
    """Set the compatibility level of a subject."""
    registry, name = _needed(visit), _subject(visit)
    level, then = visit.choice("level", LEVELS), visit.text("seen")
    if then:
        check_same(f"the compatibility of {name}", then, await registry.ask(registry.client.compatibility, name))
    await registry.ask(registry.client.set_compatibility, level, name)
    visit.audit("set compatibility", subject=name, level=level)
    return visit.result("Set compatibility", [(f"{name}: {level}", None)], _url(visit, name))


async def check(visit: Visit) -> Response:
    """Whether a schema could follow the latest version: nothing is registered."""
    from fastq.schema_registry import Schema

    registry, name = _needed(visit), _subject(visit)
    client = registry.client
    text = visit.text("schema", SCHEMA_MAX)
    versions = await registry.ask(client.versions, name)
    if not versions:
        raise BadValue(f"{name} has no version that another could follow")
    latest = await registry.ask(client.version, name, max(versions))
    wanted = Schema(text, latest.schema.schema_type, latest.schema.references)
    fits = await registry.ask(client.compatible, name, wanted)
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
