"""One measured run of one client, in a process of its own: prints its figures as one JSON line.

    python benchmarks/compare/client_runs.py fastq-send --bootstrap 127.0.0.1:9092 --topic t --records 1000000 --shape mix

Rules: each run is the loop that the library's own documentation shows for throughput, in a function, with acks=all. A run called
`-best` has the settings that experienced users of that library choose for throughput, the plain one has its defaults; a comment
says where either differs. Values differ from record to record (client_values.py) and exist before the clock starts; the shape
"mix" has keys, the others have none (and neither has what Java's producer sends). The clock stops when the last record is delivered
or read; CPU is this process's own (of the Java tools: the whole JVM's, its start included). Names are <library>-<what>[-best].
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client_values

VALUE = b"v" * 100
TOUCHED_BYTES = 5 << 29
"""More than the largest queue of a peer, `queue.buffering.max.kbytes`, and the values beside it."""
PARTITIONS = 3

Figures = dict[str, float]
Options = argparse.Namespace


class Clock:
    """Wall and CPU seconds of a `with` block."""

    def __enter__(self) -> Clock:
        self.cpu, self.start = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start
        self.cpu = time.process_time() - self.cpu

    def figures(self, records: int) -> Figures:
        return {"records_per_s": records / self.seconds, "cpu_us_per_record": self.cpu / records * 1e6}


def keys_of(options: Options) -> list[bytes] | None:
    return client_values.keys(options.records) if options.shape == "mix" else None


def values_of(options: Options) -> list[bytes]:
    return client_values.values(options.shape, options.records)


# -- produce


def fastq_send(options: Options, **config: object) -> Figures:
    from fastq import Producer

    keys, values = keys_of(options), values_of(options)
    with Producer(bootstrap_servers=options.bootstrap, acks="all", **config) as producer:
        producer.send(options.topic, VALUE).result(10)
        send, topic = producer.send, options.topic
        with Clock() as clock:
            if keys is None:
                for value in values:
                    send(topic, value)
            else:
                for key, value in zip(keys, values, strict=True):
                    send(topic, value, key)
            producer.flush()
    return clock.figures(len(values))


def fastq_send_many(options: Options) -> Figures:
    from fastq import Producer

    keys, values = keys_of(options), values_of(options)
    with Producer(bootstrap_servers=options.bootstrap, acks="all") as producer:
        producer.send(options.topic, VALUE).result(10)
        with Clock() as clock:
            deliveries = producer.send_many(options.topic, values, keys=keys)
            producer.flush()
        deliveries.result(10)
    return clock.figures(len(values))


def fastq_async_send(options: Options) -> Figures:
    from fastq import AsyncProducer

    keys, values = keys_of(options), values_of(options)

    async def main() -> Figures:
        async with AsyncProducer(bootstrap_servers=options.bootstrap, acks="all") as producer:
            await (await producer.send(options.topic, VALUE))
            with Clock() as clock:
                if keys is None:
                    for value in values:
                        await producer.send(options.topic, value)
                else:
                    for key, value in zip(keys, values, strict=True):
                        await producer.send(options.topic, value, key)
                await producer.flush()
        return clock.figures(len(values))

    return run_uvloop(main)


# What users of librdkafka set for throughput: full batches, and a queue that holds them.
CONFLUENT_PRODUCE_BEST = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,
    "queue.buffering.max.messages": 10_000_000,
    "queue.buffering.max.kbytes": 2_097_151,
    "sticky.partitioning.linger.ms": 20,
}


def confluent_produce(options: Options, **config: object) -> Figures:
    from confluent_kafka import Producer

    keys, values = keys_of(options), values_of(options)
    # a larger queue than the default keeps the loop from spending its time on BufferError
    queue = {"queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": "all", **queue, **config})
    producer.produce(options.topic, VALUE)
    producer.flush()
    produce, topic = producer.produce, options.topic

    def loop() -> None:
        for value in values:
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)

    def keyed_loop(keys: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.01)

    with Clock() as clock:
        loop() if keys is None else keyed_loop(keys)
        producer.flush()
    return clock.figures(len(values))


def aiokafka_send(options: Options, **config: Any) -> Figures:
    from aiokafka import AIOKafkaProducer

    keys, values = keys_of(options), values_of(options)

    async def main() -> Figures:
        producer = AIOKafkaProducer(bootstrap_servers=options.bootstrap, acks="all", **config)
        await producer.start()
        await producer.send_and_wait(options.topic, VALUE)
        with Clock() as clock:
            if keys is None:
                for value in values:
                    await producer.send(options.topic, value)
            else:
                for key, value in zip(keys, values, strict=True):
                    await producer.send(options.topic, value, key)
            await producer.flush()
        await producer.stop()
        return clock.figures(len(values))

    return run_uvloop(main)


def kafka_python_send(options: Options, **config: Any) -> Figures:
    from kafka import KafkaProducer

    keys, values = keys_of(options), values_of(options)
    producer = KafkaProducer(bootstrap_servers=options.bootstrap, acks="all", **config)
    producer.send(options.topic, VALUE).get(10)
    with Clock() as clock:
        if keys is None:
            for value in values:
                producer.send(options.topic, value)
        else:
            for key, value in zip(keys, values, strict=True):
                producer.send(options.topic, value, key)
        producer.flush()
    producer.close()
    return clock.figures(len(values))


def java(options: Options, main_class: str, *arguments: str) -> tuple[str, float]:
    """What a Java tool printed, and the CPU seconds of its process. A gigabyte of heap and the collector that is the default."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
    import apache_kafka

    command = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", apache_kafka.class_path(), main_class]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{main_class} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def java_produce(options: Options, **config: object) -> Figures:
    """ProducerPerformance, its values from a file (making them record by record costs it more than sending them). It knows no keys."""
    with tempfile.NamedTemporaryFile("wb", suffix=".values") as file:
        file.write(b"\n".join(client_values.SHAPES[options.shape]()) + b"\n")
        file.flush()
        settings = [f"{name.replace('_', '.')}={value}" for name, value in config.items()]
        printed, cpu = java(
            options,
            "org.apache.kafka.tools.ProducerPerformance",
            *["--topic", options.topic, "--num-records", str(options.records), "--throughput", "-1"],
            *["--payload-file", file.name, "--producer-props", f"bootstrap.servers={options.bootstrap}", "acks=all"],
            *settings,
        )
    rate = re.findall(r"records sent, ([\d.]+) records/sec", printed)[-1]
    return {"records_per_s": float(rate), "cpu_us_per_record": cpu / options.records * 1e6}


