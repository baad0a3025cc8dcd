"""The demo: an embedded broker, real log lines in and out again, every one of them accounted for.

    make demo                      # or: python examples/demo.py
    make demo INPUT=/var/log       # on a file or folder of your own

Rules: what is printed is measured in this run. The check compares, for each partition, a hash over all its keys and
values in the order in which they were sent with one over what came back in offset order: a lost, doubled, changed or
reordered record would differ.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from log_lines import LEVELS, LogLine, log_files, read_lines
from xxhash import xxh3_128

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq._native.hashing import partition_for_key
from fastq.compression import Codec
from fastq.testing import Broker

HERE = Path(__file__).resolve().parent
TOPIC = "logs"
PARTITIONS = 6
CHUNK = 20_000
LATENCY_SAMPLES = 2_000


class Terminal:
    """A progress bar and bar charts; plain lines without colour where standard output is no terminal."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.colour = self.live and "NO_COLOR" not in os.environ
        self._last = 0.0

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def progress(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.live or (now - self._last < 0.05 and done < total):
            return
        self._last = now
        width = 32
        full = int(width * done / total)
        bar = self.paint("█" * full, "36") + "░" * (width - full)
        print(f"\r  {label:<10} {bar} {done:>10,} of {total:,}", end="\n" if done >= total else "", flush=True)

    def heading(self, text: str) -> None:
        print(f"\n{self.paint(text, '1')}")

    def bars(self, rows: list[tuple[str, int]], code: str = "36") -> None:
        top = max((count for _, count in rows), default=1)
        for label, count in rows:
            bar = self.paint("█" * max(1, round(40 * count / top)) if count else "", code)
            print(f"  {label:<28.28} {count:>11,}  {bar}")


def read_input(path: Path) -> list[LogLine]:
    lines: list[LogLine] = []
    for file in log_files(path):
        try:
            lines.extend(read_lines(file))
        except OSError as error:
            print(f"  left out {file}: {error.strerror or error}", file=sys.stderr)
    if not lines:
        sys.exit(f"demo: no log lines in {path}: give a text file, or a folder that holds some")
    return lines


def expected_hashes(lines: list[LogLine], passes: int) -> dict[int, str]:
    """For each partition, the hash over all (key, value) that it must hold, in order."""
    packed: dict[int, list[bytes]] = {}
    place = {key: partition_for_key(key, PARTITIONS) for key in {line.component for line in lines}}
    for line in lines:
        packed.setdefault(place[line.component], []).append(b"%b\0%b\n" % (line.component, line.text))
    hashes = {}
    for partition, parts in packed.items():
        once, whole = b"".join(parts), xxh3_128()
        for _ in range(passes):
            whole.update(once)
        hashes[partition] = whole.hexdigest()
    return hashes


def produce(producer: Producer, lines: list[LogLine], passes: int, terminal: Terminal) -> float:
    """Send all lines `passes` times, keyed by component; seconds until the last was acknowledged."""
    chunks = [lines[at : at + CHUNK] for at in range(0, len(lines), CHUNK)]
    columns = [([line.text for line in chunk], [line.component for line in chunk]) for chunk in chunks]
    total, done = passes * len(lines), 0
    deliveries = []
    start = time.perf_counter()
    for _ in range(passes):
        for values, keys in columns:
            deliveries.append(producer.send_many(TOPIC, values, keys=keys))
            done += len(values)
            terminal.progress("produce", min(done, total - 1), total)
    for delivery in deliveries:
        delivery.result(60)
    seconds = time.perf_counter() - start
    terminal.progress("produce", total, total)
    return seconds


def consume(servers: str, total: int, terminal: Terminal) -> tuple[dict[int, str], Counter[int], list[str], float]:
    """Read everything back: hash and count of each partition, what was wrong with the offsets, seconds."""
    hashes = {index: xxh3_128() for index in range(PARTITIONS)}
    counts: Counter[int] = Counter()
    faults: list[str] = []
    done = 0
    with Consumer(TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        start = time.perf_counter()
        while done < total:
            batch = consumer.poll_batch(timeout=10.0)
            if not len(batch):
                faults.append(f"nothing more came after {done:,} of {total:,} records")
                break
            packed: dict[int, list[bytes]] = {}
            for partition, offset, key, value in zip(
                batch.partitions, batch.offsets, batch.keys, batch.values, strict=True
            ):
                if offset != counts[partition]:
                    faults.append(f"{TOPIC}-{partition}: offset {offset} where {counts[partition]} was due")
                counts[partition] += 1
                packed.setdefault(partition, []).append(b"%b\0%b\n" % (key, value))
            for partition, parts in packed.items():
                hashes[partition].update(b"".join(parts))
            done += len(batch)
            terminal.progress("consume", min(done, total), total)
        seconds = time.perf_counter() - start
    return {index: hashed.hexdigest() for index, hashed in hashes.items() if counts[index]}, counts, faults, seconds


def end_to_end_latencies_ms(servers: str) -> list[float]:
    """One record at a time, from send() until a waiting consumer has it."""
    found = []
    with (
        Producer(bootstrap_servers=servers, linger_ms=0, acks=1) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("latency", 0)])
        for _ in range(LATENCY_SAMPLES):
            start = time.perf_counter()
            producer.send("latency", b"x" * 100, partition=0)
            while not consumer.poll(max_records=1, timeout=5.0):
                pass
            found.append((time.perf_counter() - start) * 1e3)
    return sorted(found)


def bytes_per_codec(servers: str, data_dir: Path, lines: list[LogLine]) -> dict[str, int]:
    """Bytes that one pass over the lines takes on disk with each codec."""
    found = {}
    for codec in Codec:
        name = codec.name.lower()
        with Producer(bootstrap_servers=servers, compression_type=name) as producer:
            for at in range(0, len(lines), CHUNK):
                chunk = lines[at : at + CHUNK]
                producer.send_many(
                    f"logs-{name}", [line.text for line in chunk], keys=[line.component for line in chunk]
                )
        found[name] = sum(file.stat().st_size for file in data_dir.glob(f"logs-{name}-*/*.log"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description="fastq's demo: log lines into a broker and out again, all accounted for."
    )
    parser.add_argument("--input", type=Path, default=HERE / "data", help="a log file or a folder of them")
    parser.add_argument("--records", type=int, default=2_000_000, help="send at least so many records")
    parser.add_argument("--data-dir", type=Path, default=Path("demo-data"), help="kept for a look afterwards")
    options = parser.parse_args()
    terminal = Terminal()

    lines = read_input(options.input)
    passes = -(-options.records // len(lines))
    total = passes * len(lines)
    size = passes * sum(len(line.text) + len(line.component) for line in lines)
    print(f"{len(lines):,} log lines of {options.input}, {passes} times over: {total:,} records, {size / 1e6:,.0f} MB")
    shutil.rmtree(options.data_dir, ignore_errors=True)
    with Broker(data_dir=options.data_dir) as broker:
        servers = broker.bootstrap_servers
        print(f"broker ready on {servers}, data in {options.data_dir}\n")
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            admin.create_topic("latency", partitions=1)
            for codec in Codec:
                admin.create_topic(f"logs-{codec.name.lower()}", partitions=1)
        expected = expected_hashes(lines, passes)
        with Producer(bootstrap_servers=servers, acks="all") as producer:
            seconds_in = produce(producer, lines, passes, terminal)
        found, counts, faults, seconds_out = consume(servers, total, terminal)
        latencies = end_to_end_latencies_ms(servers)
        codecs = bytes_per_codec(servers, options.data_dir, lines)

    terminal.heading("Every record came back once and in order?")
    if sum(counts.values()) != total:
        faults.append(f"{total:,} records were sent and {sum(counts.values()):,} came back")
    faults += [f"{TOPIC}-{p}: the hash over keys and values differs" for p in expected if expected[p] != found.get(p)]
    for index in sorted(counts):
        print(f"  {TOPIC}-{index}: offsets 0 to {counts[index] - 1:,}, xxh3 {found[index][:16]}")
    print(
        "  "
        + (
            terminal.paint("yes: counts, offsets and checksums agree", "32")
            if not faults
            else terminal.paint("NO", "31")
        )
    )
    for fault in faults[:10]:
        print(f"  {fault}")

    terminal.heading("Throughput and latency")
    print(
        f"  in   {total / seconds_in:>12,.0f} records/s {size / seconds_in / 1e6:>8,.0f} MB/s  (acks=all, to the last acknowledgement)"
    )
    print(
        f"  out  {total / seconds_out:>12,.0f} records/s {size / seconds_out / 1e6:>8,.0f} MB/s  (every key and value touched and hashed)"
    )
    shown = "  ".join(
        f"p{share:g} {latencies[min(int(len(latencies) * share / 100), len(latencies) - 1)]:.2f}"
        for share in (50, 90, 99, 99.9)
    )
    print(f"  send() to a waiting consumer, ms: {shown}  max {latencies[-1]:.2f}")

    terminal.heading("Bytes on disk of one pass, by codec")
    terminal.bars(list(codecs.items()), "33")
    terminal.heading("Lines by level")
    levels = Counter(line.level for line in lines)
    terminal.bars([(level, levels[level]) for level in LEVELS if levels[level]], "35")
    terminal.heading("Lines by component, the ten busiest")
    components = Counter(line.component for line in lines)
    terminal.bars([(name.decode(errors="replace"), count) for name, count in components.most_common(10)])

    print(f"\nThe data stays in {options.data_dir}. Have a look:")
    print(f"  .venv/bin/fastq dump-log {options.data_dir}/{TOPIC}-0/00000000000000000000.log --limit 3")
    print(f"  .venv/bin/fastq-broker --data-dir {options.data_dir} --listen 127.0.0.1:9092")
    print(f"  .venv/bin/fastq consume {TOPIC} --bootstrap 127.0.0.1:9092 --from-beginning --max-records 5")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
