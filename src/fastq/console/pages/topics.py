"""The list of topics, and what can be done to one.

Rules: the list is searched and sorted by what one Metadata request tells; sizes and ends are asked for the rows that are shown alone, and
sizes of all of them where they are sorted by size. What is deleted is named by whoever deletes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from fastq.console.pages.routes import CLUSTER, TOPIC, Routes
from fastq.console.picture import Sizes, TopicRow, ends_of, replica_sizes
from fastq.console.seen import check_setting, check_topic, set_here
from fastq.console.users import Role
from fastq.console.visit import BadValue, Pager, Refused, Visit
from fastq.errors import FastqError
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from fastq.admin import ConfigEntry

SORTS = ("name", "partitions", "replicas", "problems", "size")
PARTITIONS_MAX = 100_000
CONFIG_LINES_MAX = 200
MEASURED_MAX = 5_000
"""Partitions of the topics shown: of more, sizes and ends are not asked for."""
SORTED_MAX = 50_000
"""Partitions whose sizes are asked for to sort topics by them."""


async def topic_list(visit: Visit) -> Response:
    """Topics by name, with what is asked for the shown ones."""
    picture = await visit.cluster.picture()
    query, internal = visit.text("q", 249).strip(), visit.flag("internal")
    sort, down = visit.choice("sort", SORTS, "name"), visit.choice("order", ("up", "down"), "up") == "down"
    wanted = query.lower()
    rows = [
        row
        for row in picture.topics
        if (internal or not row.is_internal) and wanted in row.name.lower() and visit.user.may_see(row.name)
    ]
    silent: dict[int, FastqError] = {}
    keys = await _all_sizes(visit, rows, picture.node_ids, silent) if sort == "size" else {}
    pager = Pager(visit, _sorted(rows, sort, down, keys))
    sizes, records = await _measures(visit, pager.shown, picture.node_ids, silent)
    return visit.page(
        "topics.html",
        pager=pager,
        q=query,
        internal=internal,
        sort=sort,
        down=down,
        sizes=sizes,
        records=records,
        silent=silent,
    )


async def _all_sizes(
    visit: Visit, rows: Sequence[TopicRow], nodes: list[int], silent: dict[int, FastqError]
) -> Mapping[str, int | None]:
    """Bytes of all replicas of these topics, asked of each node at once; who does not answer is noted in `silent`."""
    partitions = sum(row.partitions for row in rows)
    if partitions > SORTED_MAX:
        raise BadValue(
            f"these topics have {partitions:,} partitions: of more than {SORTED_MAX:,} sizes are not compared; look for fewer"
        )
    with visit.cluster.alone("a list by size"):
        told = await visit.cluster.run(replica_sizes(nodes, {row.name: range(row.partitions) for row in rows}))
    silent.update(told.silent)
    return _by_topic(told.found)


def _by_topic(replicas: Sizes) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for tp, held in replicas.items():
        sizes[tp.topic] = (sizes.get(tp.topic) or 0) + sum(held.values())
    return sizes


def _sorted(rows: list[TopicRow], sort: str, down: bool, sizes: Mapping[str, int | None]) -> list[TopicRow]:
    """Rows come in the order of their names, which is kept among equal ones."""
    if sort == "name":
        return rows[::-1] if down else rows
    keys: dict[str, Callable[[TopicRow], int]] = {
        "size": lambda row: sizes.get(row.name) or 0,
        "partitions": lambda row: row.partitions,
        "replicas": lambda row: row.replication_factor,
        "problems": lambda row: row.under_replicated + row.leaderless,
    }
    return sorted(rows, key=keys[sort], reverse=down)


async def _measures(
    visit: Visit, shown: Sequence[TopicRow], nodes: list[int], silent: dict[int, FastqError]
) -> tuple[Mapping[str, int | None], Mapping[str, int | None]]:
    """Bytes of all replicas and offsets between start and end of the topics shown; None where they cannot be told, and who does not answer
    is noted in `silent`."""
    partitions = {row.name: range(row.partitions) for row in shown}
    leaders = {TopicPartition(row.name, index): node for row in shown for index, node in enumerate(row.leaders)}
    if not 0 < len(leaders) <= MEASURED_MAX:
        return {}, {}
    replicas, ends = await asyncio.gather(
        visit.cluster.run(replica_sizes(nodes, partitions)), visit.cluster.run(ends_of(leaders))
    )
    records: dict[str, int | None] = dict.fromkeys(partitions, 0)
    silent.update({**replicas.silent, **ends.silent})
    for tp, (start, end) in ends.found.items():
        known = records[tp.topic]
        records[tp.topic] = None if start is None or end is None or known is None else known + end - start
    return _by_topic(replicas.found), records


# -- what can be done --------------------------------------------------------------------------------------------------------


def parse_configs(text: str) -> dict[str, str | None]:
    """`name=value` lines; raises BadValue."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > CONFIG_LINES_MAX:
        raise BadValue(f"{len(lines)} settings are too many, {CONFIG_LINES_MAX} is the most")
    configs: dict[str, str | None] = {}
    for line in lines:
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise BadValue(f"a setting is name=value, a line each, not {line[:80]!r}")
        if name.strip() in configs:
            raise BadValue(f"{name.strip()} is there twice")
        configs[name.strip()] = value.strip()
    return configs


def _name(visit: Visit) -> str:
    name = visit.text("name", 249).strip()
    if not name:
        raise BadValue("name is missing")
    if not visit.user.may_see(name):
        raise Refused(f"{visit.user.name} may only have topics {', '.join(visit.user.topics)}")
    return name


