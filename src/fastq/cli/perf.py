"""`fastq perf produce` and `fastq perf consume`: what this machine, this network and this broker allow."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

from fastq.cli.output import Progress, Subparsers, add_client_options, add_json_option, client_settings, print_json

CHUNK_RECORDS = 10_000


def register(commands: Any) -> None:
    both = Subparsers(commands).add(
        "perf", "Measure produce and consume rates.", "fastq perf produce logs --records 5000000"
    )
    kinds = Subparsers(both.add_subparsers(title="kinds", metavar="KIND", required=True))

    produce = kinds.add(
        "produce", "Send records as fast as the broker takes them.", "fastq perf produce logs --size 100 --acks all"
    )
    produce.add_argument("topic")
    add_client_options(produce)
    add_json_option(produce)
    produce.add_argument("--records", type=int, default=1_000_000)
    produce.add_argument("--size", type=int, default=100, metavar="BYTES", help="of each value")
    produce.add_argument("--acks", default="all", choices=["0", "1", "all"])
    produce.add_argument("--compression", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    produce.add_argument("--rate", type=float, metavar="PER_SECOND", help="hold this rate instead of the highest")
    produce.add_argument("--one-by-one", action="store_true", help="call send() for each record, not send_many()")
    produce.set_defaults(run=run_produce)

    consume = kinds.add(
        "consume", "Read records as fast as they come.", "fastq perf consume logs --records 5000000 --as arrow"
    )
    consume.add_argument("topic")
    add_client_options(consume)
    add_json_option(consume)
    consume.add_argument("--records", type=int, default=1_000_000)
    consume.add_argument("--as", dest="shape", default="records", choices=["records", "batches", "arrow"])
    consume.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="stop when nothing came for so long"
    )
    consume.set_defaults(run=run_consume)


def run_produce(options: argparse.Namespace) -> int:
    from fastq import Producer

    value = os.urandom(max(options.size // 2, 1)).hex().encode()[: options.size]
    progress = Progress("sent", options.records)
    done = 0
    latencies: list[float] = []
    outcome: Callable[[float | None], object]
    with Producer(**client_settings(options), acks=options.acks, compression_type=options.compression) as producer:
        producer.partitions_for(options.topic)
        start = time.perf_counter()
        while done < options.records:
            count = min(CHUNK_RECORDS, options.records - done)
            if options.rate:
                count = min(count, max(1, int(options.rate / 100)))
                time.sleep(max(0.0, start + done / options.rate - time.perf_counter()))
            began = time.perf_counter()

            def arrived(_: object, began: float = began) -> None:
                latencies.append(time.perf_counter() - began)

            if options.one_by_one:
                for _ in range(count - 1):
                    producer.send(options.topic, value)
                last = producer.send(options.topic, value)
                last.add_done_callback(arrived)
                outcome = last.result
            else:
                many = producer.send_many(options.topic, [value] * count)
                many.add_done_callback(arrived)
                outcome = many.result
            done += count
            progress.update(done)
        producer.flush()
        seconds = time.perf_counter() - start
        outcome(0)
    progress.close()
    latencies.sort()
    _report(options, done, done * options.size, seconds, latencies)
    return 0


def run_consume(options: argparse.Namespace) -> int:
    from fastq import Consumer

    progress = Progress("read", options.records)
    done = size = 0
    with Consumer(options.topic, **client_settings(options), auto_offset_reset="earliest") as consumer:
        start = time.perf_counter()
        while done < options.records:
            if options.shape == "records":
                records = consumer.poll(max_records=CHUNK_RECORDS, timeout=options.timeout)
                size += sum(len(record.value or b"") for record in records)
                count = len(records)
            else:
                batch = consumer.poll_batch(timeout=options.timeout)
                count = len(batch)
                if options.shape == "arrow" and count:
                    size += batch.to_arrow(columns=["value"]).nbytes
                else:
                    size += sum(len(value or b"") for value in batch.values)
            if not count:
                break
            done += count
            progress.update(done)
        seconds = time.perf_counter() - start
    progress.close()
    _report(options, done, size, seconds, [])
    return 0 if done >= options.records else 1


def _report(options: argparse.Namespace, records: int, size: int, seconds: float, latencies: list[float]) -> None:
    figures: dict[str, Any] = {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "MB_per_s": round(size / seconds / 1e6, 1),
    }
    for share in (50, 99) if latencies else ():
        figures[f"p{share}_ms"] = round(latencies[min(int(len(latencies) * share / 100), len(latencies) - 1)] * 1e3, 2)
    if options.json:
        print_json(figures)
    else:
        print("  ".join(f"{key} {value:,}" for key, value in figures.items()))
