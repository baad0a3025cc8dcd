"""aiokafka against the fastq broker, with assigned partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def round_trip(servers: str, topic: str, codec: str | None, idempotent: bool) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=servers, compression_type=codec, acks="all", enable_idempotence=idempotent
    ) as producer:
        sent = [
            await producer.send(
                topic,
                f"value {number}".encode(),
                key=b"k",
                headers=[("n", b"1")],
                timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(300)
        ]
        assert [(await future).offset for future in sent] == list(range(300))
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        for number in range(300):
            record = await asyncio.wait_for(consumer.getone(), 15)
            assert (record.offset, record.value) == (number, f"value {number}".encode())
            assert (record.timestamp, record.headers) == (1_700_000_000_000 + number, (("n", b"1"),))
        partition = TopicPartition(topic, 0)
        assert await consumer.end_offsets([partition]) == {partition: 300}
        assert (await consumer.offsets_for_times({partition: 1_700_000_000_100}))[partition].offset == 100
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_round_trip_with_every_codec(
    fastq_servers: str, make_topic: Callable[..., str], codec: str | None, idempotent: bool
) -> None:
    asyncio.run(round_trip(fastq_servers, make_topic(fastq_servers), codec, idempotent))
