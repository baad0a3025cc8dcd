"""The channel to the active controller at work: over sockets, with controllers that die and move, and what fails inside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import controller_channel
from fastq_broker.cluster.controller_channel import (
    ChannelConfig,
    ControllerChannel,
    Leader,
)
from fastq_broker.raft.voters import Endpoint
from raft_members import until

from fastq._native.wire import Reader
from fastq.config import ClientConfig
from fastq.errors import (
    ClientClosed,
    ConnectionTimeout,
    ErrorCode,
    NotController,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnknownServerError,
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
)

NOBODY = Leader(-1, 0, None)
OK = BrokerHeartbeatResponse()
MOVED = BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)


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


def test_what_was_not_come_to_in_a_turn_is_done_in_the_next() -> None:
    """Where an answer could not even be said to be of no use, a question counted as sent that never was: no other was asked."""

    async def scenario() -> None:
        place = Place()
        place.leader = Leader(1, 1, None)

        async def local(request: Message) -> Message:
            return OK

        channel = channel_of(place, local)
        perform, failed = channel._perform, list[object]()

        def once(effect: Any) -> None:
            if not failed:
                failed.append(effect)
                raise MemoryError("none left")
            perform(effect)

        channel._perform = once  # type: ignore[method-assign]
        told = asyncio.get_running_loop().create_future()
        channel.ask(BrokerHeartbeatRequest(), lambda *_: None, timeout_s=0.0)
        channel.ask(BrokerHeartbeatRequest(), lambda response, error: told.set_result(response))
        assert await asyncio.wait_for(told, 10) == OK and failed
        channel.close()

    run(scenario)
