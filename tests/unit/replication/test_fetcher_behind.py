"""A follower with much to catch up with: others on its node and its leader's feel little of it."""

from __future__ import annotations

import pytest
from fastq_broker.replication.catch_up import CATCH_UP_BYTES, CATCH_UP_FETCHES, CATCH_UP_WAY_S
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fetcher_world import T0, MemoryLog, fetches, log_of, pair


def test_only_what_is_behind_is_written_gently() -> None:
    leader_log, mine = log_of(0, 0), MemoryLog()
    follower = pair(leader_log, mine, 0)
    follower.steps(2)
    leader_log.append(0, b"more")
    follower.step()
    assert mine.data == leader_log.data
    assert mine.gently == [True, False], "all that was there when it came, then one record as it was written"


def test_what_is_behind_is_fetched_in_small_answers() -> None:
    """A large one keeps two loops from others for as long as it takes to send and to write it."""
    mine = MemoryLog()
    follower = pair(log_of(*[0] * 8), mine, 0, partition_bytes_max=1)
    follower.steps(9)
    whole = follower.machine.config.response_bytes_max
    assert mine.log_end_offset == 8 and whole > CATCH_UP_BYTES
    assert [request.max_bytes for request in fetches(follower)][:9] == [whole, *[CATCH_UP_BYTES] * 7, whole]


@pytest.mark.parametrize(
    ("way_s", "asked"),
    [(0.0, CATCH_UP_BYTES), (CATCH_UP_WAY_S, CATCH_UP_BYTES), (0.003, 3 * CATCH_UP_BYTES), (0.05, None), (1e6, None)],
)
def test_the_longer_the_way_the_larger_the_answers(way_s: float, asked: int | None) -> None:
    """In 50 ms there and back, half a megabyte each time was ten megabytes a second."""
    follower = pair(log_of(*[0] * 4), MemoryLog(), 0, partition_bytes_max=1)
    follower.machine.way_s = way_s
    follower.steps(5)
    whole = follower.machine.config.response_bytes_max
    assert [request.max_bytes for request in fetches(follower)] == [whole, *[asked or whole] * 3, whole]


def test_small_answers_are_no_larger_than_others() -> None:
    follower = pair(log_of(0, 0, 0), MemoryLog(), 0, partition_bytes_max=1, response_bytes_max=1000)
    follower.steps(3)
    assert {request.max_bytes for request in fetches(follower)} == {1000}


PAUSE_S = 0.5


def test_others_have_their_turn_now_and_then_while_somebody_is_behind() -> None:
    mine, count = MemoryLog(), 3 * CATCH_UP_FETCHES
    follower = pair(log_of(*[0] * count), mine, 0, partition_bytes_max=1, catch_up_pause_s=PAUSE_S)
    for end in range(1, count):
        assert follower.step() and mine.log_end_offset == end
        if end % CATCH_UP_FETCHES:
            continue
        follower.now += 0.1  # what was fetched took that to be written, and the pause begins behind it
        assert not follower.step() and follower.machine.next_wakeup(follower.now) == follower.now + PAUSE_S
        follower.now += PAUSE_S - 0.01
        assert not follower.step()
        follower.now += 0.02
    follower.steps(2)
    assert mine.log_end_offset == count and len(fetches(follower)) == count + 1, "the next one waits at the leader"


def test_a_leader_that_grows_half_as_fast_as_it_is_read_is_followed_without_a_pause() -> None:
    """It might never be caught up with."""
    leader_log, mine = log_of(*[0] * 20), MemoryLog()
    follower = pair(leader_log, mine, 0, partition_bytes_max=1, catch_up_pause_s=PAUSE_S)
    assert follower.step(), "what was there before says nothing of how it grows"
    for _ in range(3 * CATCH_UP_FETCHES):
        leader_log.append(0, b"more")
        leader_log.high_watermark = leader_log.log_end_offset
        assert follower.step()
    assert sum(follower.step() for _ in range(CATCH_UP_FETCHES)) == CATCH_UP_FETCHES - 1


def test_a_leader_that_grows_half_as_fast_as_it_is_read_is_asked_for_as_much_as_may_come() -> None:
    """It might never be caught up with, as small answers are at a time."""
    leader_log, mine = log_of(*[0] * 20), MemoryLog()
    follower = pair(leader_log, mine, 0, partition_bytes_max=1)
    whole = follower.machine.config.response_bytes_max
    follower.steps(2)
    for _ in range(3):
        leader_log.append(0, b"more")
        leader_log.high_watermark = leader_log.log_end_offset
        follower.step()
    follower.steps(4)
    small = CATCH_UP_BYTES
    assert [request.max_bytes for request in fetches(follower)] == [whole, small, small, *[whole] * 3, *[small] * 3]


def test_what_is_written_to_others_that_are_in_sync_is_no_part_of_it() -> None:
    """A leader with many producers was asked for large answers, and without a pause, by whoever had one partition to catch up with."""
    mine = MemoryLog()
    follower = pair(log_of(*[0] * 20), mine, 0, partition_bytes_max=1)
    others = [log_of(0), log_of(0)]
    for number, log in enumerate(others, 1):
        name = ReplicaPartition("t", T0.topic_id, number)
        follower.leader.lead(name, log, 0)
        follower.follow(name, MemoryLog(), 0)
    follower.steps(2)
    for _ in range(6):
        for log in others:
            log.append(0, b"live")
        follower.step()
        for log in others:
            log.high_watermark = log.log_end_offset
    assert all(one.log.log_end_offset == 7 for one in follower.machine.partitions.values() if one.log is not mine)
    assert {request.max_bytes for request in fetches(follower)[2:]} == {CATCH_UP_BYTES}


def test_who_has_all_that_is_committed_waits_for_nothing() -> None:
    leader_log, mine = log_of(0), MemoryLog()
    follower = pair(leader_log, mine, 0, partition_bytes_max=1, catch_up_pause_s=PAUSE_S)
    follower.steps(2)
    for _ in range(8):
        leader_log.append(0, b"more")  # not committed before this one has it
    for _ in range(8):
        assert follower.step()
    assert mine.log_end_offset == 9


def test_what_comes_to_the_disk_during_a_pause_is_fetched_on_after_it() -> None:
    """Nobody tells of it again: the fetch waited for as long as another log's sync may hold it up, half a second."""
    leader_log, mine = log_of(*[0] * (CATCH_UP_FETCHES + 2)), MemoryLog(fsync=True)
    follower = pair(leader_log, mine, 0, partition_bytes_max=1, catch_up_pause_s=PAUSE_S / 100)
    for _ in range(CATCH_UP_FETCHES):
        assert follower.step()
        follower.poll()
        mine.sync()
    follower.poll()
    assert not follower.asked and follower.machine.next_wakeup(follower.now) == follower.now + PAUSE_S / 100
    follower.now += PAUSE_S / 100
    assert follower.step() and mine.log_end_offset == CATCH_UP_FETCHES + 1
