"""AddOffsetsToTxn: the group's partition of __consumer_offsets becomes part of the transaction (KIP-98)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from fastq_broker.controller.topics import OFFSETS_TOPIC
from fastq_broker.transactions.answers import answered, fenced_code
from fastq_broker.transactions.transaction import Transaction

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 25
VERSIONS = (0, 4)

FIRST_VERSION_WITH_FENCED = 2


def handle(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    """Add the partition that the group's offsets are in."""
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    partitions = frozenset({(OFFSETS_TOPIC, context.groups.partition_for(request.group_id))})
    producer = request.producer_id, request.producer_epoch
    add = partial(context.transactions.add_partitions, request.transactional_id, *producer, partitions, 0)
    return answered(add, partial(_respond, context.api_version))


def _respond(api_version: int, txn: Transaction | None, error: KafkaError | None) -> AddOffsetsToTxnResponse:
    code = 0 if error is None else fenced_code(error, api_version, FIRST_VERSION_WITH_FENCED)
    return AddOffsetsToTxnResponse(error_code=code)
