"""Asking another node's coordinator: what shares a request, what an answer means to a producer, and for how long it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.transactions import Operation, elsewhere
from fastq_broker.transactions.elsewhere import VERSIONS, Elsewhere
from fastq_broker.transactions.verification import Answer

from fastq.errors import ConnectionTimeout
from fastq.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

A, B, C = ("t", 0), ("t", 1), ("u", 0)
Partition = tuple[str, int]


class Bench:
    """A loop whose time the test makes, replicas that are all led here, and requests that the test answers."""

    add_partitions_to_txn_retry_backoff_ms = 20
    add_partitions_to_txn_retry_backoff_max_ms = 100

    def __init__(self) -> None:
        self.now = 0.0
        self.coordinator = 2
        self.replicas: dict[Partition, SimpleNamespace] = {at: SimpleNamespace(leader_epoch=5) for at in (A, B, C)}
        self.requests: list[tuple[int, AddPartitionsToTxnRequest, Any]] = []
        self.answers: list[Answer] = []
        self.asks_again = 0
        self._turn: list[Callable[[], object]] = []
        self._later: list[tuple[float, Callable[[], object]]] = []
        self.elsewhere = Elsewhere(self._ask, self, self, self)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self._turn.append(callback)

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> None:
        self._later.append((self.now + delay, partial(callback, *args)))

    def get(self, topic: str, index: int) -> SimpleNamespace | None:
        return self.replicas.get((topic, index))

    def _ask(self, node_id: int, request: Any, done: Any, versions: object = None) -> None:
        assert versions == VERSIONS
        self.requests.append((node_id, request, done))

    def ask(
        self, *partitions: Partition, wanted: Operation = Operation.ADD, name: str = "id", epoch: int = 3
    ) -> dict[Partition, int] | None:
        refused = self.elsewhere.ask(
            lambda: self.coordinator, name, 1000, epoch, frozenset(partitions), wanted, self._answered
        )
        return None if refused is None else {at: int(error.code) for at, error in refused.items()}

    def _answered(self, answer: Answer | None) -> None:
        if answer is None:
            self.asks_again += 1
        else:
            self.answers.append(answer)

    def advance(self, seconds: float = 0.0) -> None:
        """Take the loop's turns up to that time."""
        until = self.now + seconds
        while True:
            while self._turn:
                self._turn.pop(0)()
            due = sorted((at for at, _ in self._later if at <= until))
            if not due:
                break
            self.now = due[0]
            ready = [callback for at, callback in self._later if at == due[0]]
            self._later = [(at, callback) for at, callback in self._later if at != due[0]]
            self._turn += ready
        self.now = until

    def respond(self, number: int, codes: dict[str, dict[Partition, int]], error: int = 0) -> None:
        self.requests[number][2](_response(codes, error), None)
        self.advance()

    def refused(self, number: int = -1) -> dict[Partition, int]:
        return {at: int(error.code) for at, error in self.answers[number].refused.items()}


def _response(codes: dict[str, dict[Partition, int]], error: int) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        error_code=error,
        results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=name,
                topic_results=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                        name=topic,
                        results_by_partition=[
                            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=code
                            )
                        ],
                    )
                    for (topic, index), code in said.items()
                ],
            )
            for name, said in codes.items()
        ],
    )


def asked(request: AddPartitionsToTxnRequest) -> dict[str, tuple[int, int, bool, list[Partition]]]:
    return {
        each.transactional_id: (
            each.producer_id,
            each.producer_epoch,
            each.verify_only,
            [(topic.name, index) for topic in each.topics for index in topic.partitions],
        )
        for each in request.transactions
    }


def test_questions_share_a_request_and_each_has_its_answer() -> None:
    bench = Bench()
    assert bench.ask(A) is bench.ask(B, C) is bench.ask(A, name="other", wanted=Operation.ABORTABLE) is None
    bench.advance()
    ((node, request, _),) = bench.requests
    assert node == 2
    assert asked(request) == {"id": (1000, 3, False, [A, B, C]), "other": (1000, 3, True, [A])}
    bench.respond(0, {"id": {A: 0, B: 3, C: 55}, "other": {A: 120}})
    assert [bench.refused(number) for number in range(3)] == [{}, {B: 3, C: 19}, {A: 120}]


def test_an_older_epoch_of_the_same_id_waits_for_the_next_request() -> None:
    bench = Bench()
    bench.ask(A, epoch=3)
    bench.ask(B, epoch=4)
    bench.ask(C, epoch=3, wanted=Operation.ABORTABLE)
    bench.advance()
    bench.respond(0, {"id": {A: 0}})
    bench.respond(1, {"id": {B: 0}})
    assert [asked(request)["id"] for _, request, _ in bench.requests] == [
        (1000, 3, False, [A]),
        (1000, 4, False, [B]),
        (1000, 3, True, [C]),
    ]


