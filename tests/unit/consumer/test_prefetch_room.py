"""What is prefetched and may not be handed out makes room for what may: other partitions are fetched, and nothing is lost or read twice."""

from __future__ import annotations

from typing import Any

import pytest
from virtual_time import BATCH_BYTES, A, B, VirtualTime

from fastq.consumer.partition import Phase
from fastq.metadata import TopicPartition

BOUND = 64 * BATCH_BYTES


def topic_of(partitions: int, **options: Any) -> VirtualTime:
    """A topic of so many partitions, all assigned; `fill` knows them."""
    time = VirtualTime(prefetch_bytes_max=BOUND, **options)
    time.logs = time.cluster.create("a", partitions - 2)
    time.metadata.update(time.cluster.metadata())
    time.fetcher.assign(time.cluster.logs)
    return time


Places = list[tuple[int, int]]


def at_hand(time: VirtualTime) -> Places:
    """The places of all that is at hand before `until`, which the application takes."""
    fetcher = time.fetcher
    found: Places = []
    while True:
        ends = fetcher.until
        pending = (
            None if ends is None else {tp: end for tp, end in ends.items() if fetcher.partitions[tp].position < end}
        )
        chunk = fetcher.next_chunk(pending)
        if chunk is None:
            return found
        found += [(chunk.partition, record.offset) for record in chunk.take(1000)]
        fetcher.release(chunk)


def read(time: VirtualTime, seconds: float) -> Places:
    """What the application is handed in so much time."""
    end = time.now + seconds
    found: Places = []
    while time.now < end:
        time.run(0.01)
        found += at_hand(time)
    return found


def test_a_paused_partition_that_holds_nearly_all_keeps_no_other_from_being_fetched() -> None:
    time = VirtualTime(prefetch_bytes_max=BOUND, max_partition_fetch_bytes=50 * BATCH_BYTES)
    time.fill(A, 80)
    time.run(1.0)
    assert time.fetcher.partitions[A].buffered_bytes > BOUND * 3 // 4
    time.fetcher.partitions[A].paused = True
    time.fill(B, 200)
    assert read(time, 2.0) == [(1, offset) for offset in range(200)]
    time.fetcher.partitions[A].paused = False
    assert read(time, 2.0) == [(0, offset) for offset in range(80)]


def test_many_paused_partitions_that_hold_all_keep_no_other_from_being_fetched() -> None:
    time = topic_of(40, max_partition_fetch_bytes=BATCH_BYTES)
    for partition in range(1, 40):
        time.fill(TopicPartition("a", partition), 20)
    time.run(1.0)
    assert time.fetcher.buffered_bytes > BOUND * 9 // 10
    for tp, state in time.fetcher.partitions.items():
        state.paused = tp != A
    time.fill(A, 30)
    assert read(time, 2.0) == [(0, offset) for offset in range(30)]
    assert time.fetcher.buffered_bytes <= BOUND
    for state in time.fetcher.partitions.values():
        state.paused = False
    found = read(time, 2.0)
    assert sorted(found) == [(partition, offset) for partition in range(1, 40) for offset in range(20)]


def test_partitions_that_have_come_to_their_ends_keep_no_other_from_it() -> None:
    """Their logs go on: the last chunk of each reaches past its end."""
    time = topic_of(200, max_partition_fetch_bytes=2 * BATCH_BYTES)
    for tp in time.cluster.logs:
        time.fill(tp, 4)
    time.fetcher.until = dict.fromkeys(time.cluster.logs, 1)
    found = read(time, 2.0)
    assert sorted(found) == [(partition, 0) for partition in range(200)]
    time.fetcher.until = None
    rest = read(time, 5.0)
    assert sorted(rest) == [(partition, offset) for partition in range(200) for offset in (1, 2, 3)]


def test_what_was_prefetched_of_others_keeps_none_from_being_read_up_to_its_end() -> None:
    time = topic_of(40, max_partition_fetch_bytes=BATCH_BYTES)
    for partition in range(1, 40):
        time.fill(TopicPartition("a", partition), 3)
    time.run(1.0)
    time.fill(A, 30)
    time.fetcher.until = {A: 30}
    assert read(time, 1.0) == [(0, offset) for offset in range(30)]


def test_what_may_be_handed_out_is_kept() -> None:
    """Its room comes back; and so is what is paused, while there is some room beside it."""
    time = VirtualTime(prefetch_bytes_max=BOUND, max_partition_fetch_bytes=50 * BATCH_BYTES)
    time.fill(A, 200)
    time.run(1.0)
    held = time.fetcher.partitions[A].buffered_bytes
    time.fill(B, 1)
    time.run(1.0)
    assert time.fetcher.partitions[A].buffered_bytes == held
    time.fetcher.partitions[A].paused = True
    assert read(time, 1.0) == [(1, 0)]
    assert time.fetcher.partitions[A].buffered_bytes == held


def holding() -> VirtualTime:
    """Of A, two records were handed out of what fills the memory, which is paused now; B has records."""
    time = VirtualTime(prefetch_bytes_max=BOUND, max_partition_fetch_bytes=BOUND)
    time.fill(A, 100)
    time.run(1.0)
    chunk = time.fetcher.next_chunk()
    assert chunk is not None and [record.offset for record in chunk.take(2)] == [0, 1]
    time.fetcher.partitions[A].paused = True
    time.fill(B, 1)
    return time


