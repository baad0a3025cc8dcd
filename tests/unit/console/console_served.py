"""A console that is served for real, in a thread, and a browser's client for it.

Rules: the console's loop is a thread's own; a client keeps cookies and follows no redirects unless told. `submit` posts a form as a page
would: with the token of the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from fastq.console.config import ConsoleConfig
from fastq.console.server import serve

PAGE = {"accept": "text/html"}
TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')


def becomes(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within seconds: nodes learn of a change one after the other, and any of them is asked."""
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Served:
    """A console in a thread."""

    def __init__(self, config: ConsoleConfig) -> None:
        self.url = ""
        self._config = config
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: BaseException | None = None
        self._thread.start()
        assert self._ready.wait(20)
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed = error
        self._ready.set()

    async def _serve(self) -> None:
        def tell(url: str) -> None:
            self.url = url
            self._ready.set()

        self._loop, self._task = asyncio.get_running_loop(), asyncio.create_task(serve(self._config, tell))
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def close(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(20)
        if self._thread.is_alive():
            faulthandler.dump_traceback()  # what it waits for
            raise AssertionError("the console has not ended within 20 s")


class Browser(httpx.Client):
    """Cookies, HTML wanted, and forms with their tokens."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, headers=PAGE, timeout=30, trust_env=False)

    def token(self, page: str) -> str:
        found = TOKEN.search(self.get(page).text)
        assert found, page
        return found[1]

    def submit(self, page: str, action: str, **fields: Any) -> httpx.Response:
        """What the form of a page sends."""
        return self.post(
            action, data={"token": self.token(page), **fields}, headers={"origin": str(self.base_url).rstrip("/")}
        )

    def log_in(self, name: str, password: str) -> httpx.Response:
        return self.submit("/login", "/login", name=name, password=password)


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def searched(browser: Browser, topic: str, **values: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a search, and what it says at its end."""
    rows: list[dict[str, Any]] = []
    with browser.stream("GET", f"/c/test/topics/{topic}/records/scan", params=values) as answer:
        assert answer.status_code == 200, answer.read()
        for name, data in events(answer.iter_lines()):
            if name == "rows":
                rows += data
            elif name in ("done", "failed"):
                return rows, data
    raise AssertionError("the stream has no end")
