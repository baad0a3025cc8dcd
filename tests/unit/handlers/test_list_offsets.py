"""ListOffsets by time: what becomes of the rest, other partitions and other segments, while one is searched."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.handlers import list_offsets
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.replicas import Replica, ReplicaTable

from fastq import compression
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
            replica.retire()
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


def test_a_batch_whose_codec_is_not_installed_is_an_error_of_its_own_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was every partition's of the request, and an unknown one."""
    packed = build_batch([(NOW_MS + 5, b"k", b"v"), (NOW_MS + 9, b"k", b"v")], codec=compression.Codec.LZ4)
    world.make("c").log.append(packed, leader_epoch=0, now_ms=NOW_MS)
    compression._lz4_frame.cache_clear()
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    answers = world.ask("a", "c", "b", timestamp=NOW_MS)
    assert answers == {"a": (0, 0), "c": (0, 0), "b": (0, 0)}, "what is in no such batch is found"
    cannot = int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert world.ask("a", "c", "b", timestamp=NOW_MS + 6) == {"a": (0, -1), "c": (cannot, -1), "b": (0, -1)}


def _segments_without_the_record(world: World, segments: int) -> PartitionLog:
    """A log each of whose first segments had a late record, that was deleted: only the last has one still."""
    log = world.make("many").log
    for number in range(1, segments):
        log.roll(NOW_MS)
        for timestamp in (NOW_MS - number, NOW_MS - 1000):
            log.append(build_batch([(timestamp, b"k", b"v")]), leader_epoch=0, now_ms=NOW_MS)
    log.log_start_offset = log.log_end_offset - 3  # as if it had been done of each
    return log


def test_it_goes_on_where_a_segment_has_no_such_record_any_more(world: World) -> None:
    log = _segments_without_the_record(world, 5)
    wanted = log.log_end_offset - 2
    world.searches = 0
    assert world.ask("many", timestamp=NOW_MS - 500) == {"many": (0, wanted)}
    assert world.searches == 5
    assert world.ask("many", timestamp=NOW_MS + 1) == {"many": (0, -1)}


def _merge(log: PartitionLog) -> None:
    """What compaction does to segments, as far as a search can tell."""
    del log.segments[1:3], log._bases[1:3]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda log: log.drop_oldest(3), (0, 7)),
        (_merge, (0, 7)),
        (lambda log: log.truncate_to(6), (0, -1)),
        (lambda log: log.truncate_fully_and_start_at(3), (0, -1)),
        (lambda log: log.truncate_fully_and_start_at(100), (0, -1)),
    ],
    ids=["oldest gone", "compacted", "cut", "emptied", "begun anew"],
)
def test_what_becomes_of_the_segments_meanwhile(
    world: World, change: Callable[[PartitionLog], object], answer: tuple[int, int]
) -> None:
    log = _segments_without_the_record(world, 5)
    world.searches = 0

    def between() -> None:
        if world.searches == 1:
            change(log)

    world.between = between
    assert world.ask("many", timestamp=NOW_MS - 500) == {"many": answer}
    assert world.logs.offline_dirs == {}


def test_the_topic_is_deleted_between_two_segments(world: World) -> None:
    _segments_without_the_record(world, 5)
    world.between = lambda: world.delete("many")
    assert world.ask("many", timestamp=NOW_MS - 500) == {"many": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}
    assert world.logs.offline_dirs == {}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not tell what is open")
def test_of_many_segments_one_is_open_at_a_time(world: World) -> None:
    """Those that the budget cannot close, as a search holds them: a process that may have few descriptors failed at each attempt."""
    log = world.make("many").log
    for number in range(1, 40):
        log.roll(NOW_MS)
        log.append(build_batch([(NOW_MS + number, b"k", b"v")]), leader_epoch=0, now_ms=NOW_MS)
    world.logs.budget.limit = 4
    most: list[int] = []
    world.between = lambda: most.append(len(os.listdir("/proc/self/fd")))
    gc.collect()
    world.logs.budget.close()
    before = len(os.listdir("/proc/self/fd"))
    assert world.ask("many", timestamp=NOW_MS) == {"many": (0, 0)}
    assert world.ask("many", timestamp=NOW_MS + 20) == {"many": (0, 20)}
    assert max(most) <= before + 10
