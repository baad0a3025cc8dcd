"""How long a producer and a consumer have no records while their leader is stopped in good order, or killed: on virtual time, in which only
the network, the disk and timers take any, so that who waits for a timer without need is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest

from fastq import AsyncConsumer, AsyncProducer, TopicPartition
from simulation.client import Client
from simulation.node import PORT, Node, ip_of
from simulation.scenario import Cluster, simulate
from simulation.world import FIRST_MS, Violation

TOPIC, PARTITIONS = "gaps", 6
GAP_S = 0.06
"""Many times what the network takes to and fro, and less than the shortest pause of a client."""
FENCED_S = 0.65
"""broker.disconnect.timeout.ms, a turn of who looks after the cluster, and what the network takes."""
SEEK_S = 0.12
"""How often a client asks who leads in place of a node that was killed a moment ago."""


class Watched:
    """A producer of one partition and a consumer of all, with the settings that they have by themselves; and when they got something."""

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
            consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
            while not self.stopping:
                for _ in await consumer.poll(timeout=0.1):
                    self.read.append(self.world.now)
        self.running -= 1


class Leader(NamedTuple):
    """A node that leads a partition which is written and read, and is not the active controller; `place` is the partition's."""

    node: Node
    place: int
    watched: Watched

    def succeeded(self, cluster: Cluster) -> bool:
        """Whether every node that runs knows of another leader."""
        brokers = [each.broker for each in cluster.nodes if each.broker is not None and each is not self.node]
        return all(
            broker.image.topics_by_name[TOPIC].partitions[self.place].leader != self.node.node_id for broker in brokers
        )


def a_leader_at_work(cluster: Cluster) -> Leader:
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
    place = leaders.index(node.node_id)
    watched = Watched(cluster, place)
    cluster.until(10.0, lambda: len(watched.read) > 100, "no records are read")
    return Leader(node, place, watched)


def check_gaps(cluster: Cluster, watched: Watched, since: float) -> None:
    """Nothing but what has to has passed between `since` and the first record after it."""
    world = cluster.world
    world.run(1.0)
    for what, times in (("acknowledged", watched.acknowledged), ("read", watched.read)):
        gap_s, at = max((end - max(begin, since), end) for begin, end in pairwise([*times, world.now]) if end > since)
        if gap_s > GAP_S:
            raise Violation(
                f"nothing was {what} for {gap_s:.3f} s, until {at:.4f}; it might have been from {since:.4f} on"
            )
    watched.stopping = True
    cluster.until(10.0, lambda: not watched.running, "clients do not end")


def stop_a_leader(cluster: Cluster) -> None:
    node, _, watched = a_leader_at_work(cluster)
    begun = cluster.world.now
    node.stop()
    cluster.until(20.0, lambda: node.broker is None, "the node does not end")
    node.start()
    check_gaps(cluster, watched, begun)


def kill_a_leader(cluster: Cluster) -> None:
    leader = a_leader_at_work(cluster)
    leader.node.kill()
    cluster.until(FENCED_S, lambda: leader.succeeded(cluster), "nobody leads in its place")
    check_gaps(cluster, leader.watched, cluster.world.now + SEEK_S)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("play", [stop_a_leader, kill_a_leader])
def test_nobody_waits_for_a_timer(play: Callable[[Cluster], None], seed: int) -> None:
    outcome = simulate(seed, play)
    assert outcome.problem is None, "\n".join(outcome.story)
