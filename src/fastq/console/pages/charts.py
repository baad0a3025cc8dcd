"""The numbers that a page's charts ask for while it is open: JSON of a time, a value, and of how many partitions.

Rules: nothing is kept here; a chart begins with its page. A number costs one ListOffsets to each leader, for a group an OffsetFetch more,
and is not told of more than MEASURED_MAX partitions. What nodes tell of themselves comes from their metrics pages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from starlette.responses import Response

from fastq.admin import OffsetSpec
from fastq.admin.core import look_up_topics
from fastq.console.pages.groups import ENDS_S, ID_MAX
from fastq.console.pages.routes import CLUSTER, TOPIC, Routes
from fastq.console.pages.topics import MEASURED_MAX
from fastq.console.picture import ends_of
from fastq.console.users import Role
from fastq.console.visit import Refused, Visit
from fastq.metadata import TopicPartition


def _told(value: int, of: int, silent: Iterable[int] = ()) -> Response:
    """`silent`: nodes that did not answer, whose partitions are not in it."""
    told = {"time": time.time() * 1000, "value": value, "of": of, "silent": sorted(silent)}
    return Response(json.dumps(told), media_type="application/json")


async def ends(visit: Visit) -> Response:
    """The ends of all partitions of a topic together: what it grows by is the records that came."""
    name = visit.topic
    described = (await visit.cluster.run(look_up_topics([name])))[name].result()
    leaders = {
        TopicPartition(name, part.index): part.leader.node_id
        for part in described.partitions
        if part.leader is not None
    }
    _check(len(leaders))
    ends_there = await visit.cluster.run(ends_of(leaders, starts=False))
    told = [end for _, end in ends_there.found.values() if end is not None]
    return _told(sum(told), len(told), ends_there.silent)


async def lag(visit: Visit) -> Response:
    """How far a group is behind in the topics of the user."""
    group_id = visit.text("id", ID_MAX)
    admin = visit.cluster.admin
    listed = await admin.list_group_offsets(group_id)
    at = {
        tp: outcome.value.offset
        for tp, outcome in listed.items()
        if outcome.value is not None and visit.user.may_see(tp.topic)
    }
    _check(len(at))
    ends = await admin.list_offsets(dict.fromkeys(at, OffsetSpec.LATEST), timeout=ENDS_S) if at else {}
    lags = [max(0, outcome.value.offset - at[tp]) for tp, outcome in ends.items() if outcome.value is not None]
    return _told(sum(lags), len(lags))


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
