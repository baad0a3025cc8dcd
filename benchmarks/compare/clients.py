"""The fastq client against confluent-kafka, kafka-python, aiokafka and the Java clients on the same fastq broker.

    python benchmarks/compare/clients.py [--rounds 5] [--only fastq-send confluent-produce-best] [--shapes mix "10 B"]

Rules: one broker for all; every run is a process of its own (see client_runs.py), in turn; produce runs write to a topic that is
made anew each round; consume runs read one topic a shape that is filled once and lies in the page cache. A peer runs with its
defaults and with its best settings, and a ratio is that against the faster of the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import client_values
from client_runs import PARTITIONS
from support import Target, fastq_broker, interleave, medians, save, touch_memory

from fastq import Admin, Producer

RUNS = Path(__file__).with_name("client_runs.py")

# shape -> run -> records of one round: a second or more of work for each
PRODUCE: dict[str, dict[str, int]] = {
    "mix": {
        "fastq-send": 2_000_000,
        "fastq-send-many": 2_000_000,
        "fastq-async-send": 1_000_000,
        "confluent-produce": 1_000_000,
        "confluent-produce-best": 1_000_000,
        "java-produce": 2_000_000,
        "java-produce-best": 2_000_000,
        "aiokafka-send": 150_000,
        "aiokafka-send-best": 150_000,
        "kafka-python-send": 50_000,
        "kafka-python-send-best": 50_000,
    },
    "100 B": {
        "fastq-send": 4_000_000,
        "fastq-send-many": 8_000_000,
        "confluent-produce": 2_000_000,
        "confluent-produce-best": 2_000_000,
        "java-produce": 4_000_000,
        "java-produce-best": 4_000_000,
        "fastq-async-send": 2_000_000,
        "aiokafka-send": 150_000,
        "aiokafka-send-best": 150_000,
    },
    "log lines": {
        "fastq-send-zstd": 2_000_000,
        "confluent-produce-zstd": 1_000_000,
        "confluent-produce-zstd-best": 1_000_000,
    },
    "10 B": {"fastq-send": 6_000_000, "confluent-produce": 2_000_000, "confluent-produce-best": 2_000_000},
    "10 KB": {"fastq-send": 150_000, "confluent-produce": 150_000, "confluent-produce-best": 150_000},
}
CONSUME: dict[str, dict[str, int]] = {
    "mix": {
        "fastq-iterate": 3_000_000,
        "fastq-arrow": 3_000_000,
        "bare-fetch": 5_000_000,
        "fastq-async-iterate": 1_500_000,
        "confluent-consume": 600_000,
        "confluent-consume-best": 1_000_000,
        "java-consume": 3_000_000,
        "java-consume-best": 3_000_000,
        "aiokafka-iterate": 300_000,
        "aiokafka-getmany-best": 300_000,
        "kafka-python-iterate": 100_000,
        "kafka-python-iterate-best": 100_000,
    },
    "100 B": {
        "fastq-iterate": 6_000_000,
        "fastq-arrow": 8_000_000,
        "bare-fetch": 16_000_000,
        "confluent-consume": 1_000_000,
        "confluent-consume-best": 2_000_000,
        "java-consume": 6_000_000,
        "java-consume-best": 6_000_000,
        "fastq-async-iterate": 4_000_000,
        "aiokafka-iterate": 400_000,
        "aiokafka-getmany-best": 600_000,
    },
    "10 B": {"fastq-iterate": 8_000_000, "confluent-consume": 1_000_000, "confluent-consume-best": 2_000_000},
    "10 KB": {"fastq-iterate": 150_000, "confluent-consume": 150_000, "confluent-consume-best": 150_000},
}
# figure of the results table -> (shape, ours, theirs: the best one counts)
RATIOS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "send() loop / confluent-kafka": ("mix", "fastq-send", ("confluent-produce", "confluent-produce-best")),
    "send_many() of a list / confluent-kafka": ("mix", "fastq-send-many", ("confluent-produce", "confluent-produce-best")),
    "send() loop / Java": ("mix", "fastq-send", ("java-produce", "java-produce-best")),
    "send() loop / kafka-python": ("mix", "fastq-send", ("kafka-python-send", "kafka-python-send-best")),
    "await send() loop / aiokafka": ("mix", "fastq-async-send", ("aiokafka-send", "aiokafka-send-best")),
    "await send() loop, 100 B / aiokafka": ("100 B", "fastq-async-send", ("aiokafka-send", "aiokafka-send-best")),
    "async for, 100 B / aiokafka": ("100 B", "fastq-async-iterate", ("aiokafka-iterate", "aiokafka-getmany-best")),
    "await send() / the sync path": ("mix", "fastq-async-send", ("fastq-send",)),
    "send() loop, 100 B / confluent-kafka": ("100 B", "fastq-send", ("confluent-produce", "confluent-produce-best")),
    "send() loop, 100 B / Java": ("100 B", "fastq-send", ("java-produce", "java-produce-best")),
    "send_many(), 100 B / confluent-kafka": ("100 B", "fastq-send-many", ("confluent-produce", "confluent-produce-best")),
    "send() loop, 10 B / confluent-kafka": ("10 B", "fastq-send", ("confluent-produce", "confluent-produce-best")),
    "send() loop, 10 KB / confluent-kafka": ("10 KB", "fastq-send", ("confluent-produce", "confluent-produce-best")),
    "send() loop, zstd, log lines / confluent-kafka": (
        "log lines", "fastq-send-zstd", ("confluent-produce-zstd", "confluent-produce-zstd-best"),
    ),
    "for record in consumer / confluent-kafka": ("mix", "fastq-iterate", ("confluent-consume", "confluent-consume-best")),
    "to_arrow() / confluent-kafka": ("mix", "fastq-arrow", ("confluent-consume", "confluent-consume-best")),
    "to_arrow() / what loopback gives: fetches that nobody reads": ("mix", "fastq-arrow", ("bare-fetch",)),
    "to_arrow(), 100 B / what loopback gives": ("100 B", "fastq-arrow", ("bare-fetch",)),
    "for record in consumer / Java": ("mix", "fastq-iterate", ("java-consume", "java-consume-best")),
    "for record in consumer / kafka-python": (
        "mix", "fastq-iterate", ("kafka-python-iterate", "kafka-python-iterate-best"),
    ),
    "async for / aiokafka": ("mix", "fastq-async-iterate", ("aiokafka-iterate", "aiokafka-getmany-best")),
    "async for / the sync path": ("mix", "fastq-async-iterate", ("fastq-iterate",)),
    "for record, 100 B / confluent-kafka": ("100 B", "fastq-iterate", ("confluent-consume", "confluent-consume-best")),
    "for record, 100 B / Java": ("100 B", "fastq-iterate", ("java-consume", "java-consume-best")),
    "to_arrow(), 100 B / confluent-kafka": ("100 B", "fastq-arrow", ("confluent-consume", "confluent-consume-best")),
    "for record, 10 B / confluent-kafka": ("10 B", "fastq-iterate", ("confluent-consume", "confluent-consume-best")),
    "for record, 10 KB / confluent-kafka": ("10 KB", "fastq-iterate", ("confluent-consume", "confluent-consume-best")),
}  # fmt: skip

TOUCHED_BYTES = 2 << 30
"""Before each run that produces: more than the log of it takes, so that no page of it is the machine's first touch."""


