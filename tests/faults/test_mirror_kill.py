"""Mirrors are killed at random moments: nothing is lost, nothing is there twice, and somebody goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import until

from fastq import Admin, Consumer, Producer
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

PARTITIONS = 3
CONFIG = """
[source]
alias = "A"
bootstrap.servers = "{source}"
[target]
alias = "B"
bootstrap.servers = "{target}"
[mirror]
topics = ["numbers"]
lanes = 2
refresh_interval_ms = 200
transaction_interval_ms = 20
session_timeout_ms = 1000
"""


def started(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fastq", "mirror", "--config", str(path)], stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path, soak: bool) -> None:
    rng = random.Random(11)
    quick = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}
    with Broker(in_memory=True) as source, Broker(in_memory=True, config=quick) as target:
        path = tmp_path / "mirror.toml"
        path.write_text(CONFIG.format(source=source.bootstrap_servers, target=target.bootstrap_servers))
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("numbers", PARTITIONS)
        done, sent = threading.Event(), [0] * PARTITIONS

        def produce() -> None:
            with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                while not done.is_set():
                    for partition in range(PARTITIONS):
                        for _ in range(20):
                            producer.send("numbers", b"%d" % sent[partition], partition=partition)
                            sent[partition] += 1
                    time.sleep(0.005)

        load = threading.Thread(target=produce)
        load.start()
        processes = [started(path), started(path)]
        try:
            time.sleep(2.0)
            for _ in range(20 if soak else 2):
                time.sleep(rng.uniform(0.0, 1.5))
                place = rng.randrange(2)
                if rng.random() < 0.3:  # it comes to itself when another has its place
                    processes[place].send_signal(signal.SIGSTOP)
                    time.sleep(1.5)
                    processes[place].send_signal(signal.SIGCONT)
                else:
                    ended(processes[place])
                    processes[place] = started(path)
            done.set()
            load.join()
            found = _numbers(target, sent)
        finally:
            done.set()
            load.join()
            for process in processes:
                ended(process)
        # In the same order too: what is there twice, or missing, is named by the first difference.
        for partition, count in enumerate(sent):
            assert found[partition] == list(range(count))


def _numbers(target: Broker, sent: list[int]) -> list[list[int]]:
    """What is committed in the target, by partition, once there is as much as was sent."""
    found: list[list[int]] = [[] for _ in sent]
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        until(lambda: "A.numbers" in admin.list_topics(), 60)  # who reads it before would make it, of one partition
    end = time.monotonic() + 30
    settings = {"bootstrap_servers": target.bootstrap_servers, "isolation_level": "read_committed"}
    with Consumer("A.numbers", **settings, auto_offset_reset="earliest") as consumer:
        while sum(map(len, found)) < sum(sent) and time.monotonic() < end:
            for record in consumer.poll(timeout=0.5, max_records=10_000):
                found[record.partition].append(int(record.value or b""))
        for record in consumer.poll(timeout=0.5):  # nothing more comes
            found[record.partition].append(int(record.value or b""))
    return found
