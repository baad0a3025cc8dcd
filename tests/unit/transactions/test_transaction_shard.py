"""The transaction coordinator's state machine: requests in, records and markers out, with a clock that stands still."""

from __future__ import annotations

import pytest
from fastq_broker.transactions.shard import NoProducerId, _append_error
from fastq_broker.transactions.states import COMPLETED, NEXT, SETTLED, TransactionState
from fastq_broker.transactions.transaction import EPOCH_LAST_GIVEN, EPOCH_MAX, IllegalTransition, Transaction
from transaction_fakes import Bench, begun, code, identity

from fastq.errors import ErrorCode, KafkaError, error_for_code

A, B = ("topic", 0), ("topic", 1)
FENCED, CONCURRENT, MAPPING, INVALID_STATE = 90, 51, 49, 48


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- the table


def test_every_state_is_in_the_table_and_nothing_leaves_dead() -> None:
    assert set(NEXT) == set(TransactionState)
    assert not NEXT[TransactionState.DEAD]
    for state, following in NEXT.items():
        txn = Transaction("t", 1, 1, state=state)
        for other in TransactionState:
            if other in following:
                assert txn.to(other).state == other
            else:
                with pytest.raises(IllegalTransition):
                    txn.to(other)


# -- InitProducerId


def test_each_initialization_bumps_the_epoch_and_fences_the_one_before(bench: Bench) -> None:
    assert [identity(bench.initialize()) for _ in range(3)] == [(1000, 0), (1000, 1), (1000, 2)]
    assert identity(bench.initialize("u")) == (1001, 0)
    assert code(bench.add(1000, 1, A)) == FENCED
    assert code(bench.end(1000, 1, committed=True)) == FENCED
    assert code(bench.add(1001, 2, A)) == MAPPING
    assert code(bench.add(1000, 2, A, name="nobody")) == MAPPING
    assert code(bench.end(1000, 2, committed=True, name="nobody")) == MAPPING


def test_an_open_transaction_is_aborted_before_the_id_is_given_on(bench: Bench) -> None:
    producer = begun(bench)
    answer = bench.initialize()
    assert code(answer) == CONCURRENT
    assert bench.state() == "PrepareAbort"
    assert code(bench.initialize()) == CONCURRENT  # the markers are on their way
    bench.turn()
    assert bench.state() == "CompleteAbort"
    assert bench.world.markers == [(A, 1000, 2, "PrepareAbort")]
    assert identity(bench.initialize()) == (1000, 3)
    for committed in (True, False):
        assert code(bench.end(*producer, committed)) == FENCED
    assert code(bench.add(*producer, B)) == FENCED


@pytest.mark.parametrize("version", [1, 2])
def test_the_fenced_producer_is_no_retry(bench: Bench, version: int) -> None:
    """Its EndTxn must not look like one whose answer was lost."""
    bench.world.transaction_version = version
    producer = begun(bench, version=version)
    bench.initialize()
    # Kafka's answer of version 2 while markers are written, whoever asks
    assert code(bench.end(*producer, False, version=version)) == (CONCURRENT if version == 2 else FENCED)
    bench.turn()
    assert code(bench.end(*producer, False, version=version)) == FENCED


def test_a_producer_goes_on_with_its_id_and_epoch(bench: Bench) -> None:
    """KIP-360: a bump keeps the id; the same request again gets the same answer; another producer's is fenced."""
    first = identity(bench.initialize())
    assert identity(bench.initialize(expected=first)) == (1000, 1)
    assert identity(bench.initialize(expected=first)) == (1000, 1)
    assert identity(bench.initialize(expected=(1000, 1))) == (1000, 2)
    assert code(bench.initialize(expected=first)) == FENCED
    assert code(bench.initialize(expected=(77, 2))) == FENCED
    assert identity(bench.initialize()) == (1000, 3)  # another producer
    assert code(bench.initialize(expected=(1000, 2))) == FENCED


def test_a_fenced_producer_cannot_abort_its_successors_transaction(bench: Bench) -> None:
    old = identity(bench.initialize())
    begun(bench)
    assert code(bench.initialize(expected=old)) == FENCED
    assert bench.state() == "Ongoing"


def test_an_unknown_id_with_an_expected_producer_gets_a_fresh_one(bench: Bench) -> None:
    assert identity(bench.initialize(expected=(5, 3))) == (1000, 0)


def exhaust(bench: Bench, epoch: int = EPOCH_LAST_GIVEN) -> None:
    """Put the id at an epoch, as its log would tell."""
    from dataclasses import replace

    bench.shard.transactions["t"] = replace(bench.shard.transactions["t"], producer_epoch=epoch)


