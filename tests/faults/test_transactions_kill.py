"""kill -9 of a broker under transactions: what was committed is there once, what was aborted is not, and nothing is torn."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from waiting import until

from fastq import Admin, Consumer, Producer
from fastq.errors import FastqError
from fastq.testing import Broker

TOPICS = ("left", "right")
RECORDS = 5


class Writer(threading.Thread):
    """Transactions over two topics until told to stop; an error makes it go on with a new producer of the same id."""

    def __init__(self, servers: str, name: str) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.name_ = name
        self.stopping = threading.Event()
        self.random = random.Random(name)
        self.outcomes: dict[bytes, str] = {}
        self.committed = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with Producer(bootstrap_servers=self.servers, transactional_id=self.name_) as producer:
                    while not self.stopping.is_set():
                        self.one(producer)
            except FastqError:
                continue

    def one(self, producer: Producer) -> None:
        value = b"%s-%d" % (self.name_.encode(), len(self.outcomes))
        self.outcomes[value] = "unknown"
        producer.begin_transaction()
        for topic in TOPICS:
            for _ in range(RECORDS):
                producer.send(topic, value)
        if self.random.random() < 0.3:
            self.outcomes[value] = "aborted"
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            self.outcomes[value] = "committed"
            self.committed += 1


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_transactions_through_kills(tmp_path: Path, durability: str, soak: bool) -> None:
    with Broker(data_dir=tmp_path, config={"durability": durability}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=1, replication_factor=1)
        writers = [Writer(broker.bootstrap_servers, name) for name in ("a", "b")]
        for writer in writers:
            writer.start()
        chance = random.Random(durability)
        for _ in range(20 if soak else 3):
            more_are_committed(writers)
            writers[0].join(chance.uniform(0, 0.4))
            broker.kill()
            broker.start()
        more_are_committed(writers)
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
            assert not writer.is_alive()
        for writer in writers:  # whatever was left open is aborted
            with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=writer.name_) as producer:
                producer.begin_transaction()
                producer.abort_transaction()
        seen = {topic: committed(broker.bootstrap_servers, topic) for topic in TOPICS}
        outcomes = {value: outcome for writer in writers for value, outcome in writer.outcomes.items()}
        for value, outcome in outcomes.items():
            counts = {seen[topic][value] for topic in TOPICS}
            allowed = {"committed": [{RECORDS}], "aborted": [{0}], "unknown": [{0}, {RECORDS}]}[outcome]
            assert counts in allowed, f"{value!r} was {outcome}, readers see {counts}"


def more_are_committed(writers: list[Writer]) -> None:
    """Wait until each writer has committed twice more, however slow the machine is."""
    enough = [writer.committed + 2 for writer in writers]
    until(lambda: all(writer.committed >= count for writer, count in zip(writers, enough, strict=True)))


def committed(servers: str, topic: str) -> Counter[bytes]:
    with Consumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        return Counter(record.value for record in consumer.read_to_end() if record.value is not None)
