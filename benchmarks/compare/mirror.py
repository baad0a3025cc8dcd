"""Records from one broker to another: fastq mirror, the same with the same offsets, also where the target pulls, MirrorMaker 2, and a plain
loop of confluent-kafka.

    python benchmarks/compare/mirror.py [--mebibytes 1024] [--partitions 8] [--rounds 2] [--patience 45] [--only SIDE] [--quick]

Rules
- The same source, of 100-byte records, for all; a target of its own for each run; each side is a process of its own. What is timed is from
  the first record in the target to the last, as its end offsets tell: neither start nor group formation count. Beside them stands what the
  source's fetch gives to who reads batches and does nothing with them, and what is left of a mirror with the same offsets when all is taken
  away but the bytes: `bare copy`, three processes with two sockets between them, of which one sends the source's segments (sendfile), one
  passes on 4 MiB at a time, and one takes their checksum and writes them.
- Where the target pulls it has been told of the source (`mirror.pull.A.bootstrap.servers`): it fetches by itself, and the mirror steers.
- Memory and the page cache are touched before each side, and the latter given back when the target has the topic: what a virtual machine
  gives for the first time is written at a tenth of its pace.
- A side that has not all within `--patience` seconds of its first record is given up: its rate is that of what it had by then, and `share`
  says how much of the whole that was.
- What is measured is saved after each round. With `--only` it takes its place in what was saved, and the rest of that stays.
- `--quick` is for looking whether it runs: 64 MiB, one round, nothing is saved.
- MirrorMaker 2 is not exactly once here, as its own default is, and neither is the loop; fastq's mirrors are.
- MirrorMaker 2 has what makes it fast: a task for each two partitions; fetches of up to 50 MiB that wait for 64 KiB, and polls of 10,000
  records; batches of 1 MB that wait up to 50 ms (by itself 16 KiB and 5 ms, and Connect has one request under way); no compression, as
  the source has none. What fastq's side leaves out here too is off: heartbeats, offsets of groups, and the offset syncs that these need.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from support import RESULTS, interleave, medians, save, touch_memory, touched_page_cache

import apache_kafka  # isort: skip  # found by support
from fastq import Admin, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.mirror.config import Side
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.testing import Broker

RECORD_BYTES = 100
TOPIC = "records"
START_S = 90.0
"""Time enough for the slowest side to begin."""
LOOK_S = 0.02
QUICK_MEBIBYTES = 64
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
tasks.max = {tasks}
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
emit.offset-syncs.enabled = false
refresh.topics.interval.seconds = 5
A.consumer.auto.offset.reset = earliest
A.consumer.max.poll.records = 10000
A.consumer.fetch.min.bytes = 65536
A.consumer.fetch.max.bytes = 52428800
A.consumer.max.partition.fetch.bytes = 8388608
A.consumer.receive.buffer.bytes = 1048576
B.producer.batch.size = 1000000
B.producer.linger.ms = 50
B.producer.buffer.memory = 134217728
B.producer.compression.type = none
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

BARE = """
import os, socket, sys, time
from fastq._native.crc32c import crc32c
PIECE = 4 << 20
folder, *segments = sys.argv[1:]

def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        return sender, server.accept()[0]

def pieces():
    for segment in segments:
        left = os.path.getsize(segment)
        while left:
            yield segment, min(left, PIECE)
            left -= min(left, PIECE)

def take(receiver, view):
    done = 0
    while done < len(view):
        done += receiver.recv_into(view[done:], 0, socket.MSG_WAITALL)

(sender, hop_in), (hop_out, receiver) = pair(), pair()
memory = memoryview(bytearray(PIECE))
if not os.fork():
    for segment in segments:
        with open(segment, "rb") as file:
            sender.sendfile(file)
    os._exit(0)
if not os.fork():
    for _, size in pieces():
        take(hop_in, memory[:size])
        hop_out.sendall(memory[:size])
    os._exit(0)
