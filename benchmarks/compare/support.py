"""What every comparison needs: memory touched, brokers started, CPU counted, medians taken, results written.

Rules: a side is measured in its own process; sides are interleaved (A B A B ...), never one block after another;
the figure of a side is the median of its rounds and the ratio is that of the medians.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "tools"))

from apache_kafka import ApacheKafka  # noqa: E402

from fastq.testing import Broker  # noqa: E402

_TICKS = os.sysconf("SC_CLK_TCK")


def touch_memory(size_bytes: int = 10 << 30) -> None:
    """Write once to (at most a half of the free) memory and give it back: a virtual machine's first touch is slow."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(size_bytes, free // 2)
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size, 4096):
            memory[start] = 1


@contextmanager
def touched_page_cache(size_bytes: int = 3 << 30) -> Iterator[Callable[[], None]]:
    """The same for files: what a side is about to write takes the pages of a file, which what this yields gives back, best right before.
    A virtual machine whose host takes free memory back does so within two seconds, and gives it again at a tenth of the pace at which a
    page is written that was there: 0.8 GB/s where it is 6 to 12, which was most of what a copy was measured by."""
    block = bytes(1 << 20)
    with tempfile.TemporaryFile() as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)
        yield file.close


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its threads so far, in seconds (resolution: one clock tick)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def session_cpu_seconds(session_id: int) -> float:
    """The same of all processes of a session (as setsid makes it), with those children that have ended; in seconds."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session_id:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Target:
    """A broker under load: where it listens and which process to count."""

    name: str
    bootstrap_servers: str
    pid: int
    data_dir: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap_servers.rpartition(":")
        return host, int(port)


@contextmanager
def fastq_broker(**config: Any) -> Iterator[Target]:
    folder = Path(tempfile.mkdtemp(prefix="bench-fastq-"))
    try:
        with Broker(data_dir=folder / "data", config=config) as broker:
            yield Target("fastq", broker.bootstrap_servers, broker.pid, folder / "data")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def apache_kafka(**config: Any) -> Iterator[Target]:
    with ApacheKafka(properties={key: str(value) for key, value in config.items()}) as kafka:
        yield Target("apache-kafka", kafka.bootstrap_servers, kafka.pid, kafka.data_dir)


def interleave(
    sides: Mapping[str, Callable[[], dict[str, float]]],
    rounds: int,
    after_round: Callable[[dict[str, list[dict[str, float]]]], object] | None = None,
) -> dict[str, list[dict[str, float]]]:
    """Run every side once a round, in turn; the measurements of each side by its name, which `after_round` is given as they are by then."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name, run in sides.items():
            measured = run()
            found[name].append(measured)
            shown = "  ".join(f"{key}={value:,.4g}" for key, value in measured.items())
            print(f"  round {turn + 1}/{rounds}  {name:<34} {shown}", flush=True)
        if after_round is not None:
            after_round(found)
    return found


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure, over the rounds that have it."""
    keys = dict.fromkeys(key for row in rounds for key in row)
    return {key: statistics.median(row[key] for row in rounds if key in row) for key in keys}


def machine() -> dict[str, str]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
    }


def save(name: str, document: Mapping[str, Any]) -> Path:
    """Write one comparison as JSON to benchmarks/results/; the table of all is made from these by `report.py`."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **document}, indent=1, sort_keys=True) + "\n")
    return path
