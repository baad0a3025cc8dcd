"""Where replicas lie, told to the controller: what is told together, what again, and what not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastq_broker.cluster import directories
from fastq_broker.cluster.directories import DirectoryAssignments
from raft_members import until

from fastq.errors import ClientClosed, ConnectionTimeout, FastqError
from fastq.protocol.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

ONE, TWO = b"1" * 16, b"2" * 16
TOPIC, OTHER = b"t" * 16, b"u" * 16

Told = dict[bytes, set[tuple[bytes, int]]]


class Bench:
    """A controller that the test speaks for."""

    def __init__(self) -> None:
        self.requests: list[tuple[AssignReplicasToDirsRequest, Callable[[Any, FastqError | None], object]]] = []
        self.assignments = DirectoryAssignments(7, self, asyncio.get_running_loop(), lambda: 42)

    def ask(self, request: AssignReplicasToDirsRequest, done: Callable[[Any, FastqError | None], object]) -> None:
        assert (request.broker_id, request.broker_epoch) == (7, 42)
        self.requests.append((request, done))

    @property
    def told(self) -> list[Told]:
        return [
            {
                each.id: {(topic.topic_id, item.partition_index) for topic in each.topics for item in topic.partitions}
                for each in request.directories
            }
            for request, _ in self.requests
        ]

    def answer(self, number: int, error_code: int = 0, refused: dict[tuple[bytes, int], int] | None = None) -> None:
        request, done = self.requests[number]
        kind = AssignReplicasToDirsResponse
        answered = [
            kind.DirectoryData(
                id=each.id,
                topics=[
                    kind.TopicData(
                        topic_id=topic.topic_id,
                        partitions=[
                            kind.PartitionData(
                                partition_index=item.partition_index,
                                error_code=(refused or {}).get((topic.topic_id, item.partition_index), 0),
                            )
                            for item in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.directories
        ]
        done(kind(error_code=error_code, directories=[] if error_code else answered), None)


def run(scenario: Callable[[Bench], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "RETRY_S", 0.001)

    async def main() -> None:
        bench = Bench()
        await asyncio.wait_for(scenario(bench), 10)
        bench.assignments.close()

    asyncio.run(main())


def test_what_is_noted_together_is_told_together_and_what_is_known_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        note = bench.assignments.note
        note((TOPIC, 0), ONE, bytes(16))
        note((TOPIC, 1), TWO, bytes(16))
        note((OTHER, 0), ONE, ONE)
        note((OTHER, 1), ONE, TWO)
        note((OTHER, 1), ONE, ONE)  # somebody else has told it
        await until(lambda: len(bench.requests) == 1)
        assert bench.told == [{ONE: {(TOPIC, 0)}, TWO: {(TOPIC, 1)}}]
        note((OTHER, 2), TWO, ONE)
        await asyncio.sleep(0.01)
        assert len(bench.requests) == 1
        bench.answer(0)
        await until(lambda: len(bench.requests) == 2)
        assert bench.told[1] == {TWO: {(OTHER, 2)}}
        bench.answer(1)
        assert len(bench.assignments) == 0

    run(scenario, monkeypatch)


def test_what_failed_is_told_again_and_what_is_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(5):
            bench.assignments.note((TOPIC, number), ONE, TWO)
        await until(lambda: len(bench.requests) == 1)
        bench.answer(0, error_code=77)
        await until(lambda: len(bench.requests) == 2)
        bench.requests[1][1](None, ConnectionTimeout())
        await until(lambda: len(bench.requests) == 3)
        bench.answer(2, refused={(TOPIC, 0): 100, (TOPIC, 1): 3, (TOPIC, 2): 6, (TOPIC, 3): -1})
        await until(lambda: len(bench.requests) == 4)
        assert bench.told[3] == {ONE: {(TOPIC, 3)}}
        bench.requests[3][1](None, ClientClosed())
        await asyncio.sleep(0.01)
        assert len(bench.requests) == 4

    run(scenario, monkeypatch)


def test_what_cannot_be_told_for_a_moment_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        ask = bench.ask

        def no_memory(request: Any, done: Any) -> None:
            monkeypatch.setattr(bench, "ask", ask)
            raise MemoryError("none left")

        monkeypatch.setattr(bench, "ask", no_memory)
        bench.assignments.note((TOPIC, 0), ONE, TWO)
        await until(lambda: len(bench.requests) == 1)
        bench.answer(0)
        assert len(bench.assignments) == 0

    run(scenario, monkeypatch)


def test_what_an_answer_leaves_is_told_again_where_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told with the next replica that comes, if ever."""

    async def scenario(bench: Bench) -> None:
        bench.assignments.note((TOPIC, 0), ONE, TWO)
        await until(lambda: len(bench.requests) == 1)
        unreadable: Any = AssignReplicasToDirsResponse(directories=[None])  # type: ignore[list-item]
        with pytest.raises(AttributeError):
            bench.requests[0][1](unreadable, None)
        await until(lambda: len(bench.requests) == 2)
        bench.answer(1)
        assert len(bench.assignments) == 0

    run(scenario, monkeypatch)


def test_what_an_answer_leaves_out_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was at once, again and again."""

    async def scenario(bench: Bench) -> None:
        monkeypatch.setattr(directories, "RETRY_S", 0.05)
        bench.assignments.note((TOPIC, 0), ONE, TWO)
        await until(lambda: len(bench.requests) == 1)
        bench.requests[0][1](AssignReplicasToDirsResponse(directories=[]), None)
        await asyncio.sleep(0.01)
        assert len(bench.requests) == 1
        await until(lambda: len(bench.requests) == 2)
        bench.answer(1)
        assert len(bench.assignments) == 0

    run(scenario, monkeypatch)


def test_a_request_has_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "PARTITIONS_MAX", 3)

    async def scenario(bench: Bench) -> None:
        for number in range(7):
            bench.assignments.note((TOPIC, number), ONE, TWO)
        for number in range(3):
            await until(lambda number=number: len(bench.requests) == number + 1)  # type: ignore[misc]
            bench.answer(number)
        assert [len(told[ONE]) for told in bench.told] == [3, 3, 1]

    run(scenario, monkeypatch)
