"""Topics that somebody names and that are not there: the active controller is asked for them, and who asked waits until they are known.

Rules: a topic is asked for once at a time; who asks for one that is being created waits with the first one. What the controller refuses is
said in the log, and what cannot be asked ends with LEADER_NOT_AVAILABLE: clients look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from fastq.errors import ErrorCode, FastqError
from fastq.protocol.messages import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage, NewTopic

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_MS: Final = 30_000
KNOWN_S: Final = 5.0
"""How long a topic that the controller has made may take to be known here."""

Ask = Callable[[Any, float], "asyncio.Future[Any]"]
"""The active controller's response to a request, tried for so many seconds."""


class TopicMaker:
    """Has topics created. Loop thread only. Invariant: `_creating` holds, by name, the outcome that is waited for."""

    def __init__(self, ask: Ask, image: Callable[[], MetadataImage], loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._image = image
        self._loop = loop
        self._creating: dict[str, asyncio.Future[ErrorCode]] = {}
        self._changed: asyncio.Future[None] | None = None

    def metadata_changed(self, image: MetadataImage) -> None:
        """Who waits for a topic looks whether it is there."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def create(self, wanted: Sequence[NewTopic]) -> Awaitable[dict[str, ErrorCode]]:
        """Have topics created, and wait until they are known here; by name, what kept it from it. They come even if this is not awaited."""
        new = [topic for topic in wanted if topic.name not in self._creating]
        for topic in new:
            self._creating[topic.name] = self._loop.create_future()
        waiting = {topic.name: self._creating[topic.name] for topic in wanted}
        if new:
            task = self._loop.create_task(self._create(new))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _AllOf(waiting)

    async def _create(self, wanted: Sequence[NewTopic]) -> None:
        codes = {topic.name: ErrorCode.LEADER_NOT_AVAILABLE for topic in wanted}
        try:
            request = CreateTopicsRequest(topics=[_creatable(topic) for topic in wanted], timeout_ms=CREATE_TIMEOUT_MS)
            response: CreateTopicsResponse = await self._ask(request, CREATE_TIMEOUT_MS / 1000)
            for result in response.topics:
                if result.name not in codes:
                    continue
                code = ErrorCode(result.error_code)
                codes[result.name] = ErrorCode.NONE if code == ErrorCode.TOPIC_ALREADY_EXISTS else code
                if codes[result.name]:
                    logger.warning("cannot create %s: %s", result.name, result.error_message)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known([name for name, code in codes.items() if not code]), KNOWN_S)
        except FastqError as error:
            codes = dict.fromkeys(codes, ErrorCode.LEADER_NOT_AVAILABLE)
            logger.warning("cannot create %s: %s", ", ".join(codes), error)
        finally:
            for name, code in codes.items():
                future = self._creating.pop(name)
                if not future.done():
                    future.set_result(code)

    async def _known(self, names: Sequence[str]) -> None:
        while not all(name in self._image().topics_by_name for name in names):
            if self._changed is None:
                self._changed = self._loop.create_future()
            await asyncio.shield(self._changed)


class _AllOf:
    """The outcomes of what goes on whether or not anybody awaits them."""

    def __init__(self, waiting: dict[str, asyncio.Future[ErrorCode]]) -> None:
        self._waiting = waiting

    def __await__(self) -> Generator[Any, None, dict[str, ErrorCode]]:
        return self._collect().__await__()

    async def _collect(self) -> dict[str, ErrorCode]:
        return {name: await asyncio.shield(future) for name, future in self._waiting.items()}


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )
