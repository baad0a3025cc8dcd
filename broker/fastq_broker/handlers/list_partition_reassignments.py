"""ListPartitionReassignments (KIP-455): partitions that move, as the active controller has written it; answered once that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from fastq_broker.controller.reassignment import list_reassignments

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 46
VERSIONS = (0, 0)


async def handle(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Of all partitions (null), or of those that are named; what does not exist has none."""
    named = request.topics
    wanted = None if named is None else [(topic.name, topic.partition_indexes) for topic in named]
    controller = context.controller
    answer = list_reassignments(controller.pending, wanted)
    await controller.flushed()
    return answer
