"""The numbers that a page's charts ask for while it is open: JSON of a time, a value, and of how many partitions.

Rules: nothing is kept here; a chart begins with its page. A number costs one ListOffsets to each leader, for a group an OffsetFetch more,
and is not told of more than MEASURED_MAX partitions. What is not in it is told beside it: it would look like a fall. What nodes tell of
themselves comes from their metrics pages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping

from starlette.responses import Response

from fastq.admin import TopicDescription
from fastq.admin.core import look_up_topics
from fastq.console.pages.groups import ID_MAX
from fastq.console.pages.routes import CLUSTER, TOPIC, Routes
from fastq.console.pages.topics import MEASURED_MAX
from fastq.console.picture import ends_of
from fastq.console.users import Role
from fastq.console.visit import Refused, Visit
from fastq.metadata import TopicPartition


def _told(values: Collection[int], silent: Iterable[int], unknown: int) -> Response:
    """The sum of values. `silent`: nodes that did not answer, whose partitions are not in it; `unknown`: how many others are not either."""
    told = {"value": sum(values), "of": len(values), "silent": sorted(silent), "unknown": unknown}
    return Response(json.dumps({"time": time.time() * 1000, **told}), media_type="application/json")


async def _ends(
    visit: Visit, partitions: Mapping[TopicPartition, int | None]
) -> tuple[dict[TopicPartition, int], list[int], int]:
    """The ends of partitions whose leaders are known (None: there is none now), as far as they are told; nodes that did not answer, and how
    many partitions are not known besides what those lead."""
    _check(len(partitions))
    leaders = {tp: node for tp, node in partitions.items() if node is not None}
    told = await visit.cluster.run(ends_of(leaders, starts=False))
    ends = {tp: found.end for tp, found in told.found.items() if found.end is not None}
    unknown = sum(tp not in ends and node not in told.silent for tp, node in partitions.items())
    return ends, list(told.silent), unknown


def _leaders(described: Iterable[TopicDescription]) -> dict[TopicPartition, int | None]:
    return {
        TopicPartition(topic.name, part.index): None if part.leader is None else part.leader.node_id
        for topic in described
        for part in topic.partitions
    }


async def ends(visit: Visit) -> Response:
    """The ends of all partitions of a topic together: what it grows by is the records that came."""
    name = visit.topic
    described = (await visit.cluster.run(look_up_topics([name])))[name].result()
    told, silent, unknown = await _ends(visit, _leaders([described]))
    return _told(told.values(), silent, unknown)


async def lag(visit: Visit) -> Response:
    """How far a group is behind in the topics of the user. What it has committed of a topic that is gone is no lag."""
    listed = await visit.cluster.admin.list_group_offsets(visit.text("id", ID_MAX))
    seen = {tp: outcome.value for tp, outcome in listed.items() if visit.user.may_see(tp.topic)}
    at = {tp: committed.offset for tp, committed in seen.items() if committed is not None}
    _check(len(at))
    names = sorted({tp.topic for tp in at})
    described = await visit.cluster.run(look_up_topics(names)) if names else {}
    leaders = _leaders(outcome.value for outcome in described.values() if outcome.value is not None)
    ends, silent, unknown = await _ends(visit, {tp: leaders[tp] for tp in at if tp in leaders})
    return _told([max(0, end - at[tp]) for tp, end in ends.items()], silent, unknown + len(seen) - len(at))


async def metrics(visit: Visit) -> Response:
    """Rates and latencies of all nodes together, between the last two looks at their metrics."""
    found = visit.cluster.metrics
    if found is None:
        raise Refused("This console is told of no metrics pages of this cluster.")
    told = {"time": time.time() * 1000, **await found.told()}
    return Response(json.dumps(told), media_type="application/json")


def _check(partitions: int) -> None:
    if partitions > MEASURED_MAX:
        raise Refused(f"These are {partitions:,} partitions: of more than {MEASURED_MAX:,} no chart is drawn.")


ROUTES: Routes = [
    ("GET", TOPIC + "/ends", Role.VIEWER, ends),
    ("GET", CLUSTER + "/metrics", Role.VIEWER, metrics),
    ("GET", CLUSTER + "/group/lag", Role.VIEWER, lag),
]
