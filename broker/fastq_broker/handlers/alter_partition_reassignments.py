"""AlterPartitionReassignments: other replicas for partitions, or back to those of before (KIP-455, KIP-860); answered once committed.

Rules: the plan of the active controller, made whole or not at all. To a broker that is registered and never comes the move does not end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from fastq_broker.controller.reassignment import plan_reassignments

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 45
VERSIONS = (0, 1)


async def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """One result a partition, in the order asked for."""
    controller = context.controller
    answer, records = plan_reassignments(controller.view, request)
    controller.commit(records)
    await controller.flushed()
    return answer
