"""Which snapshots of the metadata are kept, and how much of the log: metadata.max.retention.bytes and .ms, as in KafkaRaftLog."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import snapshots
from fastq_broker.controller.changes import NewTopic
from fastq_broker.controller.controller import Controller
from fastq_broker.controller.snapshot import list_snapshots, reaches_until_ms
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.raft.messages import SnapshotId

from fastq.errors import KafkaStorageError

DAY_MS = 24 * 3600 * 1000
EVER = -1


class Node:
    """A controller that is alone, with a clock that tests move."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = 1_790_000_000_000
        self.path = root / "__cluster_metadata-0"

    def open(self, bytes_max: int = EVER, age_max_ms: int = EVER) -> Controller:
        config = BrokerConfig.from_mapping(
            {
                "log.dirs": str(self.root),
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "metadata.log.segment.ms": 10,
                "metadata.max.retention.bytes": bytes_max,
                "metadata.max.retention.ms": age_max_ms,
            }
        )
        controller = Controller(config, clock=lambda: self.now_ms)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    def snapshot(self, controller: Controller) -> SnapshotId:
        """One more topic, a day later, and a snapshot that has it."""
        self.now_ms += DAY_MS
        controller.create_topics([NewTopic(f"t{controller.quorum.end_offset}")])
        return controller.snapshots.write(controller.image, self.now_ms)

    def kept(self) -> list[SnapshotId]:
        return list_snapshots(self.path)

    def segments(self) -> list[int]:
        return sorted(int(name[:20]) for name in os.listdir(self.path) if name.endswith(".log"))

    def size(self) -> int:
        """Of the log's segments and the snapshots, in bytes."""
        return sum(path.stat().st_size for path in self.path.iterdir() if path.suffix in (".log", ".checkpoint"))

    def minutes_later(self, controller: Controller, now_ms: int) -> None:
        """The tick of then."""
        self.now_ms = now_ms
        controller.tick(now_ms)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")


def test_without_a_limit_all_is_kept(node: Node) -> None:
    controller = node.open()
    made = [node.snapshot(controller) for _ in range(5)]
    assert node.kept()[-5:] == made
    assert controller.quorum.start_offset == 0 and node.segments()[0] == 0


def test_by_age_those_go_that_reach_until_too_long_ago(node: Node) -> None:
    controller = node.open(age_max_ms=3 * DAY_MS)
    made = [node.snapshot(controller) for _ in range(6)]
    times = [reaches_until_ms(node.path / snapshot.file_name) for snapshot in node.kept()]
    assert node.kept() == made[2:] and times == [node.now_ms - days * DAY_MS for days in (3, 2, 1, 0)]
    assert controller.quorum.start_offset == made[2].end_offset
    assert node.segments()[0] > 0
    # A minute and more later it is looked again, and the latest stays, old as it is.
    node.minutes_later(controller, node.now_ms + DAY_MS)
    assert node.kept() == made[3:]
    node.minutes_later(controller, node.now_ms + 100 * DAY_MS)
    assert node.kept() == made[-1:]
    assert controller.quorum.start_offset == made[-1].end_offset


def test_by_size_the_oldest_go_until_log_and_snapshots_have_less(node: Node) -> None:
    bound = 30_000
    controller = node.open(bytes_max=bound)
    for _ in range(40):
        node.snapshot(controller)
        assert node.size() <= bound
    assert len(node.kept()) > 2, "no more go than have to"
    assert controller.quorum.start_offset == node.kept()[0].end_offset
    assert len(node.open(bytes_max=bound).image.topics_by_id) == 40


def test_the_latest_stays_where_it_is_too_large_already(node: Node) -> None:
    controller = node.open(bytes_max=0, age_max_ms=0)
    made = [node.snapshot(controller) for _ in range(3)]
    assert node.kept() == made[-1:] and controller.quorum.start_offset == made[-1].end_offset
    assert len(node.open().image.topics_by_id) == 3


def test_one_whose_header_is_damaged_is_as_old_as_can_be(node: Node) -> None:
    controller = node.open(age_max_ms=30 * DAY_MS)
    made = [node.snapshot(controller) for _ in range(3)]
    oldest = node.path / node.kept()[0].file_name
    oldest.write_bytes(b"\xff" * 100)
    assert reaches_until_ms(oldest) == 0 and reaches_until_ms(oldest.with_name("none")) is None
    made.append(node.snapshot(controller))
    assert not oldest.exists() and node.kept()[-4:] == made


def test_a_snapshot_that_cannot_be_removed_keeps_no_log(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    controller, unlink = node.open(bytes_max=0), Path.unlink

    def forbidden(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".checkpoint":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", forbidden)
        made = [node.snapshot(controller) for _ in range(4)]
    assert controller.quorum.start_offset == made[-1].end_offset and not controller.quorum.offline
    assert "cannot be removed: Operation not permitted" in caplog.text
    assert node.kept()[-4:] == made
    node.minutes_later(controller, node.now_ms + DAY_MS)
    assert node.kept() == made[-1:], "the next time has removed them"


def test_without_a_descriptor_to_look_for_old_ones_nothing_goes_and_the_new_one_is_served_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the log begins behind is known before: by its epoch a log without records is judged."""
    controller = node.open(bytes_max=0)
    first = node.snapshot(controller)
    listed = snapshots.list_snapshots

    def short(directory: Path) -> list[SnapshotId]:
        raise OSError(errno.EMFILE, "Too many open files", str(directory))

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "list_snapshots", short)
        second = node.snapshot(controller)
        node.minutes_later(controller, node.now_ms + DAY_MS)
        assert not controller.quorum.offline
        assert controller.quorum.start_offset == first.end_offset and node.kept()[-2:] == [first, second]
    known: list[object] = []

    def note(
        log: object, offset: int, delete: Callable[[object, int], None] = PartitionLog.delete_records_before
    ) -> None:
        known.append(list(controller.quorum.disk.snapshots))
        delete(log, offset)

    assert listed is snapshots.list_snapshots
    monkeypatch.setattr(PartitionLog, "delete_records_before", note)
    node.minutes_later(controller, node.now_ms + DAY_MS)
    assert known == [[first, second]]
    assert node.kept() == [second] == list(controller.quorum.disk.snapshots)
    assert controller.quorum.start_offset == second.end_offset


def test_a_snapshot_for_which_memory_is_short_is_written_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = node.open()
    first = node.snapshot(controller)

    def short(*given: object, **named: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "write_snapshot", short)
        with pytest.raises(KafkaStorageError, match="memory"):
            node.snapshot(controller)
    assert not controller.quorum.offline and node.kept()[-1] == first
    for _ in range(3):
        node.minutes_later(controller, node.now_ms + snapshots.RETRY_MS)
        controller.snapshots.close()
        if node.kept()[-1] != first:
            return
    raise AssertionError("it is not tried again")
