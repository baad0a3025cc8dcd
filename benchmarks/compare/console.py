"""What the web console costs: start to the first page, memory and the list with many topics, a tail at a rate.

    python benchmarks/compare/console.py [--topics 10000] [--rate 20000] [--seconds 10] [--rounds 5]

Rules: broker, console and the producer of the tail are processes of their own; the console is asked over its socket, as a browser does. A
figure is the median of its rounds. The limits are those that the console was made for.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support import fastq_broker, save

from fastq import Admin, Producer
from fastq.admin import NewTopic

LIMITS = {"first_page_s": 1.0, "rss_mib": 120.0, "topic_list_ms": 300.0, "tail_behind_records": 0.0}
TOPICS_AT_ONCE = 500
TOPIC = "tail"


@contextmanager
def console(bootstrap: str) -> Iterator[tuple[str, int, float]]:
    """A console's address, its process, and the seconds from its start to its first page."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "fastq", "console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        netloc = urlsplit(process.stdout.readline().split()[-1]).netloc
        page(netloc, "/c/cluster")
        yield netloc, process.pid, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def page(netloc: str, path: str) -> bytes:
    """A page; raises for an error."""
    connection = http.client.HTTPConnection(netloc, timeout=60)
    connection.request("GET", path, headers={"accept": "text/html"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {body[-500:]!r}")
    return body


def rss_mib(pid: int) -> float:
    """What a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def timed_ms(netloc: str, path: str) -> float:
    began = time.perf_counter()
    page(netloc, path)
    return (time.perf_counter() - began) * 1000


def tailed(netloc: str, bootstrap: str, rate: int, seconds: float) -> dict[str, float]:
    """A tail while records come at a rate: what it has seen in the end, and how long a page takes meanwhile."""
    connection = http.client.HTTPConnection(netloc, timeout=60)
    connection.request("GET", f"/c/cluster/topics/{TOPIC}/records/tail")
    answer = connection.getresponse()
    last: dict[str, Any] = {}
    ready = threading.Event()

    def read() -> None:
        for line in answer:
            if line.startswith(b"data: "):
                last.update(json.loads(line[6:]))
                if last.get("ready"):
                    ready.set()
                if last.get("seen", 0) >= sent:
                    return

    sent = int(rate * seconds)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    ready.wait(20)
    pages: list[float] = []
    began = time.perf_counter()
    with Producer(bootstrap_servers=bootstrap) as producer:
        for tick in range(int(seconds * 10)):
            for _ in range(rate // 10):
                producer.send(TOPIC, b'{"id": 1, "text": "%60d"}' % tick)
            if tick % 5 == 0:
                pages.append(timed_ms(netloc, "/c/cluster/topics"))
            time.sleep(max(0.0, began + (tick + 1) / 10 - time.perf_counter()))
    produced = time.perf_counter()
    reader.join(30)
    connection.close()
    return {
        "tail_seen_share": last.get("seen", 0) / sent,
        "tail_behind_s": time.perf_counter() - produced,
        "tail_left_out": last.get("left_out", 0),
        "page_during_tail_ms": statistics.median(pages),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The web console: start, memory, the list of topics, a tail.")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second of the tail")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the tail is")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-save", action="store_true", help="only show the figures")
    options = parser.parse_args()
    rounds: list[dict[str, float]] = []
    with fastq_broker() as target:
        servers = target.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TOPIC, partitions=4)
            names = [f"topic.{n:05}" for n in range(options.topics)]
            for start in range(0, len(names), TOPICS_AT_ONCE):
                topics = [NewTopic(name=name, partitions=1) for name in names[start : start + TOPICS_AT_ONCE]]
                admin.create_topics(topics, timeout=120).results()
        for _ in range(options.rounds):
            with console(servers) as (netloc, pid, first_page_s):
                cold = timed_ms(netloc, "/c/cluster/topics?sort=partitions")
                time.sleep(2.5)  # the picture is old by then: the list takes a new one
                again = timed_ms(netloc, "/c/cluster/topics?q=7&page=3")
                figures = {"first_page_s": first_page_s, "topic_list_cold_ms": cold, "topic_list_ms": again}
                figures.update(tailed(netloc, servers, options.rate, options.seconds))
                rounds.append({**figures, "rss_mib": rss_mib(pid)})
    figures = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    print(json.dumps({**figures, "topics": options.topics, "rate": options.rate}, indent=2))
    if not options.no_save:
        save("console", {"figures": figures, "rounds": rounds, "limits": LIMITS, "topics": options.topics})


if __name__ == "__main__":
    main()
