"""One side of an end-to-end latency run, in a process of its own.

    python benchmarks/compare/latency_runs.py consume fastq --bootstrap HOST:PORT --topic t --records 100000

Rules: the value starts with the sender's monotonic clock in ns, which all processes of a machine share, and goes on with
random bytes; the sender keeps to the rate by the clock (a record that is late is sent at once); linger is 0, acks is 1. The
plain run of the peer has its defaults for all else, `-best` what its users set for latency: no Nagle, a send and a fetch queue that
never pause. CPU is that of each process from its first counted record on, keeping to the rate with it.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator

STAMP = struct.Struct("<q")
PADDING = [random.Random(number).randbytes(92) for number in range(1000)]
WARM_UP_S = 1.0


def pace(records: int, rate: float) -> Iterator[bytes]:
    """Values at `rate` a second, stamped when they are due to be sent."""
    start = time.monotonic_ns()
    gap_ns = 1e9 / rate
    for number in range(records):
        due = start + int(number * gap_ns)
        while (now := time.monotonic_ns()) < due:
            time.sleep(max(due - now - 50_000, 20_000) / 1e9)
        yield STAMP.pack(now) + PADDING[number % len(PADDING)]


def produce_fastq(options: argparse.Namespace) -> None:
    from fastq import Producer

    with Producer(bootstrap_servers=options.bootstrap, acks=1, linger_ms=0) as producer:
        for value in counted(pace(options.records, options.rate), options):
            producer.send(options.topic, value)


CONFLUENT_PRODUCE_BEST = {"socket.nagle.disable": True, "queue.buffering.max.messages": 1_000_000}


def produce_confluent(options: argparse.Namespace, **config: object) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": 1, "linger.ms": 0, **config})
    for value in counted(pace(options.records, options.rate), options):
        while True:
            try:
                producer.produce(options.topic, value)
                break
            except BufferError:
                producer.poll(0.001)
        producer.poll(0)
    producer.flush()


def counted(values: Iterator[bytes], options: argparse.Namespace) -> Iterator[bytes]:
    """The values; when the last of them is sent, the CPU of each after the warm-up is printed."""
    skip = int(WARM_UP_S * options.rate)
    cpu = 0.0
    for number, value in enumerate(values):
        if number == skip:
            cpu = time.process_time()
        yield value
    took = time.process_time() - cpu
    print(json.dumps({"produce_cpu_us": took / (options.records - skip) * 1e6}), flush=True)


def values_fastq(options: argparse.Namespace) -> Iterator[bytes]:
    from fastq import Consumer

    with Consumer(options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            yield record.value


CONFLUENT_CONSUME_BEST = {
    "socket.nagle.disable": True,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
}


def values_confluent(options: argparse.Namespace, **config: object) -> Iterator[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    group = {"group.id": "latency", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": options.bootstrap, **group, **config})
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            yield message.value()


def consume(options: argparse.Namespace, values: Callable[[argparse.Namespace], Iterator[bytes]]) -> None:
    latencies = []
    skip = int(WARM_UP_S * options.rate)
    cpu = 0.0
    for number, value in enumerate(values(options), 1):
        if number > skip:
            latencies.append(time.monotonic_ns() - STAMP.unpack_from(value)[0])
        elif number == skip:
            cpu = time.process_time()
        if number == options.records:
            break
    cpu = time.process_time() - cpu
    latencies.sort()
    at = {
        name: latencies[int(len(latencies) * share)] / 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
    figures = {f"{name}_ms": value for name, value in at.items()}
    print(json.dumps({**figures, "consume_cpu_us": cpu / len(latencies) * 1e6}), flush=True)


PRODUCE: dict[str, Callable[[argparse.Namespace], None]] = {
    "fastq": produce_fastq,
    "confluent": produce_confluent,
    "confluent-best": lambda options: produce_confluent(options, **CONFLUENT_PRODUCE_BEST),
}
VALUES: dict[str, Callable[[argparse.Namespace], Iterator[bytes]]] = {
    "fastq": values_fastq,
    "confluent": values_confluent,
    "confluent-best": lambda options: values_confluent(options, **CONFLUENT_CONSUME_BEST),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("library", choices=PRODUCE)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=10_000)
    options = parser.parse_args()
    if options.role == "produce":
        PRODUCE[options.library](options)
    else:
        consume(options, VALUES[options.library])
        sys.exit(0)


if __name__ == "__main__":
    main()