# -- consume


def iterate(consumer: Any, records: int) -> Figures:
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


def fastq_iterate(options: Options) -> Figures:
    from fastq import Consumer

    with Consumer(options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest") as consumer:
        return iterate(consumer, options.records)


def fastq_arrow(options: Options) -> Figures:
    from fastq import Consumer

    with Consumer(options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.poll_batch(timeout=10).to_arrow()
        done = 0
        with Clock() as clock:
            while done < options.records:
                done += consumer.poll_batch(timeout=10).to_arrow().num_rows
    return clock.figures(done)


def bare_fetch(options: Options) -> Figures:
    """No client at all: what the machine's loopback and the broker give. Fetches of 4 MiB into one buffer, the next one sent before
    one is read; batches are counted by their headers, nothing is checked."""
    import socket

    from broker import fetch_frame, read_fetched, receive_frame

    host, port = options.bootstrap.rsplit(":", 1)
    room, size_bytes = bytearray(5 << 20), 4 << 20
    offsets = [0] * PARTITIONS
    done, at = 0, 0
    with socket.create_connection((host, int(port))) as sock, Clock() as clock:
        sock.sendall(fetch_frame(options.topic, 0, size_bytes, 0))
        while done < options.records:
            following = (at + 1) % PARTITIONS
            sock.sendall(fetch_frame(options.topic, offsets[following], size_bytes, following))
            end, _, count, offset = read_fetched(receive_frame(sock, room), offsets[at])
            offsets[at] = offset if offset < end else 0
            done, at = done + count, following
    return clock.figures(done)


def fastq_async_iterate(options: Options) -> Figures:
    from fastq import AsyncConsumer

    async def main() -> Figures:
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


# By default librdkafka fetches no more once 100,000 records are queued, and looks again a second later.
CONFLUENT_CONSUME_BEST = {
    "queued.min.messages": 10_000_000,
    "queued.max.messages.kbytes": 2_097_151,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 10 << 20,
}


def confluent_consume(options: Options, **config: object) -> Figures:
    from confluent_kafka import Consumer, TopicPartition

    group = {"group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": options.bootstrap, **group, **config})
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


def aiokafka_consume(options: Options, best: bool = False) -> Figures:
    """`async for` with the defaults; `best`: lists of `getmany`, from fetches ten times as large."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    larger = {"max_partition_fetch_bytes": 10 << 20} if best else {}

    async def main() -> Figures:
        consumer = AIOKafkaConsumer(bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", **larger)
        await consumer.start()
        await consumer._client.add_topic(options.topic)
        partitions = consumer.partitions_for_topic(options.topic) or {0}
        consumer.assign([TopicPartition(options.topic, index) for index in partitions])
        await consumer.getone()
        left, total = options.records, 0
        with Clock() as clock:
            if best:
                while left > 0:
                    for records in (await consumer.getmany(timeout_ms=1000, max_records=10_000)).values():
                        for record in records:
                            total += len(record.value)
                        left -= len(records)
            else:
                async for record in consumer:
                    total += len(record.value)
                    left -= 1
                    if not left:
                        break
        await consumer.stop()
        return clock.figures(options.records - left)

    return run_uvloop(main)


def kafka_python_iterate(options: Options, **config: Any) -> Figures:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, **config
    )
    partitions = consumer.partitions_for_topic(options.topic) or {0}
    consumer.assign([TopicPartition(options.topic, index) for index in partitions])
    figures = iterate(consumer, options.records)
    consumer.close()
    return figures


def java_consume(options: Options, **config: object) -> Figures:
    """ConsumerPerformance; its rate without the time that joining its group takes."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.writelines(f"{name.replace('_', '.')}={value}\n" for name, value in config.items())
        file.flush()
        printed, cpu = java(
            options,
            "org.apache.kafka.tools.ConsumerPerformance",
            *["--bootstrap-server", options.bootstrap, "--topic", options.topic, "--num-records", str(options.records)],
            *["--hide-header", "--command-config", file.name],
        )
    fields = [field.strip() for field in printed.strip().splitlines()[-1].split(",")]
    return {"records_per_s": float(fields[9]), "cpu_us_per_record": cpu / float(fields[4]) * 1e6}


def run_uvloop(main: Callable[[], object]) -> Figures:
    import uvloop

    async def whole() -> Figures:
        return await main()  # type: ignore[misc]

    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(whole())
    finally:
        loop.close()


RUNS: dict[str, Callable[[Options], Figures]] = {
    "fastq-send": fastq_send,
    "fastq-send-zstd": lambda options: fastq_send(options, compression_type="zstd"),
    "fastq-send-many": fastq_send_many,
    "fastq-async-send": fastq_async_send,
    "confluent-produce": confluent_produce,
    "confluent-produce-best": lambda options: confluent_produce(options, **CONFLUENT_PRODUCE_BEST),
    "confluent-produce-zstd": lambda options: confluent_produce(options, **{"compression.type": "zstd"}),
    "confluent-produce-zstd-best": lambda options: confluent_produce(
        options, **{"compression.type": "zstd", **CONFLUENT_PRODUCE_BEST}
    ),
    "aiokafka-send": aiokafka_send,
    "aiokafka-send-best": lambda options: aiokafka_send(options, max_batch_size=1_000_000, linger_ms=20),
    "kafka-python-send": kafka_python_send,
    "kafka-python-send-best": lambda options: kafka_python_send(options, batch_size=1_000_000, linger_ms=20),
    "java-produce": java_produce,
    "java-produce-best": lambda options: java_produce(
        options, batch_size=1_000_000, linger_ms=20, buffer_memory=256 << 20
    ),
    "fastq-iterate": fastq_iterate,
    "fastq-arrow": fastq_arrow,
    "bare-fetch": bare_fetch,
    "fastq-async-iterate": fastq_async_iterate,
    "confluent-consume": confluent_consume,
    "confluent-consume-best": lambda options: confluent_consume(options, **CONFLUENT_CONSUME_BEST),
    "aiokafka-iterate": aiokafka_consume,
    "aiokafka-getmany-best": lambda options: aiokafka_consume(options, best=True),
    "kafka-python-iterate": kafka_python_iterate,
    "kafka-python-iterate-best": lambda options: kafka_python_iterate(
        options, max_partition_fetch_bytes=10 << 20, max_poll_records=10_000
    ),
    "java-consume": java_consume,
    "java-consume-best": lambda options: java_consume(
        options, max_partition_fetch_bytes=10 << 20, max_poll_records=10_000, receive_buffer_bytes=1 << 20
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--shape", choices=client_values.SHAPES, default="100 B")
    options = parser.parse_args()
    # touch what the run will use: the first touch is slow on a virtual machine
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with mmap.mmap(-1, min(TOUCHED_BYTES, free // 2)) as memory:
        for start in range(0, len(memory), 4096):
            memory[start] = 1
    print(json.dumps(RUNS[options.run](options)))


if __name__ == "__main__":
    main()