def test_exhausted_epochs_rotate_the_producer_id(bench: Bench) -> None:
    bench.initialize()
    exhaust(bench, EPOCH_LAST_GIVEN - 1)
    assert identity(bench.initialize()) == (1000, EPOCH_LAST_GIVEN)
    assert identity(bench.initialize()) == (1001, 0)


def test_rotation_keeps_the_chain_of_one_producer(bench: Bench) -> None:
    bench.initialize()
    exhaust(bench)
    assert identity(bench.initialize(expected=(1000, EPOCH_LAST_GIVEN))) == (1001, 0)
    assert identity(bench.initialize(expected=(1000, EPOCH_LAST_GIVEN))) == (1001, 0)
    assert identity(bench.initialize(expected=(1001, 0))) == (1001, 1)
    assert code(bench.initialize(expected=(1000, EPOCH_LAST_GIVEN))) == FENCED


def test_fencing_at_the_last_epoch_stays_within_int16(bench: Bench) -> None:
    bench.initialize()
    exhaust(bench)
    bench.add(1000, EPOCH_LAST_GIVEN, A)
    assert code(bench.initialize()) == CONCURRENT
    bench.turn()
    assert bench.world.markers == [(A, 1000, EPOCH_MAX, "PrepareAbort")]
    assert code(bench.end(1000, EPOCH_LAST_GIVEN, committed=False)) == FENCED
    assert code(bench.initialize(expected=(1000, EPOCH_LAST_GIVEN))) == FENCED
    assert identity(bench.initialize()) == (1001, 0)


def test_without_an_id_at_hand_nothing_changes(bench: Bench) -> None:
    bench.world.ids_left = 0
    with pytest.raises(NoProducerId):
        bench.initialize()
    assert not bench.shard.transactions and not bench.context.log
    bench.world.ids_left = 1
    assert identity(bench.initialize()) == (1000, 0)


# -- AddPartitionsToTxn


def test_partitions_are_added_once(bench: Bench) -> None:
    producer = begun(bench)
    written = len(bench.context.log)
    bench.context.advance(5)
    assert isinstance(bench.add(*producer, A), Transaction)
    assert len(bench.context.log) == written
    grown = bench.add(*producer, A, B)
    assert isinstance(grown, Transaction)
    assert grown.partitions == {A, B}
    assert grown.updated_ms == grown.started_ms + 5


def test_verification_names_what_is_missing(bench: Bench) -> None:
    producer = begun(bench)
    assert bench.shard.verify("t", *producer, frozenset({A, B})) == {B}
    with pytest.raises(KafkaError) as refused:
        bench.shard.verify("t", 1000, 9, frozenset({A}))
    assert code(refused.value) == FENCED
    bench.end(*producer, True)
    with pytest.raises(KafkaError) as refused:
        bench.shard.verify("t", 1000, 1, frozenset({A}))
    assert code(refused.value) == CONCURRENT
    bench.turn()
    assert bench.shard.verify("t", 1000, 1, frozenset({A})) == {A}


@pytest.mark.parametrize("durable", [False, True])
def test_who_comes_while_a_transaction_ends_is_judged_when_it_has_ended(bench: Bench, durable: bool) -> None:
    """In the log or on the way to it: first the end, then who may go on (KIP-890)."""
    producer = begun(bench)
    bench.context.durable = durable
    bench.end(*producer, True)
    for stranger in [(1001, 0), (1000, 9), (7, 0)]:
        assert code(bench.add(*stranger, B)) == CONCURRENT
        assert code(bench.initialize(expected=stranger)) == CONCURRENT
        assert code(bench.end(*stranger, True)) == CONCURRENT
    bench.context.durable = True
    bench.context.finish_appends()
    bench.turn()
    assert [code(bench.add(*stranger, B)) for stranger in [(1001, 0), (1000, 9), (7, 0)]] == [MAPPING, FENCED, MAPPING]


def test_nothing_is_added_while_markers_are_written(bench: Bench) -> None:
    producer = begun(bench, version=0)
    bench.end(*producer, True, version=0)
    assert code(bench.add(*producer, B, version=0)) == CONCURRENT
    bench.turn()
    assert bench.state() == "CompleteCommit"
    assert isinstance(bench.add(*producer, B, version=0), Transaction)
    assert bench.shard.transactions["t"].partitions == {B}


# -- EndTxn


