"""Apache Kafka's own command-line tools against the fastq broker and its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_kafka
import pytest

from fastq import Consumer, Producer
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path_factory.mktemp("tools") / "data") as broker:
        yield broker


def tool(name: str, broker: Broker, *arguments: str, stdin: str | None = None) -> str:
    return apache_kafka.run_tool(name, "--bootstrap-server", broker.bootstrap_servers, *arguments, stdin=stdin).stdout


def test_topic_command(broker: Broker) -> None:
    name = "org.apache.kafka.tools.TopicCommand"
    tool(name, broker, "--create", "--topic", "made", "--partitions", "3", "--config", "retention.ms=1234567")
    described = tool(name, broker, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    assert "retention.ms=1234567" in described
    tool(name, broker, "--alter", "--topic", "made", "--partitions", "5")
    assert "PartitionCount: 5" in tool(name, broker, "--describe", "--topic", "made")
    assert "made" in tool(name, broker, "--list").split()
    tool(name, broker, "--delete", "--topic", "made")
    assert "made" not in tool(name, broker, "--list").split()


def test_config_command(broker: Broker) -> None:
    tool("org.apache.kafka.tools.TopicCommand", broker, "--create", "--topic", "configured", "--partitions", "1")
    name, entity = "kafka.admin.ConfigCommand", ("--entity-type", "topics", "--entity-name", "configured")
    tool(name, broker, *entity, "--alter", "--add-config", "max.message.bytes=54321,cleanup.policy=[compact,delete]")
    described = tool(name, broker, *entity, "--describe")
    assert "max.message.bytes=54321" in described
    assert "cleanup.policy=compact,delete" in described
    tool(name, broker, *entity, "--alter", "--delete-config", "max.message.bytes")
    assert "max.message.bytes=54321" not in tool(name, broker, *entity, "--describe")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_perf_producer_and_dump(broker: Broker, codec: str) -> None:
    topic = f"perf-{codec}"
    tool("org.apache.kafka.tools.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    printed = apache_kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", broker.bootstrap_servers, "--command-property", f"compression.type={codec}",
    ).stdout  # fmt: skip
    assert "20000 records sent" in printed
    with Consumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert [record.offset for record in consumer.read_to_end()] == list(range(20_000))
    (segment,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    assert last_offset(segment) == 19_999


def last_offset(segment: Path) -> int:
    """The last offset that Kafka's own reader finds; it checks every batch's checksum on the way."""
    printed = apache_kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(segment)).stdout
    assert "isvalid: false" not in printed
    return int(re.findall(r"lastOffset: (\d+)", printed)[-1])


def test_dump_of_index_files(broker: Broker) -> None:
    """Kafka's index sanity checks find nothing wrong in ours."""
    topic = "indexed"
    tool("org.apache.kafka.tools.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1",
         "--config", "segment.bytes=1048576", "--config", "index.interval.bytes=1024")  # fmt: skip
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=4096) as producer:
        for number in range(40_000):
            producer.send(topic, b"%d" % number * 10)
    folder = broker.data_dir / f"{topic}-0"
    files = sorted(folder.glob("*.index")) + sorted(folder.glob("*.timeindex"))
    assert len(files) >= 4
    printed = apache_kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--index-sanity-check", "--files", ",".join(map(str, files))
    ).stdout
    assert "Found timestamp mismatch" not in printed
    assert "Mismatches in" not in printed


def test_offset_shell(broker: Broker) -> None:
    tool("org.apache.kafka.tools.TopicCommand", broker, "--create", "--topic", "offsets", "--partitions", "2")
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(30):
            producer.send("offsets", b"v", partition=0, timestamp_ms=1_700_000_000_000 + number)
    printed = tool("org.apache.kafka.tools.GetOffsetShell", broker, "--topic", "offsets")
    assert printed.split() == ["offsets:0:30", "offsets:1:0"]
    assert "offsets:0:10" in tool(
        "org.apache.kafka.tools.GetOffsetShell", broker, "--topic", "offsets", "--time", "1700000000010"
    )


def test_console_producer_and_consumer(broker: Broker, tmp_path: Path) -> None:
    tool("org.apache.kafka.tools.TopicCommand", broker, "--create", "--topic", "console", "--partitions", "1")
    lines = [f"line {number}" for number in range(100)]
    tool("org.apache.kafka.tools.ConsoleProducer", broker, "--topic", "console", stdin="\n".join(lines) + "\n")
    printed = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", broker, "--topic", "console", "--partition", "0",
        "--offset", "earliest", "--max-messages", "100", "--timeout-ms", "30000",
    )  # fmt: skip
    assert printed.splitlines() == lines


def test_data_directory_moves_to_apache_kafka_and_back(tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    """Topics and records written by fastq are served by Apache Kafka from the same directory, and the other way round."""
    data_dir = tmp_path / "data"
    values = [b"value %d" % number for number in range(5_000)]
    with Broker(data_dir=data_dir) as ours:
        apache_kafka.run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", ours.bootstrap_servers,
                              "--create", "--topic", "moved", "--partitions", "1", "--config", "retention.ms=987654321")  # fmt: skip
        with Producer(bootstrap_servers=ours.bootstrap_servers) as producer:
            producer.send_many("moved", values).result(10)
    with apache_kafka.ApacheKafka(data_dir, heap="512m") as kafka:
        with Consumer("moved", bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.read_to_end()] == values
        described = apache_kafka.run_tool(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            kafka.bootstrap_servers,
            "--describe",
            "--topic",
            "moved",
        ).stdout
        assert "retention.ms=987654321" in described
        with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send("moved", b"from Kafka").result(10)
            producer.send("made-there", b"new").result(10)
    with (
        Broker(data_dir=data_dir) as ours,
        Consumer(
            "moved", "made-there", bootstrap_servers=ours.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer,
    ):
        found = [record.value for record in consumer.read_to_end()]
    assert sorted(found) == sorted([*values, b"from Kafka", b"new"])
