"""EndTxn: commit or abort. Answered once the decision is in the coordinator's log; the markers follow.

Rules: from version 5 on (transaction version 2) the answer has the producer's next epoch, or next id (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import EndTxnRequest, EndTxnResponse
from fastq_broker.transactions.answers import answered, fenced_code
from fastq_broker.transactions.transaction import VERSION_2, Transaction

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 26
VERSIONS = (0, 5)

FIRST_VERSION_WITH_FENCED = 2
FIRST_VERSION_WITH_EPOCHS = 5


def handle(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    """Have the coordinator decide."""
    if not request.transactional_id:
        return EndTxnResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    version = VERSION_2 if context.api_version >= FIRST_VERSION_WITH_EPOCHS else 0
    producer = request.producer_id, request.producer_epoch
    end = partial(context.transactions.end, request.transactional_id, *producer, request.committed, version)
    return answered(end, partial(_respond, context.api_version))


def _respond(api_version: int, txn: Transaction | None, error: KafkaError | None) -> EndTxnResponse:
    if error is not None:
        return EndTxnResponse(error_code=fenced_code(error, api_version, FIRST_VERSION_WITH_FENCED))
    if txn is None or api_version < FIRST_VERSION_WITH_EPOCHS:
        return EndTxnResponse()
    producer_id, epoch = txn.next_producer
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
