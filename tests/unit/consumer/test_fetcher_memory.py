"""The fetcher where there is no memory for what came: it is fetched again, once, and no partition is left out."""

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from pytest import MonkeyPatch, raises
from virtual_time import BATCH_BYTES, A, B, VirtualTime

from fastq import Consumer
from fastq.consumer.fetcher import FETCH_API
from fastq.consumer.group.membership import Change, ChangeKind
from fastq.errors import ProtocolError
from fastq.metadata import TopicPartition

RECORDS = 20


def no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError("none left")


def test_what_there_is_no_memory_for_is_fetched_again() -> None:
    """Whichever of the allocations it is that fails, as the second answer with records is taken in."""
    for first in range(60):
        time = VirtualTime()
        fetcher = time.fetcher
        time.fill(A, RECORDS)
        time.fill(B, RECORDS)
        states, fetches, seen = list(fetcher.partitions.values()), 0, []
        while len(seen) < 2 * RECORDS:
            for out in fetcher.requests(time.now, lambda node: True):
                time._send(out)
            if not time.flying:
                time.now += 0.1
                assert time.now < 10, f"a partition is left out when allocation {first} fails"
                continue
            time.now, out, response = time.flying.pop(0)
            fetches += out.api_key == FETCH_API
            before = [(len(state.chunks), state.fetch_offset) for state in states]
            if fetches == 2 and out.api_key == FETCH_API:
                try:
                    with AllocationsFail(first):
                        out.done(response, None, time.now)
                except MemoryError:
                    out.done(None, ProtocolError("no memory"), time.now)  # as the core does
            else:
                out.done(response, None, time.now)
            for state, (chunks, offset) in zip(states, before, strict=True):
                assert (len(state.chunks) > chunks) == (state.fetch_offset > max(0, offset))
                assert state.buffered_bytes == sum(chunk.size_bytes for chunk in state.chunks)
            assert time.flying or fetcher.reserved_bytes == 0
            assert fetcher.buffered_bytes == sum(state.buffered_bytes for state in states)
            assert set(fetcher._fetch_order) == set(states)
            while chunk := fetcher.next_chunk():
                seen += [(chunk.partition, record.offset) for record in chunk.take(1000)]
                fetcher.release(chunk)
        assert sorted(seen) == [(tp.partition, offset) for tp in (A, B) for offset in range(RECORDS)]


def test_an_assignment_is_made_as_a_whole_whichever_allocation_fails() -> None:
    """What was in the assignment and not in the order of fetches was never read, also when it was assigned once more."""
    outcomes = []
    for at in range(120):
        time = VirtualTime()
        fetcher = time.fetcher
        before = list(fetcher.partitions.values())
        many = [TopicPartition("a", index) for index in range(1, 70)]  # B stays, A goes
        try:
            with AllocationsFail(at):
                fetcher.assign(many)
        except MemoryError:
            assert list(fetcher.partitions.values()) == before
            outcomes.append(False)
        else:
            assert list(fetcher.partitions) == many and fetcher.partitions[B] is before[1]
            outcomes.append(True)
        assert list(fetcher._order) == list(fetcher._fetch_order) == list(fetcher.partitions.values())
        fetcher.assign(many)
        assert [state.tp for state in fetcher._fetch_order] == many
    assert outcomes.count(False) > 40 and outcomes[0] is False


def test_partitions_that_there_is_no_memory_to_assign_are_assigned_by_the_next_call(monkeypatch: MonkeyPatch) -> None:
    """They counted as what the member has, and were read by nobody."""
    carried_out: list[Change] = []
    change = Change(ChangeKind.ASSIGN, (A,))
    consumer: Any = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    monkeypatch.setattr(consumer._group, "membership", SimpleNamespace(carried_out=carried_out.append, group_topics=()))
    with monkeypatch.context() as patch:
        patch.setattr(consumer._fetcher, "assign", no_memory)
        with raises(MemoryError):
            next(consumer._carry_out(change))
    assert not carried_out
    with suppress(StopIteration):
        next(consumer._carry_out(change))
    assert carried_out == [change] and list(consumer._fetcher.partitions) == [A]
    monkeypatch.undo()
    consumer.close()


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_what_there_is_no_memory_to_ask_for_is_asked_for_again(turn: int) -> None:
    """It counted as asked for: the partition, or all of its broker, was not read any more."""
    failures = 0
    for first in range(150):
        time = VirtualTime()
        fetcher = time.fetcher
        time.fill(A, RECORDS)
        time.fill(B, RECORDS)
        turns, seen = 0, []
        while len(seen) < 2 * RECORDS:
            turns += 1
            out: list[Any] = []
            try:
                with AllocationsFail(first) if turns == turn else nullcontext():
                    out = fetcher.requests(time.now, lambda node: True)
            except MemoryError:
                failures += not out
            for each in out:
                time._send(each)
            if not time.flying:
                time.now += 0.1
                assert time.now < 10, f"a partition is left out when allocation {first} fails"
                continue
            time.now, flown, response = time.flying.pop(0)
            flown.done(response, None, time.now)
            while chunk := fetcher.next_chunk():
                seen += [(chunk.partition, record.offset) for record in chunk.take(1000)]
                fetcher.release(chunk)
        assert sorted(seen) == [(tp.partition, offset) for tp in (A, B) for offset in range(RECORDS)]
        assert not any(fetcher._questions.values())
    assert failures > 10


def test_what_is_let_go_of_comes_again_whichever_allocation_fails() -> None:
    """Of A, which is paused and fills what may be prefetched, a record was handed out; B wants room."""
    failures = 0
    for first in range(80):
        time = VirtualTime(max_partition_fetch_bytes=RECORDS * BATCH_BYTES, prefetch_bytes_max=RECORDS * BATCH_BYTES)
        fetcher = time.fetcher
        for _ in range(300):  # the next generation is a number that needs memory
            fetcher.seek(A, 0)
        time.fill(A, 2 * RECORDS)
        time.run(1.0)
        state, chunk = fetcher.partitions[A], fetcher.next_chunk()
        assert chunk is not None
        seen = [(chunk.partition, record.offset) for record in chunk.take(1)]
        state.paused = True
        time.fill(B, RECORDS)
        time.now += 1.0
        for flown in time.flying:
            flown[1].done(flown[2], None, time.now)
        time.flying.clear()
        out: list[Any] = []
        try:
            with AllocationsFail(first):
                out = fetcher.requests(time.now, lambda node: True)
        except MemoryError:
            failures += 1
        for each in out:
            time._send(each)
        assert fetcher.buffered_bytes == sum(state.buffered_bytes for state in fetcher.partitions.values())
        assert state.buffered_bytes == sum(chunk.size_bytes for chunk in state.chunks)
        for paused in (True, False):
            state.paused = paused
            for _ in range(20):
                time.run(0.1)
                while at_hand := fetcher.next_chunk():
                    seen += [(at_hand.partition, record.offset) for record in at_hand.take(1000)]
                    fetcher.release(at_hand)
        places = [(0, offset) for offset in range(2 * RECORDS)] + [(1, offset) for offset in range(RECORDS)]
        assert sorted(seen) == places, f"allocation {first} fails"
    assert failures > 10
