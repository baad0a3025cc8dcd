"""WriteTxnMarkers: another node's coordinator, or an administrator, ends transactions in partitions that are led here.

Rules: each partition succeeds or fails for itself, and is answered when its marker is as durable as the log promises. All are written
before the first is waited for. One whose replicas do not follow in time is REQUEST_TIMED_OUT, as who asks sends this node nothing else
before the answer.
Source: KafkaApis.handleWriteTxnMarkersRequest, whose time is request.timeout.ms.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from fastq_broker.transactions.marker import GiveUp, Marker
from fastq_broker.transactions.markers import give_up_later

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 27
VERSIONS = (1, 2)


async def handle(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write them all, then answer."""
    unfollowed: list[GiveUp] = []
    written = [(marker, _write(context, marker, unfollowed)) for marker in request.markers]
    timer = give_up_later(context.loop, unfollowed)
    results = []
    try:
        for (
            marker,
            pending,
        ) in written:  # no comprehension: one that waits within one that does not is a syntax error in Python 3.10
            results.append(_result(marker, [await done for done in pending]))
    finally:
        timer.cancel()
    return WriteTxnMarkersResponse(markers=results)


def _write(
    context: RequestContext, asked: WriteTxnMarkersRequest.WritableTxnMarker, unfollowed: list[GiveUp]
) -> list[asyncio.Future[int]]:
    """The error codes of a marker's partitions, to come; what ends the wait for other replicas goes into `unfollowed`."""
    marker = Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.transaction_result,
        asked.coordinator_epoch,
        asked.transaction_version,
    )
    writer = context.transactions.markers
    pending = []
    for topic in asked.topics:
        for index in topic.partition_indexes:
            done: asyncio.Future[int] = context.loop.create_future()
            give_up = writer.write(topic.name, index, marker, partial(_settle, done))
            if give_up is not None:
                unfollowed.append(give_up)
            pending.append(done)
    return pending


def _result(
    asked: WriteTxnMarkersRequest.WritableTxnMarker, found: list[int]
) -> WriteTxnMarkersResponse.WritableTxnMarkerResult:
    codes = iter(found)
    return WriteTxnMarkersResponse.WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=[
            WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=next(codes)
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics
        ],
    )


def _settle(done: asyncio.Future[int], error: KafkaError | None) -> None:
    if not done.done():
        done.set_result(0 if error is None else int(error.code))
