"""End-to-end latency at a steady rate: fastq's producer and consumer against confluent-kafka's, on one fastq broker.

    python benchmarks/compare/latency.py [--rounds 5] [--rates 100 10000 100000] [--quick]

Rules: the peer runs with its defaults and with its best settings (latency_runs.py); a ratio is that against the lower of its two figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support import Target, fastq_broker, interleave, medians, save, touch_memory

from fastq import Admin

RUNS = Path(__file__).with_name("latency_runs.py")
LIBRARIES = ("fastq", "confluent", "confluent-best")
RATES = (100.0, 10_000.0, 100_000.0)


def measure(target: Target, library: str, topic: str, records: int, rate: float) -> dict[str, float]:
    where = ["--bootstrap", target.bootstrap_servers, "--topic", topic, "--records", str(records), "--rate", str(rate)]
    with subprocess.Popen(
        [sys.executable, str(RUNS), "consume", library, *where], stdout=subprocess.PIPE, text=True
    ) as reader:
        time.sleep(1)  # the consumer waits at the end of the log before the first record is sent
        sender = subprocess.run(
            [sys.executable, str(RUNS), "produce", library, *where],
            check=True,
            timeout=120,
            stdout=subprocess.PIPE,
            text=True,
        )
        output, _ = reader.communicate(timeout=60)
    return {**json.loads(output.splitlines()[-1]), **json.loads(sender.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description="End-to-end latency at steady rates, linger 0, acks=1.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="records a second")
    parser.add_argument("--seconds", type=float, default=6, help="of each round; the first is not counted")
    parser.add_argument(
        "--quick", action="store_true", help="to see whether it runs: one short round, nothing is saved"
    )
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2
    else:
        touch_memory()
    made = 0

    def side(target: Target, admin: Admin, library: str, rate: float) -> Callable[[], dict[str, float]]:
        def once() -> dict[str, float]:
            nonlocal made
            made += 1
            admin.create_topic(f"latency-{made}", partitions=1, replication_factor=1)
            return measure(target, library, f"latency-{made}", int(rate * options.seconds), rate)

        return once

    document: dict[str, dict[str, object]] = {}
    with fastq_broker() as target, Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        for rate in options.rates:
            sides = {library: side(target, admin, library, rate) for library in LIBRARIES}
            rounds = interleave(sides, options.rounds)
            middle = {library: medians(rows) for library, rows in rounds.items()}
            ratio = {
                key: ours / min(middle[peer][key] for peer in LIBRARIES[1:]) for key, ours in middle["fastq"].items()
            }
            shown = "  ".join(f"{key} {value:.2f}" for key, value in ratio.items())
            print(f"{rate:,.0f}/s, fastq / confluent: {shown}")
            document[f"{rate:.0f}/s"] = {"medians": middle, "ratio": ratio, "rounds": rounds}
    if not options.quick:
        print(save("latency", document))


if __name__ == "__main__":
    main()
