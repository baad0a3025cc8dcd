"""A core with its driver, and operations run to their end: what the admin clients are made of.

Rules of this file: nothing of an operation is decided here; the blocking and the asyncio side differ in how they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from fastq.config import ClientConfig
from fastq.errors import ClientClosed
from fastq.net.aio import AsyncDriver
from fastq.net.blocking import BlockingDriver
from fastq.net.core import ClientCore
from fastq.net.operations import Call, Operation, OperationRun, Route, single
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.protocol.message import Message
from fastq.timeouts import check_timeout

T = TypeVar("T")


def run_blocking(driver: BlockingDriver, operation: Operation[T], timeout_s: float) -> T:
    """Run an operation on this thread; its result, or its error raised. An interrupt cancels it."""
    with driver.lock:
        run = OperationRun(driver.core, operation, timeout_s, lambda _result, _error: None)
    try:
        driver.wait_until(lambda: run.done)
    finally:
        with driver.lock:
            run.cancel()
    if run.error is not None:
        raise run.error
    return run.result  # type: ignore[return-value]  # without an error it is the operation's


class _Awaited(asyncio.Future[T]):
    """Of one task, which it can `wake` when it is done: where there is no memory to call its callbacks, asyncio has lost them."""

    waiter: Callable[[], object] | None = None

    def add_done_callback(self, fn: Callable[..., object], /, *, context: Context | None = None) -> None:
        self.waiter = partial(self.get_loop().call_soon, fn, self, context=context)
        super().add_done_callback(fn, context=context)

    def wake(self) -> None:
        if self.waiter is not None and not self.cancelled():
            self.waiter()


async def run_async(driver: AsyncDriver, operation: Operation[T], timeout_s: float) -> T:
    """Run an operation in the driver's loop. Cancelling the await cancels it. Raises WrongEventLoop in another one."""
    driver.check_loop()
    future: _Awaited[T] = _Awaited(loop=driver.loop)

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            future.wake()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    driver.kick()
    run = OperationRun(driver.core, operation, timeout_s, done)
    try:
        return await future
    finally:
        future.waiter = None
        run.cancel()


class BlockingClient:
    """Calls to brokers from any thread. `timeout_s` None means `default_timeout_s`."""

    def __init__(self, config: ClientConfig, default_timeout_s: float = 60.0) -> None:
        self.core = ClientCore(config)
        self.driver = BlockingDriver(self.core)
        self.default_timeout_s = default_timeout_s

    def run(self, operation: Operation[T], timeout_s: float | None = None) -> T:
        """Run an operation to its result."""
        check_timeout(timeout_s)
        return run_blocking(self.driver, operation, self.default_timeout_s if timeout_s is None else timeout_s)

    def call(
        self,
        route: Route,
        request: Message | EncodedRequest | VersionedRequest,
        timeout_s: float | None = None,
        *,
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """One request and its response; connection failures are retried within the time-out."""
        return self.run(single(Call(route, request, versions)), timeout_s)

    def close(self) -> None:
        """Close all connections; calls under way on other threads raise ClientClosed. Idempotent."""
        self.driver.close()


class AsyncClient:
    """The same for asyncio. The driver starts at the first call, in the loop that runs then."""

    def __init__(self, config: ClientConfig, default_timeout_s: float = 60.0) -> None:
        self.core = ClientCore(config)
        self.default_timeout_s = default_timeout_s
        self._driver: AsyncDriver | None = None
        self._closed = False

    @property
    def driver(self) -> AsyncDriver:
        """The driver; needs a running loop at its first use."""
        if self._closed:
            raise ClientClosed()
        if self._driver is None:
            self._driver = AsyncDriver(self.core)
        return self._driver

    async def run(self, operation: Operation[T], timeout_s: float | None = None) -> T:
        """Run an operation to its result."""
        check_timeout(timeout_s)
        return await run_async(self.driver, operation, self.default_timeout_s if timeout_s is None else timeout_s)

    async def call(
        self,
        route: Route,
        request: Message | EncodedRequest | VersionedRequest,
        timeout_s: float | None = None,
        *,
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """One request and its response; connection failures are retried within the time-out."""
        return await self.run(single(Call(route, request, versions)), timeout_s)

    async def close(self) -> None:
        """Close all connections; calls under way raise ClientClosed. Idempotent. Raises WrongEventLoop in another one than theirs, which
        they would not wake."""
        if self._driver is not None and not self._closed:
            self._driver.check_loop()
        self._closed = True
        if self._driver is not None:
            self._driver.close()
            # The transports report the end of their sockets in the next pass of the loop.
            await asyncio.sleep(0)
