"""Partitions that several nodes have, for which there is no memory at one moment: nobody stays without an answer, and no record unseen."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.replication.partition import Partition
from shared_bench import LAG_MS, Bench
from test_shared_partition import told_of

from fastq.errors import ErrorCode, KafkaError


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # generators that are closed without memory
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("what", ["another leads", "it is not here any more"])
def test_no_allocation_that_fails_as_a_leader_ends_keeps_who_waited_from_its_answer(
    what: str, count: int, tmp_path: Path
) -> None:
    """Each was told that its time is over: they had been taken from the queue before there was memory to tell them."""
    for first in range(80):
        bench = Bench(tmp_path / str(first))
        bench.settle()
        leader = bench.nodes[1]
        told = [told_of(leader.produce(value)) for value in (b"a", b"b", b"c")]
        heard: list[KafkaError | None] = [None]  # which takes no memory to fill
        assert leader.replica.shared is not None

        def hear(error: KafkaError | None, heard: list[KafkaError | None] = heard) -> None:
            heard[0] = error

        leader.replica.shared.wait_deleted(1, hear)
        epoch = bench.placed.partition_epoch + 1
        placed = bench.placed._replace(leader=2, isr=(2,), leader_epoch=7, partition_epoch=epoch)
        end = leader.replica.retire if what == "it is not here any more" else partial(leader.replica.apply, placed)
        with suppress(MemoryError), AllocationsFail(first, count):
            end()
        end()
        assert [len(one) for one in told] == [1, 1, 1], first
        assert heard[0] is not None and heard[0].code == ErrorCode.NOT_LEADER_OR_FOLLOWER, first


def test_no_allocation_that_fails_as_the_last_other_replica_goes_leaves_its_records_unseen(tmp_path: Path) -> None:
    """The log went on as one that others have too, whose high watermark nobody moved any more."""
    for first in range(40):
        bench = Bench(tmp_path / str(first))
        bench.settle()
        leader = bench.nodes[1]
        epoch = bench.placed.partition_epoch + 1
        placed = bench.placed._replace(replicas=(1,), isr=(1,), leader_epoch=7, partition_epoch=epoch)
        with suppress(MemoryError), AllocationsFail(first):
            leader.replica.apply(placed)
        leader.replica.apply(placed)
        answer = leader.produce(b"a")
        assert answer.done and answer.code == 0, first
        assert (leader.values(), leader.replica.shared, leader.log.shared) == ([b"a"], None, False), first


def test_no_allocation_that_fails_as_the_last_other_replica_goes_is_missed_when_one_comes(tmp_path: Path) -> None:
    """Half of it had ended, and was taken for whole: it counted no append, so that none was committed any more."""
    for first in range(40):
        bench = Bench(tmp_path / str(first))
        bench.settle()
        leader, both = bench.nodes[1], bench.placed
        told = told_of(leader.produce(b"a"))
        alone = both._replace(replicas=(1,), isr=(1,), leader_epoch=7, partition_epoch=both.partition_epoch + 1)
        with suppress(MemoryError), AllocationsFail(first):
            leader.replica.apply(alone)
        leader.replica.apply(both._replace(isr=(1,), leader_epoch=8, partition_epoch=both.partition_epoch + 2))
        answer = leader.produce(b"b")
        assert answer.done and answer.code == 0 and len(told) == 1, first
        assert leader.values() == [b"a", b"b"] and leader.log.shared, first


def test_an_append_that_there_was_no_memory_to_note_is_committed_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody counted it until more was written: it was seen by nobody, and no acks=all was answered."""
    bench = Bench(tmp_path)
    bench.settle()
    leader = bench.nodes[1]

    def no_memory(*_: Any) -> Any:
        raise MemoryError("none left")

    with monkeypatch.context() as short:
        short.setattr(Partition, "appended", no_memory)
        answer = leader.produce(b"a", timeout_ms=10 * LAG_MS)
    bench.settle()
    assert not answer.done
    leader.replication.check()
    bench.settle()
    assert answer.done and answer.code == 0
    assert [node.values() for node in bench.nodes.values()] == [[b"a"]] * 2
