"""RemoveRaftVoter: a controller votes no more in the metadata quorum (KIP-853); its leader answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import RemoveRaftVoterRequest
from fastq_broker.raft.serving import change_voters

if TYPE_CHECKING:
    from fastq_broker.raft.wire import VoterResponse
    from fastq_broker.router import RequestContext

API_KEY = 81
VERSIONS = (0, 0)


async def handle(context: RequestContext, request: RemoveRaftVoterRequest) -> VoterResponse:
    """Refused on a node that is alone."""
    return await change_voters(context.controller.quorum.driver, request)
