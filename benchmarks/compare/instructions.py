"""Instructions of the hot paths, counted by valgrind: of this tree, and of another one beside it.

    python benchmarks/compare/instructions.py [--base /path/to/another/checkout/with/built/extensions] [--only send ...]

Rules: a figure is the difference between a run with few units and one with many, by the units between, so that starting up costs
nothing; time plays no part, so it may be run on a busy machine, and a change of 3 % means something. The client's runs count
the client's process (the broker beside it is not watched), the broker's runs the broker's.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import ROOT, machine, save

from fastq.testing import Broker

VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
COUNTED = re.compile(r"Collected : (\d+)")
START_TIMEOUT_S = 120.0

# What -> units of the run with few and of the one with many, and the program. Programs have to run with older trees as well.
CLIENT = {
    "send": (20_000, 220_000, """
value, topic = b"v" * 100, "in"
with Producer(bootstrap_servers=servers) as producer:
    for _ in range(n):
        producer.send(topic, value)
"""),
    "send with keys": (20_000, 220_000, """
value, topic, keys = b"v" * 100, "in", [b"key-%d" % (i % 999) for i in range(n)]
with Producer(bootstrap_servers=servers) as producer:
    for key in keys:
        producer.send(topic, value, key)
"""),
    "send_many": (50_000, 550_000, """
with Producer(bootstrap_servers=servers) as producer:
    producer.send_many("in", [b"v" * 100] * n)
"""),
    "send, zstd": (20_000, 120_000, """
with Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
    for i in range(n):
        producer.send("in", b"%0100d" % i)
"""),
    "iterate": (20_000, 220_000, """
with Consumer("out", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
    for i, record in zip(range(n), consumer):
        record.value
"""),
    "arrow": (50_000, 450_000, """
small = {"max_partition_fetch_bytes": 65536}
with Consumer("out", bootstrap_servers=servers, auto_offset_reset="earliest", **small) as consumer:
    done = 0
    while done < n:
        done += consumer.poll_batch(timeout=30).to_arrow().num_rows
"""),
    "asyncio send": (20_000, 120_000, """
async def main():
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        for _ in range(n):
            await producer.send("in", b"v" * 100)
asyncio.run(main())
"""),
    "asyncio iterate": (20_000, 120_000, """
async def main():
    async with AsyncConsumer("out", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        i = 0
        async for record in consumer:
            i += 1
            if i == n:
                break
asyncio.run(main())
"""),
}  # fmt: skip
BROKER = {
    "broker, produce of one record": (500, 3500, """
with Producer(bootstrap_servers=servers, acks=1, linger_ms=0) as producer:
    for _ in range(n):
        producer.send("in", b"v" * 100).result(60)
"""),
    "broker, produce of 900 kB": (20, 220, """
with Producer(bootstrap_servers=servers, acks=1, linger_ms=0, max_in_flight_requests_per_connection=1) as producer:
    for _ in range(n):
        producer.send("in", b"v" * 890_000, partition=0).result(60)
"""),
    "broker, produce and fetch of one record": (500, 3500, """
with Producer(bootstrap_servers=servers, acks=1, linger_ms=0) as producer:
    producer.send("in", b"first").result(60)
    with Consumer("in", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        records = iter(consumer)
        next(records)
        for _ in range(n):
            producer.send("in", b"v" * 100).result(60)
            next(records)
"""),
}  # fmt: skip
HEAD = """
import asyncio, sys
from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
servers, n = sys.argv[1], int(sys.argv[2])
"""


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree / 'broker'}", "PYTHONHASHSEED": "0"}


def counted(text: str) -> int:
    found = COUNTED.search(text)
    if not found:
        raise RuntimeError(f"valgrind counted nothing:\n{text[-3000:]}")
    return int(found[1])


def of_client(tree: Path, program: str, servers: str, count: int) -> int:
    command = [*VALGRIND, sys.executable, "-c", HEAD + program, servers, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment(tree))
    if done.returncode != 0:
        raise RuntimeError(f"{program}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return counted(done.stderr)


@contextmanager
def watched_broker(tree: Path, folder: Path) -> Iterator[tuple[str, list[int]]]:
    """A broker under valgrind; its instructions are in the list when the block has been left."""
    found: list[int] = []
    command = [*VALGRIND, sys.executable, "-m", "fastq_broker", "--data-dir", str(folder), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tree)
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        port = re.search(r":(\d+) in ", line)
        if not port:
            raise RuntimeError(f"the broker did not start: {line}")
        yield f"127.0.0.1:{port[1]}", found
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=START_TIMEOUT_S)
        found.append(counted(errors))


def of_broker(tree: Path, program: str, count: int) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-instructions-") as folder:
        with watched_broker(tree, Path(folder) / "data") as (servers, found):
            command = [sys.executable, "-c", HEAD + program, servers, str(count)]
            subprocess.run(command, check=True, timeout=900, env=environment(tree))
        return found[0]


def a_unit(count: Callable[[int], int], few: int, many: int) -> float:
    return (count(many) - count(few)) / (many - few)


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions a record and a request, by valgrind.")
    parser.add_argument("--base", type=Path, help="another checkout, with its extensions built in place")
    parser.add_argument("--only", nargs="+", choices=[*CLIENT, *BROKER], default=[*CLIENT, *BROKER])
    options = parser.parse_args()
    trees = {"base": options.base, "this": ROOT} if options.base else {"this": ROOT}
    figures: dict[str, dict[str, float]] = {}
    with Broker() as broker:
        servers = broker.bootstrap_servers
        subprocess.run(
            [sys.executable, "-c", HEAD + CLIENT["send_many"][2].replace('"in"', '"out"'), servers, "500000"],
            check=True,
        )
        for what in options.only:
            few, many, program = {**CLIENT, **BROKER}[what]
            row = figures[what] = {}
            for name, tree in trees.items():
                if what in CLIENT:
                    row[name] = a_unit(lambda n, t=tree, p=program: of_client(t, p, servers, n), few, many)
                else:
                    row[name] = a_unit(lambda n, t=tree, p=program: of_broker(t, p, n), few, many)
            shown = "  ".join(f"{name} {value:,.0f}" for name, value in row.items())
            ratio = f"  {row['this'] / row['base']:.3f} x" if "base" in row else ""
            print(f"{what:<24} {shown}{ratio}", flush=True)
    if len(options.only) == len(CLIENT) + len(BROKER):
        print(save("instructions", {"machine": machine(), "a unit": figures}))


if __name__ == "__main__":
    main()
