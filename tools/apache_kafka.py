"""Apache Kafka as an oracle and a peer: fetched through Maven, formatted, started on loopback, its tools run.

Rules: nothing here is imported by the product. One node, combined broker and controller, its own process group,
always ended by its process id. Without Maven or Java `available()` says why, and the callers say it on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import maven

HERE = Path(__file__).resolve().parent
POM = HERE / "kafka" / "pom.xml"
PEER = "Apache Kafka"

# Kafka logs to the console through log4j2; warnings are enough to see why it did not start.
LOG4J2 = """
Configuration:
  status: "WARN"
  Appenders: {Console: {name: console, target: SYSTEM_ERR, PatternLayout: {pattern: "%d %p %m (%c)%n"}}}
  Loggers: {Root: {level: WARN, AppenderRef: {ref: console}}}
"""


def available() -> str | None:
    """None where Apache Kafka can be run, else the reason why not, in words for a person."""
    return maven.missing(PEER)


def class_path() -> str:
    """The class path of Apache Kafka and its tools."""
    return ":".join(maven.jars(POM, PEER))


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str | bytes | None = None,
    timeout: float = 120.0,
    check: bool = True,
    heap: str = "256m",
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line classes and return what it printed; raises with its output when it fails."""
    text = stdin.decode() if isinstance(stdin, bytes) else stdin
    command = _command(main_class, arguments, heap)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{main_class} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return done


def _command(main_class: str, arguments: Sequence[str], heap: str) -> list[str]:
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", class_path(), main_class, *arguments]


@contextmanager
def started_tool(main_class: str, *arguments: str, heap: str = "256m") -> Iterator[list[str]]:
    """One of Kafka's classes that runs beside the caller: the lines it has printed so far, in a list that grows.

    It is asked to end (SIGTERM) when the block is left, and waited for, a minute at most.
    """
    lines: list[str] = []
    process = subprocess.Popen(_command(main_class, arguments, heap), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


class Tools:
    """Kafka's command-line classes in one virtual machine, one after the other (`KafkaTools.java`); a context manager. Not thread-safe."""

    def __init__(self, heap: str = "256m") -> None:
        self._process = subprocess.Popen(
            _command(str(HERE.parent / "tests" / "interop" / "KafkaTools.java"), (), heap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, main_class: str, *arguments: str) -> tuple[int, str]:
        """The code that one ends with, and what it prints, errors too."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"class": main_class, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the virtual machine ended with {self._process.wait()} amid {main_class} {arguments}")
        answer = json.loads(line)
        return answer["code"], answer["printed"]

    def __enter__(self) -> Tools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def random_cluster_id() -> str:
    """A cluster id as Kafka's own tool makes them."""
    return run_tool("kafka.tools.StorageTool", "random-uuid").stdout.split()[-1]


class ApacheKafka:
    """One Apache Kafka node in KRaft mode on loopback; a context manager.

    `data_dir` is kept when given, so that a directory can move between brokers; else it is temporary.
    `properties` override or extend the server's properties, None takes one away: with controller.quorum.voters it is one of several
    controllers, of the cluster `cluster_id`; with `initial_controllers` too, which `format` writes down. `java_options` are the machine's.
    Not thread-safe.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        properties: Mapping[str, str | None] | None = None,
        heap: str = "1g",
        format_storage: bool = True,
        cluster_id: str | None = None,
        initial_controllers: str | None = None,
        java_options: Sequence[str] = ("-XX:+UseG1GC",),
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        # Of one that is killed, too.
        self._clear = weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)
        self.data_dir = data_dir or self._home / "data"
        self.port = free_port()
        self.controller_port = free_port()
        self.heap = heap
        self._format = format_storage
        self._cluster_id = cluster_id
        self._initial_controllers = initial_controllers
        self._java_options = java_options
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._home / "server.log"
        wanted: dict[str, str | None] = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(properties or {}),
        }
        self.properties = {key: value for key, value in wanted.items() if value is not None}

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def format(self) -> None:
        """Format the directory, unless it is, or is to be taken as it is."""
        reason = available()
        if reason is not None:
            raise RuntimeError(reason)
        if self._format and not (self.data_dir / "meta.properties").exists():
            cluster_id = self._cluster_id or random_cluster_id()
            voters = [] if "controller.quorum.voters" in self.properties else ["--standalone"]
            if self._initial_controllers is not None:
                voters = ["--initial-controllers", self._initial_controllers]
            run_tool("kafka.tools.StorageTool", "format", *voters, "-t", cluster_id, "-c", str(self.write_config()))

    def write_config(self) -> Path:
        """The node's server.properties."""
        config = self._home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        return config

    def start(self, timeout: float = 60.0) -> ApacheKafka:
        """Format the directory (unless it is to be taken as it is), start, and wait until the port answers."""
        self.format()
        config = self.write_config()
        logging = self._home / "log4j2.yaml"
        logging.write_text(LOG4J2)
        command = [
            "java",
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            *self._java_options,
            f"-Dlog4j2.configurationFile={logging}",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", class_path(), "kafka.Kafka", str(config)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                port = self.port if "broker" in self.properties["process.roles"] else self.controller_port
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.05)
        log_text = self.log_text()
        self.stop()
        raise RuntimeError(f"Apache Kafka did not start within {timeout} s:\n{log_text[-4000:]}")

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self, timeout: float = 60.0) -> None:
        """Stop cleanly (SIGTERM), by force when that takes longer than `timeout` seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> ApacheKafka:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._clear()
