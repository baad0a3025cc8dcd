"""Transactions between Apache Kafka and the fastq broker: its tools and Java producer on ours, and directories that move."""

from __future__ import annotations

from pathlib import Path

import apache_kafka
import pytest
from raw_kafka import RawConnection, create_topic, fetch
from raw_transactions import Producer, committed_values, latest, wait_for

from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOPIC = "moving"


def tool(name: str, *arguments: str) -> str:
    return str(apache_kafka.run_tool(f"org.apache.kafka.tools.{name}", *arguments).stdout)


def test_the_java_producer_and_its_tools(tmp_path: Path) -> None:
    """The Java producer uses version 2; Kafka's reader finds in __transaction_state what it would have written."""
    with Broker(data_dir=tmp_path) as broker:
        servers = broker.bootstrap_servers
        with RawConnection(servers) as connection:
            create_topic(connection, TOPIC)
            printed = tool(
                "ProducerPerformance", "--topic", TOPIC, "--num-records", "5000", "--record-size", "100", "--throughput", "-1",
                "--bootstrap-server", servers, "--transactional-id", "perf", "--transaction-duration-ms", "10",
            )  # fmt: skip
            assert "5000 records sent" in printed
            assert latest(connection, TOPIC, 1) == latest(connection, TOPIC, 0) > 5000
            hanging = Producer(connection, "hanging")
            assert hanging.send(TOPIC, b"v").error_code == 0
            start = latest(connection, TOPIC, 1)
        administer = ("TransactionsCommand", "--bootstrap-server", servers)
        listed = {line.split()[0]: line.split()[3] for line in tool(*administer, "list").splitlines() if line.strip()}
        assert listed == {"TransactionalId": "TransactionState", "perf": "CompleteCommit", "hanging": "Ongoing"}
        described = tool(*administer, "describe", "--transactional-id", "hanging")
        assert f"{TOPIC}-0" in described
        producers = tool(*administer, "describe-producers", "--topic", TOPIC, "--partition", "0")
        assert f"\t{start}" in producers.replace(" ", "")
        tool(*administer, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", str(start))
        with RawConnection(servers) as connection:
            assert latest(connection, TOPIC, 1) == latest(connection, TOPIC, 0)
    logs = [log for log in tmp_path.glob("__transaction_state-*/*.log") if log.stat().st_size]
    decoded = "".join(
        tool("DumpLogSegments", "--files", str(log), "--transaction-log-decoder", "--print-data-log") for log in logs
    )
    assert '"transactionalId":"perf"' in decoded
    assert '"transactionStatus":4' in decoded
    assert "isvalid: false" not in decoded


def open_one_and_commit_one(servers: str, first: bytes) -> Producer:
    """A committed transaction, and one that is left open."""
    with RawConnection(servers) as connection:
        wait_for(lambda: fetch(connection, TOPIC, 0), lambda answer: answer.error_code != 0)
        done = Producer(connection, "done")
        assert done.send(TOPIC, first).error_code == 0
        assert done.finish(True) == 0
        left = Producer(connection, "left")
        assert left.send(TOPIC, b"left " + first).error_code == 0
        return left


def end_what_was_left(servers: str, left: Producer, committed: bool) -> list[bytes]:
    """End the open transaction on the other broker, with the producer's id and epoch; answers what readers see."""
    with RawConnection(servers) as connection:
        wait_for(lambda: fetch(connection, TOPIC, 0), lambda answer: answer.error_code != 0)
        left.connection = connection
        wait_for(left.state, lambda state: state != "Ongoing")
        assert left.finish(committed) == 0
        assert left.send(TOPIC, b"after").error_code == 0
        assert left.finish(True) == 0
        assert latest(connection, TOPIC, 1) == latest(connection, TOPIC, 0)
        again = Producer(connection, "done")
        assert again.epoch > 0
        return committed_values(connection, TOPIC)


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_moves_both_ways(tmp_path: Path, committed: bool) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, TOPIC)
        left = open_one_and_commit_one(broker.bootstrap_servers, b"ours")
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka:
        expected = [b"ours", *([b"left ours"] if committed else []), b"after"]
        assert end_what_was_left(kafka.bootstrap_servers, left, committed) == expected
        left = open_one_and_commit_one(kafka.bootstrap_servers, b"theirs")
    with Broker(data_dir=data) as broker:
        expected += [b"theirs", *([b"left theirs"] if committed else []), b"after"]
        assert end_what_was_left(broker.bootstrap_servers, left, committed) == expected
