"""A partition of the coordinator's topic in memory, and members that behave: a list for a log, a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fastq_broker.controller.image import MetadataImage, PartitionImage, TopicImage
from fastq_broker.groups.classic_state import Settings
from fastq_broker.groups.consumer_change import ConsumerGroupSettings
from fastq_broker.groups.consumer_group import ConsumerGroup
from fastq_broker.groups.consumer_groups import Client
from fastq_broker.groups.shard import GroupShard, ShardSettings
from fastq_broker.surroundings import Surroundings

from fastq.errors import FencedMemberEpoch, KafkaError, MessageTooLarge, UnknownMemberId
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

CLIENT = Client("test", "/127.0.0.1")
Parts = set[tuple[str, int]]


class Timer:
    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A shard's context: the log is a list, the clock is moved by hand."""

    partition = 0

    def __init__(self, **settings: Any) -> None:
        self.clock_ms = 1_000_000
        self.set_ahead_ms = 0
        """By how much somebody has set the wall clock."""
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: list[Timer] = []
        self.refuse: KafkaError | None = None
        self.batch_bytes_max = 1 << 20
        self.image = MetadataImage()
        self.settings = ConsumerGroupSettings(**{"assignment_interval_ms": 0, **settings})
        self.load()

    def load(self) -> None:
        """A new coordinator: state from the log, nothing else."""
        self.timers.clear()
        self.shard = self.new_shard()
        self.groups: dict[str, Any] = self.shard.groups
        self.consumers = self.shard.consumer
        for key, value in self.log:
            self.shard.replay(key, value, self.clock_ms)
        self.shard.loaded()

    def new_shard(self) -> GroupShard:
        settings = ShardSettings(Settings(initial_rebalance_delay_ms=0), self.settings)
        return GroupShard(self, settings, lambda: self.image)  # type: ignore[arg-type]

    # what a shard's context does

    new_name = staticmethod(Surroundings().new_name)

    @property
    def record_bytes_max(self) -> int:
        return self.batch_bytes_max

    def now_ms(self) -> int:
        return self.clock_ms + self.set_ahead_ms

    def monotonic_ms(self) -> int:
        return self.clock_ms - 500_000

    @property
    def end_offset(self) -> int:
        return len(self.log)

    def when_durable(self, on_done: Callable[[Any], None]) -> None:
        self.append([], on_done)

    def append(
        self, records: Sequence[tuple[bytes, bytes | None]], on_done: Callable[[Any], None], **transaction: Any
    ) -> None:
        on_done(self._write(records) if records else None)

    def append_in_parts(
        self, records: Sequence[tuple[bytes, bytes | None]], on_done: Callable[[Any], None], **transaction: Any
    ) -> None:
        """As many batches as their size asks for; those before one that is refused stay."""
        part: list[tuple[bytes, bytes | None]] = []
        error = None
        for record in records:
            if part and _size_bytes([*part, record]) > self.batch_bytes_max:
                error = self._write(part)
                if error is not None:
                    break
                part = []
            part.append(record)
        on_done(self._write(part) if part and error is None else error)

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> KafkaError | None:
        if self.refuse is not None:
            return self.refuse
        size = _size_bytes(records)
        if size > self.batch_bytes_max:
            return MessageTooLarge(f"{size} bytes")
        for key, value in records:
            self.log.append((key, value))
            self.shard.replay(key, value, self.clock_ms)
        return None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.clock_ms + round(delay_s * 1000), callback)
        self.timers.append(timer)
        return timer

    # what tests do

    def advance(self, ms: int) -> None:
        end_ms = self.clock_ms + ms
        while True:
            self.timers = [timer for timer in self.timers if not timer.cancelled]
            due = min((timer for timer in self.timers if timer.at_ms <= end_ms), key=lambda t: t.at_ms, default=None)
            if due is None:
                break
            self.timers.remove(due)
            self.clock_ms = max(self.clock_ms, due.at_ms)
            due.callback()
        self.clock_ms = end_ms

    def topics(self, **counts: int) -> None:
        """The topics there are from now on."""
        by_name = {
            name: TopicImage(
                name, name.encode().ljust(16, b"."), tuple([PartitionImage(1, 0, 0, (1,), (1,), ())] * count)
            )
            for name, count in counts.items()
        }
        before = self.image
        self.image = MetadataImage(
            offset=before.offset + 1,
            topics_by_name=by_name,
            topics_by_id={topic.topic_id: topic for topic in by_name.values()},
        )
        names = {*before.topics_by_name, *by_name}
        changed = [name for name in names if before.topics_by_name.get(name) != by_name.get(name)]

        delta = SimpleNamespace(
            changed_topics=[(None, by_name[name]) for name in changed if name in by_name],
            deleted_topics=[before.topics_by_name[name] for name in changed if name not in by_name],
        )
        self.consumers.metadata_changed(delta)  # type: ignore[arg-type]

    def beat(self, version: int = 1, client: Client = CLIENT, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat; raises what it is refused with."""
        answers: list[tuple[Any, Any]] = []
        request = ConsumerGroupHeartbeatRequest(group_id="g", **fields)
        self.consumers.heartbeat(request, client, version, lambda response, error: answers.append((response, error)))
        ((response, error),) = answers
        if error is not None:
            raise error
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def join(self, member_id: str, topics: Sequence[str] | None = ("t",), **fields: Any) -> Any:
        names = None if topics is None else list(topics)
        defaults: dict[str, Any] = {"rebalance_timeout_ms": 5000, "topic_partitions": []}
        return self.beat(member_id=member_id, member_epoch=0, subscribed_topic_names=names, **{**defaults, **fields})

    def idle(self, member_id: str, epoch: int) -> Any:
        return self.beat(member_id=member_id, member_epoch=epoch)

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def parts(self, response: ConsumerGroupHeartbeatResponse) -> Parts:
        assert response.assignment is not None
        return {
            (item.topic_id.rstrip(b".").decode(), number)
            for item in response.assignment.topic_partitions
            for number in item.partitions
        }


class SlowWorld(World):
    """What is written is safe when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[KafkaError | None], None]] = []
        super().__init__(session_timeout_ms=60_000)
        self.topics(t=2)

    def append(
        self, records: Sequence[tuple[bytes, bytes | None]], on_done: Callable[[Any], None], **transaction: Any
    ) -> None:
        error = self._write(records)
        if error is None:
            self.waiting.append(on_done)
        else:
            on_done(error)

    append_in_parts = append

    def when_durable(self, on_done: Callable[[Any], None]) -> None:
        if self.waiting:
            self.waiting.append(on_done)
        else:
            on_done(None)

    def replicate(self, error: KafkaError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for on_done in waiting:
            on_done(error)


def _size_bytes(records: Sequence[tuple[bytes, bytes | None]]) -> int:
    return sum(len(key) + len(value or b"") for key, value in records)


def owned_list(world: World, parts: Parts) -> list[Any]:
    names = sorted({name for name, _ in parts})
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(
            topic_id=name.encode().ljust(16, b"."),
            partitions=sorted(number for topic, number in parts if topic == name),
        )
        for name in names
    ]


