"""Start-up: an empty directory to ready, and 5,000 partitions after a clean stop to the first acknowledged record.

python benchmarks/compare/partitions.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from support import cpu_seconds, medians, rss_bytes, save, touch_memory

from fastq import Admin, Producer
from fastq.testing import Broker

TOPICS, PARTITIONS = 50, 100


def start_empty() -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-start-"))
    try:
        start = time.perf_counter()
        with Broker(data_dir=folder / "data") as broker:
            ready = time.perf_counter() - start
            with Producer(bootstrap_servers=broker.bootstrap_servers, acks="all") as producer:
                producer.send("first", b"record").result(10)
            acknowledged = time.perf_counter() - start
            time.sleep(2)
            idle = rss_bytes(broker.pid)
        return {"ready_s": ready, "first_acknowledged_s": acknowledged, "idle_rss_MiB": idle / 2**20}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(data_dir: Path) -> None:
    with Broker(data_dir=data_dir) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"topic-{number}", partitions=PARTITIONS, replication_factor=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(TOPICS):
                for partition in range(PARTITIONS):
                    producer.send(f"topic-{number}", b"record", partition=partition)


def restart(data_dir: Path) -> dict[str, float]:
    start = time.perf_counter()
    with Broker(data_dir=data_dir) as broker:
        ready = time.perf_counter() - start
        with Producer(bootstrap_servers=broker.bootstrap_servers, acks="all") as producer:
            producer.send("topic-7", b"record", partition=13).result(30)
        return {
            "ready_s": ready,
            "first_acknowledged_s": time.perf_counter() - start,
            "rss_MiB": rss_bytes(broker.pid) / 2**20,
            "cpu_s": cpu_seconds(broker.pid),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up time, empty and with 5,000 partitions.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    touch_memory()
    empty = [start_empty() for _ in range(options.rounds)]
    print("empty directory:", medians(empty))
    folder = Path(tempfile.mkdtemp(prefix="bench-partitions-"))
    try:
        fill(folder / "data")
        many = [restart(folder / "data") for _ in range(options.rounds)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{TOPICS * PARTITIONS:,} partitions:", medians(many))
    print(
        save(
            "start",
            {"empty": medians(empty), "5000 partitions": medians(many), "rounds": {"empty": empty, "many": many}},
        )
    )


if __name__ == "__main__":
    main()
