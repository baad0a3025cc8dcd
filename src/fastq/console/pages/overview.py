"""Clusters, and one cluster's nodes, with their settings, and quorum."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from fastq.admin.shown import Shown
from fastq.console.clusters import Cluster
from fastq.console.pages.routes import CLUSTER, Routes
from fastq.console.pages.topic_parts import default_of
from fastq.console.picture import Disk, Picture, disks
from fastq.console.seen import Settings, check_setting, set_here, written
from fastq.console.users import Role
from fastq.console.visit import BadValue, Visit
from fastq.errors import FastqError

if TYPE_CHECKING:
    from fastq.admin import ConfigEntry

LOOK_S = 3.0


async def home(visit: Visit) -> Response:
    """All clusters; one alone is shown at once."""
    clusters = list(visit.console.clusters.values())
    if len(clusters) == 1:
        return visit.redirect(f"/c/{clusters[0].name}")
    found = await asyncio.gather(*(_glance(cluster) for cluster in clusters))
    return visit.page("home.html", clusters=list(zip(clusters, found, strict=True)))


async def _glance(cluster: Cluster) -> Picture | str:
    try:
        return await asyncio.wait_for(cluster.picture(), LOOK_S)
    except asyncio.TimeoutError:
        return f"no answer within {LOOK_S:.0f} s"
    except FastqError as error:
        return str(error)


async def overview(visit: Visit) -> Response:
    """A cluster: its nodes with what they have, its quorum with how far behind each is."""
    cluster = visit.cluster
    picture = await cluster.picture()
    described, quorum, space = await asyncio.gather(
        cluster.admin.describe_cluster(include_fenced=True),
        cluster.admin.describe_quorum(),
        cluster.run(disks(picture.node_ids)),
        return_exceptions=True,
    )
    for found in (described, quorum, space):
        if isinstance(found, BaseException) and not isinstance(found, FastqError):
            raise found
    fenced = () if isinstance(described, BaseException) else described.fenced_nodes
    voters = set() if isinstance(quorum, BaseException) else {voter.node_id for voter in quorum.voters}
    disks_told = Shown[dict[int, list[Disk]]]({}, {}) if isinstance(space, BaseException) else space
    known = disks_told.found
    nodes: list[dict[str, Any]] = [
        {
            "node": node,
            "state": state,
            "roles": ["broker", "controller"] if node.node_id in voters else ["broker"],
            "disks": known.get(node.node_id),
            "used": _used(known.get(node.node_id)),
        }
        for state, group in (("running", picture.nodes), ("fenced", fenced))
        for node in group
    ]
    topics = [topic for topic in picture.topics if visit.user.may_see(topic.name)]
    return visit.page(
        "overview.html",
        picture=picture,
        nodes=nodes,
        quorum=None if isinstance(quorum, BaseException) else quorum,
        quorum_error=quorum if isinstance(quorum, BaseException) else None,
        disks_error=space if isinstance(space, BaseException) else None,
        silent=disks_told.silent,
        topics=len(topics),
        partitions=sum(topic.partitions for topic in topics),
        under_replicated=sum(topic.under_replicated for topic in topics),
        leaderless=sum(topic.leaderless for topic in topics),
    )


def _used(found: list[Disk] | None) -> int | None:
    """Per cent of the fullest directory; None where it is not told."""
    shares = [
        math.ceil(100 * (1 - disk.usable_bytes / disk.total_bytes))
        for disk in found or ()
        if disk.total_bytes and disk.usable_bytes is not None
    ]
    return max(shares, default=None)


def _node_id(visit: Visit) -> int:
    text: str = visit.request.path_params["node"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
        raise BadValue(f"a node's id is a whole number below {2**31:,}, not {text[:40]!r}")
    return int(text)


async def _settings(visit: Visit, node_id: int) -> dict[str, ConfigEntry]:
    from fastq.admin import ConfigResource

    resource = ConfigResource.broker(node_id)
    return (await visit.cluster.admin.describe_configs([resource], include_synonyms=True))[resource].result()


async def node(visit: Visit) -> Response:
    """A node's settings, with where each comes from."""
    node_id = _node_id(visit)
    configs = sorted((await _settings(visit, node_id)).values(), key=lambda entry: (entry.is_default, entry.name))
    return visit.page(
        "node.html",
        node_id=node_id,
        configs=configs,
        defaults={entry.name: default_of(entry) for entry in configs},
        seen=written(_set(configs)),
    )


def _set(configs: Iterable[ConfigEntry]) -> dict[str, Settings]:
    """What is set while nodes run, of the node and of all of them."""
    from fastq.admin import ConfigSource

    entries = list(configs)
    return {
        "node": set_here(entries, ConfigSource.DYNAMIC_BROKER_CONFIG),
        "all": set_here(entries, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    }


async def set_config(visit: Visit) -> Response:
    """Set one that may change while the node runs, of it or of all nodes, or take it back to what holds without."""
    from fastq.admin import ConfigResource

    visit.check_everywhere("A node's setting")
    node_id, key, of = _node_id(visit), visit.text("key", 200).strip(), visit.choice("of", ("node", "all"), "node")
    entries = await _settings(visit, node_id)
    entry = entries.get(key)
    if entry is None:
        raise BadValue(f"key is one of the node's settings, not {key!r}")
    if entry.is_read_only:
        raise BadValue(f"{key} is fixed while a node runs: it is read at the start, from the node's file")
    value = None if visit.flag("default") else visit.text("value", 10_000)
    check_setting(visit, of, key, _set(entries.values())[of])
    resource = ConfigResource.broker(node_id if of == "node" else None)
    await visit.cluster.admin.set_config(resource, key, value)
    whose = f"node {node_id}" if of == "node" else "all nodes"
    visit.audit("set config", node=node_id if of == "node" else "all", key=key, default=value is None)
    return visit.result("Set config", [(f"{whose}: {key}", None)], visit.url("nodes", node_id))


ROUTES: Routes = [
    ("GET", "/", Role.VIEWER, home),
    ("GET", CLUSTER, Role.VIEWER, overview),
    ("GET", CLUSTER + "/nodes/{node}", Role.VIEWER, node),
    ("POST", CLUSTER + "/nodes/{node}/set-config", Role.ADMIN, set_config),
]
