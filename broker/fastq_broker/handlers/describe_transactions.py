"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext
    from fastq_broker.transactions import TransactionCoordinator

API_KEY = 65
VERSIONS = (0, 0)


def handle(context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Each id for itself."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(context.transactions, name) for name in request.transactional_ids]
    )


def _describe(
    transactions: TransactionCoordinator, transactional_id: str
) -> DescribeTransactionsResponse.TransactionState:
    answer = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
    if not transactional_id:
        answer.error_code = int(ErrorCode.INVALID_REQUEST)
        return answer
    try:
        txn = transactions.shard(transactional_id).describe(transactional_id)
    except KafkaError as error:
        answer.error_code = int(error.code)
        return answer
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        topics.setdefault(topic, []).append(partition)
    answer.transaction_state = txn.state.label
    answer.transaction_timeout_ms = txn.timeout_ms
    answer.transaction_start_time_ms = txn.started_ms
    answer.producer_id = txn.producer_id
    answer.producer_epoch = txn.producer_epoch
    answer.topics = [
        DescribeTransactionsResponse.TopicData(topic=topic, partitions=partitions)
        for topic, partitions in topics.items()
    ]
    return answer
