"""What a page's table of routes has.

Rules: a role is looked at for every route; where the console only shows, each POST is refused by `Visit.check_role`, and a page that is a
form of a change refuses itself by `Visit.check_writable`. All other pages show the same there, without forms of changes (`Visit.may`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from fastq.console.users import Role
from fastq.console.visit import Visit

Routes = list[tuple[str, str, Role, Callable[[Visit], Awaitable[Response]]]]
CLUSTER = "/c/{cluster}"
TOPIC = CLUSTER + "/topics/{topic}"
