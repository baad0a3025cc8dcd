"""MirrorPull, an API of our own: a mirror with the same offsets has this node fetch from the source by itself (`mirror_pulls.py`).

Rules: ApiVersions tells of it to fastq's clients alone (`api_versions.py`). Who may append by MirrorAppend may ask for it, and what is
fetched is what the credentials of `mirror.pull.ALIAS.KEY` may read. Where this node was told of no source, it says so.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from fastq.errors import InvalidRequest
from fastq.protocol.messages import MirrorPullRequest, MirrorPullResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 10001
VERSIONS = (0, 0)

PARTITIONS_MAX = 1_000
"""Topics and partitions of a request: each fetch names all that are left."""


def handle(context: RequestContext, request: MirrorPullRequest) -> Awaitable[MirrorPullResponse]:
    """What serves the request when it is awaited."""
    count = sum(1 + len(topic.partitions) for topic in request.topics)
    if count > PARTITIONS_MAX:
        raise InvalidRequest(f"a MirrorPull has {count} topics and partitions, and may have {PARTITIONS_MAX}")
    for topic in request.topics:
        context.mirror_sources.check(topic.source.partition("/")[0])
    from fastq_broker.mirror_pulls import Pull  # a node that was told of no source has no need of it

    return Pull(context, request)