async def new_topic(visit: Visit) -> Response:
    """The form of a new topic."""
    visit.check_writable()
    return visit.page("new_topic.html")


async def create(visit: Visit) -> Response:
    """Create a topic."""
    name = _name(visit)
    partitions = visit.number("partitions", -1, low=1, high=PARTITIONS_MAX)
    factor = visit.number("replication_factor", -1, low=1, high=1_000)
    await visit.cluster.admin.create_topic(
        name, partitions, factor, configs=parse_configs(visit.text("configs", 20_000))
    )
    visit.audit("create topic", topic=name, partitions=partitions, replication_factor=factor)
    visit.cluster.forget_picture()
    return visit.result("Create topic", [(name, None)], visit.url("topics", name))


async def clone(visit: Visit) -> Response:
    """Create a topic with the partitions, replicas and settings of another; no records, and not what its own places and source are."""
    from fastq.admin import ConfigResource, ConfigSource
    from fastq.admin.throttles import FOLLOWER_REPLICAS, LEADER_REPLICAS
    from fastq.mirror.same import MIRROR_SOURCE

    source, name = visit.topic, _name(visit)
    described = await visit.cluster.admin.describe_topic(source)
    resource = ConfigResource.topic(source)
    entries: Mapping[str, ConfigEntry] = (await visit.cluster.admin.describe_configs([resource]))[resource].result()
    configs = {
        entry.name: entry.value
        for entry in entries.values()
        if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        and entry.name not in (MIRROR_SOURCE, LEADER_REPLICAS, FOLLOWER_REPLICAS)
    }
    factor = max(len(part.replicas) for part in described.partitions)
    await visit.cluster.admin.create_topic(name, len(described.partitions), factor, configs=configs)
    visit.audit("clone topic", topic=name, source=source)
    visit.cluster.forget_picture()
    return visit.result(f"Clone {source}", [(name, None)], visit.url("topics", name))


async def delete(visit: Visit) -> Response:
    """Delete a topic with its records."""
    name = _confirmed(visit)
    await check_topic(visit, name)
    await visit.cluster.admin.delete_topic(name)
    visit.audit("delete topic", topic=name)
    visit.cluster.forget_picture()
    return visit.result("Delete topic", [(name, None)], visit.url("topics"))


def _confirmed(visit: Visit) -> str:
    """The topic, whose name was written once more."""
    name = visit.topic
    if visit.text("confirm").strip() != name:
        raise BadValue(f"nothing was done: to confirm, write the topic's name, {name}")
    return name


async def purge(visit: Visit) -> Response:
    """Delete the records of a topic, or those before an offset of one partition."""
    name = _confirmed(visit)
    await check_topic(visit, name)
    if visit.text("partition").strip():
        partition = visit.number("partition", high=2**31 - 1)
        offsets = {TopicPartition(name, partition): visit.number("before", -1, low=0)}
    else:
        described = await visit.cluster.admin.describe_topic(name)
        offsets = {TopicPartition(name, part.index): -1 for part in described.partitions}
    outcomes = await visit.cluster.admin.delete_records(offsets)
    visit.audit("delete records", _first(outcomes.errors), topic=name, partitions=len(offsets))
    rows = [
        (str(tp), outcome.error or f"done, the first offset is {outcome.value:,}") for tp, outcome in outcomes.items()
    ]
    return visit.result("Delete records", rows, visit.url("topics", name))


async def add_partitions(visit: Visit) -> Response:
    """Raise the number of partitions."""
    name, total = visit.topic, visit.number("total", low=1, high=PARTITIONS_MAX)
    await check_topic(visit, name)
    (await visit.cluster.admin.create_partitions({name: total})).results()
    visit.audit("add partitions", topic=name, total=total)
    visit.cluster.forget_picture()
    return visit.result("Add partitions", [(f"{name}: {total} partitions", None)], visit.url("topics", name))


async def set_config(visit: Visit) -> Response:
    """Set one setting, or take it back to its default."""
    from fastq.admin import ConfigResource, ConfigSource

    name, key = visit.topic, visit.text("key", 200).strip()
    if not key:
        raise BadValue("key is missing")
    value = None if visit.flag("default") else visit.text("value", 10_000)
    resource = ConfigResource.topic(name)
    entries = (await visit.cluster.admin.describe_configs([resource], include_synonyms=True))[resource].result()
    check_setting(visit, "topic", key, set_here(entries.values(), ConfigSource.DYNAMIC_TOPIC_CONFIG))
    await visit.cluster.admin.set_config(resource, key, value)
    visit.audit("set config", topic=name, key=key, default=value is None)
    return visit.result("Set config", [(f"{name}: {key}", None)], visit.url("topics", name, "settings"))


def _first(errors: Mapping[Any, FastqError]) -> FastqError | None:
    return next(iter(errors.values()), None)


ROUTES: Routes = [
    ("GET", CLUSTER + "/topics", Role.VIEWER, topic_list),
    ("GET", CLUSTER + "/new-topic", Role.ADMIN, new_topic),
    ("POST", CLUSTER + "/create-topic", Role.ADMIN, create),
    ("POST", TOPIC + "/clone", Role.ADMIN, clone),
    ("POST", TOPIC + "/delete", Role.ADMIN, delete),
    ("POST", TOPIC + "/purge", Role.ADMIN, purge),
    ("POST", TOPIC + "/add-partitions", Role.ADMIN, add_partitions),
    ("POST", TOPIC + "/set-config", Role.ADMIN, set_config),
]
