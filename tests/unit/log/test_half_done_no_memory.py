"""A log that is half done, and memory that is short at one step after the other of what is done about it: it is whole once there is memory
again, and who waits is answered once, without that anybody touches it."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.flusher import wait_readable
from fastq_broker.log.half_done import RETRY_MS_MAX
from fastq_broker.log.native_flusher import NativeFlusher
from faulty_files import Fault, FaultyFiles
from log_support import TOPIC_ID, StandingClock, crash, one_batch
from test_log_no_memory import alone, content, fails

from fastq.errors import KafkaError, KafkaStorageError

END, CUT, EPOCH = 12, 5, 7
CONFIG = LogConfig(segment_bytes=300, durability="fsync", file_delete_delay_ms=0, index_interval_bytes=1)
STEPS_OF_A_TICK = 1_700
"""Which tells nobody that it has failed."""


def teller(told: list[int]) -> Callable[[KafkaError | None], None]:
    """Whoever waits for the disk, in the memory that there is."""

    def tell(error: KafkaError | None) -> None:
        told[error is not None] += 1

    return tell


class World:
    """A log whose last record is not on disk."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.clock, self.files, self.flusher = StandingClock(), FaultyFiles(), NativeFlusher(1)
        self.manager = LogManager(
            [directory], default_config=CONFIG, files=self.files, flusher=self.flusher, clock=self.clock
        )
        self.manager.start()
        self.log = self.manager.create("t", 0, TOPIC_ID, CONFIG)
        for number in range(END):
            if number == END - 1:
                self.flusher.wait()
            self.log.append(one_batch([b"%d" % number]), leader_epoch=1, now_ms=self.clock())
        self.told = {CUT: [0, 0], END: [0, 0]}
        """How often who waits for an offset was told that it is on disk, and that it is not."""
        for offset, told in self.told.items():
            self.log.durability._waiters.append((offset, teller(told)))

    def half_cut(self) -> None:
        self.files.plan(Fault("rename", errno.EMFILE, "t-0", passes=1))
        with pytest.raises(KafkaStorageError):
            self.log.truncate_to(CUT)

    def half_swap(self) -> None:
        self.log.half_swapped(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 0)

    def later(self) -> None:
        self.clock.advance(RETRY_MS_MAX)
        self.manager.tick()
        self.flusher.wait()


BEGIN: dict[str, Callable[[World], object]] = {
    "cut": World.half_cut,
    "swap": World.half_swap,
    "whole": lambda world: None,
}
DO: dict[str, Callable[[World], object]] = {
    "load": lambda world: world.log.load(),
    "tick": lambda world: world.log.dir.tick(),
    "truncate": lambda world: world.log.truncate_to(CUT),
}


def steps(*, stride: int) -> Iterator[int]:
    """At first each, then one of several."""
    yield from range(20)
    yield from range(20, 10_000, stride)


@pytest.mark.parametrize(
    ("begin", "do", "count", "stride"),
    [
        ("cut", "load", 1, 11),
        ("swap", "load", 1, 11),
        ("cut", "tick", 3, 11),
        ("whole", "truncate", 1, 5),
    ],
)
@alone
def test_who_waits_is_answered_whatever_fails(tmp_path: Path, begin: str, do: str, count: int, stride: int) -> None:
    logging.disable(logging.CRITICAL)  # which is no part of it
    quiet = failures = 0
    for step in steps(stride=stride):
        world = World(tmp_path / str(step))
        log = world.log
        BEGIN[begin](world)
        before = content(log) if begin == "whole" else b""
        log.assign_leader_epoch(EPOCH)
        world.clock.advance(RETRY_MS_MAX)
        while world.flusher._threads.ended() < len(world.flusher._jobs):
            wait_readable(world.flusher.fileno())
        try:
            failed = fails(lambda world=world: DO[do](world), step, count)  # type: ignore[misc]
        except SystemError:  # the interpreter's, where it cannot call
            failed = True
        for _ in range(4):
            world.later()
        assert sorted(map(sum, world.told.values())) == [1, 1], (step, world.told)
        if log.dir.offline is None:
            end = log.log_end_offset
            assert end == CUT or (end == END and begin != "cut"), step
            assert world.told == {CUT: [1, 0], END: [int(end == END), int(end == CUT)]}, (step, world.told)
            assert log.leader_epoch == (1 if begin == "whole" and end == CUT else EPOCH), step
            assert content(log).startswith(before[: len(content(log))]), step
        else:
            assert count > 1, step
        crash(world.manager)
        failures += failed
        quiet = 0 if failed or (do == "tick" and step < STEPS_OF_A_TICK) else quiet + 1
        if quiet > 6:  # some do without what they were refused
            assert failures > 20 or do == "tick"
            return
    raise AssertionError("it never ends")
