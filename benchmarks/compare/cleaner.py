"""The log cleaner: one round over a segment of 1 GiB, and a broker's produce latency while it compacts the same.

python benchmarks/compare/cleaner.py [--rounds 5] [--mib 1024]

Rules: records of 100 bytes of value, one key in ten distinct, batches as a producer makes them. A round is the broker's own process, from
its start to its end: bytes of the log that it was to clean by its processor time (a core's rate) and by the clock, and its largest
resident size. The latency is that of one-record requests, one at a time, at a steady rate, on another topic.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fastq_broker.log.cleaner_job import CleaningJob
from support import Target, fastq_broker, interleave, medians, save, touch_memory

from fastq import Admin, Producer
from fastq._native.records import build_batch
from fastq.admin import ConfigResource

MIB = 1 << 20
RECORDS_PER_BATCH = 1000
VALUE_BYTES = 100
# The process tells of its memory itself: what the system accounts to a child begins with the size of its parent.
WORKER = (
    "import sys; from fastq_broker.log.cleaner_worker import main; main();"
    "sys.stderr.write(open('/proc/self/status').read())"
)
REQUESTS_PER_S = 500
QUIET_S = 6.0


def keys(count: int) -> Iterator[bytes]:
    """Keys of `count` records, of which one in ten is distinct."""
    source = random.Random(1)
    distinct = max(count // 10, 1)
    for _ in range(count):
        yield b"key-%012d" % source.randrange(distinct)


def write_segment(directory: Path, size: int) -> int:
    """A segment of about `size` bytes; answers how many records it has."""
    value = random.Random(2).randbytes(VALUE_BYTES)
    record_bytes = len(build_batch([(0, b"key-%012d" % 0, value)] * RECORDS_PER_BATCH)) / RECORDS_PER_BATCH
    count = int(size / record_bytes) // RECORDS_PER_BATCH * RECORDS_PER_BATCH
    source = keys(count)
    with open(directory / f"{0:020d}.log", "wb") as file:
        for base in range(0, count, RECORDS_PER_BATCH):
            rows = [(1_700_000_000_000 + base, next(source), value) for _ in range(RECORDS_PER_BATCH)]
            file.write(build_batch(rows, base_offset=base, leader_epoch=0))
        file.flush()
        os.fsync(file.fileno())
    return count


def job_of(directory: Path, count: int) -> CleaningJob:
    """The job that the broker would give, under its default settings."""
    return CleaningJob(
        directory=str(directory),
        segments=[(0, (directory / f"{0:020d}.log").stat().st_size)],
        dirty_offset=0,
        upper_offset=count,
        aborts=[(0, 0)],
        last_offsets=[],
        now_ms=1_800_000_000_000,
        delete_retention_ms=86_400_000,
        segment_bytes=1 << 30,
        segment_index_bytes=10 << 20,
        index_interval_bytes=4096,
        map_bytes=128 << 20,
        map_load_factor=0.9,
        buffer_bytes=512 << 10,
        bytes_per_second_max=sys.float_info.max,
    )


def one_round(directory: Path, job: CleaningJob) -> dict[str, float]:
    size = job.segments[0][1]
    started = time.perf_counter()
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stderr is not None
    worker.stdin.write(job.encode().encode())
    worker.stdin.close()
    answer, memory = worker.stdout.read(), worker.stderr.read()
    _, status, used = os.wait4(worker.pid, 0)
    wall_s = time.perf_counter() - started
    if status or b"error" in answer:
        raise SystemExit(f"the round failed: {answer!r} {memory!r}")
    left = (directory / f"{0:020d}.log.cleaned").stat().st_size
    cpu_s = used.ru_utime + used.ru_stime
    return {
        "MB_per_cpu_s": size / 1e6 / cpu_s,
        "MB_per_s": size / 1e6 / wall_s,
        "rss_MiB": int(memory.split(b"VmHWM:")[1].split()[0]) / 1024,
        "left_share": left / size,
    }


def rate_and_memory(mib: int, rounds: int) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="bench-cleaner-"))
    try:
        count = write_segment(folder, mib * MIB)
        job = job_of(folder, count)
        found = interleave({"round": lambda: one_round(folder, job)}, rounds)["round"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"records": count, "medians": medians(found), "rounds": found}


def fill(target: Target, mib: int) -> None:
    """A compacted topic of one full segment and a little of the next, which the broker is not to compact yet."""
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        config = {"cleanup.policy": "compact", "segment.bytes": str(mib * MIB), "min.cleanable.dirty.ratio": "1"}
        admin.create_topic("compacted", partitions=1, replication_factor=1, configs=config)
        admin.create_topic("measured", partitions=1, replication_factor=1)
    value = random.Random(2).randbytes(VALUE_BYTES)
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for key in keys(int(mib * MIB * 1.03 / 128)):
            producer.send("compacted", value, key=key)


def latencies_ms(producer: Producer, checkpoint: Path, *, until_compacted: bool) -> list[float]:
    """Times of requests at a steady rate, for some seconds or until the checkpoint is there."""
    found = []
    due = started = time.perf_counter()
    while not checkpoint.exists() if until_compacted else due - started < QUIET_S:
        due += 1 / REQUESTS_PER_S
        time.sleep(max(due - time.perf_counter(), 0))
        sent = time.perf_counter()
        producer.send("measured", b"v" * VALUE_BYTES).result(30)
        found.append((time.perf_counter() - sent) * 1e3)
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def produce_meanwhile(mib: int) -> dict[str, float]:
    """p99 of a produce before the broker compacts, and while it does."""
    with fastq_broker(**{"log.cleaner.backoff.ms": 100}) as target:
        fill(target, mib)
        checkpoint = target.data_dir / "cleaner-offset-checkpoint"
        with (
            Producer(bootstrap_servers=target.bootstrap_servers, acks=1, linger_ms=0) as producer,
            Admin(bootstrap_servers=target.bootstrap_servers) as admin,
        ):
            time.sleep(2)
            quiet = latencies_ms(producer, checkpoint, until_compacted=False)
            admin.set_config(ConfigResource.topic("compacted"), "min.cleanable.dirty.ratio", "0.01")
            busy = latencies_ms(producer, checkpoint, until_compacted=True)
    return {
        "quiet_p99_ms": p99(quiet),
        "compacting_p99_ms": p99(busy),
        "ratio": p99(busy) / p99(quiet),
        "requests": len(busy),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The log cleaner: rate, memory, and what producers feel of it.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of the segment")
    options = parser.parse_args()
    touch_memory()
    alone = rate_and_memory(options.mib, options.rounds)
    found = interleave({"produce meanwhile": lambda: produce_meanwhile(options.mib)}, options.rounds)
    meanwhile = found["produce meanwhile"]
    document = {"alone": alone, "produce": {"medians": medians(meanwhile), "rounds": meanwhile}, "MiB": options.mib}
    print(save("cleaner", document))


if __name__ == "__main__":
    main()