begin, copies = time.perf_counter(), {}
for segment, size in pieces():
    if segment not in copies:
        copies[segment] = open(os.path.join(folder, str(len(copies))), "wb", buffering=0)
    take(receiver, memory[:size])
    crc32c(memory[:size])
    copies[segment].write(memory[:size])
print(time.perf_counter() - begin)
os.wait(), os.wait()
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


def measured(
    target: Broker, count: int, partitions: int, patience_s: float, give_back: Callable[[], None]
) -> dict[str, float]:
    """From the first record to the last, or to those that are there when patience ends, as the target's offsets tell; markers of
    transactions count as nothing worth telling. `give_back`: see touched_page_cache."""
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        wanted = {TopicPartition(f"A.{TOPIC}", p): OffsetSpec.LATEST for p in range(partitions)}

        def there() -> int:
            return sum(place.offset for place in admin.list_offsets(wanted).results().values())

        begun = time.perf_counter()
        while f"A.{TOPIC}" not in admin.list_topics():
            if time.perf_counter() - begun > START_S:
                raise TimeoutError(f"no topic has come within {START_S:.0f} s")
            time.sleep(LOOK_S)
        giving = threading.Thread(target=give_back)  # which takes longer than some records do
        giving.start()
        while not (first := there()):
            if time.perf_counter() - begun > START_S:
                raise TimeoutError(f"no record has come within {START_S:.0f} s")
            time.sleep(LOOK_S)
        begun = time.perf_counter()
        while True:
            found, took_s = there(), time.perf_counter() - begun
            if found >= count or took_s > patience_s:
                # Who had all at the first look was faster than a look.
                rate = (found - first if found > first else found) * RECORD_BYTES / 1e6 / took_s
                return {"mb_per_s": rate, "share": min(found / count, 1.0)}
            time.sleep(LOOK_S)


