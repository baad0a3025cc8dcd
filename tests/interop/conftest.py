"""Brokers under test, for the interop tests.

Rules: `servers` is the address of a broker and the tests that take it run against each kind in turn: ours, and
Apache Kafka (marked `kafka`, run by `make interop-kafka`). Peers' clients run against ours only. A file whose groups are not to
wait has `quick_broker` for ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import apache_kafka
import pytest
from raw_cluster import connect
from raw_kafka import RawConnection
from under_test import ONE_COORDINATOR, broker_under_test

from fastq.testing import Broker, Cluster


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """Bootstrap servers of an Apache Kafka node; the tests are left out, with the reason, where it cannot run."""
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)
    with apache_kafka.ApacheKafka(heap="768m") as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture(scope="session")
def fastq_servers(shared_broker: object) -> str:
    return str(shared_broker.bootstrap_servers)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | Cluster]:
    """A broker of ours for one file, whose groups do not wait: heartbeats are frequent, assignments are made at once."""
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.assignment.interval.ms": 0,
    }
    with broker_under_test(tmp_path_factory.mktemp("quick") / "data", config) as broker:
        yield broker


@pytest.fixture(scope="module")
def one_coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | Cluster]:
    """A broker of ours for one file, whose requests name several groups or transactions at once; they do not wait."""
    config = {"group.initial.rebalance.delay.ms": 0, **ONE_COORDINATOR}
    with broker_under_test(tmp_path_factory.mktemp("one") / "data", config) as broker:
        yield broker


@pytest.fixture(params=["fastq", pytest.param("apache-kafka", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    """Bootstrap servers of each kind of broker in turn."""
    return str(request.getfixturevalue("fastq_servers" if request.param == "fastq" else "kafka_servers"))


@pytest.fixture(autouse=True)
def nobody_runs_on() -> Iterator[None]:
    """Members of groups run in threads of their own, with a `stopping` (an event, or a bool): what a failed test leaves is stopped."""
    yield
    left = [thread for thread in threading.enumerate() if hasattr(thread, "stopping")]
    for thread in left:
        if isinstance(thread.stopping, threading.Event):
            thread.stopping.set()
        else:
            thread.stopping = True
    for thread in left:
        thread.join(60)


@pytest.fixture
def connection(servers: str) -> Iterator[RawConnection]:
    """Requests by hand to the broker under test."""
    with connect(servers) as connection:
        yield connection
