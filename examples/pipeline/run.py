"""Runs the pipeline: two brokers, three jobs as processes, and what is needed to start, kill and finish them.

Rules: a job runs in a session of its own, so that killing it takes its JVM along; its standard error goes to
`home/logs`. Whatever happens, leaving the `with` block ends every process that was started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fastq import Admin, TopicPartition
from fastq.testing import Broker
from pipeline.frontend import create_topics
from pipeline.workload import Replay

EXAMPLES = Path(__file__).resolve().parents[1]
STARTS_WITHIN_S = 120.0
ENDS_WITHIN_S = 150.0


class JobFailed(RuntimeError):
    """A job ended where it should not have; the message ends with its last lines."""


class JobProcess:
    """A job as a process. Not for use by two threads at once."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.said: list[str] = []
        self._running = threading.Event()
        path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"pipeline.{name}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.said.append(text)
            if text == "running":
                self._running.set()
        self._running.set()  # or never will be

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_running(self) -> None:
        """Until its query runs; JobFailed when it ends instead."""
        self._running.wait(STARTS_WITHIN_S)
        if "running" not in self.said:
            self.kill()
            raise self._failure("did not start")

    def finish(self) -> None:
        """Have it finish what is there, and wait for its end; JobFailed when it fails."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.wait()

    def wait(self) -> None:
        """For the end that a job comes to by itself."""
        try:
            code = self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"did not end within {ENDS_WITHIN_S:g} s") from None
        self._reader.join(10)
        if code != 0:
            raise self._failure(f"ended with {code}")

    def kill(self) -> None:
        """SIGKILL for the process and all that it has started: no clean-up, nothing said to anybody."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._reader.join(10)

    def _failure(self, what: str) -> JobFailed:
        lines = deque(self.log.read_text(errors="replace").splitlines(), maxlen=40)
        return JobFailed(f"the job {self.name} {what}; {self.log} ends with:\n" + "\n".join(lines))


class Pipeline:
    """The brokers and the jobs of one run, in the folder `home`; a context manager. Not for use by two threads at once."""

    def __init__(self, workload: str, replay: Replay, home: Path) -> None:
        self.workload = workload
        self.replay = replay
        self.home = home
        self.near = Broker(data_dir=home / "near")
        self.far = Broker(data_dir=home / "far")
        self.jobs: dict[str, JobProcess] = {}

    def __enter__(self) -> Pipeline:
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        try:
            self.near.start()
            self.far.start()
            create_topics(self.near.bootstrap_servers, self.replay)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for job in self.jobs.values():
            job.kill()
        for broker in (self.far, self.near):
            broker.close()

    def start(self, name: str) -> JobProcess:
        """Start a job, for the first time or again."""
        arguments = ["--workload", self.workload, "--home", str(self.home), "--servers", self.near.bootstrap_servers]
        arguments += ["--far-servers", self.far.bootstrap_servers]
        self.jobs[name] = JobProcess(name, arguments, self.home / "logs" / f"{name}.log")
        return self.jobs[name]

    def load(self) -> str:
        """One run of the offline load, to its end; what it said last."""
        job = self.start("offline")
        job.wait()
        return job.said[-1]

    def committed(self, group: str) -> int:
        """How many records a job has committed."""
        partitions = [TopicPartition(topic, p) for topic, count in self.replay.topics.items() for p in range(count)]
        with Admin(bootstrap_servers=self.near.bootstrap_servers) as admin:
            return sum(found.committed or 0 for found in admin.group_lag(group, partitions).results().values())

    def wait_until(self, what: str, done: Callable[[], object], within_s: float = 60.0) -> None:
        """Poll `done()`; TimeoutError names `what`, JobFailed a streaming job that has died meanwhile."""
        end = time.monotonic() + within_s
        while not done():
            for job in self.jobs.values():
                if not job.alive and job.name != "offline":
                    raise job._failure("died")
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {within_s:g} s")
            time.sleep(0.1)
