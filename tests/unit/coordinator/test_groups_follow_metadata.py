"""The group coordinator of a real broker as topics come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.controller.topics import NewTopic
from fastq_broker.groups.group import Committer
from fastq_broker.groups.shard import Commit, GroupShard

from fastq.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable


async def shard_of(broker: Broker, group_id: str) -> GroupShard:
    while True:
        try:
            return broker.groups.shard(group_id)
        except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
            await asyncio.sleep(0.001)


def create(broker: Broker) -> None:
    (made,) = broker.controller.create_topics([NewTopic("t", 1, 1)])
    assert not made.error, made.message
    broker.controller.settle()


def test_groups_that_cannot_follow_a_change_for_a_moment_keep_no_others_from_it(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of partitions behind them did not look at the topics again, and kept offsets of one that was deleted."""

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    async def work(broker: Broker) -> None:
        by_partition = {broker.groups.partition_for(name): name for name in map(str, range(50))}
        shards = [await shard_of(broker, by_partition[partition]) for partition in sorted(by_partition)]
        assert len(shards) == 4
        create(broker)
        for partition, shard in zip(sorted(by_partition), shards, strict=True):
            commit = Commit(by_partition[partition], Committer("", -1, None), [("t", 0, 1, -1, None)], 9)
            shard.commit(commit, lambda errors: None)
            assert shard.committed_in(by_partition[partition], "t", 0) is not None
        first, *others = broker.groups.runtime.shards()
        told: list[GroupShard] = []
        for shard in others:
            monkeypatch.setattr(shard.consumer, "metadata_changed", lambda delta, shard=shard: told.append(shard))
        monkeypatch.setattr(first.consumer, "metadata_changed", no_memory)
        monkeypatch.setattr(first, "topics_deleted", no_memory)
        topic = broker.controller.image.topic("t")
        assert topic is not None
        broker.controller.delete_topics([topic.topic_id])
        broker.controller.settle()
        assert told == others
        assert not any(shard.offsets.topics() for shard in others)
        assert first.offsets.topics()
        monkeypatch.undo()
        create(broker)
        assert not first.offsets.topics()

    bench.run(work)
