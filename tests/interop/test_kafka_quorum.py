"""A member of ours in a quorum of Apache Kafka's controllers: it votes, leads, goes, and has their log byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import apache_kafka
import pytest
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.raft.roles import Role
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from raft_members import LISTENER, Member, until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]


def controller(node_id: int, path: Path, cluster_id: str) -> apache_kafka.ApacheKafka:
    """One of Apache Kafka's; its voters are named before it starts."""
    made = apache_kafka.ApacheKafka(path, heap="256m", cluster_id=cluster_id)
    made.properties |= {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"CONTROLLER://127.0.0.1:{made.controller_port}",
    }
    del made.properties["advertised.listeners"], made.properties["controller.quorum.bootstrap.servers"]
    return made


def log_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / f"{METADATA_TOPIC}-0").glob("*.log")))


def test_a_quorum_with_apache_kafka(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster_id = apache_kafka.random_cluster_id()
        ours = Member(1, tmp_path / "ours", cluster_id=cluster_id, fetch_timeout_s=1.0)
        peers = {node_id: controller(node_id, tmp_path / str(node_id), cluster_id) for node_id in (2, 3)}
        ports = {1: await ours.bind(), **{node_id: peer.controller_port for node_id, peer in peers.items()}}
        named = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())
        places = {node_id: Endpoint("127.0.0.1", port) for node_id, port in ports.items()}
        try:
            for peer in peers.values():
                peer.properties["controller.quorum.voters"] = named
                await asyncio.to_thread(peer.start)
            ours.start(VoterSet(Voter(ReplicaKey(node_id), {LISTENER: place}) for node_id, place in places.items()))
            assert ours.driver is not None
            machine = ours.driver.machine

            def go() -> None:
                """Whoever has a patient day leads; a controller's records are theirs to write, so ours goes once its own is committed."""
                driver = ours.driver
                assert driver is not None
                if machine.role is Role.LEADER and machine.high_watermark == ours.disk.log.end:
                    machine.resign(machine.epoch, driver.now())
                    driver.turn()

            def one_of_theirs_leads() -> bool:
                go()
                # Bootstrap records, and what follows them.
                return machine.leader_id in peers and machine.high_watermark > 10

            await until(one_of_theirs_leads)
            assert machine.role is Role.FOLLOWER and machine.leader_id in peers
            first, epoch, end = machine.leader_id, machine.epoch, machine.high_watermark
            await asyncio.to_thread(peers[first].kill)

            def another_leads() -> bool:
                go()
                return machine.leader_id in peers.keys() - {first} and machine.high_watermark > end

            await until(another_leads)
            assert machine.epoch > epoch  # it needed our vote: two of three are a majority
            await asyncio.to_thread(peers[first].start)
            end = machine.high_watermark + 5
            await until(lambda: machine.leader_id in peers and machine.high_watermark > end)
        finally:
            for peer in peers.values():
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(peer.stop)
            here = ours.disk.log.read(0, 1 << 24) if hasattr(ours, "disk") else b""
            await ours.stop()
        for node_id in peers:
            there = log_of(tmp_path / str(node_id))
            shared = min(len(here), len(there))
            assert shared > 1000, (node_id, len(here), len(there))
            assert here[:shared] == there[:shared]

    asyncio.run(scenario())