@pytest.mark.parametrize("committed", [True, False])
def test_the_answer_comes_with_the_decision_and_the_markers_follow(bench: Bench, committed: bool) -> None:
    producer = begun(bench)
    bench.add(*producer, B)
    answer = bench.end(*producer, committed)
    assert identity(answer) == (1000, 1)
    decision = "PrepareCommit" if committed else "PrepareAbort"
    assert bench.state() == decision
    assert not bench.world.markers
    bench.turn()
    assert bench.world.markers == [(A, 1000, 1, decision), (B, 1000, 1, decision)]
    assert bench.state() == ("CompleteCommit" if committed else "CompleteAbort")
    assert not bench.shard.transactions["t"].partitions


def test_version_1_keeps_the_epoch(bench: Bench) -> None:
    producer = begun(bench, version=0)
    assert identity(bench.end(*producer, True, version=0)) == producer
    assert code(bench.end(*producer, True, version=0)) == CONCURRENT
    assert code(bench.end(*producer, False, version=0)) == INVALID_STATE
    bench.turn()
    assert bench.world.markers == [(A, *producer, "PrepareCommit")]
    assert code(bench.end(*producer, True, version=0)) == 0
    assert code(bench.end(*producer, False, version=0)) == INVALID_STATE
    assert code(bench.end(1000, 1, True, version=0)) == FENCED


@pytest.mark.parametrize("committed", [True, False])
def test_version_1_ends_nothing_that_was_not_begun(bench: Bench, committed: bool) -> None:
    producer = identity(bench.initialize())
    assert code(bench.end(*producer, committed, version=0)) == INVALID_STATE


@pytest.mark.parametrize("committed", [True, False])
def test_version_2_retries_come_with_the_epoch_before(bench: Bench, committed: bool) -> None:
    producer = begun(bench)
    bench.end(*producer, committed)
    assert code(bench.end(*producer, committed)) == CONCURRENT
    assert code(bench.end(*producer, not committed)) == CONCURRENT
    assert code(bench.end(1000, 1, committed)) == CONCURRENT  # the next transaction, which is for later
    assert code(bench.end(1000, 5, committed)) == CONCURRENT
    bench.turn()
    written = len(bench.context.log)
    assert identity(bench.end(*producer, committed)) == (1000, 1)
    assert code(bench.end(*producer, not committed)) == INVALID_STATE
    assert len(bench.context.log) == written
    assert code(bench.end(1000, 1, committed=True)) == INVALID_STATE
    assert code(bench.end(1000, 5, committed)) == FENCED


