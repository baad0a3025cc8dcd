"""What a thread has to say to the event loop is heard once, also where memory is short as it says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aborts_world import World
from fastq_broker.log import tell_loop as module
from fastq_broker.log.tell_loop import tell_loop
from log_support import Loop


class ShortLoop(Loop):
    """Has no memory for the first calls; of the second one it has heard by then."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        self.tries += 1
        if self.tries != 1:
            super().call_soon_threadsafe(call, *arguments)
        if self.tries < 3:
            raise MemoryError


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0)


def test_it_is_said_until_it_is_heard_once() -> None:
    loop = ShortLoop()
    heard: list[int] = []
    tell_loop(loop, heard.append, 7)
    loop.turn()
    assert (loop.tries, heard) == (3, [7])


def test_a_closed_loop_hears_nothing() -> None:
    class Closed:
        def call_soon_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
            raise RuntimeError("Event loop is closed")

    tell_loop(Closed(), print)


def test_an_index_is_made_again_where_the_thread_had_no_memory_to_say_so(tmp_path: Path) -> None:
    """Who reads committed records would be refused until the next start."""
    world = World(tmp_path)
    world.loop = ShortLoop()
    world.manager.late.attach(world.manager.dirs, world.loop, lambda count, name: world.thread)
    assert world.told() == world.wanted()
    world.paths()[0].write_bytes(b"torn")
    world.settle()
