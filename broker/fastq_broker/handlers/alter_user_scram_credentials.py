"""AlterUserScramCredentials (KIP-554): credentials can be taken away and not set, because no listener asks for one; answered once that
is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from fastq_broker.controller.scram import ScramDeletion, ScramUpsertion

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 51
VERSIONS = (0, 0)


async def handle(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """One result a user."""
    controller = context.controller
    results = controller.alter_scram(
        [ScramDeletion(item.name, item.mechanism) for item in request.deletions],
        [ScramUpsertion(item.name, item.mechanism, item.iterations) for item in request.upsertions],
    )
    results = dict(zip(results, await controller.durable(list(results.values())), strict=True))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=user, error_code=result.error, error_message=result.message
            )
            for user, result in results.items()
        ]
    )
