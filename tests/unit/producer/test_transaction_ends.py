"""How transactions end for good or for now: fencing, errors of the coordinator and the group, calls that do not fit; the tables."""

import pytest
from fake_coordinator import FENCED, INVALID_MAPPING, TransactionCore
from transaction_bench import ADD_PARTITIONS, END, GROUP, Bench, calls_since, visible

from fastq._native.records import read_header
from fastq.errors import (
    AbortableTransactionError,
    ErrorCode,
    FatalTransactionError,
    InvalidTxnState,
    ProtocolError,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionStateError,
)
from fastq.metadata import OffsetAndMetadata, TopicPartition
from fastq.producer.transaction_states import ACTIONS, MOVES, STALE_ANSWERS_MAX, Action, State, action_for
from fastq.producer.transactions import Transactions
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import FindCoordinatorResponse

# -- fencing and other ends


@pytest.mark.parametrize("version", [1, 2])
def test_a_newer_producer_fences_the_older_one(version):
    core = TransactionCore(transaction_version=version)
    old, new = Bench(core), Bench(core)
    old.begin()
    old.send("t", b"old")
    old.deliver()
    new.begin()
    new.send("t", b"new")
    new.commit()
    with pytest.raises(
        TransactionFenced, match=r"transactional id.*transaction_timeout_ms=60000.*id-1.*PRODUCER_FENCED"
    ):
        old.commit()
    with pytest.raises(TransactionFenced, match="Close this producer"):
        old.send("t", b"again")
    with pytest.raises(TransactionFenced):
        old.transactions.begin()
    assert visible(core) == {0: [b"new"]}


@pytest.mark.parametrize("version", [1, 2])
def test_the_zombie_notices_with_whatever_it_does_next(version):
    core = TransactionCore(transaction_version=version)
    old, new = Bench(core), Bench(core)
    old.begin()
    old.send("t", b"one")
    old.deliver()
    new.begin()
    late = old.send("t", b"two")
    with pytest.raises(TransactionError):
        old.commit()
    with pytest.raises(TransactionFenced):
        old.abort()
    assert late.exception() is not None
    new.commit()
    assert visible(core) == {0: []}


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.INIT_PRODUCER_ID, 53),
        (ApiKey.INIT_PRODUCER_ID, 50),
        (ApiKey.FIND_COORDINATOR, 53),
        (END, 48),
        (END, 53),
        (END, -999),
    ],
)
def test_errors_for_good_end_the_producer(api, code):
    core = TransactionCore()
    bench = Bench(core)
    if api == END:
        bench.begin()
        bench.send("t", b"x")
        core.fail_next[api] = [code] * (1 + STALE_ANSWERS_MAX)
        with pytest.raises(FatalTransactionError) as caught:
            bench.commit()
    else:
        core.fail_next[api] = [code]
        with pytest.raises(FatalTransactionError) as caught:
            bench.begin()
    assert caught.value.transactional_id == "id-1"
    assert caught.value.hint
    for call in (bench.transactions.begin, bench.transactions.begin_commit, bench.transactions.begin_abort):
        with pytest.raises(FatalTransactionError):
            call()


def test_an_answer_that_leaves_the_transactional_id_out_is_malformed(monkeypatch):
    """As a consumer and an admin take it, too: one that cannot be read ends the producer."""
    core = TransactionCore()
    monkeypatch.setattr(core, "on_find_coordinator", lambda node, request, version: FindCoordinatorResponse())
    bench = Bench(core)
    with pytest.raises(FatalTransactionError) as caught:
        bench.begin()
    assert isinstance(caught.value.cause, ProtocolError)
    assert "FindCoordinator response leaves the transactional id out" in str(caught.value.cause)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [22, 25, 82, 113, 30, 120])
def test_offsets_that_the_group_refuses_fail_the_transaction(version, code):
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    core.fail_next[ApiKey.TXN_OFFSET_COMMIT] = [code]
    bench.send("t", b"x")
    bench.transactions.add_offsets(GROUP, {TopicPartition("in", 3): OffsetAndMetadata(1)})
    with pytest.raises(AbortableTransactionError, match=r"topic in, partition 3, group_id group") as caught:
        bench.commit()
    assert caught.value.cause.code == code
    assert ("place in the group" in caught.value.hint) == (code in (22, 25, 82, 113))
    bench.abort()
    assert visible(core) == {0: []}
    assert core.committed_offsets == {}