@pytest.mark.parametrize("before", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_version_2_aborts_of_nothing_bump_the_epoch(bench: Bench, before: str) -> None:
    producer = identity(bench.initialize())
    if before != "Empty":
        bench.add(*producer, A)
        producer = identity(bench.end(*producer, before == "CompleteCommit"))
        bench.turn()
    assert bench.state() == before
    bench.world.markers.clear()
    assert code(bench.end(producer[0], producer[1], True)) == INVALID_STATE
    assert identity(bench.end(*producer, False)) == (1000, producer[1] + 1)
    bench.turn()
    assert bench.state() == "CompleteAbort"
    assert not bench.world.markers
    assert bench.shard.transactions["t"].started_ms > 0


def test_version_2_retry_of_an_empty_id_is_fenced(bench: Bench) -> None:
    bench.initialize()
    bench.initialize()
    assert code(bench.end(1000, 0, committed=False)) == FENCED


def test_version_2_rotates_at_the_last_epoch(bench: Bench) -> None:
    begun(bench)
    exhaust(bench)
    answer = bench.end(1000, EPOCH_LAST_GIVEN, committed=True)
    assert isinstance(answer, Transaction)
    assert (answer.next_producer_id, answer.producer_epoch) == (1001, EPOCH_MAX)
    assert code(bench.end(1000, EPOCH_LAST_GIVEN, committed=True)) == CONCURRENT
    # The producer knows its new id before that is in force: it is told to wait, and is no stranger.
    assert code(bench.add(1001, 0, B)) == CONCURRENT
    assert code(bench.end(1001, 0, committed=False)) == CONCURRENT
    assert code(bench.initialize(expected=(1001, 0))) == CONCURRENT
    bench.turn()
    assert bench.world.markers == [(A, 1000, EPOCH_MAX, "PrepareCommit")]
    assert identity(bench.shard.transactions["t"]) == (1001, 0)
    assert identity(bench.end(1000, EPOCH_LAST_GIVEN, committed=True)) == (1001, 0)  # its retry
    assert code(bench.end(1000, EPOCH_LAST_GIVEN, committed=False)) == INVALID_STATE
    assert isinstance(bench.add(1001, 0, B), Transaction)
    assert code(bench.end(1000, EPOCH_LAST_GIVEN, committed=True)) == MAPPING


def test_a_decision_goes_with_the_id_that_is_forgotten_behind_it(bench: Bench) -> None:
    """What says that it was carried out is damaged, or gone: nobody looks for its end for ever."""
    bench.end(*begun(bench), committed=True)
    key = bench.context.log[-1][0]
    bench.context.log.append((key, None))
    bench.restart()
    assert not bench.shard.abort_timed_out() and not bench.world.turn
    assert identity(bench.initialize()) == (1001, 0)


# -- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(bench: Bench) -> None:
    producer = begun(bench)
    bench.context.advance(60_000)
    assert bench.shard.abort_timed_out() == 0
    bench.context.advance(1)
    assert bench.shard.abort_timed_out() == 1
    assert bench.shard.abort_timed_out() == 0
    bench.turn()
    assert bench.state() == "CompleteAbort"
    assert bench.world.markers == [(A, 1000, 2, "PrepareAbort")]
    for committed in (True, False):
        assert code(bench.end(*producer, committed)) == FENCED
    assert code(bench.initialize(expected=producer)) == FENCED
    assert identity(bench.initialize()) == (1000, 3)


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
@pytest.mark.parametrize("grown", [False, True])
def test_a_time_out_is_as_long_as_it_is_whatever_the_wall_clock_does(bench: Bench, jump_ms: int, grown: bool) -> None:
    """A day back held an open transaction, and all who read committed records, up for a day; a day forward aborted all of them at once."""
    producer = begun(bench)
    bench.context.advance(30_000)
    bench.context.set_ahead_ms = jump_ms
    if grown:
        bench.add(*producer, B)
    bench.context.advance(30_000)
    assert bench.shard.abort_timed_out() == 0
    bench.context.advance(1)
    assert bench.shard.abort_timed_out() == 1


@pytest.mark.parametrize(("jump_ms", "left_ms"), [(0, 30_000), (-DAY_MS, 60_000), (DAY_MS, 0)])
def test_what_is_left_of_a_time_out_is_told_by_the_log(bench: Bench, jump_ms: int, left_ms: int) -> None:
    """Who loads it has the wall clock of its beginning only. One from the future began now."""
    begun(bench)
    bench.context.advance(30_000)
    bench.context.set_ahead_ms = jump_ms
    bench.restart()
    bench.context.advance(left_ms)
    assert bench.shard.abort_timed_out() == (jump_ms > 0)
    bench.context.advance(1)
    assert bench.shard.abort_timed_out() == (jump_ms <= 0)


def test_each_transaction_of_an_id_has_its_own_time_out(bench: Bench) -> None:
    producer = begun(bench)
    bench.context.advance(50_000)
    bench.end(*producer, committed=True)
    bench.turn()
    assert isinstance(bench.add(producer[0], producer[1] + 1, A), Transaction)
    bench.context.advance(60_000)
    assert bench.shard.abort_timed_out() == 0
    bench.context.advance(1)
    assert bench.shard.abort_timed_out() == 1


def test_ids_that_nobody_uses_are_forgotten(bench: Bench) -> None:
    begun(bench)
    bench.initialize("idle")
    bench.context.advance(1000)
    bench.initialize("fresh")
    assert bench.shard.expire(1000) == 1
    assert set(bench.shard.transactions) == {"t", "fresh"}
    bench.restart()
    assert set(bench.shard.transactions) == {"t", "fresh"}
    assert code(bench.add(1001, 0, A, name="idle")) == MAPPING


def test_many_ids_are_forgotten_in_batches_and_after_a_failure_later(bench: Bench) -> None:
    for number in range(1200):
        bench.initialize(f"id-{number}")
    bench.context.advance(10)
    bench.context.failure = error_for_code(10, "too large")
    assert bench.shard.expire(10) == 1200
    assert len(bench.shard.transactions) == 1200
    bench.context.failure = None
    assert bench.shard.expire(10) == 1200
    assert not bench.shard.transactions
    assert identity(bench.initialize("id-7")) == (2200, 0)


def test_an_id_is_not_used_while_it_is_being_forgotten(bench: Bench) -> None:
    bench.initialize()
    bench.context.advance(10)
    bench.context.durable = False
    assert bench.shard.expire(10) == 1
    assert code(bench.initialize()) == CONCURRENT
    bench.context.finish_appends()
    assert bench.initialize() is None
    bench.context.finish_appends()
    assert identity(bench.shard.transactions["t"]) == (1001, 0)


def test_who_comes_back_as_an_id_is_being_forgotten_waits_no_longer_than_for_a_request(bench: Bench) -> None:
    """CONCURRENT_TRANSACTIONS, and a batch that waited, for as long as the replicas did not follow."""
    bench.initialize()
    bench.context.advance(10)
    bench.context.durable = False
    bench.shard.expire(10)
    called: list[bool] = []
    assert bench.shard.wait_settled("t", lambda: called.append(True))
    bench.context.advance(30_000 - 1)
    assert not called and code(bench.initialize()) == CONCURRENT
    bench.context.advance(1)
    assert called == [True] and code(bench.initialize()) == 15
    assert not bench.shard.wait_settled("t", lambda: None)
    bench.context.finish_appends()
    assert bench.initialize() is None
    bench.context.advance(30_000)
    assert code(bench.initialize()) == CONCURRENT
    bench.context.finish_appends()
    assert identity(bench.shard.transactions["t"]) == (1001, 0)


@pytest.mark.parametrize(("error", "lines"), [(6, 0), (16, 0), (56, 1)])
@pytest.mark.parametrize("what", ["expire", "abort"])
def test_an_ordinary_move_warns_of_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, what: str, error: int, lines: int
) -> None:
    producer = begun(bench)
    if what == "expire":
        bench.end(*producer, True)
        bench.turn()
    bench.context.advance(70_000)
    bench.context.durable = False
    assert (bench.shard.expire(10) if what == "expire" else bench.shard.abort_timed_out()) == 1
    with caplog.at_level("WARNING"):
        bench.context.finish_appends(error_for_code(error, "it moves"))
    assert len(caplog.records) == (lines if what == "expire" else 0)


