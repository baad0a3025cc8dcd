"""A broker's life of ours under a controller of Apache Kafka's: it registers, runs, forwards what clients want, and is let go."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from random import Random
from typing import Any

import apache_kafka
import pytest
from fastq_broker.cluster.controller_channel import ChannelConfig, ControllerChannel, Leader
from fastq_broker.cluster.driver import LifeDriver
from fastq_broker.cluster.forwarding import ClientRequest, Forwarder, Principal, shared_versions
from fastq_broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleConfig, ListenerAddress, OpenPorts
from fastq_broker.cluster.registration import ControllerRegistration, RegistrationConfig
from fastq_broker.controller.features import SUPPORTED
from fastq_broker.raft.voters import Endpoint
from raft_members import until

from fastq.config import ClientConfig
from fastq.protocol.api import APIS
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    EnvelopeRequest,
    EnvelopeResponse,
)

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

CONTROLLER = 2
OURS = 7
AHEAD = 1 << 40
"""A metadata offset that is caught up with everything: the log itself is not followed here."""


class Node:
    """A process of ours, as far as its controller sees one."""

    def __init__(self, cluster_id: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.leader = Leader(CONTROLLER, 1, Endpoint("127.0.0.1", port))
        self.news: list[Any] = []
        self.heartbeats = self.channel("heartbeat")
        self.forwards = self.channel("forwarding")
        self.forwarder = Forwarder(self.forwards, self.loop)
        self.life = BrokerLifecycle(
            LifecycleConfig(
                node_id=OURS,
                cluster_id=cluster_id,
                incarnation_id=os.urandom(16),
                listeners=[ListenerAddress("PLAINTEXT", "127.0.0.1", 19092)],
                features=SUPPORTED,
                log_dirs=[os.urandom(16)],
                heartbeat_interval_s=0.2,
            )
        )
        self.driver = LifeDriver(self.life, self.heartbeats, self.loop, self.news.append)

    def channel(self, name: str) -> ControllerChannel:
        client = ClientConfig(bootstrap_servers=["127.0.0.1:1"], client_id=str(OURS))
        return ControllerChannel(ChannelConfig(node_id=OURS, name=name), lambda: self.leader, None, client, self.loop)

    def start(self) -> None:
        self.life.metadata_at(AHEAD)
        self.life.loaded(self.driver.now())
        self.driver.start()

    async def ask(self, request: Message, version: int, **changes: Any) -> Any:
        client = ClientRequest(
            request.API_KEY, version, 42, b"app", request.to_bytes(version), Principal("User", "alice"), "10.0.0.9"
        )
        return await self.forwarder.forward(client._replace(**changes))

    def close(self) -> None:
        self.driver.close()
        self.heartbeats.close()
        self.forwards.close()


def started(path: Path, cluster_id: str) -> apache_kafka.ApacheKafka:
    made = apache_kafka.ApacheKafka(path, heap="256m", cluster_id=cluster_id)
    made.properties |= {
        "process.roles": "controller",
        "node.id": str(CONTROLLER),
        "listeners": f"CONTROLLER://127.0.0.1:{made.controller_port}",
        "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{made.controller_port}",
        "broker.session.timeout.ms": "2000",
    }
    del made.properties["advertised.listeners"], made.properties["controller.quorum.bootstrap.servers"]
    made.start()
    return made


def test_a_broker_of_ours_under_a_controller_of_apache_kafka(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster_id = apache_kafka.random_cluster_id()
        kafka = await asyncio.to_thread(started, tmp_path, cluster_id)
        node, twin = Node(cluster_id, kafka.controller_port), Node(cluster_id, kafka.controller_port)
        try:
            node.start()
            await until(lambda: OpenPorts() in node.news)

            twin.start()  # another process of the same id is refused while the first one lives
            await forwarded(node)
            await registered_controller(node)
            assert twin.life.epoch == -1 and twin.life.state is BrokerState.STARTING

            node.life.shut_down(node.driver.now())
            node.driver.turn()
            await until(lambda: node.life.state is BrokerState.SHUTTING_DOWN)
            node.driver.close()
            await until(lambda: OpenPorts() in twin.news)
            assert twin.life.epoch > node.life.epoch
        finally:
            node.close()
            twin.close()
            with contextlib.suppress(OSError):
                await asyncio.to_thread(kafka.stop)

    asyncio.run(asyncio.wait_for(scenario(), 100))


async def forwarded(node: Node) -> None:
    """Topics are made and deleted, the quorum described, and errors are those of the client's API."""
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    create = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    for version, code in ((7, 0), (4, 36)):  # the second time it is there
        created = await node.ask(create, version)
        assert [(each.name, each.error_code) for each in created.topics] == [("t", code)]
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=5000)
    deleted = await node.ask(delete, 6)
    assert [(each.name, each.error_code) for each in deleted.responses] == [("t", 0)]
    quorum = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name="__cluster_metadata", partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
            )
        ]
    )
    described = await node.ask(quorum, 2)
    (part,) = described.topics[0].partitions
    assert (part.error_code, part.leader_id) == (0, CONTROLLER)
    # UNSUPPORTED_VERSION: the client's connection is closed.
    assert await node.ask(create, 7, body=b"\xff" * 20) is None
    answered: asyncio.Future[EnvelopeResponse] = node.loop.create_future()
    bad = EnvelopeRequest(request_data=b"", request_principal=b"\0\0\xff", client_host_address=bytes(4))
    node.forwards.ask(bad, lambda response, error: answered.set_result(response))
    assert (await answered).error_code == 97
    theirs = node.forwards.versions()
    own = {key: (info.min_version, info.max_stable_version) for key, info in APIS.items()}
    assert shared_versions(own, theirs) == own  # nothing is lost between nodes of the same release


async def registered_controller(node: Node) -> None:
    """A controller of ours is taken up in the metadata: the second question is not asked."""
    channel = node.channel("registration")
    listeners = [ListenerAddress("CONTROLLER", "127.0.0.1", 19093)]
    machine = ControllerRegistration(
        RegistrationConfig(node_id=9, incarnation_id=os.urandom(16), listeners=listeners, features=SUPPORTED), Random(1)
    )
    driver = LifeDriver(machine, channel, node.loop, node.news.append)
    machine.metadata(30, None, driver.now())
    driver.start()
    await until(lambda: machine._asked is None and machine.next_wakeup() == float("inf"))
    assert machine._failures == 0
    driver.close()
    channel.close()
