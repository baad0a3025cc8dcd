"""A transition on its way into the log: what else may happen meanwhile, and what becomes of one that is refused, late or not answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastq_broker.transactions import shard
from fastq_broker.transactions.transaction import Transaction
from transaction_fakes import Bench, begun, code, identity

from fastq.errors import KafkaError, error_for_code

A, B = ("topic", 0), ("topic", 1)
CONCURRENT = 51


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_else_happens_until_a_transition_is_durable(bench: Bench) -> None:
    bench.context.durable = False
    assert bench.initialize() is None
    assert code(bench.initialize()) == CONCURRENT
    bench.context.finish_appends()
    assert bench.add(1000, 0, A) is None
    for answer in (bench.add(1000, 0, B), bench.end(1000, 0, True), bench.initialize()):
        assert code(answer) == CONCURRENT
    bench.context.finish_appends()
    assert bench.end(1000, 0, True) is None
    bench.turn()
    assert not bench.world.markers  # the decision is not safe yet
    bench.context.finish_appends()
    bench.turn()
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit")]
    assert bench.state() == "CompleteCommit"
    assert code(bench.add(1000, 1, A)) == CONCURRENT
    bench.context.finish_appends()
    assert bench.add(1000, 1, A) is None


def test_a_failed_append_changes_nothing_and_tells_the_client_to_look_again(bench: Bench) -> None:
    producer = begun(bench)
    bench.context.failure = error_for_code(19, "too few replicas")
    assert code(bench.end(*producer, True)) == 15
    bench.context.failure = error_for_code(56, "the disk is gone")
    assert code(bench.end(*producer, True)) == 16
    assert code(bench.initialize()) == 16  # a fence that failed does not count
    bench.context.failure = None
    assert bench.state() == "Ongoing"
    assert identity(bench.end(*producer, True)) == (1000, 1)


def test_the_end_is_tried_until_it_is_written(bench: Bench) -> None:
    producer = begun(bench)
    bench.add(*producer, B)
    bench.world.unreachable = {B}
    bench.end(*producer, True)
    bench.turn()
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit")]
    bench.world.unreachable.clear()
    bench.context.failure = error_for_code(19, "too few replicas")
    bench.context.advance(200)
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit"), (B, 1000, 1, "PrepareCommit")]
    assert bench.state() == "PrepareCommit"
    bench.context.failure = None
    bench.context.advance(200)
    assert bench.state() == "CompleteCommit"
    assert len(bench.world.markers) == 2


def test_who_waits_is_called_at_the_end_or_when_it_takes_long(bench: Bench) -> None:
    called: list[str] = []
    assert not bench.shard.wait_settled("t", lambda: called.append("never"))
    producer = begun(bench)
    assert not bench.shard.wait_settled("t", lambda: called.append("never"))
    bench.end(*producer, True)
    assert bench.shard.wait_settled("t", lambda: called.append("end"))
    assert not called
    bench.turn()
    assert called == ["end"]
    bench.add(1000, 1, A)
    bench.world.unreachable = {A}
    bench.end(1000, 1, True)
    assert bench.shard.wait_settled("t", lambda: called.append("stuck"))
    bench.turn()
    assert called == ["end", "stuck"]
    assert not bench.shard.wait_settled("t", lambda: called.append("never"))


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_that_cannot_be_made_holds_up_nobody_else(bench: Bench, ends: bool) -> None:
    """Who waited behind it was never called, and a transaction that was to end got no markers."""
    producer = begun(bench)

    def no_memory(txn: Transaction | None, error: KafkaError | None) -> None:
        raise MemoryError("none left")

    bench.context.durable = False
    if ends:
        bench.shard.end("t", *producer, True, 2, no_memory)
    else:
        bench.shard.add_partitions("t", *producer, frozenset({B}), 2, no_memory)
    called: list[bool] = []
    assert bench.shard.wait_settled("t", lambda: called.append(True))
    bench.context.durable = True
    with pytest.raises(MemoryError):
        bench.context.finish_appends()
    bench.turn()
    assert called == [True]
    assert bench.state() == ("CompleteCommit" if ends else "Ongoing")


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> None:
    """There is no memory for the next call, or `after` it, for what follows."""
    work = getattr(owner, name)

    def failing(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, work)
        if after:
            work(*given, **options)
        raise MemoryError("none left")

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("what", ["encode_value", "append", "call_later"])
def test_a_transition_that_fails_inside_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It counted as being written until the next load: no other was let in, and no time-out ended the transaction."""
    producer = begun(bench)
    bench.context.durable = what == "encode_value"
    once(monkeypatch, shard if what == "encode_value" else bench.context, what)
    assert code(bench.add(*producer, B)) == 15
    bench.context.durable = True
    assert isinstance(bench.add(*producer, B), Transaction)
    bench.context.finish_appends()
    assert isinstance(bench.end(*producer, True), Transaction)
    bench.turn()
    assert bench.state() == "CompleteCommit"


