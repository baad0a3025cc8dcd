"""The leader epoch goes with every position (KIP-320): of the record before it, whatever was taken in between, and back from a commit."""

import logging
import random
from itertools import pairwise
from typing import Any

import pytest
from virtual_time import A, B, VirtualTime

from fastq._native.columns import ConsumerBatch
from fastq.consumer.assigned import LEADER_EPOCH_API
from fastq.consumer.fetcher import FETCH_API
from fastq.errors import OffsetOutOfRange, UnsupportedVersion


def filled(seed: int) -> VirtualTime:
    """One partition whose leader changes every few batches; compaction and transactions have left gaps."""
    rng = random.Random(seed)
    time = VirtualTime(isolation_level="read_committed", max_partition_fetch_bytes=1000)
    log = time.logs[0]
    for _ in range(30):
        log.epoch += rng.random() < 0.4
        rows = [(None, b"v")] * rng.randrange(1, 5)
        if rng.random() < 0.3:
            log.transaction(1, [rows], commit=rng.random() < 0.5)
        else:
            gaps = sorted(rng.sample(range(8), len(rows)))
            log.append(rows, gaps=gaps, last_offset_delta=rng.randrange(gaps[-1], 9), codec=rng.choice([0, 1]))
    time.metadata.update(time.cluster.metadata())
    return time


def epoch_before(time: VirtualTime, offset: int) -> int:
    """Of the batch that holds the offset before, which is what is said of a position in a gap too."""
    return max((entry.epoch for entry in time.logs[0].entries if entry.base < offset), default=-1)


@pytest.mark.parametrize("seed", range(20))
def test_every_position_has_the_epoch_of_the_record_before(seed: int) -> None:
    time, rng = filled(seed), random.Random(seed)
    log, state = time.logs[0], time.fetcher.partitions[A]
    time.run(1.0)
    while state.position < log.end:
        chunk = time.fetcher.next_chunk()
        if chunk is None:
            time.run(1.0)
            continue
        what = rng.randrange(3)
        if what == 0:
            batch = ConsumerBatch()
            batch.add(chunk, bytes_max=rng.randrange(1, 20))
            for offset, epoch in batch.next_positions.values():
                assert epoch == epoch_before(time, offset)
            assert {tp: offset for tp, (offset, _) in batch.next_positions.items()} == batch.next_offsets
        elif what == 1:
            chunk.take(rng.randrange(1, 4))
        else:
            chunk.take(1)
            assert chunk.finished_epoch == epoch_before(time, chunk.finished_position)
        if state.position > 0:
            assert state.position_epoch == epoch_before(time, state.position)
        time.fetcher.release(chunk)
    assert state.position_epoch == state.offset_epoch == log.entries[-1].epoch


def test_a_committed_offset_is_checked_against_the_log_that_is_there_now(caplog: pytest.LogCaptureFixture) -> None:
    """What the epoch is committed for: the record before it was cut off when the leader changed."""
    time = VirtualTime()
    log = time.logs[0]
    log.append([(None, b"v")] * 20)
    log.epoch = 5
    log.append([(None, b"w")] * 20)
    time.metadata.update(time.cluster.metadata())
    time.run(1.0)
    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        time.fetcher.seek(A, 30, leader_epoch=5)
        time.run(1.0)
        assert time.fetcher.partitions[A].position == 30 and not [
            record for record in caplog.records if record.name.startswith("fastq.consumer")
        ]
        time.fetcher.seek(A, 30, leader_epoch=3)  # read 30 records of an epoch that ends at 20
        time.run(1.0)
    assert time.fetcher.partitions[A].position == 20
    assert "truncated to offset 20" in caplog.text


def test_an_epoch_that_nobody_knows_begins_by_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    """As of a topic that was deleted and made anew."""
    time = VirtualTime()
    log = time.logs[0]
    log.epoch = 7
    log.append([(None, b"v")] * 20)
    time.metadata.update(time.cluster.metadata())
    time.fetcher.seek(A, 10, leader_epoch=2)
    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        time.run(1.0)
    assert time.fetcher.partitions[A].position == 0
    assert "does not know leader epoch 2" in caplog.text and "auto_offset_reset=earliest" in caplog.text


def test_a_broker_that_knows_no_epochs_is_believed() -> None:
    time = VirtualTime()
    time.fill(A, 5)
    time.fetcher.seek(A, 3, leader_epoch=0)
    for out in time.fetcher.requests(0.0, lambda node: True):
        if out.api_key == 23:
            out.done(None, UnsupportedVersion("OffsetForLeaderEpoch"), 0.0)
    assert time.run(1.0) < 20
    assert time.drain(A) == 2


