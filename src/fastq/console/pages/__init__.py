"""The pages: a module for each kind of thing, each with ROUTES of (method, path, the least role, handler)."""

from __future__ import annotations

from fastq.console.pages import (
    acls,
    audits,
    charts,
    copies,
    groups,
    mirrors,
    overview,
    partitions,
    records,
    resets,
    schemas,
    topic_parts,
    topics,
    transactions,
    users,
)
from fastq.console.pages.routes import Routes

ROUTES: Routes = [
    *overview.ROUTES,
    *topics.ROUTES,
    *topic_parts.ROUTES,
    *records.ROUTES,
    *copies.ROUTES,
    *groups.ROUTES,
    *resets.ROUTES,
    *charts.ROUTES,
    *transactions.ROUTES,
    *partitions.ROUTES,
    *acls.ROUTES,
    *users.ROUTES,
    *schemas.ROUTES,
    *audits.ROUTES,
    *mirrors.ROUTES,
]
