"""The processes that load a broker, each measured alone: fastq's client, Apache Kafka's own tools, and those of the peers.

Rules: every run is a process of its own, with CPU counted of that process only (a Java tool's: its start and its warm-up too). A
client takes settings under Kafka's names. A rate is that of the tool's own clock, which starts after its warm-up. Values are random text
that differs from message to message; Java's tools have them from a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Protocol

import apache_kafka
import peers
from fastq_client import values_of

HERE = Path(__file__).resolve().parent
JAVA = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]
TIMEOUT_S = 900.0
WARM_UP_SHARE = 10
"""A Java tool sends a tenth of its records before its clock starts."""

Figures = dict[str, float]
Settings = Mapping[str, object]


def run(command: Sequence[str | Path], timeout: float = TIMEOUT_S) -> tuple[str, float]:
    """What a process printed, and its CPU seconds. RuntimeError with the end of its output when it fails or takes too long."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(each) for each in command], stdout=output, stderr=errors)
        late = threading.Timer(timeout, process.kill)
        late.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            late.cancel()
            process.kill()  # whoever is asked to end meanwhile leaves nothing behind; of one that has ended it does nothing
        output.seek(0)
        errors.seek(0)
        printed = output.read()
        if process.returncode != 0:
            raise RuntimeError(
                f"{' '.join(map(str, command))} ended with {process.returncode}, expected 0 within {timeout:g} s:\n"
                f"{printed[-2000:]}\n{errors.read()[-2000:]}"
            )
    return printed, usage.ru_utime + usage.ru_stime


def at_once(calls: Sequence[Callable[[], Figures]]) -> Figures:
    """Several clients at the same time: the sum of their rates, as LinkedIn's tables have it, and their mean CPU a record."""
    with ThreadPoolExecutor(len(calls)) as pool:
        found = [each.result() for each in [pool.submit(call) for call in calls]]
    rate = sum(each["records_per_s"] for each in found)
    return {
        "records_per_s": rate,
        "cpu_us_per_record": sum(each["cpu_us_per_record"] for each in found) / len(found),
    }


@cache
def values_file(size: int) -> Path:
    """Values of a size, one a line, in a file that goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="bench-values-")
    _KEPT.append(folder)
    path = Path(folder.name) / str(size)
    path.write_bytes(b"\n".join(values_of(size)) + b"\n")
    return path


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


class Client(Protocol):
    """How records go to and come from brokers that speak Kafka's protocol."""

    name: str

    def produce(self, servers: str, topic: str, records: int, size: int, settings: Settings) -> Figures: ...

    def sent(self, records: int) -> int:
        """How many records `produce` leaves in the topic."""

    def windows(
        self, servers: str, topic: str, records: int, size: int, settings: Settings, every: int
    ) -> list[tuple[int, float]]:
        """Produce, and say after how many records what the rate was."""

    def consume(self, servers: str, topic: str, records: int, settings: Settings) -> Figures: ...

    def latency(self, servers: str, topic: str, records: int, size: int) -> Figures:
        """From send to poll, a record at a time, acks=1; milliseconds."""


class FastqClient:
    name = "fastq"

    def _command(self, role: str, servers: str, topic: str, records: int, settings: Settings) -> list[str]:
        command = [sys.executable, str(HERE / "fastq_client.py"), role, "--servers", servers, "--topic", topic]
        pairs = [text for name, value in settings.items() for text in ("--setting", f"{name}={value}")]
        return [*command, "--records", str(records), *pairs]

    def produce(self, servers: str, topic: str, records: int, size: int, settings: Settings) -> Figures:
        command = self._command("produce", servers, topic, records, settings)
        return dict(json.loads(run([*command, "--size", str(size)])[0].splitlines()[-1]))

    def sent(self, records: int) -> int:
        return records + 1

    def windows(
        self, servers: str, topic: str, records: int, size: int, settings: Settings, every: int
    ) -> list[tuple[int, float]]:
        command = self._command("produce", servers, topic, records, settings)
        printed, _ = run([*command, "--size", str(size), "--every", str(every)], 4 * 3600)
        rows = [json.loads(line) for line in printed.splitlines()]
        return [(row["sent"], row["records_per_s"]) for row in rows if "sent" in row]

    def consume(self, servers: str, topic: str, records: int, settings: Settings) -> Figures:
        printed, _ = run(self._command("consume", servers, topic, records, settings))
        return dict(json.loads(printed.splitlines()[-1]))

    def latency(self, servers: str, topic: str, records: int, size: int) -> Figures:
        command = [sys.executable, "-m", "fastq.cli", "perf", "latency", topic, "--bootstrap", servers, "--acks", "1"]
        printed, _ = run([*command, "--records", str(records), "--size", str(size), "--json"])
        found = json.loads(printed)
        return {"p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"], "p999_ms": found["p99.9_ms"]}


