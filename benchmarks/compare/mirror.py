"""Records from one broker to another: fastq mirror, the same with the same offsets, MirrorMaker 2, and a plain loop of confluent-kafka.

    python benchmarks/compare/mirror.py [--mebibytes 1024] [--partitions 8] [--rounds 3]

Rules: the same source, of 100-byte records, for all; a target of its own for each run; each side is a process of its own, or two of Java's
threads in one. What is timed is from the first record in the target to the last, as its end offsets tell: neither start nor group formation
count. Beside them stands what the source's fetch gives to who reads batches and does nothing with them. MirrorMaker 2 is not exactly once
here, as its own default is, and neither is the loop; fastq's mirrors are.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support import interleave, medians, save

import apache_kafka  # isort: skip  # found by support
from fastq import Admin, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.mirror.config import Side
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.testing import Broker

RECORD_BYTES = 100
TOPIC = "records"
TIMEOUT_S = 900.0
QUICK = {"group.initial.rebalance.delay.ms": 0}

MIRROR = """
source = {{ alias = "A", bootstrap.servers = "{source}" }}
target = {{ alias = "B", bootstrap.servers = "{target}" }}
mirror = {{ topics = ["records"], heartbeat_interval_ms = 0, group_interval_ms = 0, refresh_interval_ms = 500 }}
"""
SAME = MIRROR.replace("mirror = {{", 'mirror = {{ offsets = "same",')
MIRROR_MAKER = """
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
A->B.topics = records
B->A.enabled = false
tasks.max = 4
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
refresh.topics.interval.seconds = 5
A.consumer.auto.offset.reset = earliest
"""
LOOP = """
import sys
import confluent_kafka as ck
source, target = sys.argv[1:3]
consumer = ck.Consumer({"bootstrap.servers": source, "group.id": "loop-" + target, "auto.offset.reset": "earliest"})
consumer.subscribe(["records"])
producer = ck.Producer({"bootstrap.servers": target, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 500000})
while True:
    for message in consumer.consume(10000, 0.5):
        while True:
            try:
                producer.produce("A.records", message.value(), message.key(), message.partition(), timestamp=message.timestamp()[1],
                                 headers=message.headers())
                break
            except BufferError:
                producer.poll(0.01)
    producer.poll(0)
"""


@contextlib.contextmanager
def process(*command: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            if running.poll() is not None:
                output.seek(0)
                raise RuntimeError(f"{command[:3]} ended with {running.returncode}:\n{output.read()[-3000:].decode()}")
        finally:
            running.kill()
            running.wait()


def fill(servers: str, count: int, partitions: int) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(TOPIC, partitions, configs={"retention.ms": "-1"})
    values = [os.urandom(RECORD_BYTES // 2).hex().encode() for _ in range(10_000)]
    with Producer(bootstrap_servers=servers, batch_bytes_max=1_000_000) as producer:
        for place in range(count // len(values)):
            producer.send_many(TOPIC, values, partition=place % partitions)


def measured(target: Broker, count: int, partitions: int) -> dict[str, float]:
    """From the first record to the last, as the target's offsets tell; markers of transactions count as nothing worth telling."""
    first: tuple[float, int] | None = None
    end = time.monotonic() + TIMEOUT_S
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        wanted = {TopicPartition(f"A.{TOPIC}", p): OffsetSpec.LATEST for p in range(partitions)}
        while time.monotonic() < end:
            there = f"A.{TOPIC}" in admin.list_topics()
            found = sum(o.offset for o in admin.list_offsets(wanted).results().values()) if there else 0
            now = time.perf_counter()
            if first is None and found:
                first = now, found
            if first is not None and found >= count:
                return {"mb_per_s": (found - first[1]) * RECORD_BYTES / 1e6 / max(now - first[0], 1e-9)}
            time.sleep(0.02)
    raise RuntimeError(f"{found} of {count} records after {TIMEOUT_S:.0f} s")


def side(source: Broker, count: int, partitions: int, command: Callable[[str, Path], list[str]]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-mirror-") as name, Broker(config=QUICK) as target:
        if command is loop_command:
            with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
                admin.create_topic(f"A.{TOPIC}", partitions)
        texts = {"source": source.bootstrap_servers, "target": target.bootstrap_servers}
        folder = Path(name)
        (folder / "mirror.toml").write_text(MIRROR.format(**texts))
        (folder / "same.toml").write_text(SAME.format(**texts))
        (folder / "mm2.properties").write_text(MIRROR_MAKER.format(**texts))
        (folder / "servers").write_text(" ".join(texts.values()))
        with process(*command(sys.executable, folder)):
            return measured(target, count, partitions)


def mirror_command(python: str, folder: Path) -> list[str]:
    return [python, "-m", "fastq", "mirror", "--config", str(folder / "mirror.toml")]


def same_command(python: str, folder: Path) -> list[str]:
    return [python, "-m", "fastq", "mirror", "--config", str(folder / "same.toml")]


def fetched(source: Broker, partitions: int) -> dict[str, float]:
    """All batches of the source, read by one who does nothing with them: what a mirror cannot be faster than."""
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        topic_id = admin.describe_topic(TOPIC).topic_id
        places = {TopicPartition(TOPIC, p): OffsetSpec.LATEST for p in range(partitions)}
        left = {tp: found.offset for tp, found in admin.list_offsets(places).results().items()}
    records = sum(left.values())
    reader = SourceReader(Side("A", {"bootstrap_servers": source.bootstrap_servers}, {}, {}))
    wanted = {tp: Wanted(topic_id, 0) for tp in left}
    begin = time.perf_counter()
    while wanted:
        for tp, answer in reader.fetch(wanted, 100).items():
            if isinstance(answer, Fetched):
                del wanted[tp]
                if answer.next_offset < left[tp]:
                    wanted[tp] = Wanted(topic_id, answer.next_offset)
    took_s = time.perf_counter() - begin
    reader.close()
    return {"mb_per_s": records * RECORD_BYTES / 1e6 / took_s}


def loop_command(python: str, folder: Path) -> list[str]:
    return [python, "-c", LOOP, *(folder / "servers").read_text().split()]


def mirror_maker_command(_python: str, folder: Path) -> list[str]:
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    return ["java", "-Xmx1g", "-cp", apache_kafka.class_path(), main, str(folder / "mm2.properties")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    count = options.mebibytes * 1024 * 1024 // RECORD_BYTES // 10_000 * 10_000
    commands = {
        "fastq mirror": mirror_command,
        "fastq mirror, same offsets": same_command,
        "confluent-kafka loop": loop_command,
    }
    if apache_kafka.available() is None:
        commands["MirrorMaker 2"] = mirror_maker_command
    with Broker() as source:
        fill(source.bootstrap_servers, count, options.partitions)
        sides = {
            name: (lambda command=command: side(source, count, options.partitions, command))
            for name, command in commands.items()
        }
        sides["fetch alone"] = lambda: fetched(source, options.partitions)
        rounds = interleave(sides, options.rounds)
    figures = {name: medians(found) for name, found in rounds.items()}
    ours = figures["fastq mirror"]["mb_per_s"]
    for name, found in figures.items():
        print(f"{name}: {found['mb_per_s']:.1f} MB/s, fastq mirror is {ours / found['mb_per_s']:.1f} times that")
    save("mirror", {"records": count, "partitions": options.partitions, "sides": figures})


if __name__ == "__main__":
    main()
