"""The node that coordinates transactions and groups is killed, the active controller and the leader that it is with it: all go on.

Rules: it leads the topic too, so clients learn from the metadata that it is gone before they ask anything of the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

import pytest
from fastq_broker.coordinator.hashing import partition_of

from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
PROTOCOLS = ("classic", "consumer")
INTERNAL = {"__consumer_offsets", "__transaction_state"}


class Victim(NamedTuple):
    """The node that is killed, and ids that it coordinates."""

    node: Broker
    transactional_id: str
    groups: dict[str, str]
    """By protocol."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config={"group.initial.rebalance.delay.ms": 0}) as cluster:
        servers = cluster.bootstrap_servers
        with (
            Admin(bootstrap_servers=servers) as admin,
            Producer(bootstrap_servers=servers, transactional_id="first") as producer,
            Consumer("numbers", bootstrap_servers=servers, group_id="first") as consumer,
        ):
            admin.create_topic("numbers", 1, 3)
            with producer.transaction():
                producer.send("numbers", b"0")
            while not set(admin.list_topics(include_internal=True)) >= INTERNAL:
                consumer.poll(timeout=0.1)
        cluster.wait_in_sync()
        yield cluster


@pytest.fixture
def victim(cluster: Cluster) -> Victim:
    node = cluster.active_controller()
    while cluster.leader("numbers") is not node:
        cluster.change_leader("numbers")

    def ids(topic: str) -> Iterator[str]:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            leaders = [partition.leader for partition in admin.describe_topic(topic).partitions]
        for number in range(1000):
            leader = leaders[partition_of(f"id-{number}", len(leaders))]
            if leader is not None and leader.node_id == node.node_id:
                yield f"id-{number}"

    return Victim(node, next(ids("__transaction_state")), dict(zip(PROTOCOLS, ids("__consumer_offsets"), strict=False)))


def member(cluster: Cluster, victim: Victim, protocol: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "group_id": victim.groups[protocol],
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    }


def check(cluster: Cluster, victim: Victim, seen: dict[str, list[bytes | None]]) -> None:
    """Each group has seen all records once, and committed them: the last one's offset is 6, as each transaction ends with a marker."""
    assert list(seen.values()) == [[b"0", b"1", b"2", b"3"]] * len(PROTOCOLS)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for group in victim.groups.values():
            assert admin.list_group_offsets(group)[TopicPartition("numbers", 0)].result().offset in (7, 8)


def test_clients_go_on(cluster: Cluster, victim: Victim) -> None:
    seen: dict[str, list[bytes | None]] = {protocol: [] for protocol in PROTOCOLS}
    with ExitStack() as stack:
        servers = cluster.bootstrap_servers
        producer = stack.enter_context(Producer(bootstrap_servers=servers, transactional_id=victim.transactional_id))
        consumers = {
            protocol: stack.enter_context(Consumer("numbers", **member(cluster, victim, protocol)))
            for protocol in PROTOCOLS
        }
        for number in (1, 2, 3):
            with producer.transaction():
                producer.send("numbers", b"%d" % number)
            for protocol, consumer in consumers.items():
                while len(seen[protocol]) <= number:
                    seen[protocol] += [record.value for record in consumer.poll(timeout=0.1)]
                consumer.commit()
            if victim.node.running:
                victim.node.kill()
    check(cluster, victim, seen)


def test_clients_of_asyncio_go_on(cluster: Cluster, victim: Victim) -> None:
    seen: dict[str, list[bytes | None]] = {protocol: [] for protocol in PROTOCOLS}

    async def go_on() -> None:
        async with AsyncExitStack() as stack:
            servers = cluster.bootstrap_servers
            producer = await stack.enter_async_context(
                AsyncProducer(bootstrap_servers=servers, transactional_id=victim.transactional_id)
            )
            consumers = {
                protocol: await stack.enter_async_context(AsyncConsumer("numbers", **member(cluster, victim, protocol)))
                for protocol in PROTOCOLS
            }
            for number in (1, 2, 3):
                async with producer.transaction():
                    await producer.send("numbers", b"%d" % number)
                for protocol, consumer in consumers.items():
                    while len(seen[protocol]) <= number:
                        seen[protocol] += [record.value for record in await consumer.poll(timeout=0.1)]
                    await consumer.commit()
                if victim.node.running:
                    victim.node.kill()

    asyncio.run(asyncio.wait_for(go_on(), PATIENCE_S))
    check(cluster, victim, seen)
