"""ListTransactions: the transactional ids that this node coordinates, filtered (KIP-664, KIP-994, KIP-1152).

Rules: filters are ANDed, an empty one lets everything pass. States that do not exist are named in the answer. A pattern has
RE2's syntax, and has to match the whole id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import ListTransactionsRequest, ListTransactionsResponse
from fastq_broker.groups.regex import compile_pattern
from fastq_broker.transactions.states import BY_LABEL
from fastq_broker.transactions.transaction import Transaction

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 66
VERSIONS = (0, 2)


def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List what passes all filters."""
    if context.transactions.loading:
        return ListTransactionsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    try:
        wanted = _filter(request, context.clock())
    except KafkaError as error:
        return ListTransactionsResponse(error_code=int(error.code))
    found = [txn for txn in context.transactions.transactions() if wanted(txn)]
    return ListTransactionsResponse(
        unknown_state_filters=[label for label in request.state_filters if label not in BY_LABEL],
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=txn.transactional_id,
                producer_id=txn.producer_id,
                transaction_state=txn.state.label,
            )
            for txn in found
        ],
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    """What the request wants to see. Raises InvalidRegularExpression."""
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = request.duration_filter
    pattern = request.transactional_id_pattern
    matches = compile_pattern(pattern).matches if pattern else None

    def wanted(txn: Transaction) -> bool:
        if request.state_filters and txn.state not in states:
            return False
        if producer_ids and txn.producer_id not in producer_ids:
            return False
        if longer_than_ms >= 0 and now_ms - txn.started_ms <= longer_than_ms:
            return False
        return matches is None or matches(txn.transactional_id)

    return wanted
