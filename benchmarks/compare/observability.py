"""What metrics and tracing cost a client: absent, loaded but off, and on.

    python benchmarks/compare/observability.py [--rounds 9] [--records 4000000]

Rules: one broker for all; every run is a process of its own (see observability_runs.py), in turn; what is off must cost less than
LIMIT. The side `absent again` is the same as `absent`: their ratio is how far two equal sides lie apart on this machine.
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

RUNS = Path(__file__).with_name("observability_runs.py")
PARTITIONS = 3
LIMIT = 1.01
TRACED_SHARE = 20
"""Tracing makes a span for each record, so one in so many records takes as long as all of them without."""

# side -> what observability_runs.py calls it
SIDES = {"absent": "absent", "off": "off", "metrics": "metrics", "tracing": "tracing", "absent again": "absent"}
LOOPS = {"send": "send() loop", "consume": "for record in consumer"}


def measure(target: Target, loop: str, side: str, topic: str, records: int) -> dict[str, float]:
    command = [sys.executable, str(RUNS), loop, side, "--bootstrap", target.bootstrap_servers, "--topic", topic]
    done = subprocess.run(
        [*command, "--records", str(records)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{loop}, {side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="The fastq client with metrics and tracing absent, off and on.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--records", type=int, default=4_000_000, help="of each run; a run with tracing has fewer")
    parser.add_argument("--no-save", action="store_true", help="only show the figures")
    options = parser.parse_args()
    touch_memory()
    with fastq_broker() as target, Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        made = 0

        def sending(side: str, records: int) -> Callable[[], dict[str, float]]:
            def once() -> dict[str, float]:
                nonlocal made
                made += 1
                topic = f"in-{made}"
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
                try:
                    return measure(target, "send", side, topic, records)
                finally:
                    admin.delete_topics([topic])

            return once

        def consuming(side: str, records: int) -> Callable[[], dict[str, float]]:
            return lambda: measure(target, "consume", side, "out", records)

        admin.create_topic("out", partitions=PARTITIONS, replication_factor=1)
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            for start in range(0, options.records + 1, 1_000_000):
                producer.send_many("out", [b"v" * 100] * min(1_000_000, options.records + 1 - start))
        counts = {
            side: max(options.records // TRACED_SHARE, 1) if side == "tracing" else options.records for side in SIDES
        }
        rounds = {
            loop: interleave({side: made_of(SIDES[side], counts[side]) for side in SIDES}, options.rounds)
            for loop, made_of in (("send", sending), ("consume", consuming))
        }
    middle = {loop: {side: medians(rows) for side, rows in sides.items()} for loop, sides in rounds.items()}
    cost = {
        loop: {
            side: sides[side]["cpu_us_per_record"] / sides["absent"]["cpu_us_per_record"]
            for side in SIDES
            if side != "absent"
        }
        for loop, sides in middle.items()
    }
    for loop, ratios in cost.items():
        for side, ratio in ratios.items():
            verdict = "" if side != "off" else " (met)" if ratio < LIMIT else f" (missed: below {LIMIT:g})"
            print(f"{LOOPS[loop]:<24} {side:<14} {ratio:6.3f}x the CPU of absent{verdict}")
    if not options.no_save:
        print(save("observability", {"medians": middle, "cpu_ratio": cost, "rounds": rounds}))


if __name__ == "__main__":
    main()
