"""How the broker's costs grow: the bytes of one log, partitions, connections, groups. With a plot, growth.svg.

    python benchmarks/compare/growth.py [--only log partitions connections groups] [--log-gb 1 5 20 60] [--partitions ...]

Rules: one broker process a subject, grown step by step; at each step the same small loads are measured, each as a median of
several turns. A figure that stays flat is the aim; memory is the broker's resident set, the page cache not in it. The log is
filled with random bytes of 10 KB, so that it is larger than memory at the end (and random reads are reads of the disk there). Recovery
is that of a broker killed straight after it has acknowledged what a step adds: nothing has been written out for it meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import shutil
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from client_values import random_values
from support import RESULTS, cpu_seconds, machine, rss_bytes

from fastq import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.testing import Broker

LOG_GB = (1, 5, 10, 20, 40, 60)
PARTITIONS = (1_000, 5_000, 10_000, 20_000)
CONNECTIONS = (100, 1_000, 5_000, 10_000)
GROUPS = (10, 100, 300, 1_000)
READS, SENDS, TURNS = 100, 300, 5

Row = dict[str, float]


def median_ms(action: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        took.append((time.perf_counter() - start) * 1e3)
    return statistics.median(took)


def costs(broker: Broker, topic: str, partition: int) -> Row:
    """What one acknowledged record costs, and the broker's memory."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, acks="all", linger_ms=0) as producer:
        producer.send(topic, b"first", partition=partition).result(30)
        cpu = cpu_seconds(broker.pid)
        produce = median_ms(lambda: producer.send(topic, b"v" * 100, partition=partition).result(30), SENDS * TURNS)
        cpu = (cpu_seconds(broker.pid) - cpu) / (SENDS * TURNS)
    return {"produce_ms": produce, "cpu_us_per_record": cpu * 1e6, "rss_MiB": rss_bytes(broker.pid) / 2**20}


def restarted(broker: Broker, stop: Callable[[], object], topic: str, partition: int) -> float:
    """Seconds from the start of the broker to the first acknowledged record, after `stop`."""
    stop()
    start = time.perf_counter()
    broker.start()
    with Producer(bootstrap_servers=broker.bootstrap_servers, acks="all") as producer:
        producer.send(topic, b"again", partition=partition).result(120)
    return time.perf_counter() - start


def one_log(folder: Path, steps: list[int]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    values = random_values(10_000, 5_000)
    topic, source = "log", random.Random(1)
    tp = TopicPartition(topic, 0)
    with Broker(data_dir=folder / "data", config={"log.retention.bytes": -1}) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, partitions=1, replication_factor=1)
        written = 0
        for step in steps:
            cpu, start, before = cpu_seconds(broker.pid), time.perf_counter(), written
            with Producer(bootstrap_servers=servers, acks="all", buffer_memory=128 << 20) as producer:
                while written < step * 10**9:
                    producer.send_many(topic, values, partition=0)
                    written += len(values) * len(values[0])
            took, cpu = time.perf_counter() - start, cpu_seconds(broker.pid) - cpu
            row = {
                "fill_MB_per_s": (written - before) / took / 1e6,
                "fill_cpu_s_per_GB": cpu / (written - before) * 1e9,
            }
            row["recovery_s"] = restarted(broker, broker.kill, topic, 0)
            with Consumer(bootstrap_servers=servers, prefetch_bytes_max=1 << 20) as consumer:
                consumer.assign([tp])
                end = consumer.end_offsets([tp])[tp]

                def read(consumer: Consumer = consumer, end: int = end) -> None:
                    consumer.seek(tp, source.randrange(end))
                    next(iter(consumer))

                row["random_read_ms"] = median_ms(read, READS)
            with Admin(bootstrap_servers=servers) as admin:
                last = time.time() * 1000
                first = admin.list_offsets({tp: 0})[tp].result().timestamp_ms or 0

                def look_up(admin: Admin = admin, first: float = first, last: float = last) -> None:
                    admin.list_offsets({tp: int(source.uniform(first, last))})

                row["time_look_up_ms"] = median_ms(look_up, READS)
            row |= costs(broker, topic, 0)
            row["restart_s"] = restarted(broker, broker.stop, topic, 0)
            rows[str(step)] = show("GB in one log", step, row)
    return rows


