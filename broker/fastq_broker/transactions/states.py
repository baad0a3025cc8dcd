"""The states of a transactional id, and the one table of what may follow what.

Rules
- Numbers are those of the log's records, labels those of DescribeTransactions and ListTransactions. Source: TransactionState.
- PREPARE_* is the decision: once it is in the log, the transaction ends that way, whatever happens to this node.
- PREPARE_EPOCH_FENCE and DEAD are only on the way to something, never in a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """Where a transactional id stands."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see, such as "PrepareCommit"."""
        return _LABELS[self]


_LABELS: Final = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in TransactionState}
BY_LABEL: Final[Mapping[str, TransactionState]] = {label: state for state, label in _LABELS.items()}

_EMPTY, _ONGOING, _DEAD, _FENCE = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
)
_PREPARE_COMMIT, _PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

NEXT: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    # An abort of nothing (transaction version 2) is a way to get the next epoch, so it may follow every settled state.
    _EMPTY: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _ONGOING: frozenset({_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT, _FENCE}),
    _FENCE: frozenset({_PREPARE_ABORT}),
    _PREPARE_COMMIT: frozenset({_COMPLETE_COMMIT}),
    _PREPARE_ABORT: frozenset({_COMPLETE_ABORT}),
    _COMPLETE_COMMIT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _COMPLETE_ABORT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _DEAD: frozenset(),
}

SETTLED: Final = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})
"""No transaction is open: the id may expire, and a new producer may take it over at once."""
COMPLETED: Final = frozenset({_COMPLETE_COMMIT, _COMPLETE_ABORT})
DECIDED: Final = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""Markers are being written."""
