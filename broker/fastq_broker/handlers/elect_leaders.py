"""ElectLeaders: another leader, the preferred one or whoever is there (KIP-183, KIP-460).

Rules: the active controller elects; answered once that is committed. A partition that has the leader asked for needs none, and is left out
where all are asked for. Source: ControllerApis.handleElectLeaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import ElectLeadersRequest
from fastq_broker.controller.elections import ELECTIONS, plan_elect_leaders
from fastq_broker.error_responses import error_response

if TYPE_CHECKING:
    from fastq.protocol.message import Message
    from fastq_broker.router import RequestContext

API_KEY = 43
VERSIONS = (0, 2)


async def handle(context: RequestContext, request: ElectLeadersRequest) -> Message:
    """One result a partition, in the order asked for."""
    if request.election_type not in ELECTIONS:
        return error_response(request, ErrorCode.INVALID_REQUEST)
    named = request.topic_partitions
    wanted = None if named is None else [(topic.topic, topic.partitions) for topic in named]
    controller = context.controller
    answer, records = plan_elect_leaders(controller.view, request.election_type, wanted)
    controller.commit(records, whole=False)
    await controller.flushed()
    return answer
