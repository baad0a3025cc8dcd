"""A fetcher for which there is no memory at one moment: it goes on a little later, with all that it follows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.replication.fetcher import LOG_STARTS_S, Phase
from fetcher_world import T0, T1, Follower, MemoryLog, fetches, log_of

from fastq.errors import ErrorCode

CALLS = 8
ALLOCATIONS = 40
ROUNDS = 3
SHORT: Any = object()


class Short(Follower):
    """In one call of its machine one allocation fails. An answer that could not be taken is told as a failure then, as the client does."""

    def __init__(self, call: int, first: int) -> None:
        super().__init__()
        self._call, self._first = call, first

    def _called(self, work: Callable[..., Any], *given: Any) -> Any:
        number, self._call = self._call, self._call - 1
        if number:
            return work(*given)
        try:
            with AllocationsFail(self._first):
                return work(*given)
        except (MemoryError, SystemError):  # the interpreter's, where it cannot call
            return SHORT

    def poll(self) -> None:
        effects = self._called(self.machine.poll, self.now)
        self.do(() if effects is SHORT else effects)

    def step(self) -> bool:
        self.poll()
        if not self.asked:
            return False
        number, take, request = self.asked.pop(0)
        answer = self.leader.answer(request)
        if self._called(take, number, answer, self.now) is SHORT:
            self.machine.failed(number, self.now)
        return True


class ShortOnce(MemoryLog):
    """A log that has no memory for the first that comes."""

    short = True

    def append_as_follower(self, batches: memoryview, *, now_ms: int, gently: bool = False) -> int:
        if self.short:
            self.short = False
            raise MemoryError
        return super().append_as_follower(batches, now_ms=now_ms, gently=gently)


def rounds(follower: Follower, log: MemoryLog) -> None:
    for _ in range(ROUNDS):
        follower.steps(2)
        log.sync()
        follower.now += LOG_STARTS_S


@pytest.mark.parametrize("what", ["another history", "out of range", "refused", "not taken", "new"])
@pytest.mark.parametrize("call", range(CALLS))
def test_no_allocation_that_fails_ends_what_it_follows(what: str, call: int) -> None:
    """It waited for the answer to what it had not asked, so that nothing of that leader was followed any more; or a partition was in none
    of its lists, or one that the leader had not heard of."""
    for first in range(ALLOCATIONS):
        follower, leads, mine = Short(call, first), log_of(0, 1, 1), MemoryLog()
        if what == "another history":
            mine = log_of(0, 0, 0, fsync=True)
        elif what == "out of range":
            leads.delete_before(2)
        elif what == "refused":
            follower.leader.failures[T0.key] = ErrorCode.KAFKA_STORAGE_ERROR
        elif what == "not taken":
            mine = ShortOnce()
        follower.leader.lead(T0, leads, 1)
        follower.follow(T0, mine, 1)
        rounds(follower, mine)
        follower.leader.failures.clear()
        rounds(follower, mine)
        leads.append(1, b"later")
        rounds(follower, mine)
        assert mine.data == leads.data, f"allocation {first}"
        assert follower.machine.partitions[T0.key].phase is Phase.FETCH, f"allocation {first}"


def test_what_its_leader_was_not_told_it_is_told_with_the_next_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as told: the leader's session had it at the place of the fetch before, or not at all."""
    follower, mine = Follower(), MemoryLog()
    follower.leader.lead(T0, log_of(0), 0)
    follower.follow(T0, mine, 0)
    follower.step()

    def no_memory(now: float) -> int:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(follower.machine, "_wait_ms", no_memory)
        with pytest.raises(MemoryError):
            follower.poll()
    assert not follower.machine.in_flight
    assert follower.step()
    (topic,) = fetches(follower)[-1].topics
    assert topic.partitions[0].fetch_offset == 1


def test_what_an_answer_told_of_others_is_told_again_where_it_was_not_taken_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader had told it: a high watermark that moved alone came with the next record, however long that took."""
    follower, logs = Follower(), [log_of(0), log_of(0)]
    for name, log in zip((T0, T1), logs, strict=True):
        follower.leader.lead(name, log, 0)
        follower.follow(name, MemoryLog(), 0)
    follower.steps(3)
    assert fetches(follower)[-1].session_epoch > 1

    def no_memory(*_: Any) -> None:
        raise MemoryError

    follower.leader.failures[T0.key] = ErrorCode.KAFKA_STORAGE_ERROR
    logs[0].append(0, b"more")
    follower.poll()
    number, take, request = follower.asked.pop(0)
    with monkeypatch.context() as short:
        short.setattr(follower.machine, "_refused", no_memory)
        with pytest.raises(MemoryError):
            take(number, follower.leader.answer(request), follower.now)
    follower.machine.failed(number, follower.now)
    follower.now += LOG_STARTS_S
    follower.step()
    assert fetches(follower)[-1].session_epoch == 0


def test_nothing_is_fetched_of_what_is_followed_no_more() -> None:
    """What there was no memory to take out of the session was fetched, and thrown away, at once and again."""
    for first in range(20):
        follower = Follower()
        follower.leader.lead(T0, log_of(0), 0)
        follower.follow(T0, MemoryLog(), 0)
        follower.steps(2)
        with suppress(MemoryError), AllocationsFail(first):
            follower.machine.remove([T0.key])
        follower.machine.remove([T0.key])
        follower.step()
        assert not follower.step() and not follower.machine._session.known, f"allocation {first}"