def side(
    source: Broker, count: int, partitions: int, patience_s: float, command: Callable[[str, Path], list[str]]
) -> dict[str, float]:
    touch_memory()
    told = {"mirror.pull.A.bootstrap.servers": source.bootstrap_servers} if command is pulled_command else {}
    with (
        touched_page_cache() as give_back,
        tempfile.TemporaryDirectory(prefix="bench-mirror-") as name,
        Broker(config={**QUICK, **told}) as target,
    ):
        if command is loop_command:
            with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
                admin.create_topic(f"A.{TOPIC}", partitions)
        texts = {"source": source.bootstrap_servers, "target": target.bootstrap_servers}
        folder = Path(name)
        (folder / "mirror.toml").write_text(MIRROR.format(**texts))
        (folder / "same.toml").write_text(SAME.format(**texts))
        (folder / "mm2.properties").write_text(MIRROR_MAKER.format(**texts, tasks=max(partitions // 2, 1)))
        (folder / "servers").write_text(" ".join(texts.values()))
        try:
            with process(*command(sys.executable, folder)):
                return measured(target, count, partitions, patience_s, give_back)
        except Exception as error:  # of whichever client call met it
            print(f"  {command.__name__} is given up: {error}", flush=True)
            return {}


def mirror_command(python: str, folder: Path) -> list[str]:
    return [python, "-m", "fastq", "mirror", "--config", str(folder / "mirror.toml")]


def same_command(python: str, folder: Path) -> list[str]:
    return [python, "-m", "fastq", "mirror", "--config", str(folder / "same.toml")]


def pulled_command(python: str, folder: Path) -> list[str]:
    return same_command(python, folder)


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


def bare(source: Broker, count: int) -> dict[str, float]:
    """The bytes of the source's segments, copied without all that makes a mirror of it."""
    touch_memory()
    segments = sorted(map(str, source.data_dir.glob(f"{TOPIC}-*/*.log")))
    with touched_page_cache() as give_back, tempfile.TemporaryDirectory(prefix="bench-mirror-") as name:
        command = [sys.executable, "-c", BARE, name, *segments]
        give_back()
        took_s = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=START_S).stdout)
    return {"mb_per_s": count * RECORD_BYTES / 1e6 / took_s}


def loop_command(python: str, folder: Path) -> list[str]:
    return [python, "-c", LOOP, *(folder / "servers").read_text().split()]


def mirror_maker_command(_python: str, folder: Path) -> list[str]:
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    return ["java", "-Xmx1g", "-cp", apache_kafka.class_path(), main, str(folder / "mm2.properties")]


COMMANDS: dict[str, Callable[[str, Path], list[str]]] = {
    "fastq mirror": mirror_command,
    "fastq mirror, same offsets": same_command,
    "fastq mirror, same offsets, the target pulls": pulled_command,
    "confluent-kafka loop": loop_command,
    "MirrorMaker 2": mirror_maker_command,
}
FETCH, BARE_COPY = "fetch alone", "bare copy"


def kept_rounds(size: dict[str, int], others: bool) -> dict[str, list[dict[str, float]]]:
    """What was saved of the sides that are not measured now; of another size of the source it cannot stand beside them."""
    saved = RESULTS / "mirror.json"
    if not others or not saved.exists():
        return {}
    found = json.loads(saved.read_text())
    if {key: found[key] for key in size} != size:
        raise SystemExit(
            f"{saved} has other {' and '.join(size)} than {size}: give the same --mebibytes and --partitions, or measure all sides"
        )
    rounds: dict[str, list[dict[str, float]]] = found["rounds"]
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--patience", type=float, default=45.0, metavar="S")
    parser.add_argument("--only", choices=[*COMMANDS, FETCH, BARE_COPY])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    mebibytes, turns = (QUICK_MEBIBYTES, 1) if options.quick else (options.mebibytes, options.rounds)
    count = mebibytes * 1024 * 1024 // RECORD_BYTES // 10_000 * 10_000
    size = {"records": count, "partitions": options.partitions}
    why_not = apache_kafka.available()
    if options.only == "MirrorMaker 2" and why_not is not None:
        raise SystemExit(f"MirrorMaker 2 cannot be measured: {why_not}")
    names = [options.only] if options.only else [*COMMANDS, FETCH, BARE_COPY]
    if why_not is not None and "MirrorMaker 2" in names:
        names.remove("MirrorMaker 2")
        print(f"  MirrorMaker 2 is left out: {why_not}", flush=True)
    kept = kept_rounds(size, options.only is not None and not options.quick)

    def keep(found: dict[str, list[dict[str, float]]]) -> None:
        kept.update(found)
        if not options.quick:
            sides = {name: medians(rounds) for name, rounds in kept.items()}
            save("mirror", {**size, "patience_s": options.patience, "sides": sides, "rounds": kept})

    with Broker() as source:
        fill(source.bootstrap_servers, count, options.partitions)
        runs: dict[str, Callable[[], dict[str, float]]] = {
            FETCH: partial(fetched, source, options.partitions),
            BARE_COPY: partial(bare, source, count),
            **{
                name: partial(side, source, count, options.partitions, options.patience, command)
                for name, command in COMMANDS.items()
            },
        }
        sides = {name: runs[name] for name in names}
        interleave(sides, turns, keep)
    figures = {name: medians(rounds) for name, rounds in kept.items()}
    ours = figures.get("fastq mirror", {}).get("mb_per_s")
    for name, found in figures.items():
        if "mb_per_s" not in found:
            print(f"{name}: not measured")
            continue
        share = "" if found.get("share", 1.0) >= 1.0 else f", given up with {found['share']:.0%} there"
        ratio = "" if ours is None else f", fastq mirror is {ours / found['mb_per_s']:.1f} times that"
        print(f"{name}: {found['mb_per_s']:.1f} MB/s{share}{ratio}")


if __name__ == "__main__":
    main()
