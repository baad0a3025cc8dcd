"""A mirror that the console watches, where the machine has no more threads, or descriptors."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from fastq.console import mirrors
from fastq.console.mirrors import LOOK_S, WatchedMirror
from fastq.mirror import report


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


def test_a_look_whose_clients_cannot_be_closed_is_a_sentence_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never ended, and the mirror was never looked at again."""
    now, looks = 0.0, 0

    class Watching:
        def __init__(self, _: object) -> None: ...

        def begin(self) -> None:
            nonlocal looks
            looks += 1
            raise OSError(errno.EMFILE, "too many open files")

        def close(self) -> None:
            raise OSError("it does not close either")

    async def live() -> None:
        nonlocal now
        config: Any = None
        mirror = WatchedMirror("m", config, clock=lambda: now)
        for _ in range(2):
            assert "something went wrong" in (await mirror.look()).trouble
            now += LOOK_S
            await mirror.look()
            if mirror._looking is not None:
                await asyncio.wait([mirror._looking], timeout=5.0)
            assert mirror._looking is None

    monkeypatch.setattr(report, "Watch", Watching)
    monkeypatch.setattr(mirrors, "FIRST_S", 5.0)
    asyncio.run(live())
    assert looks == 3
