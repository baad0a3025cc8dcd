"""Mirrors: all that the console was told of, and one with its partitions.

Rules: a mirror is looked at by `fastq.console.mirrors`; a page shows the last look and how old it is. Users of some topics see those of the
source that are theirs.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from starlette.responses import Response

from fastq.console.mirrors import Look, WatchedMirror
from fastq.console.pages.routes import Routes
from fastq.console.users import Role
from fastq.console.visit import PARTITIONS_PAGE, BadValue, Pager, Visit

ORDERS = ("topic", "lag", "age")


async def mirror_list(visit: Visit) -> Response:
    """Every mirror in a line."""
    mirrors = list(visit.console.mirrors.values())
    looks = await asyncio.gather(*(mirror.look() for mirror in mirrors))
    rows = [{"mirror": mirror, "look": look, **_sums(visit, look)} for mirror, look in zip(mirrors, looks, strict=True)]
    return visit.page("mirrors.html", rows=rows)


def _partitions(visit: Visit, look: Look) -> list[Any]:
    if look.status is None:
        return []
    return [part for part in look.status.partitions if visit.user.may_see(part.partition.topic)]


def _sums(visit: Visit, look: Look) -> dict[str, Any]:
    """A partition of which a number is not known makes its sum one that is not known either: less would be no comfort."""
    partitions = _partitions(visit, look)
    lags, ages = [part.lag for part in partitions], [part.age_s for part in partitions]
    return {
        "lag": None if look.status is None or None in lags else sum(lags),
        "age_s": None if look.status is None or None in ages else max(ages, default=0.0),
        "rate": None if look.status is None else sum(part.rate for part in partitions),
        "stopped": sum(part.state not in ("mirrored", "new") for part in partitions),
        "partitions": len(partitions),
    }


def _mirror(visit: Visit) -> WatchedMirror:
    name = visit.request.path_params["mirror"]
    if name not in visit.console.mirrors:
        raise BadValue(f"there is no mirror {name[:80]!r} in this console's file")
    return visit.console.mirrors[name]


async def mirror(visit: Visit) -> Response:
    """Partitions with their lag, and what is not mirrored."""
    one = _mirror(visit)
    look = await one.look()
    order = visit.choice("sort", ORDERS, "lag")
    keys = {
        "topic": lambda part: part.partition,
        "lag": lambda part: (part.lag is not None, -(part.lag or 0), part.partition),
        "age": lambda part: (part.age_s is not None, -(part.age_s or 0.0), part.partition),
    }
    partitions = sorted(_partitions(visit, look), key=keys[order])
    refused = {} if look.status is None else look.status.refused
    return visit.page(
        "mirror.html",
        mirror=one,
        look=look,
        sums=_sums(visit, look),
        pager=Pager(visit, partitions, PARTITIONS_PAGE),
        sort=order,
        refused={topic: why for topic, why in refused.items() if visit.user.may_see(topic)},
    )


async def lag(visit: Visit) -> Response:
    """The number that the page's chart asks for while it is open."""
    look = await _mirror(visit).look()
    sums = _sums(visit, look)
    if sums["lag"] is None or look.is_late:
        return Response(look.trouble or "the clusters do not tell it now", 503, media_type="text/plain")
    told = {"time": time.time() * 1000, "value": sums["lag"], "of": sums["partitions"]}
    return Response(json.dumps(told), media_type="application/json")


ROUTES: Routes = [
    ("GET", "/mirrors", Role.VIEWER, mirror_list),
    ("GET", "/mirrors/{mirror}", Role.VIEWER, mirror),
    ("GET", "/mirrors/{mirror}/lag", Role.VIEWER, lag),
]
