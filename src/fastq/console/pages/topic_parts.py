"""One topic: its partitions, and on pages of their own what costs more to know: offsets and sizes, replicas, settings.

Rules: opening a topic is one request to one node, whatever it has. Each further page is asked for by a click, and asks each node once for
each thing that it shows, of the partitions that are shown. What a node does not tell is a dash, not a wait, and a note says why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from fastq.admin.replica_states import replica_states
from fastq.console.pages.routes import TOPIC, Routes
from fastq.console.picture import NO_ENDS, ends_of, leaders_sizes, topic_at_a_glance
from fastq.console.seen import set_here, written
from fastq.console.users import Role
from fastq.console.visit import PARTITIONS_PAGE, Pager, Visit
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq.admin import ConfigEntry, TopicDescription


async def _look(visit: Visit) -> tuple[TopicDescription, Pager]:
    described = (await visit.cluster.run(topic_at_a_glance(visit.topic)))[visit.topic].result()
    return described, Pager(visit, described.partitions, PARTITIONS_PAGE)


async def partitions(visit: Visit) -> Response:
    """Leaders and replicas, and what can be done to the topic."""
    described, pager = await _look(visit)
    return visit.page(
        "topic.html",
        topic=described,
        pager=pager,
        not_preferred=sum(
            part.leader is not None and part.leader.node_id not in part.replicas[:1] for part in described.partitions
        ),
        rows=[(part, sorted(set(part.replicas) - set(part.isr))) for part in pager.shown],
        tell_elr=any(part.elr is not None for part in described.partitions),
    )


async def offsets(visit: Visit) -> Response:
    """Where partitions begin and end, what they take on their leaders' disks, and a chart of what comes."""
    cluster, name = visit.cluster, visit.topic
    described, pager = await _look(visit)
    leaders = {TopicPartition(name, part.index): part.leader.node_id for part in pager.shown if part.leader is not None}
    led: dict[int, list[int]] = {}
    for tp, node in leaders.items():
        led.setdefault(node, []).append(tp.partition)
    sizes, ends = await asyncio.gather(cluster.run(leaders_sizes(name, led)), cluster.run(ends_of(leaders)))
    rows = [
        (part, ends.found.get(TopicPartition(name, part.index), NO_ENDS), sizes.found.get(part.index))
        for part in pager.shown
    ]
    silent = {**sizes.silent, **ends.silent}
    return visit.page("topic_offsets.html", topic=described, pager=pager, rows=rows, silent=silent)


async def replicas(visit: Visit) -> Response:
    """The state of each replica, and how far its log reaches: as its own node tells, and as the leader knows."""
    cluster, name = visit.cluster, visit.topic
    described, pager = await _look(visit)
    shown = {TopicPartition(name, part.index): part for part in pager.shown}
    moving = await cluster.admin.list_partition_reassignments(list(shown))
    adding = {tp: move.adding_replicas for tp, move in moving.items()}
    states = await cluster.run(replica_states(shown, adding))
    return visit.page("topic_replicas.html", topic=described, pager=pager, states=states.found, silent=states.silent)


async def settings(visit: Visit) -> Response:
    """Settings with where each comes from, and what it would be if nobody had set it."""
    from fastq.admin import ConfigResource, ConfigSource

    resource = ConfigResource.topic(visit.topic)
    outcomes = await visit.cluster.admin.describe_configs([resource], include_synonyms=True)
    entries = sorted(outcomes[resource].result().values(), key=lambda entry: entry.name)
    return visit.page(
        "topic_settings.html",
        name=visit.topic,
        configs=entries,
        defaults={entry.name: default_of(entry) for entry in entries},
        seen=written({"topic": set_here(entries, ConfigSource.DYNAMIC_TOPIC_CONFIG)}),
    )


def default_of(entry: ConfigEntry) -> str | None:
    """The value that holds where nobody has set one; None where it is not told."""
    from fastq.admin import ConfigSource

    if entry.is_default:
        return entry.value
    return next((found.value for found in entry.synonyms if found.source is ConfigSource.DEFAULT_CONFIG), None)


ROUTES: Routes = [
    ("GET", TOPIC, Role.VIEWER, partitions),
    ("GET", TOPIC + "/offsets", Role.VIEWER, offsets),
    ("GET", TOPIC + "/replicas", Role.VIEWER, replicas),
    ("GET", TOPIC + "/settings", Role.VIEWER, settings),
]
