"""Apache Kafka's own producer and consumer in Java over several nodes, beside `ClientsAtWork`, and what must hold of what they saw."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import apache_kafka
from clients_at_work import PARTITIONS, ClientsAtWork

from fastq import Admin


class JavaClients:
    """A producer and a consumer of Apache Kafka's, on a topic of their own."""

    def __init__(self, servers: str, path: Path) -> None:
        """`path`: where a file of settings may be written."""
        self.servers, self.path = servers, path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> JavaClients:
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.create_topic("java", PARTITIONS, 3)
        servers = ("--bootstrap-server", self.servers, "--topic", "java")
        self._consumer = apache_kafka.started_tool(
            "org.apache.kafka.tools.VerifiableConsumer", *servers, "--group-id", "java", "--verbose", heap="64m"
        )
        settings = self.path / "producer.properties"  # by itself it does not try again
        settings.write_text("retries=2147483647\nenable.idempotence=true\nacks=all\n")
        self._producer = contextlib.ExitStack()
        self.sent = self._producer.enter_context(
            apache_kafka.started_tool(
                "org.apache.kafka.tools.VerifiableProducer",
                *servers,
                "--throughput",
                "50",
                "--command-config",
                str(settings),
                heap="64m",
            )
        )
        self._stack.push(self._producer)
        self.read = self._stack.enter_context(self._consumer)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self, work: ClientsAtWork) -> None:
        """Stop sending: what was acknowledged is there once and in order, and the consumer read all of it."""
        self._producer.close()
        sent = [row for row in map(json.loads, self.sent) if row["name"].startswith("producer_send")]
        assert len(sent) > 500 and {row["name"] for row in sent} == {"producer_send_success"}, sent[-5:]
        acknowledged = {(row["partition"], row["offset"]): int(row["value"]) for row in sent}
        found = work.read_all("java")
        there = {(partition, offset): value for partition, offset, value in found}
        assert there == acknowledged
        for partition in range(PARTITIONS):
            values = [value for at, _, value in sorted(found) if at == partition]
            assert values == sorted(values)
        end = time.monotonic() + 60
        while (missing := there.keys() - self._places_read()) and time.monotonic() < end:
            time.sleep(0.5)
        assert not missing

    def _places_read(self) -> set[tuple[int, int]]:
        rows: list[Any] = [json.loads(line) for line in list(self.read) if '"record_data"' in line]
        return {(row["partition"], row["offset"]) for row in rows}
