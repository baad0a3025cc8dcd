"""A shard that is a table of keys, its runtime on a real broker, and a short way to write to it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastq_broker.broker import Broker
from fastq_broker.controller.topics import OFFSETS_TOPIC
from fastq_broker.coordinator import CoordinatorRuntime, ShardContext

from fastq._native.wire import DecodeError
from fastq.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError


class Table:
    """A shard that keeps the latest value of each key, and transactions apart until their marker comes."""

    def __init__(self, context: ShardContext) -> None:
        self.context = context
        self.values: dict[bytes, bytes] = {}
        self.pending: dict[int, dict[bytes, bytes | None]] = {}
        self.events: list[str] = []

    def replay(
        self, key: bytes, value: bytes | None, timestamp_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if key == b"bad":
            raise DecodeError("a good key", 0)
        if key == b"worse":
            raise KeyError("a mistake in the shard")
        if producer_id >= 0:
            self.pending.setdefault(producer_id, {})[key] = value
        elif value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        for key, value in self.pending.pop(producer_id, {}).items():
            if committed and value is not None:
                self.values[key] = value

    def loaded(self) -> None:
        self.events.append("loaded")

    def unloaded(self) -> None:
        self.events.append("unloaded")


class Tables:
    """A runtime of tables, added to a broker before it starts."""

    runtime: CoordinatorRuntime[Table]

    def __call__(self, broker: Broker) -> None:
        self.runtime = CoordinatorRuntime(broker, OFFSETS_TOPIC, Table)
        broker.coordinators = [self.runtime]

    async def shard(self, key: str) -> Table:
        """The loaded shard of a key; the topic is created if need be."""
        while True:
            try:
                return self.runtime.shard_for(key)
            except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
                await asyncio.sleep(0.001)


def put(shard: Table, records: list[tuple[bytes, bytes | None]], **options: Any) -> KafkaError | None:
    answers: list[KafkaError | None] = []
    shard.context.append(records, answers.append, **options)
    assert len(answers) == 1, "with page-cache durability the answer comes at once"
    return answers[0]
