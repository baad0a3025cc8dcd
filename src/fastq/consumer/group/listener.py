"""Who is told of a rebalance: objects with methods, or plain functions; for asyncio also coroutine functions.

Rules: called by the thread (or task) that asks for records, in the order lost or revoked, then assigned. A listener may commit and
seek; it may not ask for records. What it raises comes out of that call, when the step it was told of is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastq.consumer.group.membership import Change, ChangeKind
from fastq.metadata import TopicPartition

Callback = Callable[[Sequence[TopicPartition]], "Awaitable[Any] | object"]
_NAMES = {
    ChangeKind.ASSIGN: ("on_assigned", "on_partitions_assigned"),
    ChangeKind.REVOKE: ("on_revoked", "on_partitions_revoked"),
    ChangeKind.LOSE: ("on_lost", "on_partitions_lost"),
}


class RebalanceListener:
    """A base for listeners: override what is of interest. `on_lost` is `on_revoked` unless overridden, as in Kafka."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Any:
        """These are read from now on; `seek` moves where to begin. Also called with none, at the end of each rebalance."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> Any:
        """These are given up when this returns: the last moment to commit for them."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> Any:
        """These were given to others already: nothing can be committed for them."""
        return self.on_revoked(partitions)


def callbacks_of(
    listener: object | None, on_assigned: Callback | None, on_revoked: Callback | None, on_lost: Callback | None
) -> dict[ChangeKind, Callback]:
    """What to call for each kind of change. Raises TypeError for what cannot be called."""
    if isinstance(listener, type):
        raise TypeError(f"a listener is an object, got the class {listener.__name__}: write {listener.__name__}()")
    found: dict[ChangeKind, Callback] = {}
    given = {ChangeKind.ASSIGN: on_assigned, ChangeKind.REVOKE: on_revoked, ChangeKind.LOSE: on_lost}
    for kind, names in _NAMES.items():
        callback = given[kind]
        for name in names if callback is None else ():
            callback = callback or getattr(listener, name, None)
        if callback is not None:
            if not callable(callback):
                raise TypeError(f"{names[0]} is to be called with a list of partitions, got {callback!r}")
            found[kind] = callback
    if listener is not None and not found:
        raise TypeError(f"{listener!r} has none of the methods on_assigned, on_revoked and on_lost")
    if ChangeKind.REVOKE in found:
        found.setdefault(ChangeKind.LOSE, found[ChangeKind.REVOKE])
    return found


def is_due(change: Change) -> bool:
    """Whether listeners hear of a step: of nothing revoked they do not, of nothing assigned they do."""
    return bool(change.partitions) or change.kind is ChangeKind.ASSIGN
