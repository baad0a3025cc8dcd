"""Controllers of a quorum, on real files and loopback sockets, in one event loop; and brokers that are nothing but what they ask."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastq_broker.cluster.controller_channel import holds_error
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, MetadataImage, features
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.serving import ControllerRouter
from fastq_broker.controller.storage import format_directories
from fastq_broker.log import LogDir
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.server import Limits, Server
from raft_members import until

from fastq.config import ClientConfig
from fastq.errors import ErrorCode
from fastq.protocol import messages as m
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_response, encode_request

if TYPE_CHECKING:
    from typing_extensions import Self

CLUSTER = "a" * 22


class Node:
    """A controller of three, with its listener."""

    def __init__(self, node_id: int, path: Path, places: dict[int, int], **settings: Any) -> None:
        self.node_id, self.path, self.places, self.settings = node_id, path / str(node_id), places, settings
        self.controller: Controller | None = None
        self.heard: list[MetadataImage] = []
        self.clock_ms = 1_790_000_000_000  # what time it is there, since 1970

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        port = self.places[self.node_id]
        voters = ",".join(f"{number}@127.0.0.1:{place}" for number, place in self.places.items())
        config = BrokerConfig.from_mapping(
            {
                "node.id": self.node_id,
                "process.roles": "broker,controller",
                "log.dirs": str(self.path),
                "metadata.max.retention.bytes": 0,  # no more than the latest snapshot
                "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
                "controller.quorum.voters": voters,
                "controller.quorum.election.timeout.ms": 200,
                "controller.quorum.fetch.timeout.ms": 600,
                "broker.heartbeat.interval.ms": 50,
                **{name.replace("_", "."): value for name, value in self.settings.items()},
            }
        )
        self.path.mkdir(parents=True, exist_ok=True)
        format_directories([self.path], self.node_id, CLUSTER)
        files = Files()
        self.flusher = ManualFlusher(files)
        log_dir = LogDir(str(self.path), files, FdBudget(64), self.flusher)
        self.controller = Controller(
            config, clock=lambda: self.clock_ms, monotonic_ms=lambda: int(loop.time() * 1000), log_dir=log_dir
        )
        self.controller.subscribe(lambda image, delta: self.heard.append(image))
        self.server = Server(loop, Limits())
        await self.server.bind("127.0.0.1", port, name="CONTROLLER")
        self.controller.open(loop=loop, ports={"CONTROLLER": port}, client_config=ClientConfig)
        self.control = ClusterControl(self.controller)
        ports: Any = SimpleNamespace(config=config, loop=loop, node_id=self.node_id, clock=self.controller.clock)
        self.router = ControllerRouter(ports, self.controller, self.control)
        self.server.serve(self.router)
        loop.call_later(0.001, self.sync)

    def sync(self) -> None:
        """What the owner of a controller does every while: here the disk is done, and what is due is done, again and again."""
        if self.controller is not None:
            self.flusher.wait()
            self.control.tick(self.controller.monotonic_ms())
            asyncio.get_running_loop().call_later(0.001, self.sync)

    async def kill(self) -> None:
        """As a process ends that is killed: connections break, and nobody is told."""
        controller, self.controller = self.controller, None
        if controller is not None:
            controller.quorum.driver.close()
            for connection in list(self.server.connections):
                connection.abort()
            await self.server.stop()

    @property
    def port(self) -> int:
        return self.places[self.node_id]

    @property
    def image(self) -> MetadataImage:
        assert self.controller is not None
        return self.controller.image

    @property
    def follows(self) -> bool:
        """Whether an active controller's metadata is known here."""
        return self.controller is not None and features.METADATA_VERSION in self.controller.image.features

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


async def ask(port: int, request: Any, version: int | None = None) -> Any:
    """The answer to one request, over a connection of its own. OSError, EOFError where there is none."""
    version = APIS[request.API_KEY].max_stable_version if version is None else version
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(encode_request(7, "test", request, version))
        size = int.from_bytes(await reader.readexactly(4), "big")
        number, response = decode_response(await reader.readexactly(size), request.API_KEY, version)
        assert number == 7
        return response
    finally:
        writer.close()


