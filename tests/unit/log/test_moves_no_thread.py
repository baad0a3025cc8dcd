"""A move of a log for whose pieces no thread, or no memory, can be had: it goes on, and each piece counts once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.log import LogSlice
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
    play(manager, threads, calls)
    assert log.dir is manager.dirs[1] and read_all(log) == values


def play(manager: Any, threads: Threads, calls: list[Callable[[], object]]) -> None:
    """Turns of the loop and of the threads, after which no move is under way, and nothing in hand."""
    for _ in range(60):
        for queue in (threads.jobs, calls):
            due, queue[:] = list(queue), []
            for call in due:
                with suppress(MemoryError):  # of which a thread's pool tells nobody
                    call()
        assert 0 <= manager.moves._in_hand <= 2
        manager.tick()
        manager.flusher.wait()
    assert not manager.moves.moves and manager.moves._in_hand == 0


def _short_of(moments: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, for which there is no memory the first times."""
    left = [MemoryError() for _ in range(moments)]

    def call(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return work(*arguments)

    return call


@pytest.mark.parametrize("what", ["a piece", "the threads", "a turn of the loop"])
def test_a_piece_for_which_there_is_no_memory_is_read_again(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as in hand for ever: its move never ended, and once as many were lost as may be in hand no other did."""
    manager, threads = opened(tmp_path), Threads()
    calls: list[Callable[[], object]] = []
    loop: Any = SimpleNamespace(call_soon=calls.append, call_soon_threadsafe=calls.append)
    begin: Callable[..., Any] = lambda count, name: threads  # noqa: E731
    manager.moves.attach(loop, _short_of(3, begin) if what == "the threads" else begin)
    log = manager.create(*KEY)
    values = write(log, 600)
    manager.moves.begin(log, manager.dirs[1])
    if what == "a piece":
        monkeypatch.setattr(LogSlice, "read", _short_of(3, LogSlice.read))
    elif what == "a turn of the loop":
        loop.call_soon = _short_of(1, calls.append)
        threads.error = RuntimeError("can't start new thread")
    play(manager, threads, calls)
    assert log.dir is manager.dirs[1] and read_all(log) == values
