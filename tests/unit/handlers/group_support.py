"""A whole broker in this process, and requests to its handlers through the bytes of every version."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.topics import OFFSETS_TOPIC, NewTopic
from fastq_broker.router import HANDLERS, Deferred, bound_context
from fastq_broker.server import flexible_versions
from raw_groups import GroupCalls, subscription

from fastq._native.produce_path import scan_request
from fastq._native.wire import Reader, Writer
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import FindCoordinatorRequest

T = TypeVar("T")


def through_bytes(message: Any, kind: Any, version: int) -> Any:
    writer = Writer()
    message.encode(writer, version)
    return kind.decode(Reader(writer.getvalue()), version)


class GroupHandlers(GroupCalls):
    """The handlers of one running broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def call(self, request: Any, version: int) -> Any:
        """Through the bytes of `version` both ways; waits for the answer."""
        info = APIS[request.API_KEY]
        handler = import_module(f"fastq_broker.handlers.{HANDLERS[request.API_KEY]}")
        assert handler.VERSIONS[0] <= version <= handler.VERSIONS[1]
        if hasattr(handler, "handle_frame"):
            return await self._call_frame(handler, request, version)
        connection: Any = SimpleNamespace(listener="PLAINTEXT", peer=("127.0.0.1", 1))
        context = bound_context(self.broker)(connection, version, b"test")
        answer = handler.handle(context, through_bytes(request, info.request_class(), version))
        if inspect.isawaitable(answer):
            answer = await answer
        return through_bytes(answer, info.response_class(), version)

    async def _call_frame(self, handler: Any, request: Any, version: int) -> Any:
        """The same for a handler that decodes its own frames."""
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        connection = SimpleNamespace(complete=lambda deferred, frame: answers.put_nowait(frame))
        frame = bytearray(encode_request(1, "test", request, version))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        answer = handler.handle_frame(connection, self.broker, frame, header)
        if isinstance(answer, Deferred):
            answer.attached = True
            answer = await answers.get()
        return decode_response(answer[4:], request.API_KEY, version)[1]

    async def ready(self) -> None:
        """Have the offsets topic there and loaded."""
        await self.call(FindCoordinatorRequest(key="g"), 0)
        for _ in range(10_000):
            if not self.broker.groups.runtime.loading:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the coordinator does not load")

    def topics(self, *names: str, partitions: int = 4) -> None:
        self.broker.controller.create_topics([NewTopic(name, partitions, 1) for name in names])
        self.broker.controller.settle()

    def topic_id(self, name: str) -> bytes:
        topic = self.broker.controller.image.topic(name)
        assert topic is not None
        return topic.topic_id

    def topic_name(self, topic_id: bytes) -> str:
        topic = self.broker.controller.image.topic_of_id(topic_id)
        assert topic is not None
        return topic.name


class HandlerBroker:
    """Starts a broker on a directory for each piece of work, and stops it cleanly; the data stays."""

    def __init__(self, data_dir: Path) -> None:
        self.settings = {
            "log.dirs": str(data_dir),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
        }

    def run(self, work: Callable[[GroupHandlers], Awaitable[T]], *, ready: bool = True, **settings: str) -> T:
        async def main() -> T:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            config = BrokerConfig.from_mapping({**self.settings, **named})
            broker = Broker(config, asyncio.get_running_loop())
            handlers = GroupHandlers(broker)
            try:
                await broker.start()
                if ready:
                    await handlers.ready()
                return await work(handlers)
            finally:
                assert await broker.close()

        return asyncio.run(asyncio.wait_for(main(), 60))


__all__ = ["OFFSETS_TOPIC", "GroupHandlers", "HandlerBroker", "subscription"]
