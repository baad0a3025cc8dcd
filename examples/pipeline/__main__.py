"""Runs the whole pipeline once and reports: `make pipeline`, `make pipeline-flights`.

    PYTHONPATH=examples python -m pipeline --input /var/log --seconds 60

Rules: what happens is said as it happens, with the time since the start. The exit code is 0 only when all totals agree.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from fastq import TopicPartition
from pipeline.frontend import FrontEnd
from pipeline.monitor import Monitor
from pipeline.run import Pipeline
from pipeline.verify import check_all
from pipeline.workload import GROUPS, Replay, Workload, workload

SAY_EVERY_S = 5.0
FIRST_BATCH_S = 120.0


class Clock:
    """Says what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.start:6.1f} s  {text}", flush=True)


def parse() -> argparse.Namespace:
    examples = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(
        prog="python -m pipeline", description="Logs or flights through fastq and three Spark jobs."
    )
    parser.add_argument("--workload", choices=("lines", "flights"), default="lines")
    parser.add_argument("--input", type=Path, default=examples / "data", help="lines: a log file or a folder of them")
    parser.add_argument(
        "--minutes", type=int, default=30, help="lines: they are laid over so many minutes of replay time"
    )
    parser.add_argument("--lines-max", type=int, default=400_000, help="lines: read no more")
    parser.add_argument("--days", type=int, default=0, help="flights: only the first days of the year (0: all)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the front end sends")
    parser.add_argument(
        "--home", type=Path, default=Path("pipeline-data"), help="all data; emptied first, kept afterwards"
    )
    return parser.parse_args()


def wait_saying(clock: Clock, front_end: FrontEnd, monitor: Monitor, until: float) -> None:
    """Until the front end has sent this share of all, saying how far everybody is."""
    while front_end.progress < until and front_end.is_alive():
        front_end.join(SAY_EVERY_S)
        lags = ", ".join(f"{group} {monitor.lag(group)[-1][1]:,}" for group in GROUPS)
        clock.say(f"sent {front_end.progress:4.0%}; behind: {lags}")
    if front_end.failed is not None:
        raise front_end.failed


def run(clock: Clock, pipeline: Pipeline, replay: Replay, seconds: float) -> tuple[FrontEnd, Monitor]:
    """The three jobs and the front end, until all has been read."""
    for name in ("realtime", "mirror"):
        pipeline.start(name)
    clock.say("started the real-time job and the mirror")
    partitions = [TopicPartition(topic, p) for topic, count in replay.topics.items() for p in range(count)]
    front_end = FrontEnd(pipeline.near.bootstrap_servers, replay, seconds, waits=True)
    front_end.start()
    for name in ("realtime", "mirror"):
        pipeline.jobs[name].wait_running()
        pipeline.wait_until(f"the first batch of {name}", partial(pipeline.committed, name), FIRST_BATCH_S)
    clock.say(f"both have read a first few records; the front end sends the others, for {seconds:g} s")
    with Monitor(pipeline.near.bootstrap_servers, partitions) as monitor:
        front_end.go.set()
        wait_saying(clock, front_end, monitor, 0.3)
        clock.say("started the offline load of what is there")
        offline = pipeline.start("offline")
        wait_saying(clock, front_end, monitor, 1.0)
        front_end.join()
        offline.wait()
        clock.say(
            f"all is sent, in {front_end.took_s:.1f} s; offline load: {offline.said[-1]}; the jobs finish what is there"
        )
        offline = pipeline.start("offline")
        for name in ("mirror", "realtime"):
            pipeline.jobs[name].finish()
            clock.say(f"{name} has finished")
        offline.wait()
        clock.say(f"offline load again: {offline.said[-1]}")
    return front_end, monitor


def describe(work: Workload, replay: Replay, front_end: FrontEnd) -> str:
    topics = f"{len(replay.topics)} topics" if len(replay.topics) > 1 else "one topic"
    rate = len(replay.events) / max(front_end.took_s, 0.001)
    sent = f"{len(replay.events):,} {work.TITLE} sent to {topics} in {front_end.took_s:.1f} s ({rate:,.0f} a second)"
    return f"{sent}, read by three Spark jobs, copied to a second broker."


def main() -> int:
    from pipeline import report

    options, clock = parse(), Clock()
    work = workload(options.workload)
    replay = work.replay(options)
    clock.say(f"{len(replay.events):,} {work.TITLE} for the topics {', '.join(replay.topics)}")
    shutil.rmtree(options.home, ignore_errors=True)
    with Pipeline(options.workload, replay, options.home.resolve()) as pipeline:
        near, far = pipeline.near.bootstrap_servers, pipeline.far.bootstrap_servers
        clock.say(f"brokers ready: {near}, and {far} in the other data centre")
        front_end, monitor = run(clock, pipeline, replay, options.seconds)
        warehouse = pipeline.home / "warehouse"
        checks, found = check_all(work, replay, front_end.sent, near, far, warehouse)
    checks += work.findings(work.totals(replay), found, not options.days)
    title = f"The pipeline on {work.TITLE}"
    folder = options.home / "report"
    text = report.save(
        folder, options.workload, title, describe(work, replay, front_end), checks, found, monitor, warehouse
    )
    print()
    print("\n".join(text))
    print()
    clock.say(f"report: {folder / 'report.html'}, {folder / 'report.png'}; stored data: {warehouse}")
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
