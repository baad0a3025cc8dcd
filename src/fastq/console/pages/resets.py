"""The offsets of several groups at once: a plan that is shown, and then the very offsets that were shown.

Rules: a group gets offsets in topics alone that it has committed in, of those that are named, or of all. A group that has members, or
whose plan fails, is shown with the reason and is in no form: the others go on. Groups are asked about GROUPS_AT_ONCE at a time. Ids of
groups may be any text, so what a plan's form carries is JSON. Users of some topics move the offsets of those.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from starlette.responses import Response

from fastq.console.pages.groups import ID_MAX, OFFSETS_LENGTH_MAX, RESETS, check_committed, reset_of
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.seen import Changed
from fastq.console.users import Role
from fastq.console.visit import BadValue, Visit
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.words import counted

GROUPS_MAX, GROUPS_AT_ONCE = 200, 8
CHANGES_MAX = 20_000


class GroupPlan(NamedTuple):
    """What would become of a group, or why nothing does."""

    group_id: str
    changes: dict[TopicPartition, Any]
    why_not: str


def _lines(visit: Visit, name: str) -> list[str]:
    return [line.strip() for line in visit.text(name, 40_000).splitlines() if line.strip()]


async def form(visit: Visit) -> Response:
    """Which groups, which topics, and where to; the groups may come by the address, from the list."""
    visit.check_writable()
    groups = [group for group in visit.texts("group", GROUPS_MAX) if len(group) <= ID_MAX]
    return visit.page("resets.html", groups=groups, resets=RESETS)


async def plan(visit: Visit) -> Response:
    """The dry run, of all groups."""
    groups = list(dict.fromkeys([*visit.texts("group", GROUPS_MAX), *_lines(visit, "more")]))
    if not groups:
        raise BadValue("choose groups, or name them, a line each: their offsets are reset")
    if len(groups) > GROUPS_MAX:
        raise BadValue(f"{len(groups):,} groups are too many for one plan, {GROUPS_MAX} is the most")
    topics = list(dict.fromkeys(_lines(visit, "topics")))
    for topic in topics:
        visit.seen(topic)
    to = reset_of(visit)
    described = await visit.cluster.admin.describe_groups(groups)
    slots = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def one(group_id: str) -> GroupPlan:
        async with slots:
            try:
                found = described[group_id].value
                if found is not None and found.members:
                    return GroupPlan(
                        group_id,
                        {},
                        f"it has {counted(len(found.members), 'member')}, whose offsets these are: end them first",
                    )
                return await _planned(visit, group_id, topics, to)
            except FastqError as error:
                return GroupPlan(group_id, {}, str(error))

    plans = await asyncio.gather(*(one(group_id) for group_id in groups))
    count = sum(len(found.changes) for found in plans)
    if count > CHANGES_MAX:
        raise BadValue(
            f"these are {count:,} offsets, {CHANGES_MAX:,} is the most of one plan: choose fewer groups or topics"
        )
    visit.audit("plan resets", groups=groups, topics=topics)
    return visit.page("resets_plan.html", plans=plans, count=count, written=_written(plans))


async def _planned(visit: Visit, group_id: str, topics: list[str], to: Any) -> GroupPlan:
    admin = visit.cluster.admin
    committed = await admin.list_group_offsets(group_id)
    places = [
        tp
        for tp, outcome in committed.items()
        if outcome.value is not None and visit.user.may_see(tp.topic) and (not topics or tp.topic in topics)
    ]
    if not places:
        where = "these topics" if topics else "any topic"
        return GroupPlan(
            group_id, {}, f"it has committed nothing in {where}" + (" of yours" if visit.user.topics else "")
        )
    return GroupPlan(group_id, await admin.reset_group_offsets(group_id, to, partitions=places, dry_run=True), "")


def _written(plans: list[GroupPlan]) -> str:
    """[[group, [[topic, [[partition, offset, before], ...]], ...]], ...]; `before` is null where there was none."""
    groups = []
    for found in plans:
        topics: dict[str, list[tuple[int, int, int | None]]] = {}
        for tp, change in found.changes.items():
            topics.setdefault(tp.topic, []).append((tp.partition, change.after, change.before))
        if topics:
            groups.append([found.group_id, list(topics.items())])
    return json.dumps(groups, separators=(",", ":"))


Planned = dict[TopicPartition, tuple[int, "int | None"] | tuple[int]]
"""Where offsets go, and from where, if that is told."""


def _read(visit: Visit) -> dict[str, Planned]:
    """What a plan's form has carried, which may have been changed on the way; raises BadValue."""
    wrong = BadValue("offsets are those of a plan: make it again, and send it as it is")
    try:
        document = json.loads(visit.text("offsets", OFFSETS_LENGTH_MAX))
        found: dict[str, Planned] = {
            group_id: {TopicPartition(topic, part[0]): tuple(part[1:]) for topic, parts in topics for part in parts}
            for group_id, topics in document
        }
    except (ValueError, TypeError, LookupError, RecursionError):
        raise wrong from None
    for group_id, offsets in found.items():
        if not isinstance(group_id, str) or len(group_id) > ID_MAX:
            raise wrong
        for tp, numbers in offsets.items():
            if not isinstance(tp.topic, str) or not _is_number(tp.partition, 2**31):
                raise wrong
            known = numbers[:-1] if numbers[1:] == (None,) else numbers
            if len(numbers) not in (1, 2) or not all(_is_number(number, 2**63) for number in known):
                raise wrong
            visit.seen(tp.topic)
    if not found or len(found) > GROUPS_MAX or sum(map(len, found.values())) > CHANGES_MAX:
        raise wrong
    return found


def _is_number(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


async def reset(visit: Visit) -> Response:
    """Commit the offsets of a plan, group by group; one that fails keeps no other back."""
    groups = _read(visit)
    slots = asyncio.Semaphore(GROUPS_AT_ONCE)
    rows: list[tuple[str, Any]] = []

    async def one(group_id: str, planned: Planned) -> None:
        offsets = {tp: numbers[0] for tp, numbers in planned.items()}
        before = {tp: numbers[1] for tp, numbers in planned.items() if len(numbers) == 2}
        async with slots:
            first: FastqError | Changed | None = None
            try:
                await check_committed(visit, group_id, before)
                outcomes = await visit.cluster.admin.alter_group_offsets(group_id, offsets)
            except (FastqError, Changed) as error:
                first = error
                rows.append((group_id, error))
            else:
                first = next(iter(outcomes.errors.values()), None)
                rows.extend((f"{group_id}: {tp} to {offsets[tp]:,}", outcome.error) for tp, outcome in outcomes.items())
            visit.audit(
                "reset offsets",
                None if first is None else str(first),
                group=group_id,
                offsets={str(tp): at for tp, at in offsets.items()},
            )

    await asyncio.gather(*(one(group_id, planned) for group_id, planned in groups.items()))
    return visit.result(
        f"Reset offsets of {counted(len(groups), 'group')}", sorted(rows, key=lambda row: row[0]), visit.url("groups")
    )


ROUTES: Routes = [
    ("GET", CLUSTER + "/groups/reset", Role.OPERATOR, form),
    ("POST", CLUSTER + "/groups/plan", Role.OPERATOR, plan),
    ("POST", CLUSTER + "/groups/reset", Role.OPERATOR, reset),
]