def many_partitions(folder: Path, steps: list[int]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    made = 0
    with Broker(data_dir=folder / "data") as broker:
        for step in steps:
            start, before = time.perf_counter(), made
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                while made < step:
                    admin.create_topic(f"topic-{made // 500}", partitions=500, replication_factor=1)
                    made += 500
                row = {"create_ms_per_partition": (time.perf_counter() - start) / (made - before) * 1e3}
                row["metadata_ms"] = median_ms(admin.list_topics, 5)
            row |= costs(broker, "topic-0", 7)
            with Producer(bootstrap_servers=broker.bootstrap_servers, acks="all") as producer:
                for number in range(made):  # each has something that only a recovery looks at
                    producer.send(f"topic-{number // 500}", b"v" * 100, partition=number % 500)
            row["recovery_s"] = restarted(broker, broker.kill, "topic-0", 7)
            row["restart_s"] = restarted(broker, broker.stop, "topic-0", 7)
            rows[str(step)] = show("partitions", step, row)
    return rows


def allowed_connections(wanted: int) -> int:
    """How many connections the broker may be asked for: it counts two descriptors for each, beside those of its files.

    The limit is raised for this process and those that it starts; who may not go beyond the hard one has what that allows.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(hard, 3 * wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    except (ValueError, PermissionError):
        return hard * 4 // 9
    return wanted


def connections_note(wanted: int) -> str | None:
    """What the page says where the machine does not let a broker have as many connections as are wanted."""
    most = allowed_connections(wanted)
    if most >= wanted:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{wanted:,} were wanted: the machine's hard limit of {hard:,} open files allows {most:,}, of two descriptors each."


API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def many_connections(folder: Path, steps: list[int]) -> dict[str, Row]:
    """Idle connections, each of which has asked once."""
    rows: dict[str, Row] = {}
    most = allowed_connections(max(steps))
    steps = sorted({min(step, most) for step in steps})
    with Broker(data_dir=folder / "data") as broker, ExitStack() as stack:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1, replication_factor=1)
        open_now = 0
        for step in steps:
            start, before = time.perf_counter(), open_now
            while open_now < step:
                link = stack.enter_context(socket.create_connection((broker.host, broker.port), timeout=30))
                link.sendall(API_VERSIONS)
                link.recv(16384)
                open_now += 1
            row = {"connect_ms": (time.perf_counter() - start) / (step - before) * 1e3}
            idle = cpu_seconds(broker.pid)
            time.sleep(5)
            row["idle_cpu_share"] = (cpu_seconds(broker.pid) - idle) / 5
            rows[str(step)] = show("connections", step, row | costs(broker, "t", 0))
    return rows


def many_groups(folder: Path, steps: list[int]) -> dict[str, Row]:
    """Groups of one member each that have committed, all in one process of asyncio."""

    async def join(member: AsyncConsumer[Any, Any]) -> None:
        while not member.assignment():
            await member.poll(timeout=1.0)

    async def grow(broker: Broker) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        members: list[AsyncConsumer[Any, Any]] = []
        for step in steps:
            start, before = time.perf_counter(), len(members)
            for number in range(before, step):
                member = AsyncConsumer("t", bootstrap_servers=broker.bootstrap_servers, group_id=f"group-{number}")
                members.append(member)
            await asyncio.gather(*map(join, members[before:]))
            row = {"join_ms": (time.perf_counter() - start) / (step - before) * 1e3}
            took = []
            for member in random.Random(step).sample(members, min(step, 100)):
                begun = time.perf_counter()
                await member.commit({TopicPartition("t", 0): 1})
                took.append((time.perf_counter() - begun) * 1e3)
            row["commit_ms"] = statistics.median(took)
            idle = cpu_seconds(broker.pid)
            await asyncio.sleep(10)
            row["idle_cpu_share"] = (cpu_seconds(broker.pid) - idle) / 10
            rows[str(step)] = show("groups", step, row | await asyncio.to_thread(costs, broker, "t", 0))
        for member in members:
            await member.close()
        return rows

    with Broker(data_dir=folder / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1, replication_factor=1)
        return asyncio.run(grow(broker))


def show(what: str, step: int, row: Row) -> Row:
    print(f"  {step:>6,} {what:<14} {'  '.join(f'{key}={value:,.3g}' for key, value in row.items())}", flush=True)
    return row


SUBJECTS: dict[str, tuple[Callable[[Path, list[int]], dict[str, Row]], tuple[int, ...]]] = {
    "log": (one_log, LOG_GB),
    "partitions": (many_partitions, PARTITIONS),
    "connections": (many_connections, CONNECTIONS),
    "groups": (many_groups, GROUPS),
}
UNITS = {"log": "GB in one log", "partitions": "partitions", "connections": "connections", "groups": "groups"}


def plot(document: dict[str, Any]) -> None:
    """A row of panels a subject, one panel a figure, all from zero on: flat is good."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    subjects = [name for name in SUBJECTS if name in document]
    columns = max(len(next(iter(document[name].values()))) for name in subjects)
    figure, panels = pyplot.subplots(
        len(subjects), columns, figsize=(2.3 * columns, 2.2 * len(subjects)), squeeze=False
    )
    for name, line in zip(subjects, panels, strict=True):
        rows = document[name]
        steps = [int(step) for step in rows]
        titles = list(next(iter(rows.values())))
        for panel, title in zip(line, titles, strict=False):
            panel.plot(steps, [row[title] for row in rows.values()], marker=".", color="#1f77b4")
            panel.set_ylim(bottom=0)
            panel.set_title(title, fontsize=8)
            panel.set_xlabel(UNITS[name], fontsize=7)
            panel.tick_params(labelsize=7)
        for panel in line[len(titles) :]:
            panel.axis("off")
    figure.tight_layout()
    figure.savefig(RESULTS / "growth.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="How the broker's costs grow.")
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    for name, (_, steps) in SUBJECTS.items():
        flag = "--log-gb" if name == "log" else f"--{name}"
        parser.add_argument(flag, dest=name, type=int, nargs="+", default=list(steps))
    options = parser.parse_args()
    path = RESULTS / "growth.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only:
        folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
        try:
            document[name] = SUBJECTS[name][0](folder, getattr(options, name))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        document["machine"] = machine()
        document.setdefault("measured", {})[name] = document["machine"]
        document.setdefault("notes", {}).pop(name, None)
        if name == "connections" and (note := connections_note(max(getattr(options, name)))):
            document["notes"][name] = note
        path.write_text(json.dumps(document, indent=1) + "\n")  # after each, as they take minutes
    plot({name: rows for name, rows in document.items() if name in SUBJECTS})
    print(path)


if __name__ == "__main__":
    main()
