"""What the web console costs: start to the first page, memory and the list with many topics, a tail at a rate, requests of a topic's page.

    python benchmarks/compare/console.py [--topics 10000] [--rate 20000] [--seconds 10] [--rounds 5]

Rules: brokers and console are processes of their own; the console is asked over its socket, as a browser does. A figure is the median of
its rounds, `largest_rss_mib` and what is counted the most of them. Requests are those that the nodes of a cluster of three have counted
themselves, of any kind, while a topic's page is opened whose partitions they all lead. The limits are
those that the console was made for; the command ends with 1 where one is not held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from support import cpu_seconds, fastq_broker, rss_bytes, save

from fastq import Admin, Producer
from fastq.admin import NewTopic
from fastq.testing import Broker, Cluster

LIMITS = {
    "first_page_s": 1.0,
    "largest_rss_mib": 120.0,
    "topic_list_ms": 300.0,
    "tail_behind_s": 1.0,  # from the last record's sending to the page's knowing of it
    "tail_not_seen": 0,
    "page_during_tail_ms": 300.0,
    "topic_requests_a_node": 1,
}
"""The most that each figure may be."""
TOPICS_AT_ONCE = 500
TOPIC = "tail"
NODES, PARTITIONS = (1, 2, 3), 12
ASKED = re.compile(r'^fastq_requests_total\{api="(\w+)"\} (\d+)', re.MULTILINE)
OF_NODES = {"Fetch", "FetchSnapshot", "BrokerHeartbeat", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AlterPartition"}
"""What nodes ask each other; all else that is asked is the console's, whatever it is."""


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


def peak_rss_mib(pid: int) -> float:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def timed_ms(netloc: str, path: str) -> float:
    began = time.perf_counter()
    page(netloc, path)
    return (time.perf_counter() - began) * 1000


def tailed(netloc: str, bootstrap: str, rate: int, seconds: float) -> dict[str, float]:
    """A tail while records come at a rate: what it has seen in the end, how long after the last one, and what a page takes then."""
    connection = http.client.HTTPConnection(netloc, timeout=60)
    connection.request("GET", f"/c/cluster/topics/{TOPIC}/records/tail")
    answer = connection.getresponse()
    last: dict[str, Any] = {}
    behind: list[int] = [0]
    ready = threading.Event()

    def read() -> None:
        for line in answer:
            if line.startswith(b"data: "):
                last.update(json.loads(line[6:]))
                behind.append(last.get("behind") or 0)
                if last.get("ready"):
                    ready.set()
                if last.get("seen", 0) >= sent:
                    return

    sent = int(seconds * 10) * (rate // 10)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    if not ready.wait(20):
        raise RuntimeError(f"the tail was not ready within 20 s: {last}")
    pages: list[float] = []
    began = time.perf_counter()
    late_s = 0.0
    with Producer(bootstrap_servers=bootstrap) as producer:
        for tick in range(int(seconds * 10)):
            for _ in range(rate // 10):
                producer.send(TOPIC, b'{"id": 1, "text": "%60d"}' % tick)
            producer.flush()
            if tick % 5 == 0:
                pages.append(timed_ms(netloc, "/c/cluster/topics"))
            wait_s = began + (tick + 1) / 10 - time.perf_counter()
            late_s = max(late_s, -wait_s)
            time.sleep(max(0.0, wait_s))
    produced = time.perf_counter()
    reader.join(30)
    caught_up = time.perf_counter()
    connection.close()
    return {
        "tail_records": sent,
        "tail_not_seen": sent - last.get("seen", 0),
        "tail_behind_s": caught_up - produced,
        "tail_behind_records": max(behind),
        "tail_left_out": last.get("left_out", 0),
        "tail_sent_late_s": late_s,
        "page_during_tail_ms": statistics.median(pages),
        "slowest_page_during_tail_ms": max(pages),
    }


# -- what a topic's page asks --------------------------------------------------------------------------------------------------


def counted(cluster: Cluster) -> Counter[tuple[int, str]]:
    """The requests of clients that each node has answered, by API."""
    found = Counter[tuple[int, str]]()
    for node in NODES:
        text = urlopen(f"{cluster.node(node).metrics_url}/metrics", timeout=30).read().decode()
        found.update({(node, api): int(count) for api, count in ASKED.findall(text) if api not in OF_NODES})
    return found


def metered(node: Broker) -> Callable[[], list[str]]:
    """A node's command with its metrics; what formats the directory takes no such option."""
    arguments = node._arguments
    return lambda: [
        *arguments(),
        *(["--metrics-listen", "127.0.0.1:0"] if (node.data_dir / "meta.properties").exists() else []),
    ]


def topic_requests() -> dict[str, Any]:
    """What opening a topic asks each node of three."""
    cluster = Cluster(len(NODES))
    for node in cluster.nodes:
        node._arguments = metered(node)  # type: ignore[method-assign]
    with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, replica_assignments={n: [n % 3 + 1, (n + 1) % 3 + 1] for n in range(PARTITIONS)})
        cluster.wait_in_sync()
        with console(cluster.bootstrap_servers) as (netloc, _, _):
            page(netloc, f"/c/cluster/topics/{TOPIC}")  # connects to all
            time.sleep(2.5)  # pictures are old
            before = counted(cluster)
            page(netloc, f"/c/cluster/topics/{TOPIC}")
            cost = counted(cluster) - before
    return {
        "topic_requests": {
            str(node): {api: n for (at, api), n in sorted(cost.items()) if at == node} for node in NODES
        },
        "topic_requests_a_node": max(sum(n for (at, _), n in cost.items() if at == node) for node in NODES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The web console: start, memory, the list of topics, a tail, requests."
    )
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
                first_cpu_s = cpu_seconds(pid)
                cold = timed_ms(netloc, "/c/cluster/topics?sort=partitions")
                time.sleep(2.5)  # the picture is old by then: the list takes a new one
                again = timed_ms(netloc, "/c/cluster/topics?q=7&page=3")
                figures = {"first_page_s": first_page_s, "topic_list_cold_ms": cold, "topic_list_ms": again}
                figures["first_page_cpu_s"] = first_cpu_s
                figures["rss_mib"] = rss_bytes(pid) / 2**20
                figures.update(tailed(netloc, servers, options.rate, options.seconds))
                figures["largest_rss_mib"] = peak_rss_mib(pid)
                rounds.append(figures)
    figures = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    for name in ("largest_rss_mib", "tail_not_seen"):
        figures[name] = max(found[name] for found in rounds)
    asked = topic_requests()
    figures["topic_requests_a_node"] = asked.pop("topic_requests_a_node")
    held = {name: figures[name] <= limit for name, limit in LIMITS.items()}
    settings = {"topics": options.topics, "rate": options.rate, "seconds": options.seconds}
    print(json.dumps({**figures, **asked, **settings, "held": held}, indent=2))
    if not options.no_save:
        save("console", {"figures": figures, "rounds": rounds, "limits": LIMITS, "held": held, **asked, **settings})
    raise SystemExit(0 if all(held.values()) else 1)


if __name__ == "__main__":
    main()