class KafkaTools:
    """ProducerPerformance, ConsumerPerformance, EndToEndLatency of Apache Kafka."""

    name = "Kafka's tools"

    def _run(self, main_class: str, *arguments: object, timeout: float = TIMEOUT_S) -> tuple[str, float]:
        start = [*JAVA, "-cp", apache_kafka.class_path(), f"org.apache.kafka.tools.{main_class}"]
        return run([*start, *map(str, arguments)], timeout)

    def _produce(
        self, servers: str, topic: str, records: int, size: int, settings: Settings, *more: object, timeout: float
    ) -> tuple[str, float]:
        wanted = {"bootstrap.servers": servers, **settings}
        pairs = [f"{name}={value}" for name, value in wanted.items()]
        arguments = [
            "--topic",
            topic,
            "--num-records",
            records,
            "--throughput",
            -1,
            "--payload-file",
            values_file(size),
        ]
        return self._run("ProducerPerformance", *arguments, *more, "--command-property", *pairs, timeout=timeout)

    def produce(self, servers: str, topic: str, records: int, size: int, settings: Settings) -> Figures:
        total = self.sent(records)
        warm_up = ("--warmup-records", total - records)
        printed, cpu = self._produce(servers, topic, total, size, settings, *warm_up, timeout=TIMEOUT_S)
        rate = re.findall(r"records sent, ([\d.]+) records/sec", printed)[-1]
        return {"records_per_s": float(rate), "cpu_us_per_record": cpu / total * 1e6}

    def sent(self, records: int) -> int:
        return records + max(records // WARM_UP_SHARE, 1)

    def windows(
        self, servers: str, topic: str, records: int, size: int, settings: Settings, every: int
    ) -> list[tuple[int, float]]:
        printed, _ = self._produce(servers, topic, records, size, settings, timeout=4 * 3600)
        rows, sent = [], 0
        for count, rate in re.findall(r"^(\d+) records sent, ([\d.]+) records/sec.* max latency\.$", printed, re.M):
            sent += int(count)
            rows.append((sent, float(rate)))
        return rows or [(records, float(re.findall(r"records sent, ([\d.]+) records/sec", printed)[-1]))]

    def consume(self, servers: str, topic: str, records: int, settings: Settings) -> Figures:
        pairs = [text for name, value in settings.items() for text in ("--command-property", f"{name}={value}")]
        if "max.partition.fetch.bytes" in settings:
            pairs += ["--fetch-size", str(settings["max.partition.fetch.bytes"])]
        arguments = ["--bootstrap-server", servers, "--topic", topic, "--num-records", records, "--hide-header"]
        printed, cpu = self._run("ConsumerPerformance", *arguments, *pairs)
        fields = [field.strip() for field in printed.strip().splitlines()[-1].split(",")]
        return {"records_per_s": float(fields[9]), "cpu_us_per_record": cpu / float(fields[4]) * 1e6}

    def latency(self, servers: str, topic: str, records: int, size: int) -> Figures:
        printed, _ = self._run("EndToEndLatency", servers, topic, records, 1, size)
        told = re.search(r"50th = ([\d.]+), 99th = ([\d.]+), 99\.9th = ([\d.]+)", printed)
        if told is None:
            raise RuntimeError(f"EndToEndLatency told no percentiles:\n{printed[-2000:]}")
        return dict(zip(("p50_ms", "p99_ms", "p999_ms"), map(float, told.groups()), strict=True))


FASTQ, KAFKA_TOOLS = FastqClient(), KafkaTools()


# -- the peers' own


LOGBACK = '<configuration><root level="ERROR"/></configuration>\n'


@cache
def _classes(peer: str, name: str) -> str:
    """The class path of one of `peers/*.java`, compiled once a process."""
    folder = tempfile.TemporaryDirectory(prefix="bench-classes-")
    _KEPT.append(folder)
    (Path(folder.name) / "logback.xml").write_text(LOGBACK)
    sources = [peers.POMS / "Load.java", peers.POMS / f"{name}.java"]
    run(
        [
            "java",
            "-m",
            "jdk.compiler/com.sun.tools.javac.Main",
            "-cp",
            peers.class_path(peer),
            "-d",
            folder.name,
            *sources,
        ]
    )
    return f"{folder.name}:{peers.class_path(peer)}"


PEER_LOADS = {"rabbitmq": "StreamLoad", "artemis": "ArtemisLoad", "rocketmq": "RocketLoad", "jafka": "JafkaLoad"}


def peer_load(peer: peers.Peer, role: str, topic: str, records: int, *, batch: int = 1, size: int = 200) -> Figures:
    """One of `peers/*.java`: of RabbitMQ its streams, of RocketMQ through its name server."""
    name = PEER_LOADS[peer.name]
    port = peer.other_port or peer.port
    warm_up = 1 if role == "consume" else warm_up_of(records, batch)
    with tempfile.TemporaryDirectory(prefix="bench-home-") as home:
        java = [*JAVA, *peers.JAVA_17, f"-Duser.home={home}", "-cp", _classes(peer.name, name), name]
        arguments = [role, port, topic, records - (role == "consume"), batch, warm_up, values_file(size)]
        printed, _ = run([*java, *map(str, arguments)])
    found = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
    return {
        "records_per_s": found["messages"] / found["seconds"],
        "cpu_us_per_record": found["cpu_s"] / found["messages"] * 1e6,
    }


def warm_up_of(records: int, batch: int) -> int:
    """How many a load sends before its clock starts: whole batches."""
    return max(records // WARM_UP_SHARE // batch, 1) * batch


def perf_test(peer: peers.Peer, role: str, queue: str, records: int, *, size: int = 200) -> Figures:
    """RabbitMQ's own PerfTest on a durable classic queue (version 2): persistent messages without confirms; a consumer that acknowledges by
    being sent them."""
    with tempfile.TemporaryDirectory(prefix="bench-bodies-") as folder:
        (Path(folder) / "logback.xml").write_text(LOGBACK)
        java = [*JAVA, "-cp", f"{folder}:{peers.class_path('rabbitmq')}", "com.rabbitmq.perf.PerfTest"]
        command = [*java, "-h", f"amqp://guest:guest@127.0.0.1:{peer.port}", "-u", queue, "-mf", "compact"]
        if role == "produce":
            bodies = []
            for number, value in enumerate(values_of(size)[:200]):
                bodies.append(str(Path(folder) / str(number)))
                Path(bodies[-1]).write_bytes(value)
            command += ["-x", "1", "-y", "0", "-ad", "false", "-f", "persistent", "-qa", "x-queue-version=2"]
            command += ["-C", str(records), "-B", ",".join(bodies)]
        else:
            command += ["-x", "0", "-y", "1", "--predeclared", "-a", "-D", str(records)]
        printed, cpu = run(command)
    told = re.search(rf"{'sending' if role == 'produce' else 'receiving'} rate avg: (\d+)", printed)
    if told is None:
        raise RuntimeError(f"PerfTest told no rate:\n{printed[-2000:]}")
    return {"records_per_s": float(told[1]), "cpu_us_per_record": cpu / records * 1e6}
