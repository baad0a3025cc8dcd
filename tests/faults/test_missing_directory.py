"""A log directory that is not there at the start, or cannot be read: what was in it is not served as if it had been empty, and is all there
again with the directory."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import NewPartitions, NewTopic
from fastq_broker.log.files import Files

from fastq._native.records import build_batch
from fastq.errors import ErrorCode

TOPICS = ["a", "b", "c", "d"]


class Node:
    """A node on some of the directories below a place; `ends` are where its partitions' logs end, or why they are not served."""

    def __init__(self, place: Path, *names: str) -> None:
        self.place = place
        settings = {
            "log.dirs": [str(place / name) for name in names],
            "metadata.log.dir": str(place / "metadata"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
        }
        self.broker = Broker(BrokerConfig.from_mapping(settings), asyncio.get_running_loop())

    async def __aenter__(self) -> Node:
        await self.broker.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert await self.broker.close()

    def create(self, *names: str) -> None:
        results = self.broker.controller.create_topics([NewTopic(name, 1) for name in names])
        assert not any(result.error for result in results)
        self.broker.controller.settle()

    def delete(self, name: str) -> None:
        topic = self.broker.controller.image.topics_by_name[name]
        assert not self.broker.controller.delete_topics([topic.topic_id])[0].error
        self.broker.controller.settle()

    def append(self, *names: str) -> None:
        for name in names:
            replica = self.broker.replicas.get(name, 0)
            assert replica is not None
            replica.log.append(build_batch([(0, None, b"v")]), leader_epoch=replica.leader_epoch, now_ms=0)

    @property
    def ends(self) -> list[object]:
        found = [self.broker.replicas.leader(name, 0) for name in TOPICS]
        return [ErrorCode(item) if isinstance(item, int) else item.log.log_end_offset for item in found]

    @property
    def registered(self) -> int:
        return len(self.broker.controller.image.brokers[1].directories)


async def fill(place: Path) -> list[object]:
    """Four topics of one record each, in two directories; answers what is to be seen of them without the second one."""
    async with Node(place, "x", "y") as node:
        node.create(*TOPICS)
        node.append(*TOPICS)
        return [
            1 if node.broker.logs.logs[name, 0].path.startswith(f"{place}/x/") else ErrorCode.KAFKA_STORAGE_ERROR
            for name in TOPICS
        ]


@pytest.mark.parametrize("without", [("x", "y"), ("x",), ("x", "new")])
def test_what_is_in_a_missing_directory_is_not_made_anew(
    tmp_path: Path, without: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """An unmounted disk: its directory was formatted, its partitions began at 0, and nobody was told."""

    async def run() -> None:
        seen = await fill(tmp_path)
        assert seen.count(1) == 2
        (tmp_path / "y").rename(tmp_path / "away")
        for _ in range(2):  # the start after that knows it too
            caplog.clear()
            async with Node(tmp_path, *without) as node:
                assert node.ends == seen
                node.broker.controller.create_partitions([NewPartitions(name, 2) for name in TOPICS])
                node.broker.controller.settle()
                assert node.ends == seen
            assert "2 partitions are not served (" in caplog.text
        if (tmp_path / "y").exists():
            (tmp_path / "y").rename(tmp_path / "empty")
        (tmp_path / "away").rename(tmp_path / "y")
        caplog.clear()
        async with Node(tmp_path, *dict.fromkeys([*without, "y"])) as node:
            assert node.ends == [1, 1, 1, 1]
            # Partitions that were made in the directory in its place are missing in their turn.
            assert ("3 partitions are not served" in caplog.text) == ("y" in without)
            assert ("not served" in caplog.text) == ("y" in without)

    asyncio.run(run())


def test_a_topic_of_a_missing_directory_is_given_up_by_its_deletion(tmp_path: Path) -> None:
    async def run() -> None:
        seen = await fill(tmp_path)
        (tmp_path / "y").rename(tmp_path / "away")
        async with Node(tmp_path, "x") as node:
            assert node.registered == 2
            gone = [name for name, end in zip(TOPICS, seen, strict=True) if end != 1]
            for name in gone:
                node.delete(name)
                node.create(name)
            assert node.ends == [1 if end == 1 else 0 for end in seen]
            node.append(*gone)
        async with Node(tmp_path, "x") as node:
            assert node.ends == [1, 1, 1, 1]
            node.broker.controller.settle()
            assert node.registered == 1

    asyncio.run(run())


class Unreadable(Files):
    """A directory of that name cannot be listed."""

    def listdir(self, path: str) -> list[str]:
        if os.path.basename(path) == "y":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().listdir(path)


def test_what_is_in_a_directory_that_cannot_be_read_is_not_made_anew(tmp_path: Path) -> None:
    async def run() -> None:
        seen = await fill(tmp_path)
        node = Node(tmp_path, "x", "y")
        node.broker.logs.files = Unreadable()
        await node.broker.start()
        assert node.ends == seen
        await node.broker.close()
        async with Node(tmp_path, "x", "y") as node:
            assert node.ends == [1, 1, 1, 1]

    asyncio.run(run())
