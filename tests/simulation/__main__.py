"""`python -m simulation --seeds 200`: that many seeds, one after the other; the first that fails is shrunk, and its story told.

Rules: hashes of texts count in what a process does, so it starts itself anew with PYTHONHASHSEED=0: a seed is the same on each day.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.scenario import Outcome


class Report:
    """What is told of a run, and written to a file at its end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: list[str] = []
        self._began_s = time.perf_counter()
        self._outcomes: list[tuple[int, float, int, int]] = []
        """Seed, virtual seconds, events, records acknowledged."""
        self.failed = 0

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append((outcome.seed, outcome.virtual_s, outcome.steps, outcome.records))
        self.failed += outcome.problem is not None

    def say(self, line: str) -> None:
        self._lines.append(line)
        print(line, flush=True)

    def end(self) -> None:
        from simulation.world import SHARES, World

        seeds, virtual, steps, records = zip(*self._outcomes, strict=True)
        real_s = time.perf_counter() - self._began_s
        self.say(
            f"{len(seeds)} seeds from {seeds[0]} on, {self.failed} failed; {sum(virtual):.0f} s in {real_s:.0f} s, "
            f"{sum(virtual) / real_s:.1f} times as fast, at a load of {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores; "
            f"{sum(steps)} events; {sum(records)} records acknowledged"
        )
        kinds = (f"{kind} {sum(World(seed).has(kind) for seed in seeds)}" for kind in SHARES)
        self.say(f"seeds with trouble that lasts: {', '.join(kinds)}")
        if self._path is not None:
            commit = subprocess.run(
                ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
            )
            head = f"# Whole clusters on virtual time (make simulate), {time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip()}"
            self._path.write_text("\n".join([head, *self._lines, ""]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--story", action="store_true", help="tell the story of each, also where all held")
    parser.add_argument("--keep", type=Path, default=Path("build/simulation"), help="where stories of failures go")
    parser.add_argument("--results", type=Path, help="a file for what was found, with the day and the commit")
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
    report = Report(given.results)
    for seed in range(given.seed, given.seed + given.seeds):
        outcome = run_seed(seed)
        report.add(outcome)
        if given.story:
            print("\n".join(outcome.story))
        if outcome.problem is None:
            continue
        report.say(f"seed {seed} (make simulate SEED={seed} SEEDS=1): {outcome.problem}")
        fewer, shrunk = shrink(seed, faults_of(seed))
        given.keep.mkdir(parents=True, exist_ok=True)
        path = given.keep / f"seed-{seed}.txt"
        path.write_text("\n".join([*map(str, fewer), "", *shrunk.story, ""]))
        report.say(f"  {len(fewer)} of {len(faults_of(seed))} faults are enough: {shrunk.problem}")
        for fault in fewer:
            report.say(f"    {fault}")
        print(f"  its story is in {path}")
    report.end()
    return 1 if report.failed else 0


def find(name: str, seeds: range) -> int:
    """Which seed finds a mistake, that of the table before others; with `all`, each of them."""
    from simulation.hunt import hunt
    from simulation.mutations import MUTATIONS

    missed = 0
    for each in MUTATIONS if name == "all" else [name]:
        found = hunt(each, seeds)
        missed += found is None
        print(f"{each}: {'not found' if found is None else f'seed {found.seed}: {found.problem}'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
