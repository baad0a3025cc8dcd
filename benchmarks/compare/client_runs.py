"""One measured run of one client, in a process of its own: prints its figures as one JSON line.

    python benchmarks/compare/client_runs.py fastq-send --bootstrap 127.0.0.1:9092 --topic t --records 1000000

Rules: each run is the loop that the library's own documentation shows for throughput, with acks=all and otherwise
the library's defaults, unless a comment says why not; the clock stops when the last record is delivered or read;
CPU is this process's own. Names are <library>-<what>.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import mmap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUE = b"v" * 100
LOGS = Path(__file__).resolve().parents[2] / "examples" / "data"


def log_lines(count: int) -> list[bytes]:
    """Real log lines, over and over until there are `count`."""
    lines: list[bytes] = []
    for path in sorted(LOGS.glob("*.log.gz")):
        lines += gzip.decompress(path.read_bytes()).splitlines()
    return (lines * (count // len(lines) + 1))[:count]


class Clock:
    """Wall and CPU seconds of a `with` block."""

    def __enter__(self) -> Clock:
        self.cpu, self.start = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start
        self.cpu = time.process_time() - self.cpu

    def figures(self, records: int) -> dict[str, float]:
        return {"records_per_s": records / self.seconds, "cpu_us_per_record": self.cpu / records * 1e6}


def fastq_send(options: argparse.Namespace, values: list[bytes] | None = None, **config: object) -> dict[str, float]:
    from fastq import Producer

    with Producer(bootstrap_servers=options.bootstrap, acks="all", **config) as producer:
        producer.send(options.topic, VALUE).result(10)
        send, topic, count = producer.send, options.topic, options.records
        with Clock() as clock:
            if values is None:
                value = VALUE
                for _ in range(count):
                    send(topic, value)
            else:
                for value in values:
                    send(topic, value)
            producer.flush()
    return clock.figures(count)


def confluent_produce(
    options: argparse.Namespace, values: list[bytes] | None = None, **config: object
) -> dict[str, float]:
    from confluent_kafka import Producer

    # a larger queue than the default keeps the loop from spending its time on BufferError
    settings = {
        "bootstrap.servers": options.bootstrap,
        "acks": "all",
        "queue.buffering.max.messages": 1_000_000,
        **config,
    }
    producer = Producer(settings)
    producer.produce(options.topic, VALUE)
    producer.flush()
    produce, topic, count = producer.produce, options.topic, options.records

    def loop(values: object) -> None:
        for value in values:  # type: ignore[attr-defined]
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)

    with Clock() as clock:
        loop(values if values is not None else (VALUE for _ in range(count)))
        producer.flush()
    return clock.figures(count)


def fastq_send_many(options: argparse.Namespace) -> dict[str, float]:
    from fastq import Producer

    values = [bytes(VALUE) for _ in range(options.records)]
    with Producer(bootstrap_servers=options.bootstrap, acks="all") as producer:
        producer.send(options.topic, VALUE).result(10)
        with Clock() as clock:
            deliveries = producer.send_many(options.topic, values)
            producer.flush()
        deliveries.result(10)
    return clock.figures(options.records)


def fastq_async_send(options: argparse.Namespace) -> dict[str, float]:
    from fastq import AsyncProducer

    async def main() -> dict[str, float]:
        async with AsyncProducer(bootstrap_servers=options.bootstrap, acks="all") as producer:
            await (await producer.send(options.topic, VALUE))
            with Clock() as clock:
                for _ in range(options.records):
                    await producer.send(options.topic, VALUE)
                await producer.flush()
        return clock.figures(options.records)

    return run_uvloop(main)


def aiokafka_send(options: argparse.Namespace) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def main() -> dict[str, float]:
        producer = AIOKafkaProducer(bootstrap_servers=options.bootstrap, acks="all")
        await producer.start()
        await producer.send_and_wait(options.topic, VALUE)
        with Clock() as clock:
            for _ in range(options.records):
                await producer.send(options.topic, VALUE)
            await producer.flush()
        await producer.stop()
        return clock.figures(options.records)

    return run_uvloop(main)


def kafka_python_send(options: argparse.Namespace) -> dict[str, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=options.bootstrap, acks="all")
    producer.send(options.topic, VALUE).get(10)
    with Clock() as clock:
        for _ in range(options.records):
            producer.send(options.topic, VALUE)
        producer.flush()
    producer.close()
    return clock.figures(options.records)


def iterate(consumer: Any, records: int) -> dict[str, float]:
    """Iterate over so many records and look at their values; the first one of all is not counted."""
    left, total = records, 0
    next(iter(consumer))
    with Clock() as clock:
        for record in consumer:
            total += len(record.value)
            left -= 1
            if not left:
                break
    return clock.figures(records)


def fastq_iterate(options: argparse.Namespace) -> dict[str, float]:
    from fastq import Consumer

    with Consumer(options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest") as consumer:
        return iterate(consumer, options.records)


def fastq_arrow(options: argparse.Namespace) -> dict[str, float]:
    from fastq import Consumer

    with Consumer(options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.poll_batch(timeout=10).to_arrow()
        done = 0
        with Clock() as clock:
            while done < options.records:
                done += consumer.poll_batch(timeout=10).to_arrow().num_rows
    return clock.figures(done)


def confluent_consume(options: argparse.Namespace) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "bench", "enable.auto.commit": False})
    partitions = consumer.list_topics(options.topic, timeout=10).topics[options.topic].partitions
    consumer.assign([TopicPartition(options.topic, index, 0) for index in partitions])
    consumer.consume(1, timeout=10)
    done = total = 0
    with Clock() as clock:
        while done < options.records:
            for message in consumer.consume(10_000, timeout=1.0):
                total += len(message.value())
                done += 1
    consumer.close()
    return clock.figures(done)


def fastq_async_iterate(options: argparse.Namespace) -> dict[str, float]:
    from fastq import AsyncConsumer

    async def main() -> dict[str, float]:
        async with AsyncConsumer(
            options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            left, total = options.records, 0
            await anext(aiter(consumer))
            with Clock() as clock:
                async for record in consumer:
                    total += len(record.value)
                    left -= 1
                    if not left:
                        break
        return clock.figures(options.records)

    return run_uvloop(main)


def aiokafka_iterate(options: argparse.Namespace) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> dict[str, float]:
        consumer = AIOKafkaConsumer(bootstrap_servers=options.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        await consumer._client.add_topic(options.topic)
        partitions = consumer.partitions_for_topic(options.topic) or {0}
        consumer.assign([TopicPartition(options.topic, index) for index in partitions])
        await consumer.getone()
        left, total = options.records, 0
        with Clock() as clock:
            async for record in consumer:
                total += len(record.value)
                left -= 1
                if not left:
                    break
        await consumer.stop()
        return clock.figures(options.records)

    return run_uvloop(main)


def kafka_python_iterate(options: argparse.Namespace) -> dict[str, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partitions = consumer.partitions_for_topic(options.topic) or {0}
    consumer.assign([TopicPartition(options.topic, index) for index in partitions])
    next(consumer)
    left, total = options.records, 0
    with Clock() as clock:
        for record in consumer:
            total += len(record.value)
            left -= 1
            if not left:
                break
    consumer.close()
    return clock.figures(options.records)


def run_uvloop(main: Callable[[], object]) -> dict[str, float]:
    import uvloop

    async def whole() -> dict[str, float]:
        return await main()  # type: ignore[misc]

    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(whole())
    finally:
        loop.close()


RUNS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "fastq-send": fastq_send,
    "confluent-produce": confluent_produce,
    "fastq-send-zstd": lambda options: fastq_send(options, log_lines(options.records), compression_type="zstd"),
    "confluent-produce-zstd": lambda options: confluent_produce(
        options, log_lines(options.records), **{"compression.type": "zstd"}
    ),
    "fastq-send-many": fastq_send_many,
    "kafka-python-send": kafka_python_send,
    "fastq-async-send": fastq_async_send,
    "aiokafka-send": aiokafka_send,
    "fastq-iterate": fastq_iterate,
    "fastq-arrow": fastq_arrow,
    "confluent-consume": confluent_consume,
    "kafka-python-iterate": kafka_python_iterate,
    "fastq-async-iterate": fastq_async_iterate,
    "aiokafka-iterate": aiokafka_iterate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    with mmap.mmap(
        -1, 512 << 20
    ) as memory:  # touch what the run will use: the first touch is slow on a virtual machine
        for start in range(0, len(memory), 4096):
            memory[start] = 1
    print(json.dumps(RUNS[options.run](options)))


if __name__ == "__main__":
    main()
