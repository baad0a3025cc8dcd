"""A streaming copy that is killed at random points: of what the source held, the target has every record once.

Rules: a run is one seed, which says what is killed, in which micro-batch and how long after that was planned; it is in the name of
the test. The job is a process of its own (copy_job.py), and is started again until it has ended well. Processes are killed by their
ids, found below that process; what Spark's workers still do after their driver was killed is part of the test. A job is waited for as long
as it works, by what its processes have run and wanted to run: a slow machine is no job that hangs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer, TopicPartition

SEEDS = range(50) if os.environ.get("FASTQ_SOAK") == "1" else (1,)
JOB = Path(__file__).with_name("copy_job.py")
PARTITIONS = 2
RECORDS = 24_000
BATCHES = 6  # as copy_job makes them
WORK_MAX_S = 300.0  # of processors, for one step of a job: it takes some twenty
STILL_S = 60.0  # who has not wanted a processor for a twentieth of this time hangs
DELAY_MAX_S = 1.5


def children(pid: int) -> Iterator[int]:
    """All processes below one, parents first."""
    with contextlib.suppress(OSError):  # one that has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from children(child)


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Work:
    """What processes have done between the looks at them. `ran_s`: on a processor; `wanted_s`: on one or waiting for one."""

    def __init__(self) -> None:
        self.ran_s = self.wanted_s = 0.0
        self._seen: dict[str, tuple[int, int]] = {}

    def look(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):  # one that has ended
                for task in Path(f"/proc/{pid}/task").iterdir():
                    ran, waited = map(int, (task / "schedstat").read_text().split()[:2])
                    ran_before, waited_before = self._seen.get(task.name, (0, 0))
                    self._seen[task.name] = ran, waited
                    self.ran_s += max(0, ran - ran_before) / 1e9
                    self.wanted_s += (max(0, ran - ran_before) + max(0, waited - waited_before)) / 1e9


class Job:
    """The copy as a process in a group of its own."""

    def __init__(self, arguments: list[str], environment: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def below(self) -> list[int]:
        return list(children(self.process.pid))

    def kill_driver(self, workers_too: bool) -> None:
        """The Python and the Java of the driver; its workers, where they are left, find out by themselves."""
        found = self.below()
        doomed = found if workers_too else [pid for pid in found if "java" in command(pid).split(" ")[0]]
        for pid in [self.process.pid, *doomed]:
            end(pid)
        self.process.wait()

    def kill_a_worker(self, rng: random.Random) -> bool:
        """One of the Python processes that work for the Java. False when there was none."""
        workers = [
            pid for pid in self.below() if "pyspark" in command(pid) and "java" not in command(pid).split(" ")[0]
        ]
        if workers:
            end(rng.choice(workers))
        return bool(workers)

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        """Until `done()`, as long as the job works for it."""
        work = Work()
        until = time.monotonic() + STILL_S
        look_at, wanted_s = time.monotonic(), 0.0
        while not done():
            time.sleep(0.005)
            now = time.monotonic()
            if now >= look_at:
                work.look([self.process.pid, *self.below()])
                look_at = now + 1.0
                assert work.ran_s < WORK_MAX_S, f"{what} after {work.ran_s:.0f} s of work\n{self.tail()}"
            if now >= until:
                assert work.wanted_s - wanted_s > STILL_S / 20, f"{what}, and the job does nothing\n{self.tail()}"
                until, wanted_s = now + STILL_S, work.wanted_s

    def ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        for pid in [*self.below(), self.process.pid]:
            end(pid)
        self.process.wait()

    def tail(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]


@pytest.fixture
def topics(bootstrap_servers: str, make_topic: Callable[..., str]) -> tuple[str, str]:
    """A topic with records, and one to copy them to."""
    source, target = make_topic(bootstrap_servers, PARTITIONS), make_topic(bootstrap_servers, PARTITIONS)
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            values = [b"%d" % number for number in range(RECORDS // PARTITIONS)]
            producer.send_many(source, values, partition=partition)
    return source, target


def copied(servers: str, topic: str) -> Counter[bytes]:
    """What a reader of committed records finds."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: Counter[bytes] = Counter()
    with Admin(bootstrap_servers=servers) as admin:
        outcomes = admin.list_offsets(dict.fromkeys(partitions, -1), read_committed=True).results()
    ends = {tp: found.offset for tp, found in outcomes.items()}
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=servers, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign(partitions)
        still_until = time.monotonic() + STILL_S
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if records := consumer.poll(timeout=1.0):
                still_until = time.monotonic() + STILL_S
            assert time.monotonic() < still_until, "the target could not be read to its end"
            found.update(record.value for record in records if record.value is not None)
    return found


def wait_until_planned(job: Job, checkpoint: Path, batch: int) -> bool:
    """Until a micro-batch is planned. False when the job has ended before."""
    planned = checkpoint / "offsets" / str(batch)
    job.wait_for(lambda: planned.exists() or job.ended(), f"micro-batch {batch} does not come")
    return planned.exists()


def kill_once(job: Job, checkpoint: Path, rng: random.Random, what: str) -> bool:
    """Wait for the point in time of this seed and kill. False when the job had ended before it."""
    done = len(list((checkpoint / "commits").glob("[0-9]*")))
    batch = rng.randrange(min(done, BATCHES - 2), BATCHES - 1)
    delay = rng.random() ** 2 * DELAY_MAX_S
    print(f"kill {what}: {delay * 1000:.0f} ms after micro-batch {batch} is planned")
    if not wait_until_planned(job, checkpoint, batch):
        return False
    time.sleep(delay)
    if job.ended():
        return False
    if what == "a worker":
        return job.kill_a_worker(rng)
    job.kill_driver(workers_too=what == "the driver and its workers")
    return True


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_that_is_killed_has_every_record_once(
    seed: int, bootstrap_servers: str, topics: tuple[str, str], spark_environment: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    source, target = topics
    what = ("a worker", "the driver", "the driver and its workers")[seed % 3]
    checkpoint = tmp_path / "checkpoint"
    arguments = [bootstrap_servers, source, target, str(checkpoint), "exactly-once"]
    killed = 0
    for attempt in range(5):
        job = Job(arguments, spark_environment, tmp_path / f"job-{attempt}.log")
        try:
            hit = killed < 1 + seed % 2 and kill_once(job, checkpoint, rng, what)
            killed += hit
            job.wait_for(job.ended, "the job does not end")
            code = job.process.returncode
        finally:
            job.close()
        # A worker may also be the process that plans for the query, with which the query ends.
        assert code == 0 or hit, f"seed {seed}: the copy failed\n{job.tail()}"
        if code == 0:
            break
    found = copied(bootstrap_servers, target)
    wanted = Counter(
        b"%d:%d:%d" % (partition, offset, offset)
        for partition in range(PARTITIONS)
        for offset in range(RECORDS // PARTITIONS)
    )
    missing, double = wanted - found, found - wanted
    assert not missing, f"seed {seed}: {missing.total()} records are missing, such as {next(iter(missing))!r}"
    assert not double, f"seed {seed}: {double.total()} records are double or foreign, such as {next(iter(double))!r}"