@pytest.mark.parametrize(
    ("wanted", "said", "told"),
    [
        (Operation.ADD, 0, None),
        (Operation.ADD, 90, 47),
        (Operation.ADD, 47, 47),
        (Operation.ADD, 49, 49),
        (Operation.ADD, 120, 120),
        (Operation.ADD, 14, 19),
        (Operation.ADD, 15, 19),
        (Operation.ADD, 16, 19),
        (Operation.ABORTABLE, 51, 19),
        (Operation.ABORTABLE, 120, 120),
        (Operation.INVALID_STATE, 120, 48),
        (Operation.INVALID_STATE, 0, None),
    ],
)
def test_what_a_coordinator_says_in_the_words_of_a_producer(wanted: Operation, said: int, told: int | None) -> None:
    bench = Bench()
    bench.ask(A, wanted=wanted)
    bench.advance()
    bench.respond(0, {"id": {A: said}})
    assert bench.refused().get(A) == told


def test_who_is_not_answered_is_told_to_try_again() -> None:
    bench = Bench()
    for spoil in (
        lambda done: done(None, ConnectionTimeout()),
        lambda done: done(_response({}, 0), None),
        lambda done: done(_response({}, 31), None),
    ):
        bench.ask(A)
        bench.advance()
        spoil(bench.requests[-1][2])
        assert bench.refused() == {A: 19}
    bench.coordinator = -1
    assert bench.ask(A) == {A: 19}


def test_one_that_cannot_be_told_keeps_no_other_from_hearing() -> None:
    bench = Bench()

    def no_memory(answer: Answer | None) -> None:
        raise MemoryError("none left")

    bench.elsewhere.ask(lambda: 2, "other", 1000, 3, frozenset({C}), Operation.ADD, no_memory)
    bench.ask(A)
    bench.advance()
    bench.respond(0, {"other": {C: 0}, "id": {A: 0}})
    assert bench.refused() == {}


def test_a_transaction_that_is_just_ending_is_asked_about_again_for_a_while() -> None:
    bench = Bench()
    bench.ask(A)
    bench.advance()
    for number in range(4):
        bench.coordinator = 3  # it may move meanwhile
        bench.respond(number, {"id": {A: 51}})
        bench.advance(0.025)
        assert len(bench.requests) == number + 2 and not bench.answers
    bench.respond(4, {"id": {A: 51}})
    assert bench.refused() == {A: 51}
    assert [node for node, _, _ in bench.requests] == [2, 3, 3, 3, 3]
    bench.ask(A)
    bench.advance()
    bench.respond(5, {"id": {A: 51}})
    bench.coordinator = -1
    bench.advance(0.03)
    assert bench.refused() == {A: 19}


def test_an_answer_holds_until_a_transaction_of_the_producer_ends_there() -> None:
    bench = Bench()
    bench.ask(A, B)
    bench.advance()
    bench.respond(0, {"id": {A: 0, B: 0}})
    answer = bench.answers[0]
    assert answer.holds_for(frozenset({A})) and answer.holds_for(frozenset({A, B}))
    assert not answer.holds_for(frozenset({A, C}))
    bench.elsewhere.marker_written(999, A)
    bench.elsewhere.marker_written(1000, C)
    assert answer.holds_for(frozenset({A}))
    bench.elsewhere.marker_written(1000, B)
    assert not answer.holds_for(frozenset({A}))


def test_a_marker_before_the_answer_spoils_it_and_so_does_another_leader_epoch() -> None:
    bench = Bench()
    bench.ask(A)
    bench.advance()
    bench.elsewhere.marker_written(1000, A)
    bench.respond(0, {"id": {A: 0}})
    assert not bench.answers[0].holds_for(frozenset({A}))
    bench.ask(B)
    bench.advance()
    bench.respond(1, {"id": {B: 0}})
    assert bench.answers[1].holds_for(frozenset({B}))
    bench.replicas[B].leader_epoch = 6
    assert not bench.answers[1].holds_for(frozenset({B}))
    del bench.replicas[B]
    assert not bench.answers[1].holds_for(frozenset({B}))


@pytest.mark.parametrize("what", ["_refusal", "call_later", "put"])
def test_who_cannot_be_told_the_answer_asks_again(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It waited for ever, and its connection was read from no more."""
    bench = Bench()

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    assert bench.ask(A) is None
    bench.advance()
    owner: Any = {"_refusal": elsewhere, "call_later": bench, "put": bench.elsewhere._queues}[what]
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, no_memory)
        bench.respond(0, {"id": {A: 0 if what == "_refusal" else 51}})
        bench.advance(0.03)
    assert bench.asks_again == 1 and bench.answers == []
    assert bench.ask(A) is None
    bench.advance()
    bench.respond(1, {"id": {A: 0}})
    assert bench.refused() == {}
