"""Answers that go on: server-sent events and downloads.

Rules: when the browser goes away, what makes the answer is cancelled at once, and closes what it has open. An error in the middle of
events is an event, `failed`; in the middle of a download it breaks the connection, so that nobody takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastq.console.clusters import TooManyReaders
from fastq.console.visit import SessionOver
from fastq.errors import FastqError

logger = logging.getLogger("fastq.console")


async def begun(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same parts, after waiting for the first one: what fails before it raises here, where it becomes a page."""
    try:
        first = await anext(parts)
    except StopAsyncIteration:
        return _rest(b"", parts)
    return _rest(first, parts)


async def _rest(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(parts) as open_parts:  # type: ignore[type-var]  # a generator, always
        yield first
        async for part in open_parts:
            yield part


class Streamed(Response):
    """An answer whose parts come from a generator."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: str, headers: dict[str, str] | None = None) -> None:
        self.parts = parts
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self.parts) as parts:  # type: ignore[type-var]  # a generator, always
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(name: str, data: Any) -> bytes:
    """One event; JSON has no line breaks, so it is one line."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "backslashreplace")


def events(parts: AsyncIterator[bytes]) -> Streamed:
    """A stream of events that tells its own failure."""
    return Streamed(_telling(parts), "text/event-stream; charset=utf-8", {"x-accel-buffering": "no"})


async def _telling(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(parts) as open_parts:  # type: ignore[type-var]
            async for part in open_parts:
                yield part
    except (FastqError, TooManyReaders, SessionOver) as error:
        yield event("failed", {"text": str(error)})
    except Exception:
        logger.exception("a stream of events has failed")
        yield event("failed", {"text": "something went wrong in the console; its log says what"})
