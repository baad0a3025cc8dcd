"""A broker for tests: a real `fastq-broker` process on a free port, gone when the test is.

    from fastq.testing import Broker

    with Broker() as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap_servers)
        broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)

Rules: any Kafka client can use it, and meets its fault switches (`switches.py`). The process gets a directory of its own unless
one is given; its log is kept and shown when it does not start or when the `with` block fails. `kill` is SIGKILL, for tests of
recovery; `stop` is SIGTERM, and fails if the broker does not end cleanly. A broker whose test process dies stops by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fastq.arguments import int_of, mapping_of, text_of
from fastq.testing.switches import Channel, FaultSwitches

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastq.testing.cluster import Cluster as Cluster
    from fastq.testing.registry import SchemaRegistry as SchemaRegistry

__all__ = ["Broker", "BrokerFailed", "Cluster", "SchemaRegistry"]

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class BrokerFailed(RuntimeError):
    """The broker did not start, or did not stop cleanly; the message ends with its log."""


MEMORY_DIR = Path("/dev/shm")


class Broker(FaultSwitches):
    """A broker process; a context manager. Not for use by two threads at once.

    `data_dir`: where it keeps its data (None: a temporary directory, removed at the end; with `in_memory` one that is in memory,
    where the system has such a place). `metrics`: serve metrics and health at `metrics_url`. `config`: settings by Kafka name or
    in Python's spelling. `port` 0 takes a free one, which a restart keeps. `host` must be an address of this machine.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        node_id: int | None = None,
        env: Mapping[str, str] | None = None,
        in_memory: bool = False,
        metrics: bool = False,
    ) -> None:
        self.host = text_of(host, "host")
        self.port = int_of(port, "port", 0, 65535)
        self.config = settings_of(config)
        self.node_id = None if node_id is None else int_of(node_id, "node_id", 0, 2**31 - 1)
        self.env = environment_of(env)
        self._metrics = metrics
        self._own_dir = data_dir is None
        self.data_dir = directory_of(data_dir) if data_dir is not None else temporary_dir(in_memory)
        self._process: subprocess.Popen[str] | None = None
        self._asked_to_stop = False
        self._log: list[str] = []
        self._reader: threading.Thread | None = None
        self.ready_line = ""

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, host:port. RuntimeError before the first start, which takes a free port."""
        if not self.port:
            raise RuntimeError("the broker has no port yet: start() it, or use it in a `with` block")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id. RuntimeError when it does not run."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the broker has logged so far, over all its starts."""
        return "".join(self._log)

    @property
    def metrics_url(self) -> str:
        """Where metrics and health are served, as of the last start. RuntimeError when they are not."""
        found = re.findall(r"metrics and health are served on (\S+)", self.log)
        if not found:
            raise RuntimeError("the broker serves no metrics: start it with metrics=True")
        return f"http://{found[-1]}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """Start it and wait until it says that it is ready. Raises BrokerFailed with its log."""
        self.launch()
        return self.wait_ready(timeout)

    def launch(self) -> None:
        """The first half of `start`, which does not wait."""
        if self.running:
            raise RuntimeError(f"the broker runs already, as process {self.pid}")
        ours, theirs = socket.socketpair()
        self._control = Channel(ours)
        with theirs:
            self._process = subprocess.Popen(
                [*self._arguments(), "--control-fd", str(theirs.fileno())],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=broker_environment(self.env),
                pass_fds=[theirs.fileno()],
            )
        self._reader = threading.Thread(target=self._collect, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """The second half of `start`. Raises BrokerFailed with its log."""
        self.ready_line = self._ready(timeout)
        self.port = int(self.ready_line.split(" in ")[0].rsplit(":", 1)[1])
        return self

    def terminate(self) -> None:
        """SIGTERM, without waiting: the first half of `stop`. A second one tells a node of a cluster not to hand over what it leads."""
        self._asked_to_stop = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """Stop it with SIGTERM and wait; answers the exit code. Raises BrokerFailed when it does not end, or not with 0."""
        process = self._process
        if process is None:
            return 0
        if not self._asked_to_stop:
            self.terminate()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {timeout} s\n{self.log}") from None
        self._ended()
        if code != 0:
            raise BrokerFailed(f"the broker ended with code {code}\n{self.log}")
        return code

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def restart(self) -> Self:
        """Stop it cleanly if it runs, and start it again on the same directory and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it if it still runs, and remove its temporary directory."""
        with contextlib.suppress(BrokerFailed):
            self.stop()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self if self.running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = None
        try:
            self.stop()
        except BrokerFailed as error:
            failed = error
        self.close()
        if exc is not None:
            sys.stderr.write(f"--- log of the broker at {self.host}:{self.port}\n{self.log}---\n")
        elif failed is not None:
            raise failed

    def _arguments(self) -> list[str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        command = [
            sys.executable,
            "-m",
            "fastq_broker",
            "--data-dir",
            str(self.data_dir),
            "--listen",
            f"{host}:{self.port}",
        ]
        if self._metrics:
            command += ["--metrics-listen", f"{host}:0"]
        if self.node_id is not None:
            command += ["--node-id", str(self.node_id)]
        for name, value in self.config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{name}={text}"]
        return command

    def _ready(self, timeout: float) -> str:
        """The line that the broker prints when it is ready."""
        process = self._running()
        lines: list[str] = []
        assert process.stdout is not None
        waiter = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        waiter.start()
        waiter.join(timeout)
        if lines and " ready on " in lines[0]:
            return lines[0].strip()
        ended = process.poll() is not None or (lines and not lines[0])
        self.kill()
        reason = f"ended with code {process.returncode}" if ended else f"was not ready within {timeout} s"
        raise BrokerFailed(f"the broker {reason}\n{self.log}")

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)

    def _ended(self) -> None:
        self._close_control()
        if self._reader is not None:
            self._reader.join(5)
        if self._process is not None:
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
        self._process = self._reader = None
        self._asked_to_stop = False

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the broker does not run")
        return self._process


def settings_of(config: Mapping[str, object] | None) -> dict[str, object]:
    """The settings that were given. Raises TypeError, ValueError."""
    given = mapping_of(config or {}, "config", '{"log.retention.hours": 48}')
    for name, value in given.items():
        if value is None:
            raise ValueError(
                f"config: {text_of(name, 'the name of a setting')} is None; leave it out, and its default holds"
            )
    return {text_of(name, "the name of a setting"): value for name, value in given.items()}


def environment_of(env: Mapping[str, str] | None) -> dict[str, str]:
    """The variables that were given. Raises TypeError, ValueError."""
    given = mapping_of(env or {}, "env", '{"TZ": "UTC"}')
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"env: {text_of(name, 'the name of a variable')} is a str, got {value!r}")
    return {text_of(name, "the name of a variable"): value for name, value in given.items()}


def directory_of(data_dir: str | os.PathLike[str]) -> Path:
    """A directory that was given. Raises TypeError, and ValueError for an empty name, which would be where the process is."""
    if isinstance(data_dir, str):
        return Path(text_of(data_dir, "data_dir"))
    if not isinstance(data_dir, os.PathLike):
        raise TypeError(f"data_dir is a str or a path, got {data_dir!r}")
    return Path(data_dir)


def temporary_dir(in_memory: bool) -> Path:
    memory = MEMORY_DIR if in_memory and os.access(MEMORY_DIR, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="fastq-broker-", dir=memory))


if not TYPE_CHECKING:  # which would take any name for one of the package

    def __getattr__(name):
        # The registry brings an HTTP server along, the cluster an admin client: a test of records needs neither.
        if name not in ("Cluster", "SchemaRegistry"):
            raise AttributeError(f"module 'fastq.testing' has no attribute {name!r}")
        module = importlib.import_module("fastq.testing.cluster" if name == "Cluster" else "fastq.testing.registry")
        return getattr(module, name)


def broker_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The broker's environment. Where bytecode is not to be written beside the sources, it goes to a directory of its own: a
    start that compiles every module takes twice as long."""
    environment = {**os.environ, **extra}
    if environment.get("PYTHONDONTWRITEBYTECODE") and not environment.get("PYTHONPYCACHEPREFIX"):
        directory = _bytecode_dir()
        if directory is not None:
            del environment["PYTHONDONTWRITEBYTECODE"]
            environment["PYTHONPYCACHEPREFIX"] = str(directory)
    return environment


def _bytecode_dir() -> Path | None:
    """A directory that nobody else can write to; None where there cannot be one."""
    if not hasattr(os, "getuid"):
        return None
    path = Path(tempfile.gettempdir()) / f"fastq-bytecode-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if mine else None
