"""`fastq perf produce` and `fastq perf consume`: what this machine, this network and this broker allow."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

from fastq.cli.clients import add_client_options, check_reachable, opened_consumer, opened_producer
from fastq.cli.output import Progress, Subparsers, add_json_option, complain, count, print_json, seconds

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
    produce.add_argument("--records", type=count, default=1_000_000, help="how many (default: %(default)s)")
    produce.add_argument("--size", type=count, default=100, metavar="BYTES", help="of each value")
    produce.add_argument("--acks", default="all", choices=["0", "1", "all"])
    produce.add_argument("--compression", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    produce.add_argument("--rate", type=float, metavar="PER_SECOND", help="hold this rate instead of the highest")
    produce.add_argument("--one-by-one", action="store_true", help="call send() for each record, not send_many()")
    produce.set_defaults(run=run_produce)

    consume = kinds.add(
        "consume", "Read records as fast as they come.", "fastq perf consume logs --records 5000000 --as arrow"
    )
    consume.add_argument("topics", nargs="+", metavar="TOPIC")
    add_client_options(consume)
    add_json_option(consume)
    consume.add_argument("--group", metavar="ID", help="read as a member of this group")
    consume.add_argument("--records", type=count, default=1_000_000, help="stop after so many (default: %(default)s)")
    consume.add_argument(
        "--as", dest="shape", default="records", choices=["records", "batches", "arrow"], help="how they are asked for"
    )
    consume.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="SECONDS", help="stop when nothing came for so long"
    )
    consume.set_defaults(run=run_consume)


def run_produce(options: argparse.Namespace) -> int:
    value = os.urandom(max(options.size // 2, 1)).hex().encode()[: options.size]
    progress = Progress("sent", options.records)
    done = 0
    latencies: list[float] = []
    outcome: Callable[[float | None], object]
    with opened_producer(options, acks=options.acks, compression_type=options.compression) as producer:
        producer.partitions_for(options.topic)
        start = time.perf_counter()
        while done < options.records:
            chunk = min(CHUNK_RECORDS, options.records - done)
            if options.rate:
                chunk = min(chunk, max(1, int(options.rate / 100)))
                time.sleep(max(0.0, start + done / options.rate - time.perf_counter()))
            began = time.perf_counter()

            def arrived(_: object, began: float = began) -> None:
                latencies.append(time.perf_counter() - began)

            if options.one_by_one:
                for _ in range(chunk - 1):
                    producer.send(options.topic, value)
                last = producer.send(options.topic, value)
                last.add_done_callback(arrived)
                outcome = last.result
            else:
                many = producer.send_many(options.topic, [value] * chunk)
                many.add_done_callback(arrived)
                outcome = many.result
            done += chunk
            progress.update(done)
        producer.flush()
        elapsed = time.perf_counter() - start
        outcome(0)
    progress.close()
    latencies.sort()
    _report(options, done, done * options.size, elapsed, latencies)
    return 0


def run_consume(options: argparse.Namespace) -> int:
    progress = Progress("read", options.records)
    done = size = 0
    settings = {} if options.group is None else {"group_id": options.group}
    with opened_consumer(options, options.topics, auto_offset_reset="earliest", **settings) as consumer:
        start = last = time.perf_counter()
        while done < options.records:
            if options.shape == "records":
                records = consumer.poll(max_records=CHUNK_RECORDS, timeout=options.timeout)
                size += sum(len(record.value or b"") for record in records)
                came = len(records)
            else:
                batch = consumer.poll_batch(timeout=options.timeout)
                came = len(batch)
                if options.shape == "arrow" and came:
                    size += batch.to_arrow(columns=["value"]).nbytes
                else:
                    size += sum(len(value or b"") for value in batch.values)
            if not came:
                check_reachable(consumer)
                break
            done += came
            progress.update(done)
            last = time.perf_counter()  # what is waited for in vain, at the end, is nobody's speed
    progress.close()
    _report(options, done, size, last - start, [])
    if done < options.records:
        complain(f"{done:,} of {options.records:,} records came, then none for {options.timeout:g} s")
    return 0 if done >= options.records else 1


def _report(options: argparse.Namespace, records: int, size: int, elapsed_s: float, latencies: list[float]) -> None:
    figures: dict[str, Any] = {
        "records": records,
        "seconds": round(elapsed_s, 3),
        "records_per_s": round(records / elapsed_s) if elapsed_s else 0,
        "MB_per_s": round(size / elapsed_s / 1e6, 1) if elapsed_s else 0.0,
    }
    for share in (50, 99) if latencies else ():
        figures[f"p{share}_ms"] = round(latencies[min(int(len(latencies) * share / 100), len(latencies) - 1)] * 1e3, 2)
    if options.json:
        print_json(figures)
    else:
        print("  ".join(f"{key} {value:,}" for key, value in figures.items()))
