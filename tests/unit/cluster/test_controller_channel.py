"""The channel to the active controller, a rule a test."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.cluster import controller_channel
from fastq_broker.cluster.controller_channel import (
    LATE_S,
    REPLACED_S,
    Call,
    ChannelConfig,
    ChannelMachine,
    Finish,
    Leader,
    Send,
    holds_error,
    leader_of,
)
from fastq_broker.raft.voters import Endpoint

from fastq.errors import (
    ClientClosed,
    ConnectionClosed,
    ConnectionTimeout,
    ErrorCode,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)
from fastq.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    EnvelopeResponse,
)

NOBODY = Leader(-1, 0, None)
ONE = Leader(101, 1, Endpoint("127.0.0.1", 9101))
TWO = Leader(102, 2, Endpoint("127.0.0.1", 9102))


class Channel:
    """A machine, its leader, and what its questions ended with."""

    def __init__(self, leader: Leader = ONE, **config: Any) -> None:
        self.leader = leader
        self.machine = ChannelMachine(ChannelConfig(node_id=1, name="test", **config), lambda: self.leader)
        self.ended: list[tuple[int, Any]] = []

    def ask(self, number: int, now: float, **options: Any) -> None:
        self.machine.ask(BrokerHeartbeatRequest(broker_id=number), lambda *_: None, now, **options)

    def poll(self, now: float) -> list[Send | Call]:
        effects = self.machine.poll(now)
        for effect in effects:
            if isinstance(effect, Finish):
                number = effect.question.request.broker_id  # type: ignore[union-attr]
                self.ended.append((number, effect.response if effect.error is None else type(effect.error)))
        return [effect for effect in effects if not isinstance(effect, Finish)]

    def sent(self, now: float) -> Send:
        (effect,) = self.poll(now)
        assert isinstance(effect, Send)
        return effect


def number_of(effect: Send | Call) -> int:
    number: int = effect.question.request.broker_id  # type: ignore[union-attr]
    return number


OK = BrokerHeartbeatResponse()
MOVED = BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)


def test_one_question_is_on_its_way_and_the_others_follow_in_order() -> None:
    channel = Channel()
    for number in (1, 2, 3):
        channel.ask(number, 0.0)
    for number in (1, 2, 3):
        sent = channel.sent(0.0)
        assert (number_of(sent), sent.node_id, sent.endpoint) == (number, 101, ONE.endpoint)
        assert channel.poll(0.0) == [] and len(channel.machine) == 4 - number
        channel.machine.answered(sent.question, OK, None, 0.0)
    assert channel.poll(0.0) == []
    assert channel.ended == [(1, OK), (2, OK), (3, OK)] and len(channel.machine) == 0


@pytest.mark.parametrize("unknown", [NOBODY, Leader(101, 1, None)])
def test_questions_wait_for_a_leader_whose_place_is_known(unknown: Leader) -> None:
    channel = Channel(unknown)
    channel.ask(1, 0.0)
    assert channel.poll(0.0) == []
    channel.leader = ONE
    assert channel.poll(0.09) == [] and channel.machine.next_wakeup(0.09) == pytest.approx(0.1)
    assert number_of(channel.sent(0.1)) == 1


def test_a_question_that_changes_nothing_moves_on_where_the_others_of_its_channel_do_not() -> None:
    channel = Channel()
    channel.ask(1, 0.0, moves_on=True)
    channel.sent(0.0)
    channel.leader = TWO
    second = channel.sent(0.1)
    assert (second.node_id, number_of(second)) == (102, 1)
    channel.machine.answered(second.question, OK, None, 0.1)
    channel.ask(2, 1.0)
    sent = channel.sent(1.0)
    channel.leader = ONE
    assert channel.poll(1.1) == []  # it may have been done
    channel.machine.answered(sent.question, OK, None, 1.2)
    assert channel.poll(1.2) == [] and channel.ended == [(1, OK), (2, OK)]


def test_a_channel_that_moves_on_asks_the_next_leader_and_hears_nothing_of_the_one_before() -> None:
    channel = Channel(moves_on=True)
    channel.ask(1, 0.0)
    first = channel.sent(0.0)
    assert channel.machine.next_wakeup(0.0) == pytest.approx(0.1)
    channel.leader = Leader(101, 3, ONE.endpoint)
    assert channel.poll(0.1) == []
    channel.leader = NOBODY
    assert channel.poll(0.2) == []
    channel.leader = TWO
    second = channel.sent(0.3)
    assert (second.node_id, number_of(second)) == (102, 1)
    channel.machine.answered(first.question, None, ConnectionTimeout(), 0.4)
    assert channel.poll(0.4) == [] and channel.ended == []
    channel.machine.answered(second.question, OK, None, 0.5)
    assert channel.poll(0.5) == [] and channel.ended == [(1, OK)]
    channel.leader = Leader(1, 4, None)
    channel.ask(2, 0.6)
    (call,) = channel.poll(0.6)
    channel.leader = TWO
    assert isinstance(call, Call) and channel.poll(0.7) == []  # this node itself says that it leads no more


def test_each_question_is_asked_of_the_leader_of_its_time() -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    first = channel.sent(0.0)
    channel.leader = TWO
    channel.ask(2, 0.0)
    assert channel.poll(0.0) == []  # what is on its way is waited for
    channel.machine.answered(first.question, OK, None, 1.0)
    assert channel.sent(1.0).node_id == 102


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (MOVED, None),
        (EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER), None),
        (None, ConnectionClosed()),
        (None, ConnectionTimeout()),
    ],
)
def test_what_is_no_answer_is_asked_again_before_the_others(response: Any, error: Any) -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    sent = channel.sent(0.0)
    channel.ask(2, 0.0)
    channel.leader = TWO
    channel.machine.answered(sent.question, response, error, 1.0)
    assert channel.poll(1.0) == [] and channel.poll(1.049) == []
    assert channel.machine.next_wakeup(1.0) == pytest.approx(1.05)
    again = channel.sent(1.051)
    assert (number_of(again), again.node_id) == (1, 102)
    assert channel.ended == []


def test_not_controller_of_one_partition_is_of_the_whole_answer() -> None:
    part = AlterPartitionResponse.PartitionData(partition_index=3, error_code=ErrorCode.NOT_CONTROLLER)
    response = AlterPartitionResponse(topics=[AlterPartitionResponse.TopicData(partitions=[part])])
    assert holds_error(response, ErrorCode.NOT_CONTROLLER)
    part.error_code = ErrorCode.INVALID_UPDATE_VERSION
    assert not holds_error(response, ErrorCode.NOT_CONTROLLER)
    channel = Channel()
    channel.machine.ask(AlterPartitionRequest(), lambda *_: None, 0.0)
    question = channel.sent(0.0).question
    part.error_code = ErrorCode.NOT_CONTROLLER
    channel.machine.answered(question, response, None, 0.0)
    assert channel.sent(1.0).question is question


@pytest.mark.parametrize("error", [UnsupportedVersion(), SaslAuthenticationFailed(), ClientClosed()])
def test_what_asking_again_does_not_mend_ends_at_once(error: Any) -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    channel.machine.answered(channel.sent(0.0).question, None, error, 0.0)
    assert channel.poll(0.0) == []
    assert channel.ended == [(1, type(error))]


def test_another_error_of_the_controller_is_an_answer() -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    stale = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    channel.machine.answered(channel.sent(0.0).question, stale, None, 0.0)
    channel.poll(0.0)
    assert channel.ended == [(1, stale)]


def test_a_question_ends_when_its_time_is_over_while_it_waits() -> None:
    channel = Channel(NOBODY)
    channel.ask(1, 0.0, timeout_s=60)
    channel.ask(2, 1.0, timeout_s=1)
    channel.ask(3, 1.0)
    for now in (0.5, 1.9):
        channel.poll(now)
    assert channel.ended == []
    channel.poll(2.0)
    assert channel.ended == [(2, RequestTimedOut)]
    assert channel.machine.next_wakeup(2.0) == pytest.approx(2.1)
    channel.poll(60.0)
    assert channel.ended == [(2, RequestTimedOut), (1, RequestTimedOut)]
    channel.poll(1e9)  # AlterPartition has no time-out
    assert len(channel.machine) == 1


def test_a_question_on_its_way_outlives_its_time_but_is_not_asked_again() -> None:
    channel = Channel()
    channel.ask(1, 0.0, timeout_s=1)
    sent = channel.sent(0.5)
    channel.poll(2.0)
    assert channel.ended == []
    channel.machine.answered(sent.question, None, ConnectionClosed(), 2.0)
    assert channel.poll(2.0) == [] and channel.ended == [(1, RequestTimedOut)]


def test_the_error_of_a_question_that_ran_out_of_time_says_why() -> None:
    ended: list[Any] = []
    for leader in (NOBODY, ONE, Leader(101, 7, None)):
        machine = ChannelMachine(ChannelConfig(node_id=1, name="t"), lambda leader=leader: leader)  # type: ignore[misc]
        machine.ask(BrokerHeartbeatRequest(), lambda *_: None, 0.0, timeout_s=4.5)
        ended += [str(effect.error) for effect in machine.poll(5.0) if isinstance(effect, Finish)]
    assert all("BrokerHeartbeat was not answered by an active controller in 4.5 s" in text for text in ended)
    assert "no leader" in ended[0] and "not known" in ended[2]
    assert ended[1].endswith(
        f"The leader of the metadata quorum that was heard of last is node 101, at 127.0.0.1:9101, in epoch {ONE.epoch}: does it run?"
    )


def test_who_is_asked_has_the_time_of_the_question_and_of_the_channel_at_the_most() -> None:
    channel = Channel()
    channel.ask(1, 0.0, timeout_s=60)
    first = channel.sent(0.0)
    channel.machine.answered(first.question, OK, None, 0.0)
    channel.ask(2, 0.0, timeout_s=4.5)
    assert (first.timeout_s, channel.sent(0.0).timeout_s) == (30, 4.5)


def test_a_question_that_waited_behind_others_has_the_rest_of_its_time() -> None:
    """It had all of it anew, and its client, which waits 30 s, heard of nothing."""
    channel = Channel()
    channel.ask(1, 0.0, timeout_s=25)
    channel.ask(2, 0.5, timeout_s=25)
    channel.ask(3, 1.0, timeout_s=1)
    first = channel.sent(0.0)
    assert first.timeout_s == 25
    channel.machine.answered(first.question, OK, None, 15.5)
    second = channel.sent(15.5)
    assert (number_of(second), second.timeout_s) == (2, 10)
    channel.ask(4, 2.0, timeout_s=25)
    channel.machine.answered(second.question, OK, None, 26.9)
    assert channel.sent(26.9).timeout_s == LATE_S


def test_the_leader_is_the_one_that_raft_knows() -> None:
    machine: Any = SimpleNamespace(leader_id=2, epoch=3, leader_endpoint=Endpoint("h", 2))
    assert leader_of(machine) == Leader(2, 3, Endpoint("h", 2))


def test_the_active_controller_asks_itself_by_a_call() -> None:
    channel = Channel(Leader(1, 5, None))
    channel.ask(1, 0.0, timeout_s=60)
    (effect,) = channel.poll(0.0)
    assert isinstance(effect, Call) and effect.timeout_s == 30
    channel.leader = TWO
    channel.machine.answered(effect.question, MOVED, None, 0.0)
    assert channel.sent(1.0).node_id == 102


def test_a_channel_that_is_closed_ends_every_question_once() -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    sent = channel.sent(0.0)
    channel.ask(2, 0.0)
    channel.machine.close()
    channel.machine.close()
    channel.poll(0.0)
    channel.machine.answered(sent.question, OK, None, 0.0)
    channel.ask(3, 0.0)
    assert channel.poll(0.0) == [] and channel.machine.next_wakeup(0.0) == float("inf")
    assert channel.ended == [(1, ClientClosed), (2, ClientClosed), (3, ClientClosed)]


def test_nothing_is_due_while_nothing_waits_to_be_asked() -> None:
    channel = Channel()
    assert channel.machine.next_wakeup(0.0) == float("inf")
    channel.ask(1, 0.0)
    assert channel.machine.next_wakeup(5.0) == 5.0
    channel.leader = Leader(1, 2, None)
    (call,) = channel.poll(5.0)
    assert isinstance(call, Call) and channel.machine.next_wakeup(5.0) == float("inf")
    channel.ask(2, 5.0, timeout_s=3)
    assert channel.machine.next_wakeup(5.0) == 8.0


def test_whether_another_one_leads_is_looked_at_while_a_node_is_asked() -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    channel.sent(0.0)
    assert channel.machine.next_wakeup(0.0) == pytest.approx(0.1)


def test_what_a_leader_that_stands_still_was_asked_the_next_one_is_asked_after_a_while() -> None:
    """A client that made a topic through another node heard of nothing for 25 s, and then that it was not made."""
    channel = Channel()
    channel.ask(1, 0.0)
    first = channel.sent(0.0)
    channel.leader = NOBODY
    assert channel.poll(5.0) == []
    channel.leader = TWO
    assert channel.poll(6.0) == [] and channel.poll(6.0 + REPLACED_S - 0.1) == []
    second = channel.sent(6.0 + REPLACED_S)
    assert (second.node_id, number_of(second)) == (102, 1)
    channel.machine.answered(first.question, OK, None, 9.0)
    assert channel.poll(9.0) == [] and channel.ended == []
    channel.leader = ONE
    assert channel.poll(9.1) == []  # this one has its time, too
    channel.machine.answered(second.question, OK, None, 9.2)
    assert channel.poll(9.2) == [] and channel.ended == [(1, OK)]


def test_the_next_leader_has_its_time_too_where_it_is_soon_replaced() -> None:
    """It had what was left of the time of the one before: nothing, and a third one was asked at once."""
    channel = Channel()
    channel.ask(1, 0.0)
    channel.sent(0.0)
    channel.leader = TWO
    assert channel.poll(1.0) == []
    assert channel.sent(1.0 + REPLACED_S).node_id == 102
    channel.leader = Leader(101, 3, ONE.endpoint)
    assert channel.poll(1.1 + REPLACED_S) == []
    assert channel.sent(1.1 + 2 * REPLACED_S).node_id == 101


def test_a_leader_that_is_one_again_is_waited_for() -> None:
    channel = Channel()
    channel.ask(1, 0.0)
    channel.sent(0.0)
    channel.leader = TWO
    assert channel.poll(1.0) == []
    channel.leader = Leader(101, 3, ONE.endpoint)
    assert channel.poll(2.0) == []
    channel.leader = TWO
    assert channel.poll(3.5) == []


# -- over sockets


def test_a_question_whose_time_is_over_is_told_so_where_there_was_no_memory_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who asked heard nothing of it any more."""
    channel = Channel(NOBODY)
    channel.ask(7, 0.0, timeout_s=1.0)

    def no_memory(*_: Any, **options: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(controller_channel, "error_for_code", no_memory)
        with pytest.raises(MemoryError):
            channel.poll(1.0)
    assert channel.poll(1.1) == []
    assert [number for number, _ in channel.ended] == [7]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that end by it
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("moment", ["answered", "moved", "unasked"])
def test_each_question_ends_once_whichever_allocations_in_a_row_fail(
    moment: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in a row were forgotten: who asked heard nothing, or the channel asked nothing any more."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    outcomes = set()
    for first in range(60):
        channel = Channel()
        for number in (7, 8):
            channel.ask(number, 0.0)
        question = channel.sent(0.0).question
        raised = False
        try:
            with AllocationsFail(first, count):
                if moment == "unasked":
                    channel.machine.unasked(question, 1.0, "why")
                else:
                    channel.machine.answered(question, OK if moment == "answered" else MOVED, None, 1.0)
        except MemoryError:
            raised = True
        outcomes.add(raised)
        now = 2.0
        while len(channel.machine) and now < 10:
            for effect in channel.poll(now):
                channel.machine.answered(effect.question, OK, None, now)
            now += 1.0
        channel.poll(now)
        assert sorted(number for number, _ in channel.ended) == [7, 8], f"allocations from {first} on"
    assert False in outcomes
