"""What is asked of other brokers: one request at a time, what comes meanwhile in the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import peers
from fastq_broker.cluster.peers import PeerQueues, Peers

from fastq.config import ClientConfig
from fastq.errors import ClientClosed, ConnectionFailed, FastqError
from fastq.metadata import Node
from fastq.protocol.messages import WriteTxnMarkersRequest


class Bench:
    """Queues of words; requests wait for the test to answer them."""

    def __init__(self) -> None:
        self.turn: list[Callable[[], object]] = []
        self.asked: list[tuple[int, list[str]]] = []
        self.under_way: dict[int, Callable[[Any, FastqError | None], object]] = {}
        self.heard: list[tuple[list[str], Any, FastqError | None]] = []
        self.queues: PeerQueues[str] = PeerQueues(self.ask, self.turn.append, self.build, self.answered)

    def build(self, waiting: deque[str]) -> tuple[Any, list[str]]:
        items = [waiting.popleft() for _ in range(min(2, len(waiting)))]
        return items, items

    def ask(self, node_id: int, request: Any, done: Any, versions: tuple[int, int] | None = None) -> None:
        assert node_id not in self.under_way
        self.asked.append((node_id, list(request)))
        self.under_way[node_id] = done

    def answered(self, items: list[str], response: Any, error: FastqError | None) -> None:
        self.heard.append((items, response, error))

    def take_turns(self) -> None:
        while self.turn:
            self.turn.pop(0)()

    def answer(self, node_id: int, response: Any, error: FastqError | None = None) -> None:
        self.under_way.pop(node_id)(response, error)
        self.take_turns()


def test_one_request_a_broker_at_a_time() -> None:
    bench = Bench()
    for item in "abc":
        bench.queues.put(1, item)
    bench.queues.put(2, "x")
    assert bench.asked == []
    bench.take_turns()
    assert bench.asked == [(1, ["a", "b"]), (2, ["x"])]
    bench.queues.put(1, "d")
    bench.take_turns()
    assert len(bench.asked) == 2
    bench.answer(1, "yes")
    assert bench.asked[2:] == [(1, ["c", "d"])]
    assert bench.heard == [(["a", "b"], "yes", None)]


def test_who_failed_is_asked_the_next_thing_all_the_same() -> None:
    bench = Bench()
    bench.queues.put(1, "a")
    bench.take_turns()
    error = ConnectionFailed()
    bench.answer(1, None, error)
    assert bench.heard == [(["a"], None, error)]
    bench.queues.put(1, "b")
    bench.take_turns()
    assert bench.asked[-1] == (1, ["b"])
    bench.answer(1, "yes")
    assert not bench.turn and not bench.under_way


def test_what_is_asked_again_from_an_answer_goes_into_the_next_request() -> None:
    bench = Bench()

    def again(items: list[str], response: Any, error: FastqError | None) -> None:
        if error is not None:
            bench.queues.put(1, items[0])

    bench.queues._answered = again
    bench.queues.put(1, "a")
    bench.take_turns()
    bench.answer(1, None, ConnectionFailed())
    assert bench.asked == [(1, ["a"]), (1, ["a"])]


@pytest.mark.parametrize("what", ["build", "ask", "kick"])
def test_a_request_that_cannot_be_made_holds_up_no_other(what: str) -> None:
    """That broker was asked nothing more, and who waited for its answer heard nothing."""
    bench = Bench()
    build, ask = bench.build, bench.ask

    def failing_build(waiting: deque[str]) -> tuple[Any, list[str]]:
        if what == "build":
            waiting.popleft()
            raise MemoryError("none left")
        return build(waiting)

    def failing_ask(node_id: int, request: Any, done: Any, versions: Any = None) -> None:
        if what == "kick":  # it is on its way all the same
            ask(node_id, request, done, versions)
        raise MemoryError("none left")

    bench.queues._build, bench.queues._ask = failing_build, failing_ask
    for item in "ab":
        bench.queues.put(1, item)
    bench.take_turns()
    ((items, response, error),) = bench.heard
    assert items == ["a", "b"] and response is None and "node 1" in str(error)
    late = bench.under_way.pop(1, None)
    bench.queues._build, bench.queues._ask = build, ask
    bench.queues.put(1, "c")
    bench.take_turns()
    if late is not None:
        late("yes", None)
    bench.answer(1, "yes")
    assert bench.heard[1:] == [(["c"], "yes", None)]


def test_what_there_is_no_memory_to_list_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def no_memory(_: Any) -> list[str]:
        raise MemoryError("none left")

    for item in "ab":
        bench.queues.put(1, item)
    with monkeypatch.context() as patch:
        patch.setattr(peers, "list", no_memory, raising=False)
        bench.take_turns()
    ((items, response, error),) = bench.heard
    assert [*items] == ["a", "b"] and response is None and "node 1" in str(error)
    bench.queues.put(1, "c")
    bench.take_turns()
    bench.answer(1, "yes")
    assert bench.heard[1:] == [(["c"], "yes", None)]


def test_the_next_request_that_cannot_be_begun_is_told_to_who_waits_for_it() -> None:
    """They waited until something else was to be asked of that broker, if ever."""
    bench = Bench()
    for item in "abc":
        bench.queues.put(1, item)
    bench.take_turns()

    def no_memory(_: Any) -> None:
        raise MemoryError("none left")

    soon, bench.queues._soon = bench.queues._soon, no_memory
    bench.answer(1, "yes")
    (first, (items, response, error)) = bench.heard
    assert first == (["a", "b"], "yes", None)
    assert [*items] == ["c"] and response is None and "node 1" in str(error)
    bench.queues._soon = soon
    bench.queues.put(1, "d")
    bench.take_turns()
    bench.answer(1, "yes")
    assert bench.heard[2:] == [(["d"], "yes", None)]


def test_an_answer_that_cannot_be_read_is_none() -> None:
    bench = Bench()
    answered = bench.answered

    def failing(items: list[str], response: Any, error: FastqError | None) -> None:
        if response is not None:
            raise MemoryError("none left")
        answered(items, response, error)

    bench.queues._answered = failing
    for item in "abc":
        bench.queues.put(1, item)
    bench.take_turns()
    bench.answer(1, "yes")
    ((items, _, error),) = bench.heard
    assert items == ["a", "b"] and "node 1" in str(error)
    assert bench.asked[1:] == [(1, ["c"])]


@pytest.mark.parametrize("what", ["the answer", "the request", "both, and the next turn"])
def test_who_there_is_no_memory_to_tell_of_a_failure_is_told_later(what: str) -> None:
    """They waited for good, as after two shortages in a row."""
    bench, short = Bench(), [True]
    answered = bench.answered

    def failing(items: list[str], response: Any, error: FastqError | None) -> None:
        if short:
            raise MemoryError("none left")
        answered(items, response, error)

    def no_memory(*_: Any) -> Any:
        raise MemoryError("none left")

    bench.queues._answered = failing
    for item in "abc":
        bench.queues.put(1, item)
    if what == "the request":
        bench.queues._build = no_memory
        bench.turn.pop()()
    else:
        bench.take_turns()
        soon = bench.queues._soon
        if what == "both, and the next turn":
            bench.queues._soon = no_memory
        with nullcontext() if what == "the answer" else pytest.raises(MemoryError):
            bench.under_way.pop(1)("yes", None)
        bench.queues._soon = soon
    short.clear()
    bench.queues._build = bench.build
    bench.take_turns()
    if what != "both, and the next turn":
        items, response, error = bench.heard[0]
        assert [*items] == [*"abc"][: 3 if what == "the request" else 2] and response is None and "node 1" in str(error)
    bench.queues.put(1, "d")
    bench.take_turns()
    while bench.under_way:
        bench.answer(1, "yes")
    assert bench.heard[-1][0][-1] == "d", "others are asked"


@pytest.mark.parametrize("closed", [False, True])
def test_who_cannot_be_asked_is_said_later(closed: bool) -> None:
    async def scenario() -> None:
        peers = Peers(
            lambda node_id: None if not closed else Node(1, "127.0.0.1", 1), ClientConfig(), asyncio.get_running_loop()
        )
        if closed:
            peers.close()
        heard: list[FastqError | None] = []
        peers.ask(1, WriteTxnMarkersRequest(), lambda response, error: heard.append(error))
        assert heard == []
        await asyncio.sleep(0.01)
        assert isinstance(heard[0], ClientClosed if closed else ConnectionFailed)
        assert closed or "node 1" in str(heard[0])
        peers.close()
        peers.close()

    asyncio.run(scenario())


def test_what_there_is_no_turn_to_send_in_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked has been told that it could not be, and asks again."""

    async def scenario() -> None:
        peers = Peers(lambda node_id: Node(1, "127.0.0.1", 1), ClientConfig(), asyncio.get_running_loop())
        sent: list[Any] = []

        def no_memory() -> None:
            raise MemoryError("none left")

        monkeypatch.setattr(peers, "_core", SimpleNamespace(closed=False, separate=str, send=sent.append))
        monkeypatch.setattr(peers, "_network", SimpleNamespace(kick=no_memory))
        with pytest.raises(MemoryError):
            peers.ask(1, WriteTxnMarkersRequest(), lambda response, error: None)
        assert not sent

    asyncio.run(scenario())
