"""Spark sessions in processes of their own, and Spark's JVM connector for Kafka as a peer.

    with jvm_session(SCRIPTS) as jvm, fastq_session(SCRIPTS) as ours:
        jvm.call("count", format="kafka", servers=servers, topic="logs")      # count(spark, *, format, servers, topic) of SCRIPTS

Rules: nothing here is imported by the product. A session is a process that loads one file of functions and calls them
by name; arguments and results are JSON. The connector comes through Maven, its PySpark through pip into an environment
of its own in `.spark-jvm/`; both are made once. Without Maven or Java `available()` says why, and the callers say it on.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import maven

HERE = Path(__file__).resolve().parent
POM = HERE / "spark" / "pom.xml"
PEER = "Spark's JVM connector"
SERVER = HERE / "spark_server.py"
ENVIRONMENT = HERE.parent / ".spark-jvm"

# As in the POM. PySpark 3.5 is the last one whose connector exists for Scala 2.12, the Scala of PySpark's own wheel.
PYSPARK = "pyspark==3.5.3"

START_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 240.0


def available() -> str | None:
    """None where the JVM connector can be run, else the reason why not, in words for a person."""
    return maven.missing(PEER)


def connector_python() -> Path:
    """The interpreter of the environment with the connector's PySpark; it is made by the first who asks."""
    python = ENVIRONMENT / "bin" / "python"
    made = ENVIRONMENT / "made"
    ENVIRONMENT.mkdir(exist_ok=True)
    with (ENVIRONMENT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = f"{PYSPARK} {sys.version}"
        if not made.exists() or made.read_text() != wanted:
            venv.create(ENVIRONMENT, with_pip=True)
            # setuptools: PySpark 3.5 imports distutils here and there, which newer Pythons left to it
            command = [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "setuptools<81",
                PYSPARK,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{PYSPARK} cannot be installed:\n{done.stdout}\n{done.stderr}")
            made.write_text(wanted)
    return python


class SparkFailed(RuntimeError):
    """What was called in the session raised; the message is its traceback."""


class SparkSession:
    """One Spark session in a process of its own (and the JVM and workers that it starts); a context manager.

    `scripts` is a file of functions whose first parameter is the session. `config` adds to or changes Spark's settings.
    One call at a time; not thread-safe.
    """

    def __init__(self, python: Path, scripts: Path, config: Mapping[str, str], *, path: Sequence[Path] = ()) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="spark-session-"))
        self._log = self._home / "log"
        self._number = 0  # of the last request; the start is answered as number 0
        self._received = b""
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(self._home),
            "spark.sql.warehouse.dir": str(self._home / "warehouse"),
            **config,
        }
        environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "PYTHONPATH")}
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        # For the workers: functions of the scripts travel by name.
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (scripts.parent, *path)))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), str(SERVER), str(scripts), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._home,
                env=environment,
                start_new_session=True,
            )
        try:
            self.version = str(self._answer(START_TIMEOUT_S))
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Of the driver's Python; also the session id (as `ps` knows it) of the JVM and of the workers."""
        return self._process.pid

    def call(self, function: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Call a function of the scripts and return its result; SparkFailed with its traceback if it raised.

        A call that is given up with TimeoutError goes on in the session; its late answer is passed over by the next call.
        """
        assert self._process.stdin is not None
        self._number += 1
        request = {"number": self._number, "call": function, "arguments": arguments}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"the Spark session has ended:\n{self._log_text()}") from None
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            answer = json.loads(self._line(deadline, timeout_s))
            if answer["number"] == self._number:
                break
        if "error" in answer:
            raise SparkFailed(answer["error"])
        return answer["result"]

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._received:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the Spark session did not answer within {timeout_s:g} s:\n{self._log_text()}")
            read = os.read(output, 1 << 20)
            if not read:
                raise RuntimeError(f"the Spark session has ended:\n{self._log_text()}")
            self._received += read
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _log_text(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the session with everything that it has started, by force when that takes longer than `timeout_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout_s)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # the JVM is of this group, and the workers end with it
            except ProcessLookupError:
                pass
            self._process.wait()
            self._process.stdout.close()
            shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> SparkSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def jvm_session(scripts: Path, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session of the connector's PySpark, with the connector: its format is `kafka`."""
    reason = available()
    if reason is not None:
        raise RuntimeError(reason)
    jars = ",".join(maven.jars(POM, PEER))
    return SparkSession(connector_python(), scripts, {"spark.jars": jars, **(config or {})})


def fastq_session(scripts: Path, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session of the PySpark of the running interpreter; its format is `fastq`."""
    # Spark looks for formats in the folders of the path, where an editable install may put nothing.
    root = Path(__file__).resolve().parents[1]
    return SparkSession(Path(sys.executable), scripts, config or {}, path=(root / "src", root / "broker"))


if __name__ == "__main__":  # make all that a session needs, so that no test waits for it
    REASON = available()
    if REASON is None:
        maven.jars(POM, PEER)
        connector_python()
    else:
        print(REASON)
