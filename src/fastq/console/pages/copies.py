"""Records copied to another topic: a form with a search, what it finds, and then just those.

Rules: three steps, and only the last one writes: what to look for, the records that were found, the copies of those very records. What is
masked is copied only to where the same is masked: else the copy would show it.
"""

from __future__ import annotations

from contextlib import aclosing

from starlette.responses import Response

from fastq.admin.core import look_up_topics
from fastq.console.copying import COPY_MAX, copy
from fastq.console.decoding import Row
from fastq.console.filters import COMPARISONS, PARTS
from fastq.console.masking import masks_of, not_masked_in
from fastq.console.pages.records import decoder_of, plan_of
from fastq.console.pages.routes import TOPIC, Routes
from fastq.console.scan import STARTS, Progress, scan
from fastq.console.users import Role
from fastq.console.visit import BadValue, Refused, Visit
from fastq.words import counted

PLACES_LENGTH_MAX = 64_000


async def _target(visit: Visit, source: str) -> str:
    target = visit.seen(visit.text("target", 249).strip())
    if not target:
        raise BadValue("target is missing: the topic to copy to")
    if target == source:
        raise BadValue(f"{target} is the topic itself: records are copied to another one")
    mask = not_masked_in(visit.console.config.masks, source, target)
    if mask is not None:
        raise Refused(
            f"{mask} of {source} is masked, and would be seen in {target}: its records are copied only to topics of which "
            "the same is masked, which the [[mask]] tables say that whoever runs this console has in its file"
        )
    (await visit.cluster.run(look_up_topics([target])))[
        target
    ].result()  # which the producer would make, where brokers do so
    return target


async def form(visit: Visit) -> Response:
    """What to look for, as the records' page asked for it, and where to copy it."""
    visit.check_writable()
    topic = visit.topic
    plan = plan_of(visit)
    (await visit.cluster.run(look_up_topics([topic])))[topic].result()
    return visit.page(
        "copy.html",
        topic=topic,
        plan=plan,
        query=visit.request.query_params,
        starts=STARTS,
        parts=PARTS,
        comparisons=COMPARISONS,
        most=COPY_MAX,
        masked=bool(masks_of(visit.console.config.masks, topic)),
    )


async def plan(visit: Visit) -> Response:
    """The dry run: the records that would be copied, with a form that copies those."""
    topic = visit.topic
    target = await _target(visit, topic)
    rows: list[Row] = []
    progress = Progress()
    async with aclosing(scan(visit.cluster, plan_of(visit), decoder_of(visit))) as parts:  # type: ignore[type-var]
        async for found, told in parts:
            rows += found
            progress = told
    places = "\n".join(f"{row.partition}:{row.offset}" for row in rows)
    visit.audit("plan copy", topic=topic, target=target, records=len(rows))
    return visit.page(
        "copy_plan.html",
        topic=topic,
        target=target,
        rows=rows,
        progress=progress,
        places=places,
        keep_partition=visit.flag("keep_partition"),
        tell_origin=visit.flag("tell_origin"),
    )


async def begin(visit: Visit) -> Response:
    """Copy the records of a plan."""
    topic = visit.topic
    target = await _target(visit, topic)
    places: dict[int, list[int]] = {}
    lines = visit.text("places", PLACES_LENGTH_MAX).split()
    if not 0 < len(lines) <= COPY_MAX:
        raise BadValue(f"1 to {COPY_MAX:,} records are copied at once, not {len(lines):,}")
    for line in lines:
        partition, sign, offset = line.partition(":")
        numbers = partition, offset
        if not sign or not all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
            raise BadValue(f"a record is partition:offset, not {line[:40]!r}")
        places.setdefault(int(partition), []).append(int(offset))
    known = len((await visit.cluster.run(look_up_topics([topic])))[topic].result().partitions)
    if max(places) >= known:
        raise BadValue(f"{topic} has {counted(known, 'partition')}, 0 is the first: there is no {max(places)}")
    copied = await copy(
        visit.cluster,
        topic,
        places,
        target,
        keep_partition=visit.flag("keep_partition"),
        tell_origin=visit.flag("tell_origin"),
        who=visit.who,
    )
    failed = [one for one in copied if one.failed]
    outcome = None if not failed else f"{len(failed)} of {len(copied)} failed, the first: {failed[0].outcome}"
    visit.audit("copy records", outcome, topic=topic, target=target, records=len(copied) - len(failed), places=lines)
    rows = [(f"{one.source} at offset {one.offset:,}", one.outcome, one.failed) for one in copied]
    return visit.page("result.html", what=f"Copy to {target}", rows=rows, back=visit.url("topics", target, "records"))


ROUTES: Routes = [
    ("GET", TOPIC + "/copy", Role.OPERATOR, form),
    ("POST", TOPIC + "/copy/plan", Role.OPERATOR, plan),
    ("POST", TOPIC + "/copy", Role.OPERATOR, begin),
]
