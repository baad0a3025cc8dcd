"""Topics that come, go and come back, with a loss of power or a kill after any step: nothing that was told is untrue afterwards.

Controller, logs and partitions are wired as a broker wires them, over a disk that forgets what was not synced and a flusher whose jobs end
one by one in any order. After each step the disk that would be left is started, and held against what clients were told.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import Controller, NewPartitions, NewTopic
from fastq_broker.controller.config_changes import ConfigChange, ConfigOperation, ResourceChange
from fastq_broker.log import LogManager, PartitionLog
from fastq_broker.log.files import Files
from fastq_broker.log.flusher import Flusher, ManualFlusher
from fastq_broker.log.retention import apply_retention
from fastq_broker.partitions import Partitions
from fastq_broker.purgatory import Purgatory
from fastq_broker.replicas import ReplicaTable
from fastq_broker.throttles import ReplicationThrottles
from faulty_files import Fault
from forgetful_disk import ForgetfulFiles, UnorderedFlusher, kill

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import KafkaError

NOW = 1_790_000_000_000
HOUR_MS = 3_600_000


class Node:
    """What a broker consists of below its connections."""

    def __init__(self, root: Path, files: Files, flusher: Flusher, loop: asyncio.AbstractEventLoop) -> None:
        config = BrokerConfig.from_mapping({"log.dirs": str(root), "listeners": "PLAINTEXT://127.0.0.1:9092"})
        self.files = files
        self.logs = LogManager([root], clock=lambda: NOW, files=files, flusher=flusher)
        self.logs.lock()
        self.controller = Controller(config, clock=lambda: NOW, log_dir=self.logs.dirs[0])
        self.controller.open()
        self.controller.register_broker(config.advertised_listeners)
        self.replicas = ReplicaTable(1)
        throttles = ReplicationThrottles(config, lambda: NOW)
        self.partitions = Partitions(self.controller, self.logs, self.replicas, Purgatory(loop), throttles)
        self.partitions.find_logs()
        self.logs.recover()
        loop.run_until_complete(self.partitions.start())
        self.controller.subscribe(self.partitions.metadata_changed)
        assert not self.logs.offline_dirs

    def stop(self) -> None:
        """As a killed process."""
        self.logs.release_locks()


@dataclass
class Topic:
    """A topic as its clients know it: what they asked for, and what they were told. Offsets by partition."""

    name: str
    topic_id: bytes
    partitions: int
    synchronous: bool
    told_created: bool = False
    asked_delete: bool = False
    told_deleted: bool = False
    asked_retention: bool = False
    asked_start: dict[int, int] = field(default_factory=dict)
    written: dict[int, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """One above the last acknowledged offset."""
    on_disk: dict[int, int] = field(default_factory=dict)
    """The same for those that are promised to outlast a loss of power."""


class Model:
    """Random requests to a node, and what is known of its topics."""

    def __init__(self, root: Path, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self.root = root
        self.choose = random.Random(seed)
        self.files = ForgetfulFiles()
        self.flusher = UnorderedFlusher(self.files)
        self.loop = loop
        self.node = Node(root, self.files, self.flusher, loop)
        while self.flusher.step(self.choose):
            pass
        self.files.all_on_disk(root)
        self.topics: list[Topic] = []
        self.count = 0

    # What clients ask for

    def current(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name and not topic.asked_delete), None)

    def create(self, name: str, *, synchronous: bool | None = None, partitions: int | None = None) -> None:
        """A topic, with durability=fsync or without; what is None is drawn."""
        if synchronous is None:
            synchronous = self.choose.random() < 0.7
        configs = [("durability", "fsync")] if synchronous else []
        count = partitions or self.choose.choice([1, 2])
        (result,) = self.node.controller.create_topics([NewTopic(name, count, configs=configs)])
        assert not result.error, result.message
        topic = Topic(name, result.topic_id, count, synchronous)
        self.topics.append(topic)
        self.when_told(lambda: setattr(topic, "told_created", True))

    def when_told(self, note: Callable[[], None]) -> None:
        """As a handler does that waits for `Controller.flushed`."""
        quorum = self.node.controller.quorum
        quorum.when_committed(quorum.end_offset, lambda error: None if error else note())

    def delete(self, topic: Topic) -> None:
        topic.asked_delete = True
        self.node.controller.delete_topics([topic.topic_id])
        self.when_told(lambda: setattr(topic, "told_deleted", True))

    def grow(self, topic: Topic) -> None:
        self.node.controller.create_partitions([NewPartitions(topic.name, topic.partitions + 1)])
        topic.partitions += 1

    def shorten_retention(self, topic: Topic) -> None:
        topic.asked_retention = True
        change = ConfigChange("retention.ms", ConfigOperation.SET, "1")
        self.node.controller.alter_configs([ResourceChange(ResourceType.TOPIC, topic.name, [change])])

    def log_of(self, topic: Topic) -> tuple[int, PartitionLog | None]:
        """A log of a topic; None where its record is not on disk yet."""
        number = self.choose.randrange(topic.partitions)
        log = self.node.logs.get(topic.name, number)
        return number, log if log is not None and log.topic_id == topic.topic_id else None

    def append(self, topic: Topic) -> None:
        number, log = self.log_of(topic)
        if log is None:
            return
        self.count += 1
        value = f"{topic.topic_id.hex()} {self.count}".encode()
        batch = build_batch([(NOW - HOUR_MS, None, value)])
        topic.written.setdefault(number, []).append(value)
        end = log.append(batch, leader_epoch=0, now_ms=NOW).last_offset + 1
        assert end == len(topic.written[number])

        def told(error: KafkaError | None) -> None:
            if error is None:
                topic.acknowledged[number] = max(topic.acknowledged.get(number, 0), end)
                if topic.synchronous:
                    topic.on_disk[number] = max(topic.on_disk.get(number, 0), end)

        log.wait_durable(end, told)

    def delete_records(self, topic: Topic) -> None:
        number, log = self.log_of(topic)
        if log is not None:
            topic.asked_start[number] = max(topic.asked_start.get(number, 0), log.delete_records_before(-1))

    def retain(self) -> None:
        for log in list(self.node.logs.logs.values()):
            apply_retention(log, NOW)

    def write_checkpoints(self) -> None:
        log_dir = self.node.logs.dirs[0]
        self.node.logs._checkpoint(log_dir)

    def roll(self, topic: Topic) -> None:
        _, log = self.log_of(topic)
        if log is not None:
            log.roll(NOW)

    def request(self) -> None:
        name = self.choose.choice(["a", "b"])
        topic = self.current(name)
        if topic is None:
            self.create(name)
            return
        action = self.choose.choices(
            [
                lambda: self.append(topic),
                lambda: self.delete(topic),
                lambda: self.grow(topic) if topic.partitions < 4 else None,
                lambda: self.shorten_retention(topic),
                lambda: self.delete_records(topic),
                self.retain,
                self.write_checkpoints,
                lambda: self.roll(topic),
                self.node.logs.tick,
            ],
            [12, 3, 1, 1, 1, 2, 3, 1, 2],
        )[0]
        action()

    # What must be true afterwards

    def check(self, target: Path, *, power_lost: bool) -> None:
        if power_lost:
            self.files.lose_power(self.root, target)
        else:
            kill(self.root, target)
        node = Node(target, Files(), ManualFlusher(Files()), self.loop)
        image = node.controller.image
        for topic in self.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if topic.told_deleted:
                assert found is None, "a topic is back whose deletion was acknowledged"
            if found is None:
                gone = topic.told_created or topic.on_disk or (topic.acknowledged and not power_lost)
                assert topic.asked_delete or not gone, f"{topic.name} is gone"
                continue
            retention = image.topic_configs(topic.name).get("retention.ms")
            for number in range(len(found.partitions)):
                log = node.logs.get(topic.name, number)
                assert log is not None
                assert log.topic_id == topic.topic_id
                self.check_log(topic, number, log, power_lost=power_lost, retention=retention == "1")
        node.stop()

    def check_log(self, topic: Topic, number: int, log: PartitionLog, *, power_lost: bool, retention: bool) -> None:
        told = topic.on_disk if power_lost else topic.acknowledged
        written = topic.written.get(number, [])
        start = log.log_start_offset
        if not retention:
            assert start <= topic.asked_start.get(number, 0), f"{log.name} begins at {start}: records are gone"
        assert log.log_end_offset >= told.get(number, 0), f"{log.name} has lost acknowledged records"
        found = dict(records_of(log))
        for offset in range(start, log.log_end_offset):
            assert found[offset] == written[offset], f"{log.name} has a record of another log at {offset}"


def records_of(log: PartitionLog) -> Iterator[tuple[int, bytes]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data: Any = log.read(offset, 1 << 20, upper_offset=log.log_end_offset).read()
        for position, header in iter_headers(data, strict=True):
            for record in decode_records(data, position):
                yield record.offset, record.value or b""
            offset = header.next_offset


@pytest.mark.parametrize("seed", range(5))
def test_what_was_told_is_true_after_any_step(tmp_path: Path, seed: int, soak: bool) -> None:
    loop = asyncio.new_event_loop()
    for round_ in range(20 if soak else 1):
        model = Model(tmp_path / f"data{round_}", seed + 1000 * round_, loop)
        checked = 0
        for _ in range(50):
            for _ in range(model.choose.choice([1, 1, 2, 4])):
                model.request()
            while model.choose.random() < 0.6:
                if not model.flusher.step(model.choose):
                    break
            for power_lost in (True, False):
                checked += 1
                model.check(tmp_path / f"left{round_}-{checked}", power_lost=power_lost)
        model.node.stop()
    loop.close()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    loop = asyncio.new_event_loop()
    model = Model(tmp_path / "data", 0, loop)
    yield model
    model.node.stop()
    loop.close()


METADATA = "__cluster_metadata"


def settle(model: Model, *, but: str = "/nothing/") -> None:
    """Let the disk end what it was asked for, but for one log."""
    while model.flusher.step(model.choose, but=but):
        pass


def test_retention_waits_for_its_settings(model: Model, tmp_path: Path) -> None:
    model.create("a")
    settle(model)
    topic = model.topics[0]
    model.append(topic)
    settle(model)
    model.shorten_retention(topic)
    model.retain()
    for log in model.node.logs.logs.values():
        log.flush()
    settle(model, but=METADATA)
    model.check(tmp_path / "left", power_lost=True)
    settle(model)
    model.retain()
    assert all(log.log_start_offset == log.log_end_offset for log in model.node.logs.logs.values())


def test_files_of_a_deleted_topic_wait_for_its_deletion(model: Model, tmp_path: Path) -> None:
    model.create("a")
    settle(model)
    topic = model.topics[0]
    model.append(topic)
    settle(model)
    model.delete(topic)
    assert model.node.logs.get("a", 0) is not None, "it may still be there after a loss of power"
    model.files.sync_directory(str(model.root))
    settle(model, but=METADATA)
    model.check(tmp_path / "left", power_lost=True)
    assert (model.root / "a-0").exists()
    settle(model)
    assert topic.told_deleted
    assert model.node.logs.get("a", 0) is None
    assert not (model.root / "a-0").exists()


def test_a_change_that_came_while_a_sync_ran_waits_for_its_own(model: Model) -> None:
    model.create("a")
    settle(model)
    model.create("b")
    model.delete(model.topics[0])
    assert model.flusher.step(model.choose)
    old, new = model.topics
    assert new.told_created and model.node.logs.get("b", 0) is not None
    assert not old.told_deleted
    assert model.node.logs.get("a", 0) is not None and (model.root / "a-0").exists()
    settle(model)
    assert old.told_deleted and not (model.root / "a-0").exists()


CHECKPOINTS = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
]


def checkpointed(root: Path, topic: str) -> list[tuple[str, str]]:
    """The lines of a topic in all checkpoint files that are there."""
    found = [(name, root / name) for name in CHECKPOINTS]
    lines = [(name, line) for name, path in found if path.exists() for line in path.read_text().splitlines()]
    return [(name, line) for name, line in lines if line.startswith(f"{topic} ")]


@pytest.mark.parametrize("fsync", [True, False])
def test_a_recreated_topic_forces_the_deletion_before_it(model: Model, tmp_path: Path, fsync: bool) -> None:
    model.create("a", synchronous=fsync)
    settle(model)
    for _ in range(3):
        model.append(model.topics[0])
    settle(model)
    model.node.logs.write_checkpoints(model.node.logs.dirs[0], wait=True)
    model.delete(model.topics[0])
    model.create("a", synchronous=fsync)
    assert len(list(model.root.glob("a-*-delete"))) == model.topics[0].partitions
    settle(model)
    assert not checkpointed(model.root, "a")
    for _ in range(2):
        model.append(model.topics[1])
    settle(model)
    assert sum(model.topics[1].acknowledged.values()) == 2
    assert sum(model.topics[1].on_disk.values()) == (2 if fsync else 0)  # which the check holds the disk against
    for number, power_lost in enumerate((True, False)):
        model.check(tmp_path / f"left{number}", power_lost=power_lost)


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_recreated_topic_begins_at_0_where_records_of_the_old_one_were_deleted(
    model: Model, tmp_path: Path, power_lost: bool
) -> None:
    for name in ("a", "other"):
        model.create(name, synchronous=True, partitions=1)
        settle(model)
        for _ in range(3):
            model.append(model.topics[-1])
        settle(model)
        old = model.node.logs.get(name, 0)
        assert old is not None and old.delete_records_before(2) == 2
    model.node.logs.write_checkpoints(model.node.logs.dirs[0], wait=True)
    settle(model)
    assert ("log-start-offset-checkpoint", "a 0 2") in checkpointed(model.root, "a")
    model.delete(model.topics[0])
    model.create("a", synchronous=True, partitions=1)
    settle(model)
    assert not checkpointed(model.root, "a")
    model.append(model.topics[-1])
    settle(model)
    target = tmp_path / "left"
    if power_lost:
        model.files.lose_power(model.root, target)
    else:
        kill(model.root, target)
    assert not checkpointed(target, "a")
    assert ("log-start-offset-checkpoint", "other 0 2") in checkpointed(target, "other")
    node = Node(target, Files(), ManualFlusher(Files()), model.loop)
    log = node.logs.get("a", 0)
    assert log is not None and log.topic_id == model.topics[-1].topic_id
    assert log.log_start_offset == 0
    assert list(records_of(log)) == [(0, model.topics[-1].written[0][0])]
    node.stop()


def test_a_topic_is_there_once_its_record_is_on_disk(model: Model) -> None:
    model.choose.random = lambda: 0.0  # type: ignore[method-assign]  # with durability=fsync
    model.create("a")
    topic = model.topics[0]
    settle(model, but=METADATA)
    model.append(topic)
    assert model.node.logs.get("a", 0) is None and not topic.told_created and not topic.written
    settle(model)
    assert topic.told_created
    model.append(topic)
    settle(model)
    assert sum(topic.acknowledged.values()) == 1


def test_deletions_that_come_before_a_failed_disk_leave_the_files(model: Model, tmp_path: Path) -> None:
    model.create("a")
    settle(model)
    topic = model.topics[0]
    model.append(topic)
    settle(model)
    model.files.plan(Fault("sync", errno.EIO, METADATA))
    model.delete(topic)
    settle(model)
    assert model.node.logs.dirs[0].offline is not None
    assert (model.root / "a-0").exists()
    assert not topic.told_deleted
    model.check(tmp_path / "left", power_lost=True)