# -- another life


@pytest.mark.parametrize("committed", [True, False])
def test_a_decided_transaction_ends_as_decided_after_a_restart(bench: Bench, committed: bool) -> None:
    producer = begun(bench)
    bench.add(*producer, B)
    bench.end(*producer, committed)
    bench.restart()  # before a marker was written
    bench.turn()
    decision = "PrepareCommit" if committed else "PrepareAbort"
    assert bench.world.markers == [(A, 1000, 1, decision), (B, 1000, 1, decision)]
    assert TransactionState[bench.shard.transactions["t"].state.name] in COMPLETED
    bench.restart()
    bench.turn()
    assert len(bench.world.markers) == 2
    assert identity(bench.end(*producer, committed)) == (1000, 1)  # the retry of one whose answer was lost


def test_a_rotation_survives_a_restart(bench: Bench) -> None:
    begun(bench)
    exhaust(bench)
    bench.end(1000, EPOCH_LAST_GIVEN, committed=True)
    bench.restart()
    bench.turn()
    assert identity(bench.shard.transactions["t"]) == (1001, 0)
    bench.restart()
    assert identity(bench.end(1000, EPOCH_LAST_GIVEN, committed=True)) == (1001, 0)


def test_an_open_transaction_survives_a_restart(bench: Bench) -> None:
    producer = begun(bench)
    before = bench.shard.transactions["t"]
    bench.restart()
    assert bench.shard.transactions["t"] == before
    assert identity(bench.end(*producer, True)) == (1000, 1)


def test_an_unloaded_shard_does_nothing_more(bench: Bench) -> None:
    producer = begun(bench)
    bench.world.unreachable = {A}
    bench.end(*producer, True)
    called: list[bool] = []
    bench.shard.wait_settled("t", lambda: called.append(True))
    bench.turn()
    bench.shard.unloaded()
    bench.world.unreachable.clear()
    bench.context.advance(1000)
    bench.turn()
    assert called == [True]
    assert not bench.world.markers
    assert bench.state() == "PrepareCommit"
    assert not bench.shard.wait_settled("t", lambda: None)


def test_settled_states_are_those_that_expire() -> None:
    for state in TransactionState:
        assert Transaction("t", 1, 1, state=state, updated_ms=0).expired(10, 10) == (state in SETTLED)


def test_what_does_not_fit_its_topic_is_an_error_of_the_broker() -> None:
    """All that a log refuses is told to clients as in the group coordinator."""
    txn = Transaction("tx", 1, 1000)
    assert _append_error(txn, error_for_code(ErrorCode.INVALID_FETCH_SIZE)).code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert _append_error(txn, error_for_code(ErrorCode.NOT_ENOUGH_REPLICAS)).code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "'tx'" in str(_append_error(txn, error_for_code(ErrorCode.KAFKA_STORAGE_ERROR)))