def test_topics_that_may_not_be_written_fail_the_transaction():
    core = TransactionCore(transaction_version=1)
    bench = Bench(core)
    bench.begin()
    core.fail_next[ADD_PARTITIONS] = [29]
    delivery = bench.send("t", b"x")
    with pytest.raises(AbortableTransactionError, match=r"TOPIC_AUTHORIZATION_FAILED.*topic t"):
        bench.commit()
    assert isinstance(delivery.exception(), TransactionAborted)
    bench.abort()  # nothing was added: the coordinator knows of no transaction
    assert bench.transactions.state is State.READY


def test_a_coordinator_that_has_not_heard_of_its_successor_calls_no_commit_invalid_for_good():
    """The leader of the partition has told the new one what belongs to the transaction; the old one knows nothing of it."""
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"x")
    bench.deliver()
    core.fail_next[END] = [48] * 3
    mark = len(core.calls)
    bench.commit()
    calls = calls_since(core, mark)
    assert (calls.count(END), calls.count(ApiKey.FIND_COORDINATOR)) == (4, 3)
    assert visible(core) == {0: [b"x"]}
    for _ in range(2):
        bench.begin()
        bench.send("t", b"y")
        core.fail_next[END] = [48] * STALE_ANSWERS_MAX
        bench.commit()  # each transaction has as many
    assert visible(core) == {0: [b"x", b"y", b"y"]}


def test_a_commit_that_a_stale_coordinator_calls_invalid_says_so():
    """The answer was told as one of a node that is no coordinator."""
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"x")
    bench.deliver()
    core.fail_next[END] = [48] * 100
    bench.transactions.begin_commit()
    while bench.transactions.last_error is None:
        bench.turn()
    assert isinstance(bench.transactions.last_error, InvalidTxnState)
    assert "another took its place" in str(bench.transactions.last_error)


@pytest.mark.parametrize("version", [1, 2])
def test_an_id_that_the_coordinator_forgot_is_taken_again(version):
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"lost")
    bench.deliver()
    del core.transactions["id-1"]
    with pytest.raises(AbortableTransactionError, match="INVALID_PRODUCER_ID_MAPPING"):
        bench.commit()
    bench.abort()
    assert core.calls[-1][0] == ApiKey.INIT_PRODUCER_ID
    bench.begin()
    bench.send("t", b"good")
    bench.commit()
    assert visible(core)[0][-1] == b"good"


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_the_coordinator_forgot_has_ended_too(version):
    """By the number of those that have ended, records that wait know that theirs has."""
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    for ended in range(3):
        bench.begin()
        assert bench.transactions.aborted_total == ended
        if ended == 2:
            break
        bench.send("t", b"x")
        bench.deliver()
        del core.transactions["id-1"]
        bench.abort()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("api", [END, ApiKey.TXN_OFFSET_COMMIT])
@pytest.mark.parametrize("code", [INVALID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_an_id_that_only_one_answer_says_is_forgotten_is_not_fenced(version, api, code):
    """The coordinator has the transaction: it is ended there, because InitProducerId would fence who has it open."""
    core = TransactionCore(transaction_version=version)
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"given up")
    bench.deliver()
    core.fail_next[api] = [int(code)]
    bench.send("t", b"given up too")
    bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(1)})
    with pytest.raises(AbortableTransactionError):
        bench.commit()
    bench.abort()
    bench.begin()
    bench.send("t", b"good")
    bench.commit()
    assert visible(core)[0] == [b"good"]


def test_a_fenced_initialization_is_told_from_a_failed_one():
    core = TransactionCore()
    core.fail_next[ApiKey.INIT_PRODUCER_ID] = [FENCED]
    with pytest.raises(TransactionFenced):
        Bench(core).begin()


# -- calls and tables