def measure(target: Target, run: str, topic: str, shape: str, records: int) -> dict[str, float]:
    command = [sys.executable, str(RUNS), run, "--bootstrap", target.bootstrap_servers, "--topic", topic]
    done = subprocess.run(
        [*command, "--records", str(records), "--shape", shape],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{run} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def ratios(middle: dict[str, dict[str, float]], key: str) -> dict[str, float]:
    """Ours against the faster of the peer's runs: of the rate, or of the CPU a record of that same run."""
    found = {}
    for title, (shape, ours, theirs) in RATIOS.items():
        runs = [f"{shape}: {run}" for run in theirs if f"{shape}: {run}" in middle]
        if f"{shape}: {ours}" in middle and runs:
            fastest = max(runs, key=lambda run: middle[run]["records_per_s"])
            found[title] = middle[f"{shape}: {ours}"][key] / middle[fastest][key]
    return found


def main() -> None:
    every = sorted({run for table in (PRODUCE, CONSUME) for runs in table.values() for run in runs})
    parser = argparse.ArgumentParser(description="The fastq client against its peers on one fastq broker.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=every)
    parser.add_argument("--shapes", nargs="+", choices=client_values.SHAPES)
    parser.add_argument(
        "--quick", action="store_true", help="to see whether it runs: a round of few records, nothing is saved"
    )
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    else:
        touch_memory()
    chosen, shapes = set(options.only or every), set(options.shapes or client_values.SHAPES)
    rounds: dict[str, list[dict[str, float]]] = {}

    def size(records: int) -> int:
        return max(records // 50, 2_000) if options.quick else records

    with fastq_broker() as target, Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        made = 0

        def producing(run: str, shape: str, records: int) -> Callable[[], dict[str, float]]:
            def once() -> dict[str, float]:
                nonlocal made
                made += 1
                topic = f"in-{made}"
                gone_at_once = {"file.delete.delay.ms": "0"}
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1, configs=gone_at_once)
                touch_memory(TOUCHED_BYTES)
                try:
                    return measure(target, run, topic, shape, records)
                finally:
                    admin.delete_topics([topic])

            return once

        for shape, runs in PRODUCE.items():
            sides = {
                f"{shape}: {run}": producing(run, shape, size(count))
                for run, count in runs.items()
                if shape in shapes and run in chosen
            }
            rounds |= interleave(sides, options.rounds)
        for shape, runs in CONSUME.items():
            wanted = {run: size(count) for run, count in runs.items() if shape in shapes and run in chosen}
            if not wanted:
                continue
            topic = f"out-{shape.replace(' ', '-')}"
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
            records = max(wanted.values()) * 9 // 8  # no run reads to the very end
            keys = client_values.keys(records) if shape == "mix" else None
            with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
                producer.send_many(topic, client_values.values(shape, records), keys=keys).result(60)
            reading = {
                f"{shape}: {run}": (
                    lambda run=run, count=count, topic=topic, shape=shape: measure(target, run, topic, shape, count)
                )
                for run, count in wanted.items()
            }
            rounds |= interleave(reading, options.rounds)
            admin.delete_topics([topic])
    middle = {run: medians(rows) for run, rows in rounds.items()}
    rate, cpu = ratios(middle, "records_per_s"), ratios(middle, "cpu_us_per_record")
    for title in rate:
        print(f"{title:<52} {rate[title]:6.2f}x  CPU a record {cpu[title]:6.3f}x")
    if not options.only and not options.shapes and not options.quick:
        print(save("clients", {"medians": middle, "ratios": rate, "cpu_ratios": cpu, "rounds": rounds}))


if __name__ == "__main__":
    main()
