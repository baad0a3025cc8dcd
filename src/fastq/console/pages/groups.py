"""Groups: the list, one with its members and its lag, and where its offsets go.

Rules: a group is named by a value, not by a part of a path: its id may be any text. Lag costs one OffsetFetch and one ListOffsets a
node. Offsets are reset in two steps: a plan that is shown, and then the very offsets that were shown. Users of some topics see and move
the offsets of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from fastq.admin.groups import groups_shown
from fastq.console.pages.records import time_ms
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.seen import check_same
from fastq.console.users import Role
from fastq.console.visit import PARTITIONS_PAGE, BadValue, Pager, Visit
from fastq.errors import FastqError
from fastq.metadata import TopicPartition

RESETS = ("earliest", "latest", "time", "shift", "offset", "current")
TOPICS_MAX = 1_000
OFFSETS_LENGTH_MAX = 3 << 20
ID_MAX = 32_767
ENDS_S = 10.0
"""As long as a page waits for ends of partitions whose leader is gone: who leads in its place is mostly known sooner."""


async def group_list(visit: Visit) -> Response:
    """All groups, by what brokers list of them."""
    query = visit.text("q").strip()
    told = await visit.cluster.run(groups_shown((), ()))
    rows = [group for group in told.found.values() if query.lower() in group.group_id.lower()]
    return visit.page("groups.html", pager=Pager(visit, rows), q=query, silent=told.silent)


async def group(visit: Visit) -> Response:
    """Members with their partitions, and how far each partition is behind."""
    from fastq.admin import OffsetSpec

    admin, group_id = visit.cluster.admin, visit.text("id", ID_MAX)
    outcome = (await admin.describe_groups([group_id]))[group_id]
    committed = await admin.list_group_offsets(group_id)
    if outcome.error is not None and not committed:
        raise outcome.error
    places = [tp for tp in committed if visit.user.may_see(tp.topic)]
    ends = await admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST), timeout=ENDS_S)
    owners: dict[TopicPartition, str] = {}
    for member in outcome.value.members if outcome.value is not None else ():
        owners.update(dict.fromkeys(member.assignment, member.client_id))
    rows = [_lag_row(tp, committed[tp], ends[tp], owners.get(tp)) for tp in places]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return visit.page(
        "group.html",
        group_id=group_id,
        group=outcome.value,
        error=outcome.error,
        pager=Pager(visit, rows, PARTITIONS_PAGE),
        lag=sum(lags) if lags else None,
        untold=len(rows) - len(lags),
        topics=sorted({tp.topic for tp in places}),
        resets=RESETS,
    )


def _lag_row(tp: TopicPartition, committed: Any, end: Any, owner: str | None) -> dict[str, Any]:
    at = None if committed.value is None else committed.value.offset
    last = None if end.value is None else end.value.offset
    return {
        "tp": tp,
        "committed": at,
        "end": last,
        "lag": None if at is None or last is None else max(0, last - at),
        "owner": owner,
        "error": committed.error or end.error,
    }


async def plan(visit: Visit) -> Response:
    """The dry run: what a reset would do, with a form that does just that."""
    group_id = visit.text("id", ID_MAX)
    named = [name.strip() for name in visit.text("more", 20_000).replace(",", "\n").splitlines() if name.strip()]
    topics = list(dict.fromkeys([*visit.texts("topic", TOPICS_MAX), *named]))
    if not topics:
        raise BadValue("choose topics, or name them: their offsets are reset")
    for topic in topics:
        visit.seen(topic)
    changes = await visit.cluster.admin.reset_group_offsets(group_id, reset_of(visit), topics=topics, dry_run=True)
    visit.audit("plan reset", group=group_id, topics=topics)
    offsets = "\n".join(
        f"{tp.topic}:{tp.partition}:{change.after}:{'none' if change.before is None else change.before}"
        for tp, change in changes.items()
    )
    return visit.page("plan.html", group_id=group_id, changes=changes, offsets=offsets)


def reset_of(visit: Visit) -> Any:
    """Where a form says that offsets go."""
    from fastq.admin import OffsetReset

    kind = visit.choice("to", RESETS)
    if kind == "time":
        return OffsetReset.to_datetime(time_ms("value", visit.text("value", 40)))
    if kind == "shift":
        return OffsetReset.shift_by(visit.number("value", low=-(2**62), high=2**62))
    if kind == "offset":
        return OffsetReset.to_offset(visit.number("value"))
    return {"earliest": OffsetReset.to_earliest, "latest": OffsetReset.to_latest, "current": OffsetReset.to_current}[
        kind
    ]()


async def reset(visit: Visit) -> Response:
    """Commit the offsets of a plan."""
    group_id = visit.text("id", ID_MAX)
    offsets: dict[TopicPartition, int] = {}
    before: dict[TopicPartition, int | None] = {}
    for line in visit.text("offsets", OFFSETS_LENGTH_MAX).split():
        topic, *rest = line.split(":")
        numbers = [text for text in rest if text != "none" or len(rest) < 3]
        if len(rest) not in (2, 3) or not all(
            number.isascii() and number.isdigit() and len(number) < 19 for number in numbers
        ):
            raise BadValue(f"an offset is topic:partition:offset, or topic:partition:offset:before, not {line[:80]!r}")
        tp = TopicPartition(visit.seen(topic), int(rest[0]))
        offsets[tp] = int(rest[1])
        if len(rest) == 3:
            before[tp] = None if rest[2] == "none" else int(rest[2])
    await check_committed(visit, group_id, before)
    outcomes = await visit.cluster.admin.alter_group_offsets(group_id, offsets)
    first: FastqError | None = next(iter(outcomes.errors.values()), None)
    visit.audit("reset offsets", first, group=group_id, offsets={str(tp): offset for tp, offset in offsets.items()})
    rows = [(f"{tp} to {offsets[tp]:,}", outcome.error) for tp, outcome in outcomes.items()]
    return visit.result(f"Reset offsets of {group_id}", rows, visit.group_url(group_id))


async def check_committed(visit: Visit, group_id: str, before: Mapping[TopicPartition, int | None]) -> None:
    """Raises Changed where a group has committed since a plan was made: its members, or somebody else's reset."""
    committed = await visit.cluster.admin.list_group_offsets(group_id, list(before)) if before else {}
    for tp, then in before.items():
        found = committed[tp].result() if tp in committed else None
        now = None if found is None else found.offset
        check_same(f"what {group_id} has committed of {tp}", then, now, visit.group_url(group_id))


async def delete(visit: Visit) -> Response:
    """Delete a group with its offsets."""
    group_id = visit.text("id", ID_MAX)
    visit.check_everywhere("Deleting a group")
    if visit.text("confirm", ID_MAX) != group_id:
        raise BadValue(f"nothing was done: to confirm, write the group's id, {group_id}")
    (await visit.cluster.admin.delete_groups([group_id])).results()
    visit.audit("delete group", group=group_id)
    return visit.result("Delete group", [(group_id, None)], visit.url("groups"))


ROUTES: Routes = [
    ("GET", CLUSTER + "/groups", Role.VIEWER, group_list),
    ("GET", CLUSTER + "/group", Role.VIEWER, group),
    ("POST", CLUSTER + "/group/plan", Role.OPERATOR, plan),
    ("POST", CLUSTER + "/group/reset", Role.OPERATOR, reset),
    ("POST", CLUSTER + "/group/delete", Role.ADMIN, delete),
]
