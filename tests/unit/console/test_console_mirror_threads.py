"""A mirror that the console watches, where the machine has no more threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fastq.console.mirrors import LOOK_S, WatchedMirror


def test_a_look_that_gets_no_thread_is_a_sentence_and_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    tries: list[str] = []

    def start(thread: threading.Thread) -> None:
        tries.append(thread.name)
        raise RuntimeError("can't start new thread")

    async def live() -> None:
        nonlocal now
        config: Any = None  # it is not looked at
        mirror = WatchedMirror("m", config, clock=lambda: now)
        for _ in range(2):
            assert (await mirror.look()).trouble == "the console cannot look: can't start new thread"
            now += LOOK_S
            await mirror.look()  # what is old is looked at anew, for whoever asks next
            await asyncio.sleep(0)

    monkeypatch.setattr(threading.Thread, "start", start)
    asyncio.run(live())
    assert len(tries) == 3
