"""The fastq client against confluent-kafka, kafka-python and aiokafka on the same fastq broker.

    python benchmarks/compare/clients.py [--rounds 5] [--only fastq-send confluent-produce]

Rules: one broker for all; every run is a process of its own (see client_runs.py), in turn; produce runs write to a
topic that is made anew each round; consume runs read one topic that is filled once and lies in the page cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support import Target, fastq_broker, interleave, medians, save, touch_memory

from fastq import Admin, Producer

RUNS = Path(__file__).with_name("client_runs.py")
PARTITIONS = 3

# run -> records of one round: a second or more of work for each
PRODUCE = {
    "fastq-send": 4_000_000,
    "confluent-produce": 2_000_000,
    "fastq-send-zstd": 2_000_000,
    "confluent-produce-zstd": 1_000_000,
    "fastq-send-many": 8_000_000,
    "fastq-async-send": 2_000_000,
    "aiokafka-send": 200_000,
    "kafka-python-send": 60_000,
}
CONSUME = {
    "fastq-iterate": 6_000_000,
    "fastq-arrow": 8_000_000,
    "confluent-consume": 1_000_000,
    "fastq-async-iterate": 2_000_000,
    "aiokafka-iterate": 400_000,
    "kafka-python-iterate": 100_000,
}
# figure of the results table -> (ours, theirs)
RATIOS = {
    "send() loop, acks=all": ("fastq-send", "confluent-produce"),
    "send() loop, zstd, log lines": ("fastq-send-zstd", "confluent-produce-zstd"),
    "send_many() of a list": ("fastq-send-many", "confluent-produce"),
    "for record in consumer": ("fastq-iterate", "confluent-consume"),
    "poll_batch().to_arrow()": ("fastq-arrow", "confluent-consume"),
    "await send() loop": ("fastq-async-send", "aiokafka-send"),
    "async for": ("fastq-async-iterate", "aiokafka-iterate"),
    "send() loop against kafka-python": ("fastq-send", "kafka-python-send"),
    "for record against kafka-python": ("fastq-iterate", "kafka-python-iterate"),
    "await send() against the sync path": ("fastq-async-send", "fastq-send"),
    "async for against the sync path": ("fastq-async-iterate", "fastq-iterate"),
}


TOUCHED_BYTES = 2 << 30
"""Before each run that produces: more than the log of it takes, so that no page of it is the machine's first touch."""


def measure(target: Target, run: str, topic: str, records: int) -> dict[str, float]:
    command = [sys.executable, str(RUNS), run, "--bootstrap", target.bootstrap_servers, "--topic", topic]
    done = subprocess.run(
        [*command, "--records", str(records)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{run} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="The fastq client against its peers on one fastq broker.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[*PRODUCE, *CONSUME])
    options = parser.parse_args()
    touch_memory()
    chosen = set(options.only or [*PRODUCE, *CONSUME])
    with fastq_broker() as target, Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        produce = {run: count for run, count in PRODUCE.items() if run in chosen}
        consume = {run: count for run, count in CONSUME.items() if run in chosen}
        made = 0

        def producing(run: str, records: int) -> Callable[[], dict[str, float]]:
            def once() -> dict[str, float]:
                nonlocal made
                made += 1
                topic = f"in-{made}"
                gone_at_once = {"file.delete.delay.ms": "0"}
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1, configs=gone_at_once)
                touch_memory(TOUCHED_BYTES)
                try:
                    return measure(target, run, topic, records)
                finally:
                    admin.delete_topics([topic])

            return once

        rounds = interleave({run: producing(run, count) for run, count in produce.items()}, options.rounds)
        if consume:
            admin.create_topic("out", partitions=PARTITIONS, replication_factor=1)
            with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
                for _ in range(9):
                    producer.send_many("out", [b"v" * 100] * 1_000_000)
            sides = {
                run: (lambda run=run, count=count: measure(target, run, "out", count)) for run, count in consume.items()
            }
            rounds |= interleave(sides, options.rounds)
    middle = {run: medians(rows) for run, rows in rounds.items()}
    ratios = {
        title: middle[ours]["records_per_s"] / middle[theirs]["records_per_s"]
        for title, (ours, theirs) in RATIOS.items()
        if ours in middle and theirs in middle
    }
    for title, ratio in ratios.items():
        print(f"{title:<38} {ratio:6.2f}x")
    if not options.only:
        print(save("clients", {"medians": middle, "ratios": ratios, "rounds": rounds}))


if __name__ == "__main__":
    main()