def test_whoever_holds_what_was_let_go_of_gets_nothing_more_of_it() -> None:
    """As an iterator does while another one goes on before an end."""
    time = holding()
    chunk = time.fetcher.partitions[A].chunks[0]
    assert read(time, 1.0) == [(1, 0)] and not time.fetcher.buffered_bytes
    assert time.fetcher.partitions[A].position == chunk.finished_position + 1 == 2
    assert chunk.take(10) == [] and chunk.exhausted
    time.fetcher.partitions[A].paused = False
    assert read(time, 1.0) == [(0, offset) for offset in range(2, 100)]


def test_what_was_on_its_way_behind_what_was_let_go_of_is_dropped() -> None:
    time = holding()
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    time.logs[1].leader = 2
    time.metadata.update(time.cluster.metadata())
    fetcher, state = time.fetcher, time.fetcher.partitions[A]
    config, state.paused = fetcher.config, False
    fetcher.config = config.replace(prefetch_bytes_max=BOUND * 3 // 2)
    (late,) = [out for out in time.fetcher.requests(time.now, lambda node: node == 1) if out.node_id == 1]
    assert state.requested
    fetcher.config, state.paused = config, True
    time._send(late)
    _, _, response = time.flying.pop()
    assert read(time, 0.1) == [(1, 0)] and not state.chunks
    late.done(response, None, time.now)
    assert not state.chunks and state.fetch_offset == 2 and not fetcher.buffered_bytes
    state.paused = False
    assert read(time, 1.0) == [(0, offset) for offset in range(2, 100)]


def test_what_was_let_go_of_is_not_fetched_again_and_again() -> None:
    time = holding()
    read(time, 1.0)
    fetched, sent = time.fetcher.counters["fetched_bytes"], len(time.sent)
    for _ in range(10):
        time.fill(B, 1)
        assert len(read(time, 1.0)) == 1
    assert time.fetcher.counters["fetched_bytes"] - fetched < 20 * BATCH_BYTES
    assert len(time.sent) - sent < 60


def test_a_partition_that_is_to_be_checked_is_checked_where_it_goes_on() -> None:
    """Its log may have been cut below what was let go of."""
    time = holding()
    log, state = time.logs[0], time.fetcher.partitions[A]
    log.epoch += 1
    log.append([(None, b"new")])
    time.metadata.update(time.cluster.metadata())
    out = time.fetcher.requests(time.now, lambda node: True)
    assert state.phase is Phase.VALIDATE and not state.chunks
    assert (state.fetch_offset, state.offset_epoch, state.requested) == (2, 0, False)
    for each in out:
        time._send(each)
    state.paused = False
    assert sorted(read(time, 2.0)) == [*((0, offset) for offset in range(2, 101)), (1, 0)]


@pytest.mark.parametrize("phase", [Phase.RESET, Phase.FAILED])
def test_a_partition_that_was_refused_further_on_asks_there_once_more(phase: Phase) -> None:
    time = holding()
    state = time.fetcher.partitions[A]
    state.phase, state.fetch_offset = phase, 1_000_000
    assert read(time, 1.0) == [(1, 0)]
    state.paused = False
    assert read(time, 1.0) == [(0, offset) for offset in range(2, 100)]


def test_what_was_used_up_of_a_paused_partition_takes_no_room() -> None:
    """Nobody looks at it until it is resumed; what is on its way behind it counts."""
    time = holding()
    state = time.fetcher.partitions[A]
    state.chunks[0].take(1000)
    generation, offset = state.generation, state.fetch_offset
    assert read(time, 1.0) == [(1, 0)]
    assert not state.chunks and (state.generation, state.fetch_offset) == (generation, offset)


def test_a_broker_that_stands_still_holds_the_room_of_no_other() -> None:
    """What its answer may bring is most of the memory, and nothing is at hand."""
    time = VirtualTime(prefetch_bytes_max=BOUND, max_partition_fetch_bytes=BOUND * 25 // 64)
    time.run(0.1)
    (late,) = time.flying
    time.flying.clear()
    assert time.fetcher.reserved_bytes > BOUND * 3 // 4
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    time.logs = time.cluster.create("a", 1)
    time.logs[2].leader = 2
    time.metadata.update(time.cluster.metadata())
    time.fetcher.assign(time.cluster.logs)
    time.fill(TopicPartition("a", 2), 50)
    assert read(time, 1.0) == [(2, offset) for offset in range(50)]
    late[1].done(late[2], None, time.now)


@pytest.mark.parametrize("anew", [False, True])
def test_whoever_holds_what_was_read_of_a_log_that_is_gone_gets_nothing_more_of_it(anew: bool) -> None:
    """What is left of a log that was cut is fetched again from the position on: an iterator handed it out as well."""
    time = VirtualTime()
    time.fill(A, 3)
    time.run(0.1)
    chunk = time.fetcher.next_chunk()
    assert chunk is not None and [record.offset for record in chunk.take(1)] == [0]
    if anew:
        time.logs = time.cluster.make_anew("a", 2)
        time.fill(A, 1)
        time.metadata.update(time.cluster.metadata())
        time.run(1.0)
        assert chunk.take(1000) == []
        assert read(time, 1.0) == [(0, 0)]
        return
    log = time.logs[0]
    del log.entries[2:]
    log.end, log.epoch = 2, 1
    log.append([(None, b"of the leader of now")])
    time.metadata.update(time.cluster.metadata())
    time.run(1.0)
    assert chunk.take(1000) == []
    assert read(time, 1.0) == [(0, 1), (0, 2)]