class Cluster:
    """Controllers of a quorum of three, and who is asked: the one that is active at the time."""

    def __init__(self, path: Path, *, others: Sequence[int] = (), **settings: Any) -> None:
        """`others`: controllers that somebody else starts, on the ports of `places`."""
        self.places = free_ports()
        self.nodes = [Node(number, path, self.places, **settings) for number in self.places if number not in others]

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        await until(lambda: all(node.follows for node in self.nodes))
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.kill()

    async def active(self) -> Node:
        await until(lambda: any(node.is_active for node in self.nodes))
        return next(node for node in self.nodes if node.is_active)

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """The active controller's answer: asked again where it is not the active one any more, or gone."""
        while True:
            node = await self.active()
            try:
                response = await ask(node.port, request, version)
            except (OSError, EOFError):
                continue
            if not holds_error(response, ErrorCode.NOT_CONTROLLER):
                return response

    async def register_controllers(self) -> None:
        """As each of them does by itself, once it runs in a node."""
        for node in self.nodes:
            listener = m.ControllerRegistrationRequest.Listener(
                name="CONTROLLER", host="127.0.0.1", port=self.places[node.node_id]
            )
            response = await self.ask(
                m.ControllerRegistrationRequest(
                    controller_id=node.node_id,
                    incarnation_id=bytes([node.node_id]) * 16,
                    listeners=[listener],
                    features=[
                        m.ControllerRegistrationRequest.Feature(
                            name=name, min_supported_version=low, max_supported_version=high
                        )
                        for name, (low, high) in features.SUPPORTED.items()
                    ],
                )
            )
            assert response.error_code == 0

    async def image(self) -> MetadataImage:
        node = await self.active()
        assert node.controller is not None
        return node.controller.image


class SimulatedBroker:
    """A broker without logs: it registers and sends heartbeats, with the metadata of the active controller."""

    def __init__(self, broker_id: int, cluster: Cluster) -> None:
        self.broker_id, self.cluster = broker_id, cluster
        self.directory = os.urandom(16)
        self.incarnation = b""
        self.epoch = self.previous_epoch = -1
        self.answers: list[Any] = []
        self.beats: asyncio.Task[None] | None = None
        self.wants_to_stop = False

    async def register(self, version: int | None = None, *, again: bool = False) -> Any:
        """Register as a new process, or as the same one once more."""
        if not again:
            self.incarnation = os.urandom(16)
        response = await self.cluster.ask(
            m.BrokerRegistrationRequest(
                broker_id=self.broker_id,
                cluster_id=CLUSTER,
                incarnation_id=self.incarnation,
                listeners=[
                    m.BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="localhost", port=9000 + self.broker_id)
                ],
                features=[
                    m.BrokerRegistrationRequest.Feature(
                        name=name, min_supported_version=low, max_supported_version=high
                    )
                    for name, (low, high) in features.SUPPORTED.items()
                ],
                log_dirs=[self.directory],
                previous_broker_epoch=self.previous_epoch,
            ),
            version,
        )
        if not response.error_code:
            self.epoch = response.broker_epoch
        return response

    async def heartbeat(self, **fields: Any) -> Any:
        image = await self.cluster.image()
        response = await self.cluster.ask(
            m.BrokerHeartbeatRequest(
                **{
                    "broker_id": self.broker_id,
                    "broker_epoch": self.epoch,
                    "current_metadata_offset": image.offset,
                    "want_fence": False,
                    "want_shut_down": self.wants_to_stop,
                    **fields,
                }
            )
        )
        self.answers.append(response)
        return response

    async def run(self) -> None:
        """Register, and live: heartbeats until it is `killed`, or let go."""
        assert not (await self.register()).error_code
        await until_async(self._is_unfenced)
        self.beats = asyncio.create_task(self._beat())

    async def _is_unfenced(self) -> bool:
        return not (await self.heartbeat()).is_fenced

    async def _beat(self) -> None:
        await until_async(self._is_let_go, pause_s=0.05)

    async def _is_let_go(self) -> bool:
        return bool((await self.heartbeat()).should_shut_down)

    async def shut_down(self) -> None:
        """Go in a controlled way."""
        assert self.beats is not None
        self.wants_to_stop = True
        await self.beats
        self.previous_epoch, self.wants_to_stop = self.epoch, False

    def kill(self) -> None:
        if self.beats is not None:
            self.beats.cancel()


async def until_async(what: Callable[[], Awaitable[bool]], pause_s: float = 0.01) -> None:
    for _ in range(6000):
        if await what():
            return
        await asyncio.sleep(pause_s)
    raise AssertionError("not in a minute")
