"""Resident memory of a producer over 10 million sends without a poll, against its buffer_memory.

python benchmarks/compare/memory.py [--records 10000000]
"""

from __future__ import annotations

import argparse
import os
import threading

from support import fastq_broker, rss_bytes, save

from fastq import Admin, Producer

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description="A producer's memory over many sends without a poll.")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--buffer-memory", type=int, default=32 * MIB, help="bytes (Kafka's default)")
    options = parser.parse_args()
    done = threading.Event()
    highest = 0

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.05):
            highest = max(highest, rss_bytes(os.getpid()))

    with fastq_broker() as target:
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            admin.create_topic("memory", partitions=3, replication_factor=1)
        with Producer(bootstrap_servers=target.bootstrap_servers, buffer_memory=options.buffer_memory) as producer:
            producer.send("memory", b"first").result(10)
            before = rss_bytes(os.getpid())
            watcher = threading.Thread(target=watch)
            watcher.start()
            value = b"v" * 100
            for _ in range(options.records):
                producer.send("memory", value)
            producer.flush()
            done.set()
            watcher.join()
    grown = (highest - before) / MIB
    bound = options.buffer_memory / MIB + 64
    print(
        f"grew by {grown:,.1f} MiB over {options.records:,} sends; the bound is {bound:,.0f} MiB; highest {highest / MIB:,.1f} MiB"
    )
    figures = {"grown_MiB": grown, "highest_rss_MiB": highest / MIB, "bound_MiB": bound, "records": options.records}
    print(save("memory", figures))


if __name__ == "__main__":
    main()
