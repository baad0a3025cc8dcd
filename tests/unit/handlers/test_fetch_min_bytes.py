"""What counts for a fetch's min_bytes: a reader whose limits have left something behind is answered at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from fastq_broker.broker import Broker
from fastq_broker.controller.topics import NewTopic
from fastq_broker.handlers import fetch, produce
from fastq_broker.router import Deferred
from test_live_settings import ask, decoded, run

from fastq._native.records import build_batch
from fastq.protocol.messages import FetchRequest, ProduceRequest

BATCH, BATCHES = 300_000, 10


def request(min_bytes: int, max_bytes: int, partition_max_bytes: int, offset: int = 0) -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for number in range(2)
    ]
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=partitions)],
    )


@pytest.mark.parametrize(
    "min_bytes, max_bytes, partition_max_bytes, sizes",
    [
        (5_000_000, 1_000_000, 1_000_000, [3, 0]),  # more than the answer may hold
        (5_000_000, 1_300_000, 700_000, [2, 2]),
        (1_000_000, 1_000_000, 1_000_000, [3, 0]),  # whole batches never fill it
        (950_000, 1_000_000, 1_000_000, [3, 0]),
        (1_000_000, 1 << 25, 700_000, [2, 2]),  # both together, of which 1,200,000 bytes are whole batches
        (1_400_000, 1 << 25, 700_000, [2, 2]),
    ],
)
def test_a_reader_that_has_got_all_that_it_takes_does_not_wait(
    tmp_path: Path, min_bytes: int, max_bytes: int, partition_max_bytes: int, sizes: list[int]
) -> None:
    async def test(broker: Broker) -> None:
        fill(broker)
        answer = ask(broker, fetch, request(min_bytes, max_bytes, partition_max_bytes), 12)
        assert not isinstance(answer, Deferred)
        data = decoded(fetch, answer, 12).responses[0].partitions
        assert [len(each.records or b"") // BATCH for each in data] == sizes

    run(tmp_path, test)


@pytest.mark.parametrize(
    "min_bytes, partition_max_bytes, offset",
    [(1_500_000, 700_000, 0), (700_000, 1_000_000, BATCHES - 1), (1, 1_000_000, BATCHES)],
)
def test_who_can_get_more_waits_for_it(tmp_path: Path, min_bytes: int, partition_max_bytes: int, offset: int) -> None:
    async def test(broker: Broker) -> None:
        fill(broker)
        waiting = ask(broker, fetch, request(min_bytes, 1 << 25, partition_max_bytes, offset), 12)
        assert isinstance(waiting, Deferred)
        waiting.hurry()
        await asyncio.sleep(0.01)  # ends of fetches are run in the next turn of the loop
        assert waiting.answered

    run(tmp_path, test)


def fill(broker: Broker) -> None:
    """Two partitions of BATCHES batches of a record of BATCH bytes."""
    broker.controller.create_topics([NewTopic("t", 2, 1)])
    broker.controller.settle()
    for _ in range(BATCHES):
        data = [
            ProduceRequest.PartitionProduceData(
                index=number, records=bytes(build_batch([(1, None, os.urandom(BATCH))]))
            )
            for number in range(2)
        ]
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=data)
        ask(broker, produce, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
