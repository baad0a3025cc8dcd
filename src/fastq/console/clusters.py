"""The clusters of a console and the clients that it has of each.

Rules: a cluster has one AsyncAdmin and one AsyncProducer, made when first needed, and closed with the console; a scan or a tail has a
consumer of its own, no group, and at most READERS_MAX run at once, READERS_OF_ONE_MAX of them for one user. The picture of a cluster is
kept for a moment (`picture_s`) and taken once for all that wait for it. A call ends within API_TIMEOUT_S: a page says that a cluster does
not answer, it does not hang. One event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from fastq.admin import AsyncAdmin
from fastq.console.config import ClusterConfig
from fastq.console.metrics import Metrics
from fastq.console.picture import Picture, take_picture
from fastq.errors import ConfigError
from fastq.net.operations import Operation
from fastq.settings import canonical

if TYPE_CHECKING:
    from fastq.consumer import AsyncConsumer
    from fastq.producer import AsyncProducer

T = TypeVar("T")

API_TIMEOUT_S = 10.0
READERS_MAX, READERS_OF_ONE_MAX = 16, 8


class TooManyReaders(RuntimeError):
    """READERS_MAX scans and tails run already, or what is done once at a time is done now."""


class Cluster:
    """A cluster with its clients."""

    def __init__(self, config: ClusterConfig, picture_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.name = config.name
        self._clock = clock
        self._picture_s = picture_s
        self._admin: AsyncAdmin | None = None
        self._producer: AsyncProducer[bytes, bytes] | None = None
        self._picture: Picture | None = None
        self._picture_time = 0.0
        self._taking: asyncio.Task[Picture] | None = None
        self._readers = Counter[str]()
        self._alone: set[str] = set()
        self.metrics = Metrics(config.metrics) if config.metrics else None

    def _settings(self, **own: Any) -> dict[str, Any]:
        """A client's settings; those that were given go before what the console would set."""
        given = {canonical(key) for key in self.config.settings}
        own = {"client_id": "fastq-console", **own}
        return {**{key: value for key, value in own.items() if key not in given}, **self.config.settings}

    def check(self) -> None:
        """Make what needs no broker; raises ConfigError for settings that no client takes."""
        try:
            _ = self.admin
            if self.config.schema_registry is not None:
                from fastq.schema_registry import SchemaRegistryClient

                SchemaRegistryClient(self.config.schema_registry)
        except ValueError as error:
            raise ConfigError(f"cluster {self.name}: {error}") from error

    @property
    def admin(self) -> AsyncAdmin:
        """The admin client."""
        if self._admin is None:
            self._admin = AsyncAdmin(self._settings(default_api_timeout_ms=int(API_TIMEOUT_S * 1000)))
        return self._admin

    @property
    def producer(self) -> AsyncProducer[bytes, bytes]:
        """The producer, which makes no topics."""
        if self._producer is None:
            from fastq.producer import AsyncProducer

            self._producer = AsyncProducer(
                self._settings(
                    linger_ms=0,
                    request_timeout_ms=10_000,
                    delivery_timeout_ms=20_000,
                    max_block_ms=int(API_TIMEOUT_S * 1000),
                )
            )
        return self._producer

    @contextlib.asynccontextmanager
    async def reader(self, who: str = "", **settings: Any) -> AsyncIterator[AsyncConsumer[Any, Any]]:
        """A consumer without a group, for a user (empty: where nobody logs in); raises TooManyReaders."""
        from fastq.consumer import AsyncConsumer

        if self._readers.total() >= READERS_MAX:
            raise TooManyReaders(
                f"as many searches and tails of {self.name} run already as may, {READERS_MAX}; stop one first"
            )
        if who and self._readers[who] >= READERS_OF_ONE_MAX:
            raise TooManyReaders(
                f"as many searches and tails of {who} run already as may, {READERS_OF_ONE_MAX}; stop one first"
            )
        self._readers[who] += 1
        try:
            own = {"allow_auto_create_topics": False, "auto_offset_reset": "earliest", **settings}
            async with AsyncConsumer(self._settings(**own)) as consumer:
                yield consumer
        finally:
            self._readers -= Counter([who])  # what is none is not kept

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """What asks brokers about every partition there is, once at a time, whoever asks; raises TooManyReaders."""
        if what in self._alone:
            raise TooManyReaders(f"{what} of {self.name} is being made already; ask again in a moment")
        self._alone.add(what)
        try:
            yield
        finally:
            self._alone.remove(what)

    async def run(self, operation: Operation[T]) -> T:
        """An operation that is the console's own."""
        return await self.admin._client.run(operation)

    async def picture(self) -> Picture:
        """The cluster at a glance, up to `picture_s` old."""
        if self._picture is not None and self._clock() - self._picture_time <= self._picture_s:
            return self._picture
        if self._taking is None:
            self._taking = asyncio.create_task(self._take())
            self._taking.add_done_callback(_looked_at)
        return await asyncio.shield(self._taking)  # who goes away takes it from nobody; who waits gets its error too

    async def _take(self) -> Picture:
        taking = asyncio.current_task()
        began = self._clock()
        try:
            picture = await self.run(take_picture())
            if self._taking is taking:
                self._picture, self._picture_time = picture, began
            return picture
        finally:
            if self._taking is taking:
                self._taking = None

    def forget_picture(self) -> None:
        """After something was changed: the next page takes a new one, and not one that was begun before."""
        self._picture = self._taking = None

    async def close(self) -> None:
        """Close the clients. Idempotent."""
        if self._taking is not None:
            self._taking.cancel()
        if self._producer is not None:
            await self._producer.close(2.0)
        if self._admin is not None:
            await self._admin.close()


def _looked_at(taking: asyncio.Task[Picture]) -> None:
    """Nobody may be left to hear of a failure; asyncio complains of one that nobody has asked for."""
    if not taking.cancelled():
        taking.exception()
