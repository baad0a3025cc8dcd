"""The channel to the active controller, a rule a test; and over sockets, with controllers that die and move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import controller_channel
from fastq_broker.cluster.controller_channel import (
    Call,
    ChannelConfig,
    ChannelMachine,
    ControllerChannel,
    Finish,
    Leader,
    Send,
    holds_error,
    leader_of,
)
from fastq_broker.raft.voters import Endpoint
from raft_members import until

from fastq._native.wire import Reader
from fastq.config import ClientConfig
from fastq.errors import (
    ClientClosed,
    ConnectionClosed,
    ConnectionTimeout,
    ErrorCode,
    NotController,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnknownServerError,
    UnsupportedVersion,
)
from fastq.net import core
from fastq.net.requests import VersionedRequest
from fastq.protocol.frames import decode_request, decode_request_header, encode_response
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
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
    channel.sent(5.0)
    assert channel.machine.next_wakeup(5.0) == float("inf")
    channel.ask(2, 5.0, timeout_s=3)
    assert channel.machine.next_wakeup(5.0) == 8.0


# -- over sockets


class Controller:
    """A controller's listener, which answers heartbeats (and whatever `answer` makes something of) while it lives."""

    def __init__(self, answer: Callable[[Message], Message | None]) -> None:
        self.answer = answer
        self.asked: list[Message] = []
        self.versions: list[int] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def die(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                body = Reader(frame)
                header = decode_request_header(body)
                request = decode_request(header, body)
                response: Message | None
                if isinstance(request, ApiVersionsRequest):
                    own = [ApiVersionsResponse.ApiVersion(api_key=key, max_version=top) for key, top in TABLE.items()]
                    response = ApiVersionsResponse(api_keys=own)
                else:
                    self.asked.append(request)
                    self.versions.append(header.api_version)
                    response = self.answer(request)
                if response is not None:
                    writer.write(encode_response(header.correlation_id, response, header.api_version))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


TABLE = {18: 4, 56: 2, 63: 1}


class Place:
    """Where the leader is, as a channel looks it up."""

    leader = NOBODY

    def __call__(self) -> Leader:
        return self.leader


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 20)

    asyncio.run(bounded())


def channel_of(place: Place, local: Any = None) -> ControllerChannel:
    config = ChannelConfig(node_id=1, name="test", look_s=0.01, retry_backoff_s=0.01)
    client = ClientConfig(
        bootstrap_servers=["127.0.0.1:1"], reconnect_backoff_ms=1, reconnect_backoff_max_ms=5, client_id="1"
    )
    return ControllerChannel(config, place, local, client, asyncio.get_running_loop())


async def asked(channel: ControllerChannel, request: Any, **options: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    channel.ask(request, lambda response, error: future.set_result(response if error is None else error), **options)
    return await future


def test_a_controller_that_is_away_is_told_as_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "NODES_GRACE_S", 0.0)

    async def scenario() -> None:
        place = Place()
        place.leader = Leader(101, 1, Endpoint("127.0.0.1", 2))
        channel = channel_of(place)
        channel.ask(BrokerHeartbeatRequest(broker_id=1), lambda response, error: None)
        await until(lambda: "refused the connection" in caplog.text)
        channel.close()

    run(scenario)
    line = next(record.getMessage() for record in caplog.records if "refused" in record.getMessage())
    assert "the address is a controller's (from controller.quorum.voters or" in line and "advertised" not in line


def test_a_channel_follows_the_controller_that_moves_and_survives_one_that_dies() -> None:
    async def scenario() -> None:
        place = Place()
        first, second = Controller(lambda request: MOVED), Controller(lambda request: OK)
        ends = [await first.start(), await second.start()]
        channel = channel_of(place)
        answer = asyncio.create_task(asked(channel, BrokerHeartbeatRequest(broker_id=1)))
        place.leader = Leader(101, 1, ends[0])
        await until(lambda: len(first.asked) >= 3)
        place.leader = Leader(102, 2, ends[1])
        assert await answer == OK
        assert first.versions[0] == 1 and channel.versions()[63] == (0, 1)
        await second.die()
        answer = asyncio.create_task(asked(channel, BrokerHeartbeatRequest(broker_id=2)))
        first.answer = lambda request: OK
        await asyncio.sleep(0.02)
        place.leader = Leader(101, 3, ends[0])
        assert await answer == OK and first.asked[-1] == BrokerHeartbeatRequest(broker_id=2)
        channel.close()
        assert isinstance(await asked(channel, BrokerHeartbeatRequest()), ClientClosed)
        await first.die()

    run(scenario)


def test_a_request_made_for_its_version_is_whole_when_it_is_asked_again() -> None:
    async def scenario() -> None:
        place = Place()
        answers = [AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER), AlterPartitionResponse()]
        controller = Controller(lambda request: answers.pop(0))
        place.leader = Leader(101, 1, await controller.start())
        channel = channel_of(place)

        def build(version: int) -> AlterPartitionRequest:
            part = AlterPartitionRequest.PartitionData(new_isr=[1, 2] if version < 3 else [])
            return AlterPartitionRequest(topics=[AlterPartitionRequest.TopicData(partitions=[part])])

        await asked(channel, VersionedRequest(AlterPartitionRequest.API_KEY, build))
        isrs = [request.topics[0].partitions[0].new_isr for request in controller.asked]  # type: ignore[attr-defined]
        assert controller.versions == [2, 2] and isrs == [[1, 2], [1, 2]]
        channel.close()
        await controller.die()

    run(scenario)


