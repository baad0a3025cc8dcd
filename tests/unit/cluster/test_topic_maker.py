"""Topics that are named and not there: asked for once, waited for by all, and known before anybody is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import topic_maker
from fastq_broker.cluster.topic_maker import TopicMaker
from fastq_broker.controller.topics import NewTopic

from fastq.errors import ClientClosed, ErrorCode
from fastq.protocol.messages import CreateTopicsResponse


class Bench:
    """A controller that the test speaks for, and the metadata that this node knows."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests: list[tuple[list[str], asyncio.Future[Any]]] = []
        self.image: Any = SimpleNamespace(topics_by_name={})
        self.maker = TopicMaker(self.ask, lambda: self.image, self.loop)

    def ask(self, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        answered: asyncio.Future[Any] = self.loop.create_future()
        self.requests.append(([topic.name for topic in request.topics], answered))
        return answered

    def answer(self, number: int, **codes: int) -> None:
        kind = CreateTopicsResponse.CreatableTopicResult
        topics = [kind(name=name, error_code=code, error_message="so") for name, code in codes.items()]
        self.requests[number][1].set_result(CreateTopicsResponse(topics=topics))

    def learn(self, *names: str) -> None:
        self.image = SimpleNamespace(topics_by_name={**self.image.topics_by_name, **dict.fromkeys(names)})
        self.maker.metadata_changed(self.image)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(Bench()), 10)

    asyncio.run(main())


def topics(*names: str) -> list[NewTopic]:
    return [NewTopic(name, 1, 1) for name in names]


def test_it_is_told_once_the_topic_is_known_here() -> None:
    async def scenario(bench: Bench) -> None:
        async def wait(*names: str) -> dict[str, ErrorCode]:
            return await bench.maker.create(topics(*names))

        first, second = asyncio.create_task(wait("a", "b")), asyncio.create_task(wait("b", "c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [names for names, _ in bench.requests] == [["a", "b"], ["c"]]
        bench.answer(0, a=0, b=36, strange=0)
        bench.answer(1, c=38)
        bench.learn("a")
        await asyncio.sleep(0.01)
        assert not first.done() and not second.done()
        bench.learn("b")
        assert await first == {"a": 0, "b": 0}
        assert await second == {"b": 0, "c": 38}
        again = asyncio.create_task(wait("c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.requests[2][0] == ["c"]
        bench.requests[2][1].set_exception(ClientClosed())
        assert await again == {"c": ErrorCode.LEADER_NOT_AVAILABLE}

    run(scenario)


def test_it_comes_whether_or_not_anybody_waits_and_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_maker, "KNOWN_S", 0.01)

    async def scenario(bench: Bench) -> None:
        bench.maker.create(topics("a"))
        await asyncio.sleep(0)
        assert bench.requests[0][0] == ["a"]
        bench.answer(0, a=0)
        found = await bench.maker.create(topics("a"))
        assert found == {"a": 0} and len(bench.requests) == 1

    run(scenario)
