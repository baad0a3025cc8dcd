"""The states of a transactional producer and what leads from one to another; the errors of coordinators and what they lead to.

Rules: two tables, `MOVES` and `ACTIONS`, and nothing that knows of requests or time. After Kafka's TransactionManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from fastq.errors import ErrorCode


class State(Enum):
    """Where a transactional producer is; the value is what messages call it."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "the producer id is being fetched"
    READY = "no transaction is open"
    IN_TRANSACTION = "a transaction is open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "the transaction has failed and has to be aborted"
    FATAL_ERROR = "the producer has failed for good"


_S = State
MOVES: Mapping[State, frozenset[State]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMITTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}
UNDER_WAY = frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING})
SENDING = frozenset({_S.IN_TRANSACTION, _S.COMMITTING})
FAILED = frozenset({_S.ABORTABLE_ERROR, _S.FATAL_ERROR})


class Action(Enum):
    """What an error of a coordinator leads to, least first: of several, the last one is taken."""

    RETRY = 1  # the same again after a pause
    FIND = 2  # look the coordinator up, then the same again
    ABORT = 3  # this transaction is over
    FATAL = 4  # this producer is
    FENCED = 5  # so it is, because of another one


_A, _E = Action, ErrorCode
ACTIONS: Mapping[ErrorCode, Action] = {
    _E.COORDINATOR_NOT_AVAILABLE: _A.FIND,
    _E.NOT_COORDINATOR: _A.FIND,
    _E.REQUEST_TIMED_OUT: _A.FIND,
    _E.PRODUCER_FENCED: _A.FENCED,
    _E.INVALID_PRODUCER_EPOCH: _A.FENCED,
    _E.TRANSACTION_ABORTABLE: _A.ABORT,
    _E.TOPIC_AUTHORIZATION_FAILED: _A.ABORT,
    _E.GROUP_AUTHORIZATION_FAILED: _A.ABORT,
    _E.OPERATION_NOT_ATTEMPTED: _A.ABORT,
    _E.UNKNOWN_SERVER_ERROR: _A.ABORT,
    # The coordinator has forgotten the id, which InitProducerId mends, unless it belongs to somebody else by now.
    _E.INVALID_PRODUCER_ID_MAPPING: _A.ABORT,
    _E.UNKNOWN_PRODUCER_ID: _A.ABORT,
    # The group has moved on without the member whose offsets these are.
    _E.ILLEGAL_GENERATION: _A.ABORT,
    _E.UNKNOWN_MEMBER_ID: _A.ABORT,
    _E.FENCED_INSTANCE_ID: _A.ABORT,
    _E.STALE_MEMBER_EPOCH: _A.ABORT,
    _E.FENCED_MEMBER_EPOCH: _A.ABORT,
    _E.REBALANCE_IN_PROGRESS: _A.ABORT,
    _E.OFFSET_METADATA_TOO_LARGE: _A.ABORT,
    _E.INVALID_COMMIT_OFFSET_SIZE: _A.ABORT,
    _E.INVALID_GROUP_ID: _A.ABORT,
}
"""What is not here: RETRY where the error is retriable, else FATAL."""

FATAL_FOR_BATCHES = frozenset(
    {_E.CLUSTER_AUTHORIZATION_FAILED, _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _E.PRODUCER_FENCED}
)
MAPPING_LOST = frozenset({_E.INVALID_PRODUCER_ID_MAPPING, _E.UNKNOWN_PRODUCER_ID})
GROUP_MOVED_ON = frozenset(
    {_E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID, _E.STALE_MEMBER_EPOCH, _E.FENCED_MEMBER_EPOCH}
)
HINTS = {
    _E.INVALID_TRANSACTION_TIMEOUT: "Lower transaction_timeout_ms, or raise the brokers' transaction.max.timeout.ms",
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "The principal needs WRITE and DESCRIBE on the transactional id",
    _E.UNSUPPORTED_VERSION: "Transactions of this kind need Apache Kafka 2.5 or later",
}
CONCURRENT_FIRST_MS, CONCURRENT_MAX_MS = 2.0, 20.0
"""Back-off while the coordinator still ends the transaction before: that takes about as long as a write."""
STALE_ANSWERS_MAX = 20
"""Under transaction version 2 leaders of partitions tell the coordinator what belongs to a transaction. One that has not heard yet that
another took its place knows nothing of it, and calls the commit invalid: so often, some seventeen seconds with the default back-off, it is
looked up and asked again. There is no end to wait for where a coordinator means it: the commit's time-out counts as ever."""
STALE_HINT = "A coordinator that has not heard yet that another took its place says so: it is looked up and asked again"
CONCURRENT_ATTEMPTS = 25
"""So many are made like this, in half a second; one that lasts is waited for as any other error is."""
ABORT_HINT = "Abort the transaction, and do it again"
GROUP_HINT = (
    "The consumer lost its place in the group, so another member may read the same records: abort, and go on from the "
    "committed offsets"
)


def action_for(code: int) -> Action:
    """What an error code of a coordinator leads to; codes newer than this client are fatal."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return Action.FATAL
    return ACTIONS.get(known, Action.RETRY if known.retriable else Action.FATAL)
