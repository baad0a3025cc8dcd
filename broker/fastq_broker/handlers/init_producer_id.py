"""InitProducerId: a fresh producer id for an idempotent producer (KIP-98).

Rules: without a transactional id a new id is handed out whatever the request says of an older one, as Kafka does.
Version 6 (two-phase commit) is not stable in Kafka 4.3 and not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 22
VERSIONS = (0, 5)

INVALID_REQUEST = 42
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Answer a new id with epoch 0; this broker coordinates no transactions, and says so by refusing their ids."""
    if request.transactional_id is not None:
        code = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.transactional_id else INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    controller = context.broker.controller
    producer_id = controller.next_producer_id()
    await controller.flushed()  # an id is given away only once its block is on disk
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
