"""The router by itself: what it does when a handler cannot be loaded, or nobody waits for one any more."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker import router
from fastq_broker.connection import ProtocolViolation
from fastq_broker.router import Deferred
from fastq_broker.server import flexible_versions

from fastq._native.produce_path import scan_request
from fastq.errors import ErrorCode
from fastq.protocol import messages as m
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_response, encode_request


def test_a_handler_that_cannot_be_loaded_closes_the_connection_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports: Any = SimpleNamespace(config=SimpleNamespace(non_produce_request_max_bytes=1 << 20))
    node = router.Router(ports)
    monkeypatch.setattr(router, "bound_context", lambda _: object)
    real = router.import_module

    def short(name: str) -> Any:
        raise OSError(24, "Too many open files", name)

    monkeypatch.setattr(router, "import_module", short)
    header: Any = (75, 0, 1, None, 0, 0)
    with pytest.raises(ProtocolViolation, match=r"handler of DescribeTopicPartitions cannot be loaded: .*Too many"):
        node.dispatch(None, bytearray(), header)  # type: ignore[arg-type]  # not looked at before the handler is there
    monkeypatch.setattr(router, "import_module", real)
    assert node.route(75) is not None


NOT_SERVED = sorted(set(APIS) - set(router.HANDLERS))


@pytest.mark.parametrize("key", [*NOT_SERVED, -1, max(APIS) + 1, 32767])
def test_an_api_that_is_not_served_closes_the_connection_by_its_name(key: int) -> None:
    ports: Any = SimpleNamespace(config=SimpleNamespace(non_produce_request_max_bytes=1 << 20))
    name = APIS[key].name if key in APIS else "not known"
    header: Any = (key, 3, 1, None, 0, 0)
    with pytest.raises(ProtocolViolation, match=rf"api key {key} \({name}\), version 3, is not served"):
        router.Router(ports).dispatch(None, bytearray(), header)  # type: ignore[arg-type]  # nothing else is looked at


def test_who_is_gone_before_a_handler_has_begun_leaves_nothing_behind() -> None:
    """What it was to wait for, and what that was to wait for, said that nobody had awaited it."""

    async def scenario() -> None:
        ports: Any = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=1 << 20), loop=asyncio.get_running_loop()
        )
        answers: list[str] = []

        async def codes() -> None:
            await ports.loop.create_future()

        async def handle(awaited: Any) -> None:
            await awaited

        inner = codes()
        outer = handle(inner)
        header: Any = (18, 0, 1, None, 0, 0)
        connection: Any = SimpleNamespace(complete=lambda *_: answers.append("an answer"), fail=answers.append)
        route: Any = SimpleNamespace(name="any")
        router.Router(ports)._later(route, connection, header, m.ApiVersionsRequest(), outer).cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        states = inspect.getcoroutinestate(outer), inspect.getcoroutinestate(inner)
        inner.close()
        assert states == (inspect.CORO_CLOSED, inspect.CORO_CLOSED)
        assert answers == []

    asyncio.run(scenario())


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("request_of_two", "version"),
    [
        (m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name=name) for name in ("a", "b")]), 5),
        (m.DeleteTopicsRequest(topic_names=["a", "b"]), 5),
        (m.DescribeGroupsRequest(groups=["a", "b"]), 5),  # which has no room for words
    ],
)
def test_an_error_in_a_handler_is_answered_for_each_item(request_of_two: Any, version: int, later: bool) -> None:
    """The connection was closed, where the answer has no code at its top."""

    async def fails(*_: Any) -> Any:
        raise ValueError("out of bounds")

    def fails_at_once(*_: Any) -> Any:
        raise ValueError("out of bounds")

    async def scenario() -> bytes:
        ports: Any = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=1 << 20),
            loop=asyncio.get_running_loop(),
            cluster=None,
        )
        node, key = router.Router(ports), request_of_two.API_KEY
        handler: Any = SimpleNamespace(VERSIONS=(version, version), handle=fails if later else fails_at_once)
        node._routes[key] = router.Route(key, handler)
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        connection: Any = SimpleNamespace(
            complete=lambda _, answer: answers.put_nowait(answer), peer=("127.0.0.1", 1), listener="PLAINTEXT"
        )
        frame = bytearray(encode_request(7, "test", request_of_two, version))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        answer = node.dispatch(connection, frame, header)
        if isinstance(answer, Deferred):
            answer.attached = True
            answer = await asyncio.wait_for(answers.get(), 10)
        assert isinstance(answer, bytes)
        return answer

    response: Any = decode_response(asyncio.run(scenario())[4:], request_of_two.API_KEY, version)[1]
    items = [item for name in ("topics", "responses", "groups") for item in getattr(response, name, [])]
    assert [item.error_code for item in items] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    words = [item.error_message for item in items if getattr(item, "error_message", None)]
    assert all("failed in the broker, whose log has more: ValueError('out of bounds')" in one for one in words)
    assert len(words) == (0 if request_of_two.API_KEY == m.DescribeGroupsRequest.API_KEY else 2)


def no_memory(*_: Any) -> Any:
    raise MemoryError("none left")


@pytest.mark.parametrize("short", ["the error", "the frame", "what is awaited", "the connection"])
def test_an_answer_that_cannot_be_made_later_closes_the_connection(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for its answer for ever, and was read from no more."""

    async def scenario() -> None:
        ports: Any = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=1 << 20), loop=asyncio.get_running_loop(), cluster=None
        )
        node, key, version = router.Router(ports), m.DescribeGroupsRequest.API_KEY, 5
        awaited = ports.loop.create_future()

        async def handle(*_: Any) -> Any:
            return await awaited

        node._routes[key] = router.Route(key, SimpleNamespace(VERSIONS=(version, version), handle=handle))  # type: ignore[arg-type]
        told: asyncio.Queue[str] = asyncio.Queue()
        complete = no_memory if short == "the connection" else lambda _, answer: told.put_nowait("an answer")
        connection: Any = SimpleNamespace(
            complete=complete, fail=told.put_nowait, peer=("127.0.0.1", 1), listener="PLAINTEXT"
        )
        frame = bytearray(encode_request(7, "test", m.DescribeGroupsRequest(groups=["a"]), version))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        answer = node.dispatch(connection, frame, header)
        assert isinstance(answer, Deferred)
        answer.attached = True
        if short == "the error":
            monkeypatch.setattr(router, "error_said", no_memory)
            awaited.set_exception(ValueError("out of bounds"))
        elif short == "the frame":
            monkeypatch.setattr(router, "encode_response", no_memory)
            awaited.set_result(m.DescribeGroupsResponse(groups=[]))
        elif short == "what is awaited":
            awaited.cancel()
        else:
            awaited.set_result(m.DescribeGroupsResponse(groups=[]))
        assert (await asyncio.wait_for(told.get(), 10)).startswith("DescribeGroups failed")

    asyncio.run(scenario())
