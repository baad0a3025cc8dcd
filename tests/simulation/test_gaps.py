"""How long a producer and a consumer have no records while their leader is stopped in good order: on virtual time, in which only the
network, the disk and timers take any, so that who waits for a timer without need is found."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fastq import AsyncConsumer, AsyncProducer, TopicPartition
from simulation.client import Client
from simulation.node import PORT, ip_of
from simulation.scenario import Cluster, simulate
from simulation.world import FIRST_MS, Violation

TOPIC, PARTITIONS = "gaps", 6
GAP_S = 0.06
"""Many times what the network takes to and fro, and less than the shortest pause of a client."""


class Watched:
    """A producer and a consumer, with the settings that they have by themselves, of one partition; and when they got something."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self.world, self.partition = cluster.world, partition
        self.acknowledged: list[float] = []
        self.read: list[float] = []
        self.stopping = False
        self.running = 2
        for work in (self._produce, self._consume):
            client = cluster.client()
            cluster.go(client, work(client))

    async def _produce(self, client: Client) -> None:
        async with AsyncProducer(bootstrap_servers=[f"{ip_of(node)}:{PORT}" for node in client.nodes]) as producer:
            while not self.stopping:
                stamp = FIRST_MS + int(self.world.now * 1000)
                await (await producer.send(TOPIC, b"one", partition=self.partition, timestamp_ms=stamp))
                self.acknowledged.append(self.world.now)
                await asyncio.sleep(0.004)
        self.running -= 1

    async def _consume(self, client: Client) -> None:
        async with AsyncConsumer(bootstrap_servers=[f"{ip_of(node)}:{PORT}" for node in client.nodes]) as consumer:
            consumer.assign([TopicPartition(TOPIC, self.partition)])
            while not self.stopping:
                for _ in await consumer.poll(timeout=0.1):
                    self.read.append(self.world.now)
        self.running -= 1


def stop_a_leader(cluster: Cluster) -> None:
    """Nobody writes to the other partitions: what waits for their records waits long."""
    world = cluster.world
    cluster.network.delay_s = 0.00005, 0.0005
    for node in cluster.nodes:
        node.sync_s = 0.0001, 0.001
    cluster.start()
    cluster.make_topic(TOPIC, PARTITIONS)
    world.run(1.0)
    broker = cluster.nodes[0].broker
    assert broker is not None
    leaders = [each.leader for each in broker.image.topics_by_name[TOPIC].partitions]
    node = next(node for node in cluster.nodes if node.broker is not None and not node.broker.controller.is_active)
    watched = Watched(cluster, leaders.index(node.node_id))
    cluster.until(10.0, lambda: len(watched.read) > 100, "no records are read")
    begun = world.now
    node.stop()
    cluster.until(20.0, lambda: node.broker is None, "the node does not end")
    node.start()
    world.run(1.0)
    for what, times in (("acknowledged", watched.acknowledged), ("read", watched.read)):
        gap_s, at = max((after - before, after) for before, after in pairwise([*times, world.now]) if after > begun)
        if gap_s > GAP_S:
            raise Violation(f"nothing was {what} for {gap_s:.3f} s, until {at:.4f}; the stop began at {begun:.4f}")
    watched.stopping = True
    cluster.until(10.0, lambda: not watched.running, "clients do not end")


@pytest.mark.parametrize("seed", range(3))
def test_a_stop_has_nobody_wait_for_a_timer(seed: int) -> None:
    outcome = simulate(seed, stop_a_leader)
    assert outcome.problem is None, "\n".join(outcome.story)
