"""Three controllers on real files and loopback sockets: one is active, all know what is committed, and another goes on when it goes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, MetadataImage, NewTopic, features
from fastq_broker.controller.storage import format_directories
from fastq_broker.log import LogDir
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.raft.serving import QuorumRouter
from fastq_broker.server import Limits, Server
from raft_members import Late, until

from fastq.config import ClientConfig
from fastq.errors import NotController
from fastq.protocol.messages import RegisterBrokerRecord

CLUSTER = "a" * 22


class Node:
    """A controller of three, with its listener."""

    def __init__(self, node_id: int, path: Path, places: dict[int, int]) -> None:
        self.node_id, self.path, self.places = node_id, path / str(node_id), places
        self.controller: Controller | None = None
        self.heard: list[MetadataImage] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        port = self.places[self.node_id]
        voters = ",".join(f"{number}@127.0.0.1:{place}" for number, place in self.places.items())
        config = BrokerConfig.from_mapping(
            {
                "node.id": self.node_id,
                "process.roles": "broker,controller",
                "log.dirs": str(self.path),
                "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
                "controller.quorum.voters": voters,
                "controller.quorum.election.timeout.ms": 200,
                "controller.quorum.fetch.timeout.ms": 600,
            }
        )
        self.path.mkdir(parents=True, exist_ok=True)
        format_directories([self.path], self.node_id, CLUSTER)
        files = Files()
        self.flusher = ManualFlusher(files)
        log_dir = LogDir(str(self.path), files, FdBudget(64), self.flusher)
        self.controller = Controller(
            config, clock=lambda: 1_790_000_000_000, monotonic_ms=lambda: int(loop.time() * 1000), log_dir=log_dir
        )
        self.controller.subscribe(lambda image, delta: self.heard.append(image))
        late = Late()
        self.server = Server(loop, late, Limits())  # type: ignore[arg-type]
        await self.server.bind("127.0.0.1", port, name="CONTROLLER")
        self.controller.open(loop=loop, ports={"CONTROLLER": port}, client_config=ClientConfig)
        parts = {
            "config": SimpleNamespace(non_produce_request_max_bytes=8 << 20),
            "loop": loop,
            "node_id": self.node_id,
        }
        ports: Any = SimpleNamespace(**parts)
        late.router = QuorumRouter(ports, self.controller.quorum.driver)
        self.server.serve()
        loop.call_later(0.001, self.sync)

    def sync(self) -> None:
        if self.controller is not None:
            self.flusher.wait()
            asyncio.get_running_loop().call_later(0.001, self.sync)

    async def kill(self) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            controller.quorum.driver.close()
            await self.server.stop()

    @property
    def is_active(self) -> bool:
        return self.controller is not None and self.controller.is_active


def free_ports() -> dict[int, int]:
    """A port for the controller of each node."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return dict(zip((1, 2, 3), ports, strict=True))


async def active(nodes: list[Node]) -> Controller:
    await until(lambda: any(node.is_active for node in nodes))
    (found,) = [node.controller for node in nodes if node.is_active]
    assert found is not None
    return found


def broker_record(controller: Controller) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=b"i" * 16,
        broker_epoch=controller.quorum.end_offset,
        fenced=False,
        log_dirs=[b"d" * 16],
    )


def test_one_is_active_and_all_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        try:
            for node in nodes:
                await node.start()
            first = await active(nodes)
            assert set(features.BOOTSTRAP.items()) <= set(first.pending.features.items())
            first._commit([broker_record(first)])
            (made,) = first.create_topics([NewTopic("a", 3)])
            assert not made.error, made.message
            await first.flushed()
            assert first.image.topic("a") is not None
            everywhere = [node.controller for node in nodes if node.controller is not None]
            await until(lambda: all(controller.image.topic("a") is not None for controller in everywhere))
            assert all(controller.image.topics_by_id == first.image.topics_by_id for controller in everywhere)
            other = next(controller for controller in everywhere if controller is not first)
            (refused,) = other.create_topics([NewTopic("b")])
            assert refused.error == NotController.code
            gone = next(node for node in nodes if node.controller is first)
            (lost,) = first.create_topics([NewTopic("lost")])
            assert not lost.error and first.image.topic("lost") is None
            await gone.kill()
            rest = [node for node in nodes if node is not gone]
            second = await active(rest)
            (made,) = second.create_topics([NewTopic("c")])
            assert not made.error, made.message
            await second.flushed()
            await until(lambda: all(node.controller is not None and node.controller.image.topic("c") for node in rest))
            for node in rest:
                offsets = [image.offset for image in node.heard]
                assert offsets == sorted(offsets)
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


@pytest.mark.parametrize("snapshot", [False, True])
def test_one_that_was_away_learns_what_it_missed(tmp_path: Path, snapshot: bool) -> None:
    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        away = nodes[2]
        try:
            for node in nodes[:2]:
                await node.start()
            leader = await active(nodes)
            leader._commit([broker_record(leader)])
            for number in range(20):
                leader.create_topics([NewTopic(f"t{number}")])
            topic = leader.pending.topics_by_name["t3"]
            leader.delete_topics([topic.topic_id])
            await leader.flushed()
            if snapshot:
                for _ in range(3):
                    leader.create_topics([NewTopic(f"more{leader.quorum.end_offset}")])
                    await leader.flushed()
                    leader.snapshots.write(leader.image, 1_790_000_000_000)
                assert leader.quorum.start_offset > 0
            await away.start()
            assert away.controller is not None
            learner = away.controller
            await until(lambda: learner.image.topics_by_id.keys() == leader.image.topics_by_id.keys())
            assert learner.image.topics_by_id == leader.image.topics_by_id
            assert learner.image.features == leader.image.features
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())
