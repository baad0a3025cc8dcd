"""What a page's table of routes has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from fastq.console.users import Role
from fastq.console.visit import Visit

Routes = list[tuple[str, str, Role, Callable[[Visit], Awaitable[Response]]]]
CLUSTER = "/c/{cluster}"
TOPIC = CLUSTER + "/topics/{topic}"
