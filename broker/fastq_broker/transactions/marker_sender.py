"""Markers for partitions that other nodes lead: WriteTxnMarkers, as many markers in a request as wait for its node.

Rules
- What a node answers for a partition is that partition's; a request that fails is the failure of all its partitions.
- Whether a failed one is tried again, and where, is for who asked: the leader may be another one by then.
Source: TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from fastq.errors import ErrorCode, FastqError, KafkaError, error_for_code
from fastq.protocol.messages import WriteTxnMarkersRequest
from fastq.values import NamedTuple
from fastq_broker.cluster.peers import PeerQueues
from fastq_broker.log import failures

from .marker import Done, Marker
from .transaction import Partition

if TYPE_CHECKING:
    from fastq_broker.cluster.peers import Ask


class _Wanted(NamedTuple):
    """One marker in one partition."""

    marker: Marker
    partition: Partition
    done: Done


class MarkerSender:
    """Sends markers to the leaders of their partitions. Loop thread only. `done(error)` is called once for each of them."""

    def __init__(self, ask: Ask, soon: Callable[[Callable[[], object]], object]) -> None:
        self._queues: PeerQueues[_Wanted] = PeerQueues(ask, soon, _build, _answered)

    def write(self, leader: int, partition: Partition, marker: Marker, done: Done) -> None:
        """Have a node write a marker into a partition that it leads."""
        self._queues.put(leader, _Wanted(marker, partition, done))


def _build(waiting: deque[_Wanted]) -> tuple[WriteTxnMarkersRequest, list[_Wanted]]:
    """All that waits, by marker and topic."""
    items = list(waiting)
    waiting.clear()
    by_marker: dict[Marker, dict[str, list[int]]] = {}
    for marker, (topic, index), _ in items:
        by_marker.setdefault(marker, {}).setdefault(topic, []).append(index)
    markers = [
        WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_result=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ],
        )
        for marker, topics in by_marker.items()
    ]
    return WriteTxnMarkersRequest(markers=markers), items


def _answered(items: Collection[_Wanted], response: Any, error: FastqError | None) -> None:
    codes: dict[tuple[int, Partition], int] = {}
    if response is not None:
        codes = {
            (marker.producer_id, (topic.name, result.partition_index)): result.error_code
            for marker in response.markers
            for topic in marker.topics
            for result in topic.partitions
        }
    outcomes = [
        _outcome(partition, codes.get((marker.producer_id, partition)), error) for marker, partition, _ in items
    ]
    for wanted, outcome in zip(items, outcomes, strict=True):
        try:
            wanted.done(outcome)
        except Exception as failure:
            failures.report("going on after a marker of another node's partition", failure)


def _outcome(partition: Partition, code: int | None, error: FastqError | None) -> KafkaError | None:
    topic, index = partition
    if error is not None:
        message = f"its leader could not be asked to write a marker: {error}"
        return error_for_code(ErrorCode.NETWORK_EXCEPTION, message, topic=topic, partition=index)
    if code is None:
        message = "its leader's answer leaves the partition out"
        return error_for_code(ErrorCode.UNKNOWN_SERVER_ERROR, message, topic=topic, partition=index)
    if code == ErrorCode.NONE:
        return None
    return error_for_code(code, "its leader wrote no marker", topic=topic, partition=index)
