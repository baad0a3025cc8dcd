"""Clients in Java over three nodes in trouble: Apache Kafka's own producer and consumer, and a copier in transactions, which loses and
doubles nothing; beside ours and librdkafka's."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import apache_kafka
import pytest
from trouble import KINDS, go

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of a process that runs, and namespaces"),
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


def test_java_copies_exactly_once_whatever_happens_to_a_node(tmp_path: Path) -> None:
    go(tmp_path, ["kill", "pause", "full disk"], Random(6), copiers=("java",))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_java_copies_exactly_once_whatever_happens_to_nodes_for_long(tmp_path: Path, seed: int) -> None:
    random = Random(100 + seed)
    protocol = "consumer" if seed == 1 else "classic"
    go(tmp_path, random.choices(KINDS, k=25), random, protocol, ("ours", "java"), java_clients=True)
