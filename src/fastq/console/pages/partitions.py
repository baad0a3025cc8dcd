"""Which nodes have partitions: what moves and how far it is, preferred leaders, and the balancer's proposal.

Rules: the proposal is `fastq.admin.balance`'s, as `fastq partitions rebalance` prints it; it describes all topics, so it is made when
asked for. Moves that somebody writes are shown as it is. What is begun is what was shown. All of it is about every topic: users of some
topics see the moves of those, begin none, and elect the leaders of their own. A throttle is set before what it is about begins, and taken
away by a click once nothing moves, whoever has set it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

from starlette.responses import Response

from fastq.admin import ClusterDescription, ConfigResource
from fastq.admin.throttles import (
    Changes,
    alterations,
    broker,
    may_have_throttles,
    replication_throttles,
    throttles_of,
)
from fastq.console.pages.routes import CLUSTER, TOPIC, Routes
from fastq.console.picture import replica_sizes
from fastq.console.seen import check_same
from fastq.console.users import Role
from fastq.console.visit import BadValue, Refused, Visit
from fastq.errors import ElectionNotNeeded, FastqError, UnsupportedVersion
from fastq.metadata import TopicPartition

MOVES_LENGTH_MAX = 3 << 20
DESCRIBE_S = 60.0
DESCRIBED_AT_ONCE = 500
THROTTLE_MAX = 1 << 20
"""MiB a second of a node."""
BARS_MAX = 100
"""Nodes that the picture of a plan has; the table has all."""


async def overview(visit: Visit) -> Response:
    """What moves, and whether leaders are the preferred ones."""
    cluster = visit.cluster
    picture = await cluster.picture()
    found = await cluster.admin.list_partition_reassignments()
    moving = {tp: move for tp, move in found.items() if visit.user.may_see(tp.topic)}
    by_topic: dict[str, list[int]] = {}
    for tp in moving:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    told = await cluster.run(replica_sizes(picture.node_ids if by_topic else (), by_topic))
    rows = []
    for tp, move in moving.items():
        replicas = told.found.get(tp, {})
        rows.append(
            {"tp": tp, "move": move, "done": move.copied_percent(replicas), "bytes": max(replicas.values(), default=0)}
        )
    return visit.page("partitions.html", picture=picture, rows=rows, silent=told.silent)


async def elect(visit: Visit) -> Response:
    """Make the preferred replicas leaders, wherever they are not."""
    from fastq.admin import ElectionType

    visit.check_everywhere("An election")
    outcomes = await visit.cluster.admin.elect_leaders(ElectionType.PREFERRED)
    errors = {tp: error for tp, error in outcomes.errors.items() if not isinstance(error, ElectionNotNeeded)}
    visit.audit("elect preferred leaders", next(iter(errors.values()), None), partitions=len(outcomes))
    visit.cluster.forget_picture()
    rows = [(str(tp), errors.get(tp)) for tp in outcomes]
    return visit.result("Elect preferred leaders", rows, visit.url("partitions"))


async def elect_topic(visit: Visit) -> Response:
    """The same for the partitions of one topic."""
    from fastq.admin import ElectionType

    name = visit.topic
    described = await visit.cluster.admin.describe_topic(name)
    places = [TopicPartition(name, part.index) for part in described.partitions]
    outcomes = await visit.cluster.admin.elect_leaders(ElectionType.PREFERRED, places)
    errors = {tp: error for tp, error in outcomes.errors.items() if not isinstance(error, ElectionNotNeeded)}
    visit.audit("elect preferred leaders", next(iter(errors.values()), None), topic=name)
    visit.cluster.forget_picture()
    rows: list[tuple[str, Any]] = [
        (str(tp), errors.get(tp, "led by it already" if tp in outcomes.errors else None)) for tp in outcomes
    ]
    return visit.result("Elect preferred leaders", rows, visit.url("topics", name))


async def proposal(visit: Visit) -> Response:
    """Few moves that give the nodes equally much."""
    from fastq.admin.balance import plan_balance

    visit.check_everywhere("The balancer's proposal")
    before, racks = await _at_rest(visit)
    drained = [visit.number("drain", high=2**31 - 1)] if visit.text("drain").strip() else []
    unknown = [node for node in drained if node not in racks and not any(node in nodes for nodes in before.values())]
    if unknown:
        raise BadValue(f"drain: there is no node {unknown[0]}, and no replica on it")
    return _shown(visit, await asyncio.to_thread(plan_balance, before, racks, drained), before, racks, of_balancer=True)


State = dict[TopicPartition, tuple[int, ...]]


async def _at_rest(visit: Visit) -> tuple[State, dict[int, str | None]]:
    """The replicas of all partitions, and the racks of the nodes."""
    admin = visit.cluster.admin
    if await admin.list_partition_reassignments():
        raise Refused("Partitions move already: a plan takes what is at rest.")
    with visit.cluster.alone("a plan of moves"):
        names = list(await admin.list_topics(include_internal=True))
        described = (await admin.describe_topics(names, timeout=DESCRIBE_S)) if names else {}
    racks = {node.node_id: node.rack for node in (await admin.describe_cluster()).nodes}
    before = {
        TopicPartition(name, part.index): part.replicas
        for name, outcome in described.items()
        if outcome.value is not None
        for part in outcome.value.partitions
        if part.leader is not None
    }
    return before, racks


def _shown(visit: Visit, moves: State, before: State, racks: dict[int, str | None], *, of_balancer: bool) -> Response:
    from fastq.admin.balance import held_by_node, led_by_node

    after = {**before, **moves}
    held, led = ([count(state) for state in (before, after)] for count in (held_by_node, led_by_node))
    nodes = [
        {
            "node": node,
            "rack": racks.get(node),
            "held": [counts[node] for counts in held],
            "led": [counts[node] for counts in led],
        }
        for node in sorted(racks)
    ]
    lines = "\n".join(
        f"{tp.topic}:{tp.partition}:{_line(replicas)}:{_line(before[tp])}" for tp, replicas in moves.items()
    )
    return visit.page(
        "proposal.html",
        moves=moves,
        before=before,
        nodes=nodes,
        lines=lines,
        of_balancer=of_balancer,
        bars=_bars(nodes),
    )


def _bars(nodes: list[dict[str, Any]]) -> list[tuple[int, str, str, list[tuple[int, float]]]]:
    """Of the picture: a node, what is counted in words and as a key, and for now and then the number and its share of the largest."""
    most = max((number for row in nodes for number in row["held"]), default=0) or 1
    return [
        (row["node"], words, kind, [(number, number / most) for number in row[kind]])
        for row in nodes[:BARS_MAX]
        for kind, words in (("held", "replicas"), ("led", "led"))
    ]


async def plan(visit: Visit) -> Response:
    """The dry run of moves that somebody has written: what nodes have before and after."""
    visit.check_everywhere("A reassignment")
    before, racks = await _at_rest(visit)
    wanted, _ = _moves(visit)
    for tp, nodes in wanted.items():
        if tp not in before:
            raise BadValue(f"{tp}: there is no such partition, or none that has a leader")
        if not set(nodes) <= set(racks):
            raise BadValue(
                f"{tp}: there is no node {min(set(nodes) - set(racks))}; there are {', '.join(map(str, sorted(racks)))}"
            )
        if len(set(nodes)) < len(nodes):
            raise BadValue(f"{tp}: a node is there twice")
    moves = {tp: tuple(nodes) for tp, nodes in wanted.items() if tuple(nodes) != before[tp]}
    visit.audit("plan reassignment", partitions=len(moves))
    return _shown(visit, moves, before, racks, of_balancer=False)


async def reassign(visit: Visit) -> Response:
    """Begin the moves of a proposal."""
    visit.check_everywhere("A reassignment")
    moves, planned = _moves(visit)
    mib = visit.number("throttle", 0, low=1, high=THROTTLE_MAX)
    if not moves:
        raise BadValue("there are no moves: one is topic:partition:node,node, a line each")
    described = await visit.cluster.admin.describe_topics(sorted({tp.topic for tp in moves}), timeout=DESCRIBE_S)
    before = {
        TopicPartition(name, part.index): part.replicas
        for name, topic in described.items()
        if topic.value is not None
        for part in topic.value.partitions
    }
    moving = await visit.cluster.admin.list_partition_reassignments()
    again = visit.url("partitions")
    for tp in moves:
        check_same(f"the move of {tp}", None, _line(moving[tp].target) if tp in moving else None, again)
    for tp, then in planned.items():
        check_same(f"the list of replicas of {tp}", _line(then), _line(before[tp]) if tp in before else None, again)
    throttled = await _throttle(visit, moves, before, mib << 20) if mib else []
    failed = next((outcome for _, outcome in throttled if isinstance(outcome, FastqError)), None)
    if failed is not None:
        visit.audit("reassign partitions", failed, throttle_mib=mib)
        what = "Nothing has begun to move, as not every throttle could be set"
        return visit.result(what, throttled, visit.url("partitions"))
    outcomes = await visit.cluster.admin.alter_partition_reassignments(moves)
    first: FastqError | None = next(iter(outcomes.errors.values()), None)
    visit.audit("reassign partitions", first, throttle_mib=mib, moves={str(tp): nodes for tp, nodes in moves.items()})
    rows: list[tuple[str, Any]] = [
        (f"{tp} to {moves[tp]}", outcome.error or "begun") for tp, outcome in outcomes.items()
    ]
    return visit.result("Reassign partitions", throttled + rows, visit.url("partitions"))


async def _throttle(visit: Visit, moves: Moves, before: State, bytes_per_s: int) -> list[tuple[str, Any]]:
    """Set throttles; what became of each, as they stay whatever becomes of the moves."""
    admin = visit.cluster.admin
    unknown = [str(tp) for tp in moves if tp not in before]
    if unknown:
        raise BadValue(f"{unknown[0]}: there is no such partition")
    changes = replication_throttles(before, moves, await admin.list_partition_reassignments(), bytes_per_s)
    outcomes = (await admin.incremental_alter_configs(alterations(changes))) if changes else {}
    return [
        (_told(one), outcome.error or "throttled, until the throttles are taken away")
        for one, outcome in outcomes.items()
    ]


def _told(resource: ConfigResource) -> str:
    return f"{resource.type.name.lower()} {resource.name}"


async def unthrottle(visit: Visit) -> Response:
    """Take all throttles of moves away, from brokers and topics, once nothing moves."""
    visit.check_everywhere("The throttles of moves")
    admin, found = visit.cluster.admin, Changes()
    rows: list[tuple[str, Any]] = []
    await _check_rest(visit)
    with visit.cluster.alone("a look for throttles"):
        names = sorted(await admin.list_topics(include_internal=True))
        resources, gone = may_have_throttles(await _nodes(visit), names)
        for place in range(0, len(resources), DESCRIBED_AT_ONCE):
            described = await admin.describe_configs(resources[place : place + DESCRIBED_AT_ONCE], timeout=DESCRIBE_S)
            found.update(throttles_of(described))
            rows += [(_told(one), error) for one, error in described.errors.items()]
    await _check_rest(visit)  # looking has taken its time
    outcomes = (await admin.incremental_alter_configs(alterations(found))) if found else {}
    rows += [(_told(one), outcome.error) for one, outcome in outcomes.items()]
    failed = next((outcome for _, outcome in rows if outcome is not None), None)
    visit.audit("take throttles away", failed, resources=[_told(one) for one in found])
    words = "does not run: a throttle that it has stays; take it away once the node is back"
    rows += [(_told(broker(node)), words) for node in gone]
    return visit.result("Take throttles away", rows, visit.url("partitions"))


async def _check_rest(visit: Visit) -> None:
    if await visit.cluster.admin.list_partition_reassignments():
        raise Refused("Partitions move still: their throttles go once nothing moves.")


async def _nodes(visit: Visit) -> ClusterDescription:
    """With the nodes that are registered and do not run, where the cluster tells."""
    admin = visit.cluster.admin
    try:
        return await admin.describe_cluster(include_fenced=True)
    except UnsupportedVersion:
        return await admin.describe_cluster()


Moves = dict[TopicPartition, list[int]]


def _line(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


def _moves(visit: Visit) -> tuple[Moves, Moves]:
    """Of lines of topic:partition:node,node, and of a plan's, where that and the nodes of before stand."""
    moves: Moves = {}
    planned: Moves = {}
    for line in visit.text("moves", MOVES_LENGTH_MAX).split():
        parts = line.split(":")
        lists = [text.split(",") for text in parts[2:4]]
        numbers = [parts[1], *chain(*lists)] if len(parts) in (3, 4) else [""]
        if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
            raise BadValue(f"a move is topic:partition:node,node, not {line[:80]!r}")
        tp = TopicPartition(parts[0], int(parts[1]))
        moves[tp], *rest = [[int(number) for number in numbers] for numbers in lists]
        if rest:
            planned[tp] = rest[0]
    return moves, planned