def test_this_node_answers_itself_whatever_its_controller_does() -> None:
    async def scenario() -> None:
        place = Place()
        place.leader = Leader(1, 1, None)
        outcomes: list[Any] = [
            NotController(),
            MOVED,
            ValueError("a bug"),
            SaslAuthenticationFailed(),
            OK,
        ]

        async def local(request: Message) -> Message:
            assert isinstance(request, BrokerHeartbeatRequest | AlterPartitionRequest)
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            await asyncio.sleep(0)
            response: Message = outcome
            return response

        channel = channel_of(place, local)
        assert isinstance(await asked(channel, BrokerHeartbeatRequest()), UnknownServerError)
        place.leader = Leader(1, 1, Endpoint("127.0.0.1", 1))  # raft knows where it listens itself
        assert len(outcomes) == 2 and channel.versions() == {}
        assert isinstance(await asked(channel, BrokerHeartbeatRequest()), SaslAuthenticationFailed)
        versioned = VersionedRequest(AlterPartitionRequest.API_KEY, lambda version: AlterPartitionRequest())
        assert await asked(channel, versioned) == OK

        begun: list[Message] = []
        cancelled: list[Message] = []

        async def never(request: Message) -> Message:
            begun.append(request)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(request)
                raise
            raise AssertionError

        channel = channel_of(place, never)
        late = asyncio.create_task(asked(channel, BrokerHeartbeatRequest(), timeout_s=0.01))
        assert isinstance(await late, RequestTimedOut)
        cancelled.clear()
        waiting = asyncio.create_task(asked(channel, BrokerHeartbeatRequest()))
        await until(lambda: len(begun) == 2)
        channel.close()
        assert isinstance(await waiting, ClientClosed)
        await until(lambda: bool(cancelled))

    run(scenario)


def test_a_node_without_a_controller_is_not_asked() -> None:
    async def scenario() -> None:
        place = Place()
        place.leader = Leader(1, 1, None)
        channel = channel_of(place)
        assert isinstance(await asked(channel, BrokerHeartbeatRequest(), timeout_s=0.05), RequestTimedOut)
        channel.close()

    run(scenario)


@pytest.mark.parametrize("here", [False, True])
def test_a_question_that_cannot_be_asked_for_a_moment_is_asked_again(here: bool) -> None:
    """It counted as being on its way for good: a broker sent no heartbeats any more, and was fenced until its restart."""

    async def scenario() -> None:
        place, controller = Place(), Controller(lambda request: OK)
        place.leader = Leader(1 if here else 101, 1, await controller.start())

        async def local(request: Message) -> Message:
            return OK

        channel = channel_of(place, local)
        loop, send = channel._loop, channel._core.send

        def restore() -> None:
            channel._core.send, channel._loop = send, loop  # type: ignore[method-assign]

        def no_memory(*_: Any, **options: Any) -> None:
            restore()
            raise MemoryError("none left")

        channel._core.send = no_memory  # type: ignore[method-assign]
        channel._loop = SimpleNamespace(create_task=no_memory)  # type: ignore[assignment]
        answers = [asked(channel, BrokerHeartbeatRequest(), timeout_s=4) for _ in range(2)]
        assert await asyncio.gather(*answers) == [OK, OK]
        channel.close()
        await controller.die()

    run(scenario)


@pytest.mark.parametrize("what", ["send", "kick"])
def test_a_question_that_is_on_its_way_all_the_same_is_another_one(what: str) -> None:
    """Its late failure counted for the one that was asked again, and what changes something was done twice."""

    async def scenario() -> None:
        place = Place()
        place.leader = Leader(101, 1, Endpoint("127.0.0.1", 2))
        channel: Any = channel_of(place)
        sent: list[Any] = []
        failed: list[str] = []

        def fails(name: str) -> None:
            if name == what and not failed:
                failed.append(name)
                raise MemoryError("none left")

        def send(node_id: int, request: Any, done: Any, **options: Any) -> None:
            sent.append(done)
            fails("send")

        channel._core.send, channel._network.kick = send, lambda: fails("kick")
        answer = asyncio.ensure_future(asked(channel, BrokerHeartbeatRequest(), timeout_s=4))
        await until(lambda: len(sent) == (2 if what == "send" else 1) and bool(failed))
        await asyncio.sleep(0.03)
        if what == "send":
            sent[0](None, ConnectionTimeout("late"))
            await asyncio.sleep(0.03)
            assert len(sent) == 2 and not answer.done()
        assert len(sent) == (2 if what == "send" else 1)
        sent[-1](OK, None)
        assert await answer == OK
        channel.close()

    run(scenario)


def test_a_question_whose_answer_cannot_be_read_for_a_moment_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked heard nothing of it any more."""

    async def scenario() -> None:
        place = Place()
        place.leader = Leader(1, 1, None)

        async def local(request: Message) -> Message:
            return OK

        def no_memory(*_: Any) -> bool:
            raise MemoryError("none left")

        channel = channel_of(place, local)
        with monkeypatch.context() as patch:
            patch.setattr(controller_channel, "holds_error", no_memory)
            told = await asyncio.wait_for(asked(channel, BrokerHeartbeatRequest()), 5)
        assert isinstance(told, UnknownServerError)
        assert await asked(channel, BrokerHeartbeatRequest()) == OK
        channel.close()

    run(scenario)


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


def test_an_answer_that_cannot_be_made_use_of_stops_nothing() -> None:
    async def scenario() -> None:
        place = Place()
        place.leader = Leader(1, 1, None)

        async def local(request: Message) -> Message:
            return OK

        def bad(response: Any, error: Any) -> None:
            raise ValueError("a bug")

        channel = channel_of(place, local)
        channel.ask(BrokerHeartbeatRequest(), bad)
        assert await asked(channel, BrokerHeartbeatRequest()) == OK
        channel.close()

    run(scenario)