def test_calls_that_do_not_fit_say_so():
    core = TransactionCore()
    bench = Bench(core)
    with pytest.raises(TransactionStateError, match=r"cannot send: not initialized.*id-1.*begin_transaction"):
        bench.send("t", b"x")
    bench.begin()
    with pytest.raises(TransactionStateError, match="cannot begin a transaction: a transaction is open"):
        bench.transactions.begin()
    bench.commit()
    for call, word in [(bench.transactions.begin_commit, "commit"), (lambda: bench.send("t", b"x"), "send")]:
        with pytest.raises(TransactionStateError, match=f"cannot {word}: no transaction is open"):
            call()
    with pytest.raises(TransactionStateError, match="send offsets"):
        bench.transactions.add_offsets(GROUP, {TopicPartition("in", 0): OffsetAndMetadata(1)})
    bench.transactions.begin_abort()  # nothing to abort
    assert bench.transactions.state is State.READY


def test_nothing_is_taken_while_a_commit_is_under_way():
    core = TransactionCore()
    bench = Bench(core)
    bench.begin()
    bench.send("t", b"x")
    bench.transactions.begin_commit()
    with pytest.raises(TransactionStateError, match=r"cannot send: committing.*call it again"):
        bench.send("t", b"y")
    bench.transactions.begin_commit()  # the same call again waits on
    bench.settle()
    assert visible(core) == {0: [b"x"]}


def test_every_state_leads_to_a_fatal_error_but_that_one():
    assert set(MOVES) == set(State)
    assert MOVES[State.FATAL_ERROR] == frozenset()
    assert all(State.FATAL_ERROR in targets for state, targets in MOVES.items() if state is not State.FATAL_ERROR)
    reached = {State.UNINITIALIZED}
    while True:
        more = reached | {target for state in reached for target in MOVES[state]}
        if more == reached:
            break
        reached = more
    assert reached == set(State)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code not in (ErrorCode.NONE,)])
def test_every_code_leads_somewhere(code):
    expected = ACTIONS.get(code, Action.RETRY if code.retriable else Action.FATAL)
    assert action_for(int(code)) is expected
    if expected in (Action.FENCED, Action.FATAL):
        assert not code.retriable


def test_codes_newer_than_this_client_are_fatal():
    assert action_for(9999) is Action.FATAL


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("code", "retries"), [(20, 0), (20, 2), (7, 1)])
def test_what_was_appended_and_refused_until_its_retries_are_over_is_not_committed(version, code, retries):
    """Nobody knows whether it is there: the commit says so, and what the abort leaves is seen once."""
    core = TransactionCore(transaction_version=version)
    bench = Bench(core, retries=retries)
    log = core.logs["t", 0]
    append, appended = log.append, []

    def append_and_refuse(data, max_bytes, refuse):
        error, offset = append(data, max_bytes, refuse)
        if error:
            return error, offset
        appended.append(read_header(data).base_sequence)
        return (code, -1) if appended[-1] == appended[0] else (error, offset)

    log.append = append_and_refuse
    bench.begin()
    deliveries = [bench.send("t", b"%d" % i + bytes(200)) for i in range(6)]
    with pytest.raises(AbortableTransactionError):
        bench.commit()
    bench.abort()
    assert appended.count(appended[0]) == retries + 1
    failed = [delivery.exception() for delivery in deliveries if delivery.exception() is not None]
    assert failed and failed[0].code == code and failed[0].maybe_written
    assert len({record[0] for record in log.records}) == len(log.records)
    assert visible(core) == {0: []}
    log.append = append
    bench.begin()
    again = [bench.send("t", b"%d" % i) for i in range(6)]
    bench.commit()
    assert visible(core) == {0: [b"%d" % i for i in range(6)]}
    assert all(delivery.exception() is None for delivery in again)


def test_a_send_that_is_too_early_by_a_moment_is_told_of_the_state_that_it_met():
    """Another thread may begin a transaction in its middle: it was told that it cannot send as one is open."""
    bench = Bench(TransactionCore())
    states = iter([State.READY, State.IN_TRANSACTION, State.IN_TRANSACTION])
    raced = type("Raced", (Transactions,), {"state": property(lambda _: next(states), lambda *_: None)})
    bench.transactions.__class__ = raced
    with pytest.raises(TransactionStateError, match=r"cannot send: no transaction is open .*Open a transaction"):
        bench.transactions.check_send()
