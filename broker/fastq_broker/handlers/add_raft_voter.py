"""AddRaftVoter: one controller more votes in the metadata quorum (KIP-853); its leader answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import AddRaftVoterRequest
from fastq_broker.raft.serving import change_voters

if TYPE_CHECKING:
    from fastq_broker.raft.wire import VoterResponse
    from fastq_broker.router import RequestContext

API_KEY = 80
VERSIONS = (0, 1)


async def handle(context: RequestContext, request: AddRaftVoterRequest) -> VoterResponse:
    """Refused on a node that is alone."""
    return await change_voters(context.controller.quorum.driver, request)
