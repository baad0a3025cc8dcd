"""InitProducerId: an id and epoch for a producer (KIP-98, KIP-360).

Rules: without a transactional id a new id is handed out whatever older one the request names, as Kafka does; an id without an epoch, or
an epoch without an id, is none (KafkaApis.handleInitProducerIdRequest).
Version 6 (two-phase commit) is not stable in Kafka 4.3 and not served.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from fastq_broker.transactions.answers import fenced_code

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 22
VERSIONS = (0, 5)

FIRST_VERSION_WITH_FENCED = 4
NONE = -1


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Answer a fresh id with epoch 0, or what the coordinator makes of the transactional id."""
    if (request.producer_id, request.producer_epoch).count(NONE) == 1:
        return _refusal(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await _initialize(context, request)
    (producer_id,) = await context.producer_ids.take()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _initialize(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    expected = (request.producer_id, request.producer_epoch)
    assert request.transactional_id is not None
    if not request.transactional_id:
        return _refusal(ErrorCode.INVALID_REQUEST)
    timeout_ms = request.transaction_timeout_ms
    if not 0 < timeout_ms <= context.config.transaction_max_timeout_ms:
        return _refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    try:
        answer = context.transactions.initialize(
            request.transactional_id, timeout_ms, None if expected == (NONE, NONE) else expected
        )
        txn = await answer if inspect.isawaitable(answer) else answer
    except KafkaError as error:
        return _refusal(fenced_code(error, context.api_version, FIRST_VERSION_WITH_FENCED))
    return InitProducerIdResponse(producer_id=txn.producer_id, producer_epoch=txn.producer_epoch)


def _refusal(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=NONE, producer_epoch=NONE)
