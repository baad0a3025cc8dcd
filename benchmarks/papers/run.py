"""What the classic texts about Kafka measured, set up as they say, on this machine: papers.json, papers.md and its plots.

    python benchmarks/papers/run.py [--only kafka-2011 linkedin-2014 ...] [--sides fastq ...] [--rounds 3] [--share 1] [--quick]

Rules: sides are interleaved, figures are medians (of the comparisons' own helpers, support.py); results are written after each
experiment, and those of others stay. `--share` runs that part of all numbers of records, and the page says so. `--quick` is for looking
whether it runs: one round of a hundredth, written to build/papers, and a figure of it says nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "benchmarks" / "compare")]

from support import RESULTS, machine, medians, touch_memory  # noqa: E402

# isort: split
import kafka_2011  # noqa: E402
import linkedin_2014  # noqa: E402
import page  # noqa: E402
from experiment import Experiment, Run  # noqa: E402

EXPERIMENTS: Sequence[Experiment] = (
    kafka_2011.PAPER,
    kafka_2011.JAFKA,
    linkedin_2014.TABLE,
    linkedin_2014.MESSAGE_SIZE,
    linkedin_2014.STORED,
)
QUICK = ROOT / "build" / "papers"


def measure(experiments: Sequence[Experiment], run: Run, folder: Path) -> Path:
    """Run them one after the other, and write what is known after each; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "papers.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    for experiment in experiments:
        begun = time.monotonic()
        print(f"{experiment.name}: {experiment.title}", flush=True)
        left_out = {side: reason for side, reason in experiment.left_out(run).items() if run.wants(side)}
        for side, reason in left_out.items():
            print(f"  left out: {side}: {reason}", flush=True)
        rounds = experiment.measure(run)
        document.setdefault("experiments", {})[experiment.name] = {
            "medians": {side: medians(rows) for side, rows in rounds.items()},
            "rounds": rounds,
            "left_out": left_out,
            "share": run.share,
            "count": max(map(len, rounds.values()), default=0),
            "date": time.strftime("%Y-%m-%d"),
        }
        document["machine"] = machine()
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"  {time.monotonic() - begun:.0f} s", flush=True)
        page.write(EXPERIMENTS, document, folder)
    return page.write(EXPERIMENTS, document, folder)


def main() -> None:
    names = [each.name for each in EXPERIMENTS]
    sides = sorted({*kafka_2011.COUNTS, *(side for _, each in linkedin_2014.CLUSTERS.values() for side in each)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--sides", nargs="+", choices=sides, default=[], metavar="SIDE", help=", ".join(sides))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of all numbers of records")
    parser.add_argument("--stored-gb", type=float, default=60, help="100 is the whole: an hour, and so much disk")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--to", type=Path, help="a folder for what is written (default: benchmarks/results)")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    # Every broker is ended then, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = options.to or (QUICK if options.quick else RESULTS)
    chosen = [] if options.page else [each for each in EXPERIMENTS if each.name in options.only]
    run = Run(options.rounds, options.share, frozenset(options.sides), options.stored_gb)
    if options.quick:
        run = Run(1, 0.01, run.sides, 10)
    elif chosen:
        touch_memory()
    print(measure(chosen, run, folder))


if __name__ == "__main__":
    main()
