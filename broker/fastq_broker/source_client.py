"""A client of another cluster, in a node's loop: operations that are begun now, and waited for later.

Rules: everything happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastq.net.aio import AsyncDriver
from fastq.net.operations import ANY, Call, Operation, OperationRun
from fastq.protocol.messages import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from fastq.net.core import ClientCore

T = TypeVar("T")

METADATA_VERSIONS = (10, 32767)
"""Those that tell the ids of topics."""


class SourceClient:
    """A client of another cluster. Invariant: `_running` are operations that have not ended. `muted`: a quota keeps a connection from being
    answered for a while, as whoever has the client was told."""

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._driver = AsyncDriver(core, loop)
        self._running = 0
        self.muted = False
        self.timer: asyncio.TimerHandle | None = None  # of its end, while nobody has it

    @property
    def may_be_kept(self) -> bool:
        """Whether it waits for no answer, and has somebody to ask. One that was refused would go on trying to log in, with nobody who
        waits for it, and tell the next who does of an error of before."""
        return self._running == 0 and not self.muted and self._driver.core.unreachable() is None

    def start(self, operation: Operation[T], timeout_s: float) -> asyncio.Future[T]:
        """Begin an operation: its requests leave in the next pass of the loop. Who does not want its outcome any more cancels that."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._driver.kick()
        OperationRun(self._driver.core, operation, timeout_s, partial(self._ended, future))
        self._running += 1
        return future

    def _ended(self, future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        self._running -= 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # without an error it is the operation's

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self.timer is not None:
            self.timer.cancel()
        self._driver.close()


def asked_for(topics: Sequence[str]) -> Operation[MetadataResponse]:
    """What a cluster says of itself and of these topics, which are not made for that."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer: MetadataResponse = yield Call(
        ANY, MetadataRequest(topics=wanted, allow_auto_topic_creation=False), METADATA_VERSIONS
    )
    return answer
