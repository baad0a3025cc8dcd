"""Offsets that groups have committed for a topic that is deleted and made again, with a loss of power or a kill after every file operation:
the topic and its offsets are there together or gone together, and the new topic has none of the old one's.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, NewTopic
from fastq_broker.controller.image import MetadataImage
from fastq_broker.groups.classic_state import Committer
from fastq_broker.groups.service import GroupCoordinator
from fastq_broker.groups.shard import Commit
from fastq_broker.log import LogManager
from fastq_broker.log.files import Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.half_done import RETRY_MS_MAX
from fastq_broker.output import ReadAhead
from fastq_broker.partitions import Partitions
from fastq_broker.purgatory import Purgatory
from fastq_broker.replicas import ReplicaTable
from fastq_broker.surroundings import Surroundings
from fastq_broker.throttles import ReplicationThrottles
from faulty_files import Fault
from forgetful_disk import ForgetfulFiles, kill

from fastq.errors import ErrorCode

NOW = 1_790_000_000_000
OFFSETS = "__consumer_offsets"


class WatchedFiles(ForgetfulFiles):
    """Tells of every write and sync, once it is done."""

    after: Callable[[], None] = staticmethod(lambda: None)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:  # type: ignore[override]
        written = super().pwrite(fd, data, position)
        self.after()
        return written

    def sync_data(self, fd: int) -> None:  # type: ignore[override]
        super().sync_data(fd)
        self.after()


class Node:
    """A broker's metadata, logs and groups, without its connections."""

    def __init__(self, root: Path, files: Files, loop: asyncio.AbstractEventLoop) -> None:
        config = BrokerConfig.from_mapping(
            {"log.dirs": str(root), "listeners": "PLAINTEXT://127.0.0.1:9092", "offsets.topic.num.partitions": 1}
        )
        self.loop = loop
        self.logs = LogManager([root], clock=lambda: NOW, files=files, flusher=ManualFlusher(files))
        self.logs.lock()
        self.controller = Controller(config, clock=lambda: NOW, log_dir=self.logs.dirs[0])
        self.controller.open()
        self.controller.register_broker(config.advertised_listeners)
        replicas, controller = ReplicaTable(1), self.controller

        class Parts(SimpleNamespace):
            @property
            def image(self) -> Any:
                return controller.image

        parts: Any = Parts(
            config=config,
            node_id=1,
            loop=loop,
            clock=lambda: NOW,
            controller=controller,
            logs=self.logs,
            replicas=replicas,
            read_ahead=ReadAhead(loop),
            surroundings=Surroundings(),
        )
        self.groups = GroupCoordinator(parts)
        throttles = ReplicationThrottles(config, lambda: NOW)
        partitions = Partitions(controller, self.logs, replicas, Purgatory(loop), throttles)
        partitions.find_logs()
        self.logs.recover()
        loop.run_until_complete(partitions.start())
        controller.subscribe(partitions.metadata_changed)

    def load_groups(self) -> None:
        self.groups.follow()
        while self.groups.runtime.loading:
            assert not self.groups.runtime._retries
            self.loop.run_until_complete(asyncio.sleep(0))

    def create(self, name: str) -> bytes:
        (made,) = self.controller.create_topics([NewTopic(name, 1)])
        self.controller.settle()
        assert not made.error, made.message
        return bytes(made.topic_id)

    def committed(self) -> int:
        found = self.groups.shard("g").offsets.get("g", "orders", 0)
        return -1 if found is None else found.offset

    def stop(self) -> None:
        self.groups.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.logs.release_locks()


