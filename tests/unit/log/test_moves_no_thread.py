"""A move of a log for whose pieces no thread can be had: it goes on, and each piece counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_dir_moves import KEY, opened, read_all, write


class Threads:
    """What is submitted is done when the test says so; where no thread can be begun, by one that was there before."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.error: Exception | None = None

    def submit(self, work: Callable[[], None]) -> None:
        self.jobs.append(work)
        error, self.error = self.error, None
        if error is not None:
            if isinstance(error, MemoryError):
                self.jobs.pop()
            raise error

    def shutdown(self, cancel_futures: bool) -> None:
        pass


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_piece_that_no_thread_could_be_begun_for_counts_once(tmp_path: Path, error: Exception) -> None:
    """The move was given up, as its copy was given the piece twice, and more were in hand than may be; or, for want of memory, none went
    on."""
    manager, threads = opened(tmp_path), Threads()
    calls: list[Callable[[], object]] = []
    loop: Any = SimpleNamespace(call_soon=calls.append, call_soon_threadsafe=calls.append)
    manager.moves.attach(loop, lambda count, name: threads)  # type: ignore[arg-type, return-value]
    log = manager.create(*KEY)
    values = write(log, 600)
    manager.moves.begin(log, manager.dirs[1])
    threads.error = error
    for _ in range(60):
        for queue in (threads.jobs, calls):
            due, queue[:] = list(queue), []
            for call in due:
                call()
        assert 0 <= manager.moves._in_hand <= 2
        manager.tick()
        manager.flusher.wait()
    assert log.dir is manager.dirs[1] and not manager.moves.moves
    assert manager.moves._in_hand == 0
    assert read_all(log) == values