@pytest.mark.parametrize(("policy", "epochs"), [("earliest", (0, 0)), ("latest", (3, 0)), ("earliest", (0, 3))])
def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    policy: str, epochs: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the old one was read up to: the new one is another, of which nothing was read, and its epochs begin again."""
    time = VirtualTime(auto_offset_reset=policy)
    time.fetcher.reset(A, -2)
    for log in time.logs:
        log.epoch = epochs[0]
    time.metadata.update(time.cluster.metadata())
    time.run(0.1)
    time.fill(A, 7)
    time.run(1.0)
    assert time.drain(A) > 0
    time.run(1.0)  # and the next ones are prefetched
    old = time.fetcher.partitions[A].position
    (log,) = time.logs[:] = time.cluster.make_anew("a", 1)
    log.epoch = epochs[1]
    time.fill(A, 9)
    time.run(1.0)
    time.metadata.update(time.cluster.metadata())
    with caplog.at_level(logging.WARNING, "fastq.consumer"):
        read = 0
        for _ in range(5):
            time.run(1.0)
            read += time.drain(A)
    assert read == 9 and time.fetcher.partitions[A].position == 9
    assert [record.getMessage() for record in caplog.records if record.name == "fastq.consumer"] == [
        f"a was deleted and made anew, after these partitions of it were read up to these offsets: 0: {old}; going on at the beginning of "
        "their new logs"
    ]
    assert time.fetcher.made_anew == {A, B}


def test_a_topic_that_is_made_anew_needs_a_seek_under_the_policy_none() -> None:
    time = VirtualTime(auto_offset_reset="none")
    time.fill(A, 3)
    time.fetcher.seek(A, 1)
    time.fetcher.seek(B, 0)
    time.run(1.0)
    assert time.drain(A) == 2
    time.cluster.make_anew("a", 2)
    time.metadata.update(time.cluster.metadata())
    time.run(1.0)
    error = time.fetcher.take_error()
    assert isinstance(error, OffsetOutOfRange) and (error.topic, error.partition) == A
    assert "a-0 was deleted and made anew, after it was read up to offset 3" in str(error) and "seek()" in str(error)
    assert time.fetcher.partitions[A].position == 3, "as after any other offset that is not there"


@pytest.mark.parametrize("policy", ["none", "earliest", "latest"])
@pytest.mark.parametrize("offset", [0, 2])
def test_a_number_that_was_sought_is_of_the_topic_that_is_there(policy: str, offset: int) -> None:
    """The user names an offset, and the client does not know yet that the topic is another by now: nothing of the old one is at stake."""
    time = VirtualTime(auto_offset_reset=policy)
    time.fill(A, 7)
    time.fetcher.seek(A, 5)
    time.fetcher.seek(B, 0)
    time.run(1.0)
    assert time.drain(A) == 2
    time.logs[:] = time.cluster.make_anew("a", 2)
    time.fill(A, 4)
    for tp in (A, B):
        time.fetcher.seek(tp, offset if tp == A else 0)
    for _ in range(3):
        time.metadata.update(time.cluster.metadata())
        time.run(1.0)
    assert time.fetcher.take_error() is None
    assert time.drain(A) == 4 - offset


def moving(**options: Any) -> VirtualTime:
    """Two brokers, and one partition that has been read from the first."""
    time = VirtualTime(retry_backoff_ms=10_000, retry_backoff_max_ms=10_000, **options)
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    time.metadata.update(time.cluster.metadata())
    time.fetcher.assign([A])
    time.fill(A, 1)
    time.run(1.0)
    assert time.drain(A) == 1
    return time


@pytest.mark.parametrize("named", [True, False], ids=["in the answer", "in the metadata"])
def test_a_new_leader_is_asked_without_a_pause(named: bool) -> None:
    time = moving()
    time.cluster.names_leaders = named
    time.logs[0].leader, time.logs[0].epoch = 2, 1
    time.fill(A, 1)
    time.run(0.51)  # the poll on its way
    if not named:
        time.metadata.update(time.cluster.metadata())
        time.run(0.01)
    assert time.drain(A) == 1


def test_no_fetch_of_others_waits_while_a_new_leader_is_asked() -> None:
    """Its answer would come behind that of the fetch, and what was asked for be fetched after all that time."""
    time = moving()
    time.cluster.names_leaders = True
    time.logs[1].leader = 2
    time.metadata.update(time.cluster.metadata())
    time.fetcher.assign([A, B])
    time.run(0.1)
    time.logs[0].leader, time.logs[0].epoch = 2, 1
    waits: list[tuple[int, int]] = []
    handle = time.cluster.handle

    def handled(node: int, request: Any, version: int) -> Any:
        if node == 2:
            waits.append((request.API_KEY, getattr(request, "max_wait_ms", -1)))
        if request.API_KEY == LEADER_EPOCH_API:
            (parked,) = (flight for flight in time.flying if flight[1].node_id == 2)
            # Fastq's broker ends the wait of who asks for more.
            time.flying[time.flying.index(parked)] = (time.now, *parked[1:])
        return handle(node, request, version)

    time.cluster.handle = handled  # type: ignore[method-assign]
    time.run(0.5)
    asked = waits.index((LEADER_EPOCH_API, -1))
    assert waits[asked + 1] == (FETCH_API, 0)
    assert waits[-1] == (FETCH_API, 500)


def test_leaders_that_refuse_are_asked_in_moderation() -> None:
    """Each names the other, in a newer epoch each time."""
    time = moving()
    time.cluster.names_leaders = True
    refusals: list[float] = []
    log, original = time.logs[0], time._send

    def send(out: Any) -> None:
        log.leader, log.epoch = 3 - out.node_id, log.epoch + 1
        refusals.append(time.now)
        original(out)

    time._send = send  # type: ignore[method-assign]
    time.run(60.0)
    pauses = [after - before for before, after in pairwise(refusals)]
    assert 5 < len(pauses) < 20
    assert pauses[-1] > 5