class World:
    """A node with a topic and an offset committed for it, all on disk; then every state of the disk is looked at."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.root = tmp_path / "data"
        self.loop = asyncio.new_event_loop()
        self.files = WatchedFiles()
        self.node = Node(self.root, self.files, self.loop)
        self.node.create(OFFSETS)
        self.old_id = self.node.create("orders")
        self.node.logs.flusher.wait()
        self.node.load_groups()
        self.commit(7)
        self.node.logs.flusher.wait()
        self.files.all_on_disk(self.root)
        self.left: list[tuple[Path, bool]] = []
        self.files.after = self.keep

    def commit(self, offset: int) -> None:
        errors: list[dict[Any, int]] = []
        committer = Committer("", -1, None)
        self.node.groups.shard("g").commit(Commit("g", committer, [("orders", 0, offset, -1, None)], 9), errors.append)
        assert errors == [{("orders", 0): 0}]

    def keep(self) -> None:
        for power_lost in (True, False):
            target = self.tmp_path / f"left{len(self.left)}"
            if power_lost:
                self.files.lose_power(self.root, target)
            else:
                kill(self.root, target)
            self.left.append((target, power_lost))

    def check_all(self) -> set[tuple[bool, int]]:
        """Start what each crash has left; answers what was found: whether the old topic was there, and its offset."""
        self.files.after = lambda: None
        found: set[tuple[bool, int]] = set()
        for target, power_lost in self.left:
            node = Node(target, Files(), self.loop)
            node.load_groups()
            topic = node.controller.image.topics_by_name.get("orders")
            is_old = topic is not None and topic.topic_id == self.old_id
            assert node.committed() == (7 if is_old else -1), f"{target.name}, power lost: {power_lost}"
            found.add((is_old, node.committed()))
            node.stop()
        return found

    def close(self) -> None:
        self.files.after = lambda: None
        self.node.stop()
        self.loop.close()


@pytest.mark.parametrize("settled", ["nothing", "deletion", "all"])
def test_offsets_and_their_topic_go_together_whenever_it_crashes(tmp_path: Path, settled: str) -> None:
    """`settled` is what the disk was given time for between the deletion and the creation."""
    world = World(tmp_path)
    world.node.controller.delete_topics([world.old_id])
    assert world.node.committed() == 7, "before the deletion is on disk it may be undone"
    if settled == "deletion":
        world.node.controller.settle()
        assert world.node.committed() == -1
    elif settled == "all":
        world.node.logs.flusher.wait()
    world.node.create("orders")
    assert world.node.committed() == -1
    world.node.logs.flusher.wait()
    world.keep()
    assert world.check_all() == {(True, 7), (False, -1)}
    world.close()


def test_a_topic_that_is_made_again_while_its_offsets_load_has_none_of_them(tmp_path: Path) -> None:
    """What was loading learned of the deletion in memory alone: a crash brought the old offsets back under the new topic."""
    world = World(tmp_path)
    world.node.groups.runtime.unload(0)
    world.node.groups.follow()
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    (refused,) = world.node.controller.create_topics([NewTopic("orders", 1)])
    world.keep()
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "(one of orders) are still being loaded; try it again" in refused.message
    assert OFFSETS in refused.message
    world.node.load_groups()
    assert world.node.committed() == -1
    world.node.create("orders")
    world.node.logs.flusher.wait()
    world.keep()
    assert world.check_all() == {(True, 7), (False, -1)}
    assert world.node.groups._leaving == []
    world.close()


def test_offsets_that_cannot_be_deleted_for_want_of_descriptors_are_when_their_topic_is_made_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    log = world.node.logs.logs[OFFSETS, 0]
    now_ms = log.dir.monotonic_ms()
    log.dir.monotonic_ms = lambda: now_ms
    world.files.plan(Fault("open", errno.EMFILE, f"{OFFSETS}-0", repeat=True))
    log.unload(0)
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    (refused,) = world.node.controller.create_topics([NewTopic("orders", 1)])
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert not world.node.logs.offline_dirs
    world.files.heal()
    now_ms += RETRY_MS_MAX
    world.node.create("orders")
    assert world.node.committed() == -1
    world.keep()
    assert world.check_all() >= {(False, -1)}
    assert world.node.groups._leaving == []
    world.close()


def test_offsets_that_could_not_be_deleted_are_not_taken_from_a_topic_that_another_node_has_made_since(
    tmp_path: Path,
) -> None:
    """Those of the younger topic went, with the next creation of one that was deleted together with the older one."""
    world = World(tmp_path)
    world.files.after = lambda: None
    other_id = world.node.create("others")
    log = world.node.logs.logs[OFFSETS, 0]
    now_ms = log.dir.monotonic_ms()
    log.dir.monotonic_ms = lambda: now_ms
    world.files.plan(Fault("open", errno.EMFILE, f"{OFFSETS}-0", repeat=True))
    log.unload(0)
    world.node.controller.delete_topics([world.old_id, other_id])
    world.node.controller.settle()
    world.files.heal()
    now_ms += RETRY_MS_MAX
    ask, world.node.controller.before_creation = world.node.controller.before_creation, lambda names: None
    world.node.create("orders")  # as the controller of another node does, which asks its own groups
    world.node.controller.before_creation = ask
    world.commit(3)
    world.node.create("others")
    assert world.node.committed() == 3
    assert world.node.groups._leaving == []
    world.close()


def test_a_topic_is_not_made_again_while_offsets_without_its_id_cannot_be_deleted_for_want_of_room(
    tmp_path: Path,
) -> None:
    """They were those of the younger topic."""
    world = World(tmp_path)
    world.files.after = lambda: None
    shard = world.node.groups.shard("g")
    image, shard._image = shard._image, MetadataImage
    world.commit(7)
    shard._image = image
    world.files.plan(Fault("write", errno.ENOSPC, f"{OFFSETS}-0", repeat=True))
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    for _ in range(2):
        (refused,) = world.node.controller.create_topics([NewTopic("orders", 1)])
        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert OFFSETS in refused.message and "not deleted from the disk yet; try it again" in refused.message
    assert not world.node.logs.offline_dirs
    world.files.heal()
    world.node.create("orders")
    assert shard.committed_in("g", "orders", 0) is None
    assert world.node.groups._leaving == []
    world.close()


def test_offsets_that_go_with_their_log_keep_no_topic_from_being_made(tmp_path: Path) -> None:
    """As where their partition is given to other nodes at that time. They were waited for until the next start."""
    world = World(tmp_path)
    world.files.after = lambda: None
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    assert world.node.groups._leaving
    world.node.logs.delete(OFFSETS, 0)
    world.node.create("orders")
    assert world.node.groups._leaving == []
    world.close()


def test_a_load_that_ends_before_a_deletion_is_on_disk_leaves_the_offsets(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.node.groups.runtime.unload(0)
    world.node.groups.follow()
    world.node.controller.delete_topics([world.old_id])
    world.node.load_groups()
    assert world.node.committed() == 7, "before the deletion is on disk it may be undone"
    world.node.logs.flusher.wait()
    assert world.node.committed() == -1
    assert world.check_all() == {(True, 7), (False, -1)}
    world.close()


def test_offsets_that_a_crash_has_left_are_not_those_of_a_topic_that_is_made_during_the_load(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.node.groups.runtime.unload(0)
    world.node.groups.follow()
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    world.keep()
    world.files.after = lambda: None
    (left, _) = world.left[-1]
    node = Node(left, Files(), world.loop)
    node.groups.follow()
    node.create("orders")
    node.load_groups()
    assert node.committed() == -1
    node.stop()
    world.close()


def test_a_topic_is_not_made_again_while_its_offsets_cannot_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.node.controller.delete_topics([world.old_id])
    world.node.controller.settle()
    world.files.plan(Fault("open", errno.EMFILE, OFFSETS))
    world.files.plan(Fault("sync", errno.EIO, OFFSETS))
    (refused,) = world.node.controller.create_topics([NewTopic("orders", 1)])
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "orders" in refused.message and OFFSETS in refused.message
    (other,) = world.node.controller.create_topics([NewTopic("others", 1)], validate_only=True)
    assert not other.error
    world.files.heal()
    world.keep()
    assert world.check_all()
    world.close()
