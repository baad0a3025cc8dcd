"""Reading from the closest replica (KIP-392), with nodes in racks: records come from the follower, and go on coming when it dies."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from fastq import AsyncConsumer, Consumer, Producer
from fastq.admin import Admin
from fastq.testing import Broker, Cluster

LEADER, FOLLOWER = 1, 3
RACKS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
    "min.insync.replicas": 1,
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, each in a rack of its own name, with metrics."""
    cluster = Cluster(3, in_memory=True, config=RACKS)
    for node in cluster.nodes:
        node.config["broker.rack"] = f"rack-{node.node_id}"
    cluster._format()
    for node in cluster.nodes:
        node._arguments = measured(node._arguments)  # type: ignore[method-assign]
    with cluster:
        yield cluster


def measured(arguments: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*arguments(), "--metrics-listen", "127.0.0.1:0"]


def read_from(node: Broker, topic: str) -> int:
    """Bytes of a topic that consumers have had of a node."""
    with closing(urllib.request.urlopen(f"{node.metrics_url}/metrics")) as page:
        text = page.read().decode()
    found = re.search(rf'^kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}} (\S+)$', text, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


def make_topic(cluster: Cluster, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, replica_assignments={0: [LEADER, 2, FOLLOWER]})
    cluster.wait_in_sync()


def send(producer: Producer, topic: str, first: int, last: int) -> None:
    for number in range(first, last):
        producer.send(topic, b"%d" % number + bytes(1000))
    producer.flush(30)


def numbers(records: list[object]) -> list[int]:
    return [int(record.value.rstrip(b"\0")) for record in records]  # type: ignore[attr-defined]


def check_came_from(cluster: Cluster, topic: str) -> None:
    """All but what the leader gave before it had told of the follower, which is nothing, as it answers that first."""
    assert read_from(cluster.node(FOLLOWER), topic) > 300_000
    assert read_from(cluster.node(LEADER), topic) < 1000


def test_a_consumer_reads_from_the_follower_of_its_rack(cluster: Cluster) -> None:
    topic, servers = "near", cluster.bootstrap_servers
    make_topic(cluster, topic)
    options = {"bootstrap_servers": servers, "auto_offset_reset": "earliest", "client_rack": f"rack-{FOLLOWER}"}
    with Producer(bootstrap_servers=servers, acks="all") as producer, Consumer(topic, **options) as consumer:
        found: list[int] = []

        def read(count: int) -> None:
            while len(found) < count:
                records = consumer.poll(timeout=30)
                assert records, found
                found.extend(numbers(records))

        for first in range(0, 400, 100):
            send(producer, topic, first, first + 100)
            read(first + 100)
        check_came_from(cluster, topic)
        cluster.node(FOLLOWER).kill()
        send(producer, topic, 400, 500)
        read(500)
        assert found == list(range(500))
        assert read_from(cluster.node(LEADER), topic) > 0


def test_an_asyncio_consumer_reads_from_the_follower_of_its_rack(cluster: Cluster) -> None:
    topic, servers = "near", cluster.bootstrap_servers
    make_topic(cluster, topic)

    async def main() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest", client_rack=f"rack-{FOLLOWER}"
        ) as consumer:
            for count in range(100, 600, 100):
                if count == 500:
                    check_came_from(cluster, topic)
                    cluster.node(FOLLOWER).kill()
                await asyncio.to_thread(send, producer, topic, count - 100, count)
                while len(found) < count:
                    records = await consumer.poll(timeout=30)
                    assert records, found
                    found.extend(numbers(list(records)))
        return found

    with Producer(bootstrap_servers=servers, acks="all") as producer:
        assert asyncio.run(main()) == list(range(500))
    assert read_from(cluster.node(LEADER), topic) > 0