@pytest.mark.parametrize(
    ("what", "after"), [("append_in_parts", False), ("append_in_parts", True), ("call_later", False)]
)
def test_ids_whose_forgetting_fails_inside_are_forgotten_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str, after: bool
) -> None:
    """They were concurrent until the next load, or as long as the replicas did not follow."""
    bench.initialize()
    bench.initialize("u")
    bench.context.advance(10)
    bench.context.durable = False
    once(monkeypatch, bench.context, what, after=after)
    with pytest.raises(MemoryError):
        bench.shard.expire(10)
    assert bench.initialize() is None
    bench.context.finish_appends()
    bench.context.advance(10)
    bench.shard.expire(10)
    assert bench.shard.wait_settled("t", lambda: None)
    bench.context.finish_appends()
    assert not bench.shard.transactions


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        ("world", "write_markers", False),
        ("world", "write_markers", True),
        ("context", "append", False),
        ("shard", "encode_value", False),
        ("transaction", "completed", False),
    ],
)
def test_the_end_of_a_transaction_that_fails_inside_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: str, name: str, after: bool
) -> None:
    """It stayed as it was until the next load, and with it what readers of committed records see."""
    producer = begun(bench)
    bench.end(*producer, True)
    owners = {"world": bench.world, "context": bench.context, "shard": shard, "transaction": Transaction}
    once(monkeypatch, owners[owner], name, after=after)
    bench.turn()
    assert (bench.state() == "CompleteCommit") == after
    bench.context.advance(200)
    bench.turn()
    assert bench.state() == "CompleteCommit"
    assert isinstance(bench.add(1000, 1, A), Transaction)


@pytest.mark.parametrize("loads", [False, True])
def test_a_decision_whose_end_has_no_turn_to_begin_in_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    """It stayed as it was until the next load."""
    producer = begun(bench)
    if loads:
        bench.world.unreachable = {A}
        bench.end(*producer, True)
        bench.world.unreachable = set()
    once(monkeypatch, bench.world, "soon")
    if loads:
        bench.restart()
    else:
        assert isinstance(bench.end(*producer, True), Transaction)
    bench.turn()
    assert bench.state() == "PrepareCommit"
    bench.context.advance(200)
    assert bench.state() == "CompleteCommit"


