"""What handlers need of a broker: configuration, controller and real logs on a temporary directory, no network."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.controller import Controller
from fastq_broker.log.log_manager import LogManager
from fastq_broker.ports import Ports
from fastq_broker.producer_ids import ProducerIdPool
from fastq_broker.router import bound_context
from group_support import HandlerBroker

from fastq._native.wire import Reader, Writer
from fastq.protocol.api import APIS

NOW_MS = 1_790_000_000_000


class HandlerBench:
    """Sends requests to handlers as bytes of a version and reads the responses back."""

    def __init__(self, data_dir: Path, insecure_ignore: Sequence[str] = (), **settings: object) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.from_mapping(
            {
                "log.dirs": str(data_dir),
                "listeners": "PLAINTEXT://127.0.0.1:9092,INSIDE://127.0.0.1:9094",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
                **named,
            },
            insecure_ignore=insecure_ignore,
        )
        self.controller = Controller(self.config, clock=lambda: NOW_MS)
        self.controller.open()
        self.controller.register_broker(
            [Listener("PLAINTEXT", "broker.example", 9092), Listener("INSIDE", "::1", 9094)]
        )
        self.logs = LogManager(self.config.log_dirs, clock=lambda: NOW_MS)
        self.logs.start()
        self.controller.subscribe(self._follow)
        ids = ProducerIdPool(self._allocate_producer_ids)
        parts = {"config": self.config, "controller": self.controller, "logs": self.logs, "producer_ids": ids}
        self.broker = SimpleNamespace(
            **{**dict.fromkeys(Ports.__annotations__), "node_id": self.config.node_id, **parts}
        )

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        block = self.controller.allocate_producer_ids()
        await self.controller.flushed()
        return block.first, block.count

    def _follow(self, image: Any, delta: Any) -> None:
        """Make the logs of new partitions, as the broker does."""
        defaults = self.controller.topic_defaults
        for _, topic in delta.changed_topics:
            config = defaults.log_config_of(image.topic_configs(topic.name))
            for number in range(len(topic.partitions)):
                self.logs.create(topic.name, number, topic.topic_id, config)

    def call(self, handler: ModuleType, request: Any, version: int, listener: str = "PLAINTEXT") -> Any:
        """Through the bytes of `version` both ways."""
        (answer,) = self.call_together(handler, [request], version, listener)
        return answer

    def call_together(
        self, handler: ModuleType, requests: Sequence[Any], version: int, listener: str = "PLAINTEXT"
    ) -> list[Any]:
        """Answers to requests that came in at the same time: each is begun before one is waited for, as connections do it."""
        info = APIS[handler.API_KEY]
        connection: Any = SimpleNamespace(listener=listener, peer=("127.0.0.1", 1))
        context = bound_context(self.broker)(connection, version, b"test")
        begun = [handler.handle(context, _through(request, info.request_class(), version)) for request in requests]
        answers = asyncio.run(_wait(begun)) if any(map(inspect.isawaitable, begun)) else begun
        return [_through(answer, info.response_class(), version) for answer in answers]

    def close(self) -> None:
        self.controller.close()
        self.logs.close()


async def _wait(answers: Sequence[Any]) -> list[Any]:
    return [await answer if inspect.isawaitable(answer) else answer for answer in answers]


def _through(message: Any, kind: Any, version: int) -> Any:
    writer = Writer()
    message.encode(writer, version)
    reader = Reader(writer.getvalue())
    decoded = kind.decode(reader, version)
    assert reader.remaining == 0
    return decoded


@pytest.fixture
def make_bench(tmp_path: Path) -> Any:
    """Builds benches on one data directory; the last one is closed after the test."""
    made: list[HandlerBench] = []

    def make(**settings: Any) -> HandlerBench:
        bench = HandlerBench(tmp_path / "data", **settings)
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., HandlerBench]) -> HandlerBench:
    return make_bench()


@pytest.fixture
def server(tmp_path: Path) -> HandlerBroker:
    """A whole broker, for the handlers of groups."""
    return HandlerBroker(tmp_path)
