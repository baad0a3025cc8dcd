"""The audit log: its newest lines, for admins.

Rules: it is about all topics, so admins of some do not see it. It is read from the log's own file, or where there is none from what this
process has written, RECENT_BYTES at most; no name of a file comes from a request.
"""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from fastq.console.pages.routes import Routes
from fastq.console.users import Role
from fastq.console.visit import Pager, Visit


async def audit_log(visit: Visit) -> Response:
    """The newest lines first, or those that have a text in them."""
    visit.check_everywhere("The audit log")
    query = visit.text("q").strip()
    log = visit.console.audit
    try:
        lines, told = await asyncio.to_thread(log.recent, query), ""
    except OSError as error:
        lines, told = [], f"The audit log cannot be read: {error.strerror}."
    pager = Pager(visit, lines)
    rows = [{**line, "on": json.dumps(line.get("on", {}), ensure_ascii=False)[1:-1]} for line in pager.shown]
    return visit.page("audit.html", pager=pager, rows=rows, q=query, told=told, has_file=log.has_file)


ROUTES: Routes = [("GET", "/audit", Role.ADMIN, audit_log)]