async def cancel(visit: Visit) -> Response:
    """Stop a move: the partition goes back to where it was."""
    place = TopicPartition(visit.seen(visit.text("topic", 249)), visit.number("partition", high=2**31 - 1))
    then = visit.text("seen")
    if then:
        move = (await visit.cluster.admin.list_partition_reassignments([place])).get(place)
        check_same(f"the move of {place}", then, None if move is None else _line(move.target))
    admin, topic = visit.cluster.admin, ConfigResource.topic(place.topic)
    (await admin.alter_partition_reassignments({place: None})).results()
    visit.audit("cancel reassignment", topic=place.topic, partition=place.partition)
    rows: list[tuple[str, Any]] = [(str(place), None)]
    if throttles_of(await admin.describe_configs([topic])):
        rows.append((_told(topic), "throttled still, as its nodes are: take the throttles away once nothing moves"))
    return visit.result("Cancel reassignment", rows, visit.url("partitions"))


ROUTES: Routes = [
    ("GET", CLUSTER + "/partitions", Role.VIEWER, overview),
    ("POST", CLUSTER + "/partitions/elect", Role.OPERATOR, elect),
    ("POST", TOPIC + "/elect", Role.OPERATOR, elect_topic),
    ("POST", CLUSTER + "/partitions/plan", Role.ADMIN, plan),
    ("GET", CLUSTER + "/partitions/proposal", Role.ADMIN, proposal),
    ("POST", CLUSTER + "/partitions/reassign", Role.ADMIN, reassign),
    ("POST", CLUSTER + "/partitions/unthrottle", Role.ADMIN, unthrottle),
    ("POST", CLUSTER + "/partitions/cancel", Role.ADMIN, cancel),
]
