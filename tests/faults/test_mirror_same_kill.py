"""A mirror with the same offsets whose processes, source and target are killed at random moments: in the end both have the same bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mirrors import batches_of
from waiting import until

from fastq import Admin, Producer
from fastq.cli import main
from fastq.errors import FastqError
from fastq.mirror.config import MirrorConfig, load_config
from fastq.testing import Broker, Cluster

CONFIG = """
[source]
alias = "A"
bootstrap.servers = "{source}"
[target]
alias = "B"
bootstrap.servers = "{target}"
[mirror]
topics = ["numbers"]
names = "identity"
offsets = "same"
lanes = 2
refresh_interval_ms = 200
session_timeout_ms = 1000
"""
PARTITIONS = 2
QUICK = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}


def started(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fastq", "mirror", "--config", str(path)])


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


class Load:
    """Transactions, of which some are aborted, until `end`."""

    def __init__(self, source: Broker) -> None:
        self._source, self._done = source, threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def _produce(self) -> None:
        count = 0
        while not self._done.is_set():
            try:
                settings = {"bootstrap_servers": self._source.bootstrap_servers, "transactional_id": "load"}
                with Producer(settings, compression_type="lz4") as producer:
                    while not self._done.is_set():
                        producer.begin_transaction()
                        for partition in range(PARTITIONS):
                            for _ in range(20):
                                producer.send("numbers", b"%d" % count, partition=partition)
                                count += 1
                        producer.abort_transaction() if count % 7 == 0 else producer.commit_transaction()
                        time.sleep(0.002)
            except FastqError:
                time.sleep(0.1)  # the source was killed


def written(path: Path, source: str, target: str) -> MirrorConfig:
    path.write_text(CONFIG.format(source=source, target=target))
    return load_config(path)


def the_same(config: MirrorConfig) -> bool:
    try:
        return all(
            batches_of(config, "source", "numbers", p) == batches_of(config, "target", "numbers", p) != []
            for p in range(PARTITIONS)
        )
    except FastqError:
        return False  # the target has no such topic yet


@pytest.mark.one_node  # between two brokers of its own, one node each
@pytest.mark.slow
def test_both_have_the_same_bytes_whatever_is_killed(tmp_path: Path, soak: bool) -> None:
    rng = random.Random(5)
    with Broker(config=QUICK) as source, Broker(config=QUICK) as target:
        path = tmp_path / "mirror.toml"
        config = written(path, source.bootstrap_servers, target.bootstrap_servers)
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("numbers", PARTITIONS, configs={"segment.bytes": "1048576"})
        load, process = Load(source), started(path)
        try:
            for what in ["mirror", "target", "mirror", "source"] * (5 if soak else 1):
                time.sleep(rng.uniform(0.2, 1.2))
                if what == "mirror":
                    ended(process)
                    process = started(path)
                else:
                    broker = source if what == "source" else target
                    broker.kill()
                    broker.start()
            load.end()
            until(lambda: the_same(config))
        finally:
            load.end()
            ended(process)


@pytest.mark.slow
def test_a_target_of_three_nodes_whose_leaders_are_killed_has_the_same_bytes(tmp_path: Path) -> None:
    with Broker(config=QUICK) as source, Cluster(3, config=QUICK) as target:
        path = tmp_path / "mirror.toml"
        config = written(path, source.bootstrap_servers, target.bootstrap_servers)
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("numbers", PARTITIONS)
        load, process = Load(source), started(path)
        try:
            until(lambda: _is_there(config))
            leader = target.leader("numbers")
            leader.kill()
            time.sleep(1.0)
            leader.start()
            target.wait_in_sync()
            target.change_leader("numbers", 1)
            load.end()
            until(lambda: the_same(config))
            assert main(["replicas", "verify", "numbers", "--bootstrap", target.bootstrap_servers]) == 0
            # Followers have forgotten the source's producers too, and lead with that.
            assert main(["mirror", "fail-over", "--config", str(path)]) == 0
            for _ in range(2):
                with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id="load") as producer:
                    for partition in range(PARTITIONS):
                        with producer.transaction():
                            producer.send("numbers", b"here", partition=partition)
                target.change_leader("numbers", 0)
            assert main(["replicas", "verify", "numbers", "--bootstrap", target.bootstrap_servers]) == 0
        finally:
            load.end()
            ended(process)


def _is_there(config: MirrorConfig) -> bool:
    with Admin(config.target.common) as admin:
        return "numbers" in admin.list_topics()