class Consumer:
    """A well-behaved member: it revokes what it is told to and says so with its next heartbeat."""

    def __init__(self, world: World, member_id: str, topics: Sequence[str] = ("t",), **fields: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.topics = topics
        self.fields = fields
        self.epoch = 0
        self.owned: Parts = set()
        self.to_say = False

    def beat(self) -> Parts | None:
        """A heartbeat; the assignment, if the answer had one."""
        try:
            response = self._ask()
        except (FencedMemberEpoch, UnknownMemberId):
            self.owned, self.epoch = set(), 0
            response = self._ask()
        self.epoch = response.member_epoch
        if response.assignment is None:
            self.to_say = False
            return None
        told = self.world.parts(response)
        self.to_say = told != self.owned
        self.owned = told
        return told

    def _ask(self) -> Any:
        if self.epoch == 0:
            return self.world.join(self.member_id, self.topics, **self.fields)
        partitions = owned_list(self.world, self.owned) if self.to_say else None
        return self.world.beat(member_id=self.member_id, member_epoch=self.epoch, topic_partitions=partitions)


def settle(consumers: Sequence[Consumer]) -> None:
    for _ in range(12):
        for consumer in consumers:
            consumer.beat()
        assert_disjoint(consumers)


def assert_disjoint(consumers: Sequence[Consumer]) -> None:
    everything = [part for consumer in consumers for part in consumer.owned]
    assert len(everything) == len(set(everything)), "two owners"
