"""What a producer's request may append to, and the words in which it is told."""

from __future__ import annotations

import pytest
from fastq_broker.transactions.verification import Operation, admit, operation, refusal_for
from transaction_fakes import Bench

from fastq.errors import ErrorCode, error_for_code

A, B = ("topic", 0), ("topic", 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ask(bench: Bench, wanted: Operation, *partitions: tuple[str, int], epoch: int = 0) -> tuple[object, list[bool]]:
    """({partition: code} or None, whether and how often a retry has been asked for so far and later)."""
    retries: list[bool] = []
    refused = admit(bench.shard, "t", 1000, epoch, frozenset(partitions), wanted, lambda: retries.append(True))
    codes = None if refused is None else {partition: int(error.code) for partition, error in refused.items()}
    return codes, retries


def test_operations_go_by_the_version() -> None:
    assert [operation(version, 12) for version in (9, 10, 11, 12, 13)] == [
        Operation.INVALID_STATE,
        Operation.INVALID_STATE,
        Operation.ABORTABLE,
        Operation.ADD,
        Operation.ADD,
    ]


@pytest.mark.parametrize(("wanted", "code"), [(Operation.ABORTABLE, 120), (Operation.INVALID_STATE, 48)])
def test_older_clients_have_to_add_their_partitions(bench: Bench, wanted: Operation, code: int) -> None:
    bench.initialize()
    assert ask(bench, wanted, A) == ({A: code}, [])
    bench.add(1000, 0, A)
    assert ask(bench, wanted, A, B) == ({B: code}, [])
    assert ask(bench, wanted, A) == ({}, [])
    assert ask(bench, wanted, A, epoch=5) == ({A: 47}, [])


def test_newer_clients_have_it_done(bench: Bench) -> None:
    bench.initialize()
    assert ask(bench, Operation.ADD, A) == ({}, [])
    assert ask(bench, Operation.ADD, A, B) == ({}, [])
    assert bench.shard.transactions["t"].partitions == {A, B}
    assert ask(bench, Operation.ADD, A, epoch=1) == ({A: 47}, [])


def test_an_addition_counts_once_it_is_on_disk(bench: Bench) -> None:
    bench.initialize()
    bench.context.durable = False
    refused, retries = ask(bench, Operation.ADD, A)
    again, more = ask(bench, Operation.ADD, A)
    assert refused is again is None
    assert not retries and not more
    bench.context.finish_appends()
    assert retries == more == [True]
    assert ask(bench, Operation.ADD, A) == ({}, [])


def test_an_addition_that_was_not_kept_lets_nothing_in(bench: Bench) -> None:
    """A batch was acknowledged whose partition was in no transaction of the next coordinator: no marker ended it."""
    bench.initialize()
    bench.context.durable = False
    refused, retries = ask(bench, Operation.ADD, A)
    assert refused is None
    bench.context.finish_appends(error_for_code(6, "led elsewhere by now"))
    assert retries == [True]
    bench.context.failure = error_for_code(16, "led elsewhere")
    assert ask(bench, Operation.ADD, A) == ({A: 19}, [])


def test_an_older_client_s_addition_lets_nothing_in_before_it_is_kept(bench: Bench) -> None:
    """A late batch of the transaction before was let in, and no marker ended it where the next coordinator had no such addition."""
    bench.initialize()
    bench.add(1000, 0, A)
    bench.context.durable = False
    bench.add(1000, 0, B)
    refused, retries = ask(bench, Operation.ABORTABLE, A, B)
    assert refused is None and ask(bench, Operation.ABORTABLE, A) == ({}, [])
    bench.context.finish_appends(error_for_code(6, "led elsewhere by now"))
    assert retries == [True]
    assert ask(bench, Operation.ABORTABLE, B) == ({B: 19}, [])
    assert ask(bench, Operation.ABORTABLE, A) == ({}, [])
    bench.add(1000, 0, B)
    bench.context.finish_appends()
    assert ask(bench, Operation.ABORTABLE, A, B) == ({}, [])


@pytest.mark.parametrize("ended", [True, False])
def test_what_was_in_the_transaction_before_is_not_in_this_one(bench: Bench, ended: bool) -> None:
    bench.initialize()
    bench.add(1000, 0, A)
    bench.end(1000, 0, True)
    bench.context.durable = ended
    bench.turn()
    bench.context.finish_appends(error_for_code(6, "led elsewhere by now"))
    bench.context.durable = False
    bench.add(1000, 1, A)
    refused, _ = ask(bench, Operation.ABORTABLE, A, epoch=1)
    assert refused is None


def test_a_transaction_that_is_ending_is_waited_for(bench: Bench) -> None:
    bench.initialize()
    bench.add(1000, 0, A)
    bench.end(1000, 0, True)
    for wanted in Operation:
        refused, retries = ask(bench, wanted, A, epoch=1)
        assert refused is None
    bench.turn()
    assert retries == [True]
    assert ask(bench, Operation.ADD, A, epoch=1) == ({}, [])


def test_one_that_cannot_end_now_is_not(bench: Bench) -> None:
    bench.initialize()
    bench.add(1000, 0, A)
    bench.world.unreachable = {A}
    bench.end(1000, 0, True)
    bench.turn()
    assert ask(bench, Operation.ADD, A, epoch=1) == ({A: 51}, [])
    assert ask(bench, Operation.ABORTABLE, A, epoch=1) == ({A: 19}, [])


def test_an_append_that_fails_is_refused(bench: Bench) -> None:
    bench.initialize()
    bench.context.failure = error_for_code(56, "the disk is gone")
    assert ask(bench, Operation.ADD, A) == ({A: 19}, [])


def test_producers_hear_nothing_of_coordinators() -> None:
    for code in (14, 15, 16, 48, 13):
        assert refusal_for(error_for_code(code), Operation.ADD).code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusal_for(error_for_code(49), Operation.ADD).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
