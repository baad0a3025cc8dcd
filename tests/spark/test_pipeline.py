"""The pipeline of the examples, with each of its jobs killed at work and started again: all totals agree."""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from pipeline import lines  # noqa: E402
from pipeline.frontend import FrontEnd  # noqa: E402
from pipeline.run import JobFailed, Pipeline  # noqa: E402
from pipeline.verify import check_all  # noqa: E402
from pipeline.workload import Replay, workload  # noqa: E402

SHARED = ROOT.parent / "shared" / "data" / "logs"
SEED = 20261121
LINES = 16_000
SENDS_FOR_S = 15.0
WAIT_S = 200.0


@pytest.fixture(scope="module")
def replay() -> Replay:
    """Logs of eight systems where they are at hand, else those of the examples."""
    folder = SHARED if SHARED.is_dir() else ROOT / "examples" / "data"
    return lines.replay(argparse.Namespace(input=folder, lines_max=LINES, minutes=12))


def kill_at_work(pipeline: Pipeline, name: str, pause_s: float) -> None:
    """Kill a streaming job a moment after its first commit, and start it again."""
    pipeline.wait_until(f"a commit of {name}", lambda: pipeline.committed(name), WAIT_S)
    time.sleep(pause_s)
    pipeline.jobs[name].kill()
    assert not pipeline.jobs[name].alive
    pipeline.start(name)


def kill_while_it_writes(pipeline: Pipeline) -> None:
    """Kill the offline load as soon as a first file of it is there."""
    warehouse = pipeline.home / "warehouse"
    load = pipeline.start("offline")
    pipeline.wait_until("a file", lambda: list(warehouse.rglob("*.parquet*")) or not load.alive, WAIT_S)
    load.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_totals_agree_when_each_job_is_killed(replay: Replay, tmp_path: Path) -> None:
    random_numbers = random.Random(SEED)
    with Pipeline("lines", replay, tmp_path) as pipeline:
        for name in ("realtime", "mirror"):
            pipeline.start(name)
        front_end = FrontEnd(pipeline.near.bootstrap_servers, replay, SENDS_FOR_S)
        front_end.start()
        for name in ("realtime", "mirror"):
            kill_at_work(pipeline, name, random_numbers.uniform(0, 1))
        kill_while_it_writes(pipeline)
        front_end.join()
        assert front_end.failed is None
        load = pipeline.start("offline")
        for name in ("mirror", "realtime"):
            pipeline.jobs[name].finish()
        load.wait()
        assert pipeline.load() == "loaded 0 rows"  # what is there already is not loaded again
        near, far = pipeline.near.bootstrap_servers, pipeline.far.bootstrap_servers
        checks, found = check_all(workload("lines"), replay, front_end.sent, near, far, tmp_path / "warehouse")
    assert [check for check in checks if not check.holds] == []
    assert len(checks) == 7
    assert sum(facts["lines"] for facts in found.facts) == LINES == sum(front_end.sent.values())


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_that_cannot_work_says_why(replay: Replay, tmp_path: Path) -> None:
    """Its topics are gone and its broker too: the one who started it gets the last lines of the job."""
    pipeline = Pipeline("lines", replay, tmp_path)
    with pipeline:
        pipeline.far.stop()
        with pytest.raises(JobFailed, match=r"(?s)mirror did not start.*(refused|connect)"):
            pipeline.start("mirror").wait_running()
    assert not any(job.alive for job in pipeline.jobs.values())
    assert "front end" not in {thread.name for thread in threading.enumerate()}
