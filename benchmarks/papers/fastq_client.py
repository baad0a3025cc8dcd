"""One run of the fastq client as the papers' tools ran theirs, in a process of its own: prints its figures as one JSON line.

    python benchmarks/papers/fastq_client.py produce --servers 127.0.0.1:9092 --topic t --records 1000000 --size 100 [--setting acks=1]

Rules: a loop of `send()`, or of records, in a function; values are random text out of a pool, made before the clock starts. The clock
stops when the last record is delivered (with acks=0: handed to the system) or read; CPU is this process's own. `--every` prints the rate
of each so many records meanwhile, a JSON line each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "compare"))

from client_runs import Clock, iterate
from client_values import random_values

POOL_BYTES = 16 << 20


def values_of(size: int) -> list[bytes]:
    """Distinct values of a size, 16 MiB of them at most."""
    return random_values(size, max(min(200_000, POOL_BYTES // size), 50))


def produce(options: argparse.Namespace, settings: dict[str, str]) -> dict[str, float]:
    from fastq import Producer

    values = cycle(values_of(options.size))
    with Producer(bootstrap_servers=options.servers, **settings) as producer:
        send, topic = producer.send, options.topic
        for value in islice(values, options.warm_up):
            send(topic, value)
        producer.flush()
        with Clock() as clock:
            left = options.records
            while left > 0:
                part, begun = min(left, options.every or left), time.perf_counter()
                for value in islice(values, part):
                    send(topic, value)
                left -= part
                if options.every:
                    rate = part / (time.perf_counter() - begun)
                    print(json.dumps({"sent": options.records - left, "records_per_s": rate}), flush=True)
            producer.flush()
    return clock.figures(options.records)


def consume(options: argparse.Namespace, settings: dict[str, str]) -> dict[str, float]:
    from fastq import Consumer

    with Consumer(
        options.topic, bootstrap_servers=options.servers, auto_offset_reset="earliest", **settings
    ) as consumer:
        return iterate(consumer, options.records - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("produce", "consume"))
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    settings = {name.replace(".", "_"): value for name, _, value in (each.partition("=") for each in options.setting)}
    print(json.dumps({"produce": produce, "consume": consume}[options.role](options, settings)))


if __name__ == "__main__":
    main()
