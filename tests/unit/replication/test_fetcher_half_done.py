"""A follower of several partitions, one of whose logs a shortage has left half done: the others go on."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastq_broker.replication.fetcher import LOG_STARTS_S, Phase
from fetcher_world import T0, T1, Follower, MemoryLog, log_of

from fastq.errors import KafkaError, KafkaStorageError

OF_A_LOADED_LOG = {"log_start_offset", "log_end_offset", "high_watermark", "leader_epoch", "durable_end"}


class HalfDoneLog(MemoryLog):
    """A log that is not loaded while a shortage lasts."""

    short = False

    def __getattribute__(self, name: str) -> Any:
        if name in OF_A_LOADED_LOG and object.__getattribute__(self, "short"):
            error = KafkaStorageError("loading a log failed: Too many open files")
            error.__cause__ = OSError(errno.EMFILE, "Too many open files")
            raise error
        return object.__getattribute__(self, name)

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        self.waiters.append((offset, callback))


@pytest.mark.parametrize("when", ["fetched", "log starts", "synced"])
def test_the_other_partitions_of_its_leader_are_fetched(when: str) -> None:
    """None was: each turn of the fetcher ended with the error of the one."""
    follower = Follower()
    mine, other = HalfDoneLog(fsync=when == "synced"), MemoryLog()
    leaders = {T0: log_of(0, 0), T1: log_of(0)}
    for name, log in leaders.items():
        follower.leader.lead(name, log, 0)
    follower.follow(T0, mine, 0)
    follower.follow(T1, other, 0)
    follower.steps(1 if when == "synced" else 3)
    if when == "fetched":
        follower.machine._changed[T0.key] = None
    mine.short = True
    leaders[T1].append(0, b"later")
    for _ in range(3):
        follower.now += LOG_STARTS_S
        follower.steps(2)
    assert other.data == leaders[T1].data and other.log_end_offset == 2
    assert follower.machine.partitions[T0.key].phase is Phase.UNREAD
    mine.short = False
    for _ in range(3):
        mine.sync()
        follower.now += LOG_STARTS_S
        follower.steps(2)
    assert mine.data == leaders[T0].data and follower.machine.partitions[T0.key].phase is Phase.FETCH


class FailingLog(MemoryLog):
    """A log whose directory turns out to have failed when it is touched next, which takes the logs in it away."""

    fails: Callable[[], None] | None = None

    def __getattribute__(self, name: str) -> Any:
        fails = object.__getattribute__(self, "fails")
        if name == "log_start_offset" and fails is not None:
            fails()
            raise KafkaStorageError("loading a log failed: Input/output error; the log directory is offline")
        return object.__getattribute__(self, name)


def test_what_is_taken_away_while_a_fetch_is_planned_is_not_fetched() -> None:
    """It was from then on, in each fetch, and thrown away."""
    follower = Follower()
    log, failing = MemoryLog(), FailingLog()
    for name in (T0, T1):
        follower.leader.lead(name, log_of(0, 0), 0)
    follower.follow(T0, log, 0)
    follower.follow(T1, failing, 0)
    failing.fails = lambda: follower.machine.remove([T0.key, T1.key])
    follower.steps(4)
    assert not follower.machine.partitions
    assert not follower.machine._session.known
    assert log.log_end_offset == 0


class NoMemoryLog(MemoryLog):
    """A log for which there is no memory while it is `short` of it."""

    short = ""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "short"):
            raise MemoryError
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("short", ["append_as_follower", "log_start_offset", "advance_as_follower", "leader_epoch"])
def test_a_shortage_of_memory_has_a_partition_followed_later(short: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was followed no more, until it had another leader."""
    follower, mine = Follower(), NoMemoryLog()
    leader = log_of(0, 0)
    leader.high_watermark = 2
    follower.leader.lead(T0, leader, 0)
    mine.short = short
    follower.follow(T0, mine, 0)
    for _ in range(3):
        follower.now += LOG_STARTS_S
        follower.steps(2)
    assert follower.machine.partitions[T0.key].phase is Phase.UNREAD
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"{T0} is not fetched for 1 s: there is no memory for it"
    ]
    mine.short = ""
    for _ in range(3):
        follower.now += LOG_STARTS_S
        follower.steps(2)
    assert mine.data == leader.data and follower.machine.partitions[T0.key].phase is Phase.FETCH
