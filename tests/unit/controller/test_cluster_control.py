"""A quorum of three controllers serves brokers that register, live, go and die, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from controllers import Cluster, SimulatedBroker
from raft_members import until

from fastq.protocol import messages as m


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def create(cluster: Cluster, name: str, partitions: int = 1, factor: int = 2) -> Any:
    wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    response = await cluster.ask(m.CreateTopicsRequest(topics=[wanted], timeout_ms=5000))
    (made,) = response.topics
    assert made.error_code == 0, made.error_message
    return made


async def partition(cluster: Cluster, name: str, number: int = 0) -> Any:
    found = (await cluster.image()).partition(name, number)
    assert found is not None
    return found


def test_brokers_register_live_and_are_fenced_when_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path, broker_session_timeout_ms=800) as cluster:
            brokers = [SimulatedBroker(number, cluster) for number in (11, 12)]
            for broker in brokers:
                await broker.run()
            assert len({broker.epoch for broker in brokers}) == 2
            await create(cluster, "t")
            assert (await partition(cluster, "t")).isr == (await partition(cluster, "t")).replicas
            brokers[0].kill()
            node = await cluster.active()
            assert node.controller is not None
            controller = node.controller
            await until(lambda: controller.image.brokers[11].fenced)
            found = await partition(cluster, "t")
            assert (found.leader, found.isr) == (12, (12,))
            assert not controller.image.brokers[12].fenced
            assert (await brokers[0].heartbeat(want_fence=True)).is_fenced
            assert not (await brokers[0].heartbeat()).is_fenced
            brokers[1].kill()

    run(scenario())
