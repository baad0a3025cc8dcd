"""What blocks and cannot be told to end: asked in threads that nobody waits for longer than is good for a page.

Rules: threads are no pool's and are daemons, so a peer that says nothing, or a byte a second, holds up neither other pages, logins among
them, nor the end of the process. So many run at once; who finds none free waits, and all of it ends in `wait_s`. One event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fastq.errors import WaitTimeout

T = TypeVar("T")


class Threads:
    """Threads for one kind of thing. A thread that is not waited for any more counts until it ends."""

    def __init__(self, what: str, at_once: int, wait_s: float) -> None:
        self._what = what
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(at_once)

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """What `call` gives or raises; WaitTimeout where that takes too long."""
        task = asyncio.ensure_future(self._run(call, arguments))
        try:  # and no `wait_for`, whose error may be one of the call's own
            await asyncio.wait([task], timeout=self._wait_s)
            if not task.done():
                raise WaitTimeout(f"{self._what} took longer than {self._wait_s:.0f} s")
            return task.result()
        finally:
            task.cancel()

    async def _run(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def ended(value: Any, error: Exception | None) -> None:
            self._free.release()
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def run() -> None:
            value, failed = None, None
            try:
                value = call(*arguments)
            except Exception as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, value, failed)

        try:
            threading.Thread(target=run, name=f"fastq-console {self._what}", daemon=True).start()
        except RuntimeError:  # the machine has no more threads for now
            self._free.release()
            raise
        return await done
