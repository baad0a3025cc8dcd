"""`python -m simulation --seeds 200`: that many seeds, one after the other; the first that fails is shrunk, and its story told.

Rules: hashes of texts count in what a process does, so it starts itself anew with PYTHONHASHSEED=0: a seed is the same on each day.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--story", action="store_true", help="tell the story of each, also where all held")
    parser.add_argument("--keep", type=Path, default=Path("build/simulation"), help="where stories of failures go")
    parser.add_argument(
        "--mutation", help="put this mistake into the broker, and look for the seed that finds it (all: each)"
    )
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    from simulation.faults import faults_of
    from simulation.scenario import run_seed, shrink

    if given.mutation is not None:
        return find(given.mutation, range(given.seed, given.seed + given.seeds))
    began, virtual_s, records, failed = time.perf_counter(), 0.0, 0, 0
    for seed in range(given.seed, given.seed + given.seeds):
        outcome = run_seed(seed)
        virtual_s += outcome.virtual_s
        records += outcome.records
        if given.story:
            print("\n".join(outcome.story))
        if outcome.problem is None:
            continue
        failed += 1
        print(f"seed {seed} (make simulate SEED={seed} SEEDS=1): {outcome.problem}")
        fewer, shrunk = shrink(seed, faults_of(seed))
        given.keep.mkdir(parents=True, exist_ok=True)
        path = given.keep / f"seed-{seed}.txt"
        path.write_text("\n".join([*map(str, fewer), "", *shrunk.story, ""]))
        print(f"  {len(fewer)} of {len(faults_of(seed))} faults are enough: {shrunk.problem}")
        print("\n".join(f"    {fault}" for fault in fewer))
        print(f"  its story is in {path}")
    real_s = time.perf_counter() - began
    print(
        f"{given.seeds} seeds, {failed} failed; {virtual_s:.0f} s in {real_s:.0f} s, {virtual_s / real_s:.1f} times as fast; "
        f"{records} records acknowledged"
    )
    return 1 if failed else 0


def find(name: str, seeds: range) -> int:
    """Which seed finds a mistake, and finds nothing without it."""
    from simulation.mutations import MUTATIONS, mistaken
    from simulation.scenario import Outcome, run_seed

    def look(seed: int) -> Outcome | None:
        with mistaken(each):
            outcome = run_seed(seed)
        return None if outcome.problem is None or run_seed(seed).problem is not None else outcome

    missed = 0
    for each in MUTATIONS if name == "all" else [name]:
        found = next(filter(None, map(look, seeds)), None)
        missed += found is None
        print(f"{each}: {'not found' if found is None else f'seed {found.seed}: {found.problem}'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
