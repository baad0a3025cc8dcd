"""Brokers of Apache Kafka under controllers of ours: they register, are unfenced, have their requests served in Envelopes, replicate among
each other, and go in a controlled way; and they go on when the active controller is gone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import apache_kafka
import pytest
from controllers import CLUSTER, Cluster
from fastq_broker.raft.roles import Role
from raft_members import until

from fastq import Admin, Consumer, Producer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


def broker(node_id: int, path: Path, cluster: Cluster) -> apache_kafka.ApacheKafka:
    """One of Apache Kafka's that is no controller."""
    made = apache_kafka.ApacheKafka(path / f"kafka-{node_id}", heap="256m", cluster_id=CLUSTER)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in cluster.places.items())
    made.properties |= {
        "process.roles": "broker",
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{made.port}",
        "controller.quorum.voters": voters,
    }
    del made.properties["controller.quorum.bootstrap.servers"]
    return made


def make(servers: str, name: str, factor: int) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, 1, replication_factor=factor)


def produce_and_read(servers: str, topic: str) -> list[bytes | None]:
    with Producer(bootstrap_servers=servers, acks="all") as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        return [record.value for record in consumer.read_to_end()]


def test_brokers_of_apache_kafka_under_controllers_of_ours(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            brokers = [broker(node_id, tmp_path, cluster) for node_id in (11, 12)]
            try:
                await asyncio.gather(*(asyncio.to_thread(one.start) for one in brokers))
                await with_brokers(cluster, brokers)
            except BaseException:
                for one in brokers:
                    print(one.log_text()[-6000:])
                raise
            finally:
                for one in brokers:
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(one.stop)

    asyncio.run(asyncio.wait_for(scenario(), 150))


async def with_brokers(cluster: Cluster, brokers: list[apache_kafka.ApacheKafka]) -> None:
    servers = ",".join(one.bootstrap_servers for one in brokers)

    image = await cluster.image()
    assert [one.fenced for one in image.brokers.values()] == [False, False]
    await asyncio.to_thread(make, servers, "first", 2)
    expected: list[Any] = [b"%d" % number for number in range(100)]
    assert await asyncio.to_thread(produce_and_read, servers, "first") == expected

    await (await cluster.active()).kill()
    await cluster.active()
    await asyncio.to_thread(make, servers, "second", 2)
    assert await asyncio.to_thread(produce_and_read, servers, "second") == expected

    node = await cluster.active()
    assert node.controller is not None
    controller = node.controller
    led = controller.image.partition("second", 0)
    assert led is not None and set(led.isr) == {11, 12}
    going = next(one for one in brokers if one.properties["node.id"] == str(led.leader))
    await asyncio.to_thread(going.stop)
    await until(lambda: controller.image.brokers[led.leader].fenced)
    after = controller.image.partition("second", 0)
    assert after is not None and after.leader in {11, 12} - {led.leader} and after.isr == (after.leader,)


def controller(node_id: int, path: Path, cluster: Cluster) -> apache_kafka.ApacheKafka:
    """One of Apache Kafka's that is no broker."""
    made = apache_kafka.ApacheKafka(path / f"kafka-{node_id}", heap="256m", cluster_id=CLUSTER)
    made.controller_port = port = cluster.places[node_id]
    made.properties |= {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{at}" for number, at in cluster.places.items()),
    }
    del made.properties["advertised.listeners"], made.properties["controller.quorum.bootstrap.servers"]
    return made


def test_the_lead_goes_between_controllers_of_ours_and_of_apache_kafka(tmp_path: Path) -> None:
    """Each goes on with what the other has written."""

    async def scenario() -> None:
        cluster = Cluster(tmp_path, others=[3])
        theirs, one = controller(3, tmp_path, cluster), broker(11, tmp_path, cluster)
        try:
            async with cluster:
                await asyncio.gather(*(asyncio.to_thread(node.start) for node in (theirs, one)))
                await handed_over(cluster, theirs, one)
        except BaseException:
            for node in (theirs, one):
                print(node.log_text()[-6000:])
            raise
        finally:
            for node in (one, theirs):
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(node.kill)

    asyncio.run(asyncio.wait_for(scenario(), 150))


async def handed_over(cluster: Cluster, theirs: apache_kafka.ApacheKafka, one: apache_kafka.ApacheKafka) -> None:
    drivers = [node.controller.quorum.driver for node in cluster.nodes if node.controller is not None]
    expected: list[Any] = [b"%d" % number for number in range(100)]

    def they_lead() -> bool:
        """Whoever of ours is elected gives up."""
        for driver in drivers:
            machine = driver.machine
            if machine.role is Role.LEADER and machine.high_watermark == machine.log.end:
                machine.resign(machine.epoch, driver.now())
                driver.turn()
        return all(driver.machine.leader_id == 3 for driver in drivers)

    for name in ("ours", "theirs", "ours-again"):
        if name == "theirs":
            await until(they_lead)
        elif name == "ours-again":
            await asyncio.to_thread(theirs.kill)
            await cluster.active()
        await asyncio.to_thread(make, one.bootstrap_servers, name, 1)
        assert await asyncio.to_thread(produce_and_read, one.bootstrap_servers, name) == expected
    for node in cluster.nodes:
        assert node.controller is not None
        topics = node.controller.image.topics_by_name
        assert {"ours", "theirs"} <= topics.keys()


def test_tools_of_apache_kafka_ask_controllers_of_ours(tmp_path: Path) -> None:
    """With --bootstrap-controller (KIP-919)."""

    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.register_controllers()
            active = await cluster.active()
            await until(lambda: all(len(list(node.image.controllers())) == 3 for node in cluster.nodes))
            anybody = f"127.0.0.1:{next(node for node in cluster.nodes if node is not active).port}"

            async def run(tool: str, *arguments: str) -> str:
                main = f"org.apache.kafka.tools.{tool}"
                return (await asyncio.to_thread(apache_kafka.run_tool, main, *arguments)).stdout

            told = await run("MetadataQuorumCommand", "--bootstrap-controller", anybody, "describe", "--status")
            assert re.search(rf"LeaderId:\s+{active.node_id}\n", told), told
            told = await run("MetadataQuorumCommand", "--bootstrap-controller", anybody, "describe", "--replication")
            assert told.count("Follower") == 2 and told.count("Leader") == 1, told
            told = await run("ClusterTool", "list-endpoints", "--bootstrap-controller", anybody)
            assert all("127.0.0.1" in line for line in told.splitlines()[1:]) and len(told.splitlines()) == 4, told
            told = await run("FeatureCommand", "--bootstrap-controller", anybody, "describe")
            assert "metadata.version" in told and "4.3-IV0" in told, told

    asyncio.run(asyncio.wait_for(scenario(), 100))
