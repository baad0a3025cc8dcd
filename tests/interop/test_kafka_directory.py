"""One data directory, two brokers: what fastq formatted and wrote Apache Kafka opens, and the other way round."""

from __future__ import annotations

import re
import time
from pathlib import Path

import apache_kafka
import pytest

from fastq import Admin, Consumer, Producer
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOPIC = "moving"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def add(servers: str, start: int, count: int) -> None:
    with Producer(bootstrap_servers=servers, acks="all") as producer:
        for number in range(start, start + count):
            producer.send(TOPIC, b"value %d" % number, key=b"%d" % number)


def read(servers: str) -> list[int]:
    """The numbers of all records, sorted; fails after 30 s without a leader."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with Consumer(TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
                return sorted(int(record.key or b"-1") for record in consumer.read_to_end())
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def retention(servers: str) -> str:
    return str(_described(servers)["retention.ms"])


def _described(servers: str) -> dict[str, str]:
    printed = apache_kafka.run_tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", servers, "--describe", "--topic", TOPIC
    ).stdout
    pairs = (word.partition("=") for line in printed.splitlines()[1:] for word in line.split()[:1])
    return {name: value for name, _, value in pairs}


def create(servers: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(TOPIC, partitions=3, replication_factor=1, configs={"retention.ms": "123456789"})


def as_the_page_has_it(kafka: apache_kafka.ApacheKafka) -> apache_kafka.ApacheKafka:
    """With the file of docs/operations.md and nothing else; only ports and the directory's path differ."""
    (text,) = re.findall(r"^```properties\n# server\.properties\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ports = {"9092": str(kafka.port), "9093": str(kafka.controller_port)}
    text = re.sub(r"\b909[23]\b", lambda found: ports[found[0]], text)
    pairs = (line.partition("=") for line in text.splitlines())
    kafka.properties = {key: value for key, _, value in pairs} | {"log.dirs": str(kafka.data_dir)}
    return kafka


def test_from_fastq_to_kafka_and_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        create(broker.bootstrap_servers)
        add(broker.bootstrap_servers, 0, 300)
    with as_the_page_has_it(apache_kafka.ApacheKafka(data, heap="512m")) as kafka:
        assert read(kafka.bootstrap_servers) == list(range(300))
        assert retention(kafka.bootstrap_servers) == "123456789"
        add(kafka.bootstrap_servers, 300, 200)
    with Broker(data_dir=data) as broker:
        assert read(broker.bootstrap_servers) == list(range(500))
        add(broker.bootstrap_servers, 500, 100)
        assert read(broker.bootstrap_servers) == list(range(600))


def test_from_kafka_to_fastq_and_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka:
        create(kafka.bootstrap_servers)
        add(kafka.bootstrap_servers, 0, 300)
    with Broker(data_dir=data) as broker:
        assert read(broker.bootstrap_servers) == list(range(300))
        assert retention(broker.bootstrap_servers) == "123456789"
        add(broker.bootstrap_servers, 300, 200)
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka:
        assert read(kafka.bootstrap_servers) == list(range(500))
