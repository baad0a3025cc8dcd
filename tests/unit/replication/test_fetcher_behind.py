"""A follower with much to catch up with: others on its node and its leader's feel little of it."""

from __future__ import annotations

from fastq_broker.replication.catch_up import CATCH_UP_BYTES
from fetcher_world import MemoryLog, fetches, log_of, pair


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


def test_small_answers_are_no_larger_than_others() -> None:
    follower = pair(log_of(0, 0, 0), MemoryLog(), 0, partition_bytes_max=1, response_bytes_max=1000)
    follower.steps(3)
    assert {request.max_bytes for request in fetches(follower)} == {1000}