def test_a_retry_for_which_no_timer_can_be_had_comes_with_the_next_look_at_what_is_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction stayed as it was until the next load."""
    producer = begun(bench)
    bench.world.unreachable = {A}
    bench.end(*producer, True)
    once(monkeypatch, bench.context, "call_later")
    bench.turn()
    bench.world.unreachable = set()
    assert not bench.shard.wait_settled("t", lambda: None)
    bench.context.advance(60_000)
    assert bench.state() == "PrepareCommit"
    assert bench.shard.abort_timed_out() == 0
    assert bench.state() == "CompleteCommit"


def test_a_retry_that_fails_inside_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = begun(bench)
    bench.world.unreachable = {A}
    bench.end(*producer, True)
    bench.turn()
    bench.world.unreachable = set()
    once(monkeypatch, bench.world, "write_markers")
    bench.context.advance(200)
    assert bench.state() == "PrepareCommit"
    bench.context.advance(1000)
    assert bench.state() == "CompleteCommit"


def test_a_decision_that_is_in_the_log_is_carried_out_however_its_write_ended(bench: Bench) -> None:
    """It stayed as it was until the next load, and who waited for its end was never called."""
    producer = begun(bench)
    bench.context.durable = False
    answers: list[int] = []
    bench.shard.end("t", *producer, True, 2, lambda txn, error: answers.append(code(error)))
    bench.context.finish_appends(error_for_code(20, "fewer are in sync by now"))
    assert answers == [15]
    assert code(bench.end(*producer, True)) == CONCURRENT
    assert not bench.shard.wait_settled("t", lambda: None), "nobody waits for what may take long"
    bench.context.failure = error_for_code(19, "too few replicas")
    bench.context.advance(200)
    assert bench.state() == "PrepareCommit" and not bench.world.markers
    bench.context.failure, bench.context.durable = None, True
    bench.context.advance(1000)
    bench.turn()
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit")]
    assert bench.state() == "CompleteCommit"


def test_who_waits_for_a_write_is_told_when_the_partition_goes(bench: Bench) -> None:
    """Where its leader stayed, as after a change of its replicas, they waited until those followed again, without a limit."""
    producer = begun(bench)
    bench.initialize("u")
    bench.context.durable = False
    answers: list[int] = []

    def no_memory(txn: Transaction | None, error: KafkaError | None) -> None:
        raise MemoryError("none left")

    bench.shard.initialize("u", 60_000, None, no_memory)
    bench.shard.end("t", *producer, True, 2, lambda txn, error: answers.append(code(error)))
    called: list[bool] = []
    assert bench.shard.wait_settled("t", lambda: called.append(True))
    bench.shard.unloaded()
    assert answers == [16] and called == [True]
    bench.context.finish_appends()
    bench.turn()
    assert answers == [16] and called == [True] and not bench.world.markers


def test_one_that_cannot_be_turned_away_waits_on_and_keeps_no_other_from_hearing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.context.durable = False
    answers: dict[str, int] = {}
    for name in "ab":
        bench.shard.initialize(name, 60_000, None, lambda txn, error, name=name: answers.update({name: code(error)}))
    called: list[bool] = []
    assert bench.shard.wait_settled("b", lambda: called.append(True))
    once(monkeypatch, shard, "refusal")
    bench.shard.unloaded()
    assert answers == {"b": 16} and called == [True]
    bench.context.finish_appends(error_for_code(16, "it moves"))
    assert answers == {"a": 16, "b": 16}


def test_partitions_whose_addition_was_not_kept_are_added_once_more(bench: Bench) -> None:
    """Asked again, the coordinator confirmed what its next one did not have."""
    producer = begun(bench)
    bench.context.durable = False
    assert bench.add(*producer, B) is None
    bench.context.finish_appends(error_for_code(56, "the disk is gone"))
    written = len(bench.context.log)
    assert bench.add(*producer, B) is None
    bench.context.finish_appends(error_for_code(56, "the disk is gone"))
    assert bench.add(*producer, A) is None
    bench.context.finish_appends()
    assert len(bench.context.log) == written + 2
    for place in (A, B):
        assert isinstance(bench.add(*producer, place), Transaction)
    assert len(bench.context.log) == written + 2


@pytest.mark.parametrize("error", [None, error_for_code(20, "fewer are in sync by now")])
def test_who_waits_for_a_write_waits_no_longer_than_a_transaction_may_be_open(
    bench: Bench, error: KafkaError | None
) -> None:
    """A client and those behind it waited for as long as the replicas did not follow; what is decided is carried out once they do."""
    producer = begun(bench)
    bench.context.durable = False
    answers: list[int] = []
    called: list[bool] = []
    bench.shard.end("t", *producer, True, 2, lambda txn, error: answers.append(code(error)))
    assert bench.shard.wait_settled("t", lambda: called.append(True))
    bench.context.advance(60_000 - 1)
    assert not answers and not called
    bench.context.advance(1)
    assert answers == [15] and called == [True]
    for answer in (bench.add(*producer, B), bench.end(*producer, True), bench.initialize()):
        assert code(answer) == 15
    assert not bench.shard.wait_settled("t", lambda: called.append(True))
    bench.context.durable = True
    bench.context.finish_appends(error)
    bench.context.advance(1000)
    bench.turn()
    assert bench.state() == "CompleteCommit"
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit")]
    assert answers == [15] and called == [True]
    assert isinstance(bench.add(1000, 1, B), Transaction)


@pytest.mark.parametrize("short", [False, True])
def test_a_decision_that_was_loaded_gets_its_markers_once_the_next_coordinator_would_have_it(
    bench: Bench, short: bool
) -> None:
    """Its partitions were told of it at once: one that came after a second move could decide otherwise, and end others of them so."""
    producer = begun(bench)
    bench.context.durable = False
    assert bench.end(*producer, True) is None
    bench.restart()
    bench.turn()
    assert not bench.world.markers
    assert code(bench.initialize()) == CONCURRENT
    assert not bench.shard.wait_settled("t", lambda: None), "nobody waits for what may take long"
    if short:
        bench.context.finish_appends(error_for_code(20, "fewer are in sync by now"))
        bench.turn()
        assert not bench.world.markers
        bench.shard.abort_timed_out()
    bench.context.durable = True
    bench.context.finish_appends()
    bench.turn()
    assert bench.world.markers == [(A, 1000, 1, "PrepareCommit")]
    assert bench.state() == "CompleteCommit"


def test_a_decision_that_was_loaded_is_carried_out_once_however_often_it_is_known_to_be_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of markers that goes on while another has ended the transaction could end its producer's next one."""
    producer = begun(bench)
    bench.context.durable = False
    assert bench.end(*producer, True) is None
    bench.restart()
    bench.context.finish_appends(error_for_code(20, "fewer are in sync by now"))
    rounds: list[object] = []
    monkeypatch.setattr(bench.world, "write_markers", lambda *round_: rounds.append(round_))
    ask = bench.context.when_durable

    def without_memory(on_done: Callable[[KafkaError | None], None]) -> None:
        ask(on_done)
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(bench.context, "when_durable", without_memory)
        bench.shard.abort_timed_out()
    for _ in range(3):
        bench.context.finish_appends()
        bench.turn()
        bench.shard.abort_timed_out()
    assert len(rounds) == 1


def test_an_addition_that_was_loaded_lets_a_batch_in_once_the_next_coordinator_would_have_it(bench: Bench) -> None:
    producer = begun(bench)
    bench.context.durable = False
    bench.restart()
    with pytest.raises(KafkaError) as refused:
        bench.shard.verify("t", *producer, frozenset({A}))
    assert code(refused.value) == CONCURRENT
    assert bench.shard.verify("t", *producer, frozenset({B})) == {B}
    written = len(bench.context.log)
    assert bench.add(*producer, A) is None and len(bench.context.log) == written + 1
    bench.context.finish_appends()
    assert bench.shard.verify("t", *producer, frozenset({A, B})) == {B}
    assert isinstance(bench.add(*producer, A), Transaction) and len(bench.context.log) == written + 1


def test_what_was_loaded_and_moved_again_is_ended_by_nobody_here(bench: Bench) -> None:
    producer = begun(bench)
    bench.context.durable = False
    assert bench.end(*producer, True) is None
    bench.restart()
    bench.shard.unloaded()
    bench.context.durable = True
    bench.context.finish_appends()
    bench.turn()
    assert not bench.world.markers and not [timer for timer in bench.context.timers if not timer.cancelled]
