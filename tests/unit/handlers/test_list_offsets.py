"""ListOffsets by time: what becomes of the other partitions of a request while one is searched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.handlers import list_offsets
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.replicas import Replica, ReplicaTable

from fastq._native.records import build_batch
from fastq.errors import ErrorCode
from fastq.protocol.messages import ListOffsetsRequest

NOW_MS = 1_700_000_000_000
MAX_TIMESTAMP = -3


class World:
    """A node with some partitions of one record each; `between` is done while each of them is searched."""

    def __init__(self, directory: Path) -> None:
        self.logs = LogManager([directory], clock=lambda: NOW_MS, default_config=LogConfig())
        self.logs.start()
        self.replicas = ReplicaTable(1)
        self.between: Callable[[], object] = lambda: None
        self.searches = 0

    def make(self, topic: str, topic_id: int = 1) -> Replica:
        log = self.logs.create(topic, 0, bytes([topic_id]) * 16)
        log.append(build_batch([(NOW_MS, b"k", b"v")]), leader_epoch=0, now_ms=NOW_MS)
        replica = Replica(log, topic, bytes([topic_id]) * 16, 0)
        replica.leader_id, replica.leader_epoch = 1, 0
        self.replicas.add(replica)
        return replica

    def delete(self, topic: str) -> None:
        for replica in self.replicas.remove_topic(topic, bytes([1]) * 16):
            self.logs.delete(topic, replica.partition)

    async def _call(self, work: Callable[[], Any]) -> Any:
        found = work()
        self.searches += 1
        self.between()
        return found

    def ask(
        self, *topics: str, timestamp: int = 0, epoch: int = -1, replica_id: int = -1
    ) -> dict[str, tuple[int, int]]:
        """Error code and offset by topic."""
        kind = ListOffsetsRequest
        request = kind(
            replica_id=replica_id,
            isolation_level=0,
            topics=[
                kind.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
                    ],
                )
                for topic in topics
            ],
        )
        context: Any = SimpleNamespace(
            api_version=7, replicas=self.replicas, read_ahead=SimpleNamespace(call=self._call)
        )
        answer: Any = list_offsets.handle(context, request)
        if asyncio.iscoroutine(answer):
            answer = asyncio.run(answer)
        return {topic.name: (topic.partitions[0].error_code, topic.partitions[0].offset) for topic in answer.topics}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    for topic in ("a", "b"):
        world.make(topic)
    yield world
    world.logs.close()


@pytest.mark.parametrize("timestamp", [0, MAX_TIMESTAMP])
def test_a_topic_that_is_deleted_meanwhile_is_unknown_and_the_disk_is_well(world: World, timestamp: int) -> None:
    world.between = lambda: world.delete("b")
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert world.ask("a", "b", timestamp=timestamp) == {"a": (0, 0), "b": (unknown, -1)}
    assert world.logs.offline_dirs == {}
    world.logs.logs["a", 0].append(build_batch([(NOW_MS, b"k", b"v")]), leader_epoch=0, now_ms=NOW_MS)


def test_one_that_is_made_anew_meanwhile_answers_for_itself(world: World) -> None:
    def again() -> None:
        if world.searches == 1:
            world.delete("b")
            world.make("b", 2).log.append(build_batch([(NOW_MS + 9, b"k", b"v")]), leader_epoch=0, now_ms=NOW_MS)

    world.between = again
    assert world.ask("a", "b", timestamp=NOW_MS + 5) == {"a": (0, -1), "b": (0, 1)}


def test_leadership_that_moves_meanwhile_is_told(world: World) -> None:
    replica = world.replicas.get("b", 0)
    assert replica is not None

    def move() -> None:
        assert replica is not None
        replica.leader_id, replica.leader_epoch = 2, 1

    world.between = move
    assert world.ask("a", "b", epoch=0)["b"][0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.leader_id, replica.leader_epoch = 1, 0
    assert world.ask("a", "b", replica_id=-2)["b"] == (0, 0), "who debugs asks the replica that follows, too"
    replica.leader_id, replica.leader_epoch = 1, 0
    world.between = lambda: setattr(replica, "leader_epoch", 1)
    assert world.ask("a", "b", epoch=0)["b"][0] == ErrorCode.FENCED_LEADER_EPOCH
