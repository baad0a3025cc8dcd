"""AddPartitionsToTxn: partitions become part of a transaction, or are looked for in it (KIP-98, KIP-890).

Rules
- Up to version 3 one transaction of a client, from version 4 on many at once, of other brokers; `verify_only` changes nothing.
- One unknown partition keeps its transaction from growing at all: the others were not attempted.
- Of many at once, those whose addition the replicas do not keep in ANSWER_S are CONCURRENT_TRANSACTIONS, as the next question about them is
  told: who asks sends this node nothing else before the answer (Kafka's waits for all, for as long as for a request).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from fastq_broker.handlers.together import together_in_time
from fastq_broker.transactions.answers import answered, fenced_code
from fastq_broker.transactions.transaction import VERSION_2, Partition, Transaction

if TYPE_CHECKING:
    from typing import TypeAlias

    from fastq_broker.controller import MetadataImage
    from fastq_broker.router import RequestContext

    Asked: TypeAlias = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction

API_KEY = 24
VERSIONS = (0, 5)

FIRST_VERSION_WITH_FENCED = 2
FIRST_BATCHED_VERSION = 4
FIRST_VERSION_OF_VERSION_2 = 5

ANSWER_S: Final = 0.5
"""How long the transactions of one request are waited for: longer than a write takes where nothing is wrong."""

Codes = Mapping[Partition, int]


def handle(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """Ask the coordinator for each transaction."""
    if context.api_version >= FIRST_BATCHED_VERSION:
        return _handle_batch(context, request)
    asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=request.v3_and_below_topics,
    )
    codes = _codes(context, asked)
    return _later(asked, codes) if isinstance(codes, Awaitable) else _respond(asked, codes)


async def _handle_batch(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    codes = await together_in_time([_codes(context, asked) for asked in request.transactions], ANSWER_S)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id,
                topic_results=_topics(asked, _late(asked) if told is None else told),
            )
            for asked, told in zip(request.transactions, codes, strict=True)
        ]
    )


def _late(asked: Asked) -> Codes:
    return dict.fromkeys(_partitions(asked), int(ErrorCode.CONCURRENT_TRANSACTIONS))


def _partitions(asked: Asked) -> frozenset[Partition]:
    return frozenset((topic.name, index) for topic in asked.topics for index in topic.partitions)


async def _later(asked: Asked, codes: Awaitable[Codes]) -> AddPartitionsToTxnResponse:
    return _respond(asked, await codes)


def _respond(asked: Asked, codes: Codes) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topics(asked, codes))


def _codes(context: RequestContext, asked: Asked) -> Codes | Awaitable[Codes]:
    """The error code of each partition, 0 where there is none; at once where nothing has to be waited for."""
    wanted = _partitions(asked)
    transactions = context.transactions
    version = context.api_version
    if not asked.transactional_id:
        return dict.fromkeys(wanted, int(ErrorCode.INVALID_REQUEST))
    unknown = {partition for partition in wanted if not _exists(context.image, partition)}
    if unknown:
        return {
            partition: int(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            )
            for partition in wanted
        }
    producer = asked.producer_id, asked.producer_epoch
    if asked.verify_only:
        try:
            missing = transactions.verify(asked.transactional_id, *producer, wanted)
        except KafkaError as error:
            return dict.fromkeys(wanted, fenced_code(error, version, FIRST_VERSION_WITH_FENCED))
        return {at: int(ErrorCode.TRANSACTION_ABORTABLE) if at in missing else 0 for at in wanted}

    def respond(txn: Transaction | None, error: KafkaError | None) -> Codes:
        code = 0 if error is None else fenced_code(error, version, FIRST_VERSION_WITH_FENCED)
        return dict.fromkeys(wanted, code)

    level = VERSION_2 if version >= FIRST_VERSION_OF_VERSION_2 else 0
    return answered(partial(transactions.add_partitions, asked.transactional_id, *producer, wanted, level), respond)


def _exists(image: MetadataImage, partition: Partition) -> bool:
    topic = image.topic(partition[0])
    return topic is not None and 0 <= partition[1] < len(topic.partitions)


def _topics(asked: Asked, codes: Codes) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in asked.topics
    ]
