"""How long changes of the metadata take until they count, as the metrics have it."""

from __future__ import annotations

from fastq_broker.controller.commit_times import WINDOW_MS, CommitTimes


class World:
    """A clock, and the times that are kept by it."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.times = CommitTimes(lambda: self.now_ms)

    def change(self, end_offset: int, takes_ms: int) -> None:
        self.times.written(end_offset)
        self.now_ms += takes_ms
        self.times.committed(end_offset)


def test_the_mean_is_of_changes_and_not_of_commits() -> None:
    world = World()
    assert world.times.mean_ms() is None, "nothing was committed: not 0"
    world.times.written(10)
    world.now_ms += 6
    world.times.written(12)
    world.times.committed(9)
    assert world.times.mean_ms() is None
    world.now_ms += 4
    world.times.committed(12)
    assert world.times.mean_ms() == (10 + 4) / 2
    world.times.committed(13)
    assert world.times.mean_ms() == 7.0


def test_what_is_long_ago_is_forgotten() -> None:
    world = World()
    world.change(1, 40)
    world.now_ms += WINDOW_MS
    world.change(2, 20)
    assert world.times.mean_ms() == 30.0, "this window and the one before"
    world.now_ms += WINDOW_MS
    assert world.times.mean_ms() == 20.0
    world.now_ms += 5 * WINDOW_MS
    assert world.times.mean_ms() is None
    world.change(3, 8)
    assert world.times.mean_ms() == 8.0


def test_a_term_that_ended_leaves_nothing() -> None:
    world = World()
    world.times.written(5)
    world.times.forget()
    world.times.committed(9)
    assert world.times.mean_ms() is None
