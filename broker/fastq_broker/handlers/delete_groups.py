"""DeleteGroups: groups without members, with their offsets (KIP-229)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from fastq_broker.handlers.together import together

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 42
VERSIONS = (0, 2)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete each group that may be deleted; each has its own error."""
    errors = await together([_delete(context, group_id) for group_id in request.groups_names])
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in zip(request.groups_names, errors, strict=True)
        ]
    )


def _delete(context: RequestContext, group_id: str) -> int | Awaitable[int]:
    groups = context.groups
    try:
        shard = groups.shard(group_id)
    except KafkaError as unavailable:
        return int(unavailable.code)
    return groups.answer(partial(shard.delete_group, group_id), int)
