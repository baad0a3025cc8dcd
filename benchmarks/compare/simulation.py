"""How fast the simulation of the tests is: virtual seconds in a real one, of three nodes with a light load.

    python benchmarks/compare/simulation.py [--rounds 5] [--seconds 120] [--quick]

Rules: three real brokers in one process on virtual time, as `make simulate` has them, with all checks and the same story kept; nothing
befalls them. The load is a producer of ten batches a second, acks=all on three replicas, and a reader of the same partition. Time counts
from the moment that all are up, and until then is not measured. A round is a seed of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from support import ROOT, save

sys.path.insert(0, str(ROOT / "tests"))

from simulation.scenario import Cluster, simulate
from simulation.world import SHARES

PAUSE_S = 0.1


def measure(seed: int, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}

    def light_load(cluster: Cluster) -> None:
        cluster.start()
        cluster.make_topic("t", 1)
        producer = cluster.produce("t", 0)
        producer.pause_s = PAUSE_S
        cluster.read("t", 0)
        cluster.until(10.0, lambda: bool(producer.acknowledged), "no record is acknowledged")
        steps, cpu, start = cluster.world.steps, time.process_time(), time.perf_counter()
        cluster.world.run(seconds)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        figures["times_as_fast"] = seconds / took
        figures["cpu_ms_per_virtual_s"] = cpu / seconds * 1e3
        figures["steps_per_virtual_s"] = (cluster.world.steps - steps) / seconds
        figures["records_per_virtual_s"] = len(producer.acknowledged) / seconds

    outcome = simulate(seed, light_load, SHARES)
    if outcome.problem is not None:
        raise RuntimeError(f"seed {seed}: {outcome.problem}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120.0, help="of virtual time, each round")
    parser.add_argument(
        "--quick", action="store_true", help="to see whether it runs: one short round, nothing is saved"
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed is the same each time
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    if options.quick:
        options.rounds, options.seconds = 1, 10.0
    rounds = []
    for seed in range(options.rounds):
        rounds.append(measure(seed, options.seconds))
        print(f"  seed {seed}  {'  '.join(f'{key}={value:,.4g}' for key, value in rounds[-1].items())}", flush=True)
    middle = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    if not options.quick:
        print(save("simulation", {"medians": middle, "rounds": rounds}))


if __name__ == "__main__":
    main()
