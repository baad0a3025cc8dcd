"""The controller and its disk: snapshots, directories that are new, torn, missing or full, and starts that were cut short."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest
from controller_support import NOW, SET, Clock, Open, change, directory, same, settle
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, MetadataError, NewTopic, features
from fastq_broker.controller.directory import MetadataDirectory
from fastq_broker.controller.image import UNASSIGNED_DIRECTORY
from fastq_broker.controller.quorum import MetadataQuorum
from fastq_broker.controller.snapshot import list_snapshots
from fastq_broker.controller.storage import format_directories
from fastq_broker.log.checkpoints import format_partition_metadata
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from fastq_broker.raft.roles import Became, Role

from fastq._native.records import build_batch
from fastq.errors import ConfigError, ErrorCode, KafkaStorageError, NotController
from fastq.protocol.messages import FeatureLevelRecord, TopicRecord
from fastq.protocol.uuid import METADATA_TOPIC_ID


def test_a_snapshot_replaces_the_log_before_it(open_controller: Open, tmp_path: Path, clock: Clock) -> None:
    controller = open_controller(metadata_log_max_record_bytes_between_snapshots=20_000)
    for number in range(100):
        controller.create_topics([NewTopic(f"t{number}", 2, configs=[("retention.ms", "1")])])
        clock.now += 1
        controller.tick(clock.now)
        settle(controller, clock)
    found = list_snapshots(directory(tmp_path))
    assert len(found) == 2
    assert controller.quorum.start_offset == found[0].end_offset
    controller.alter_configs([change("t1", ("retention.ms", SET, "2"))])
    asyncio.run(controller.flushed())
    # The older snapshot would do as well, with more of the log behind it.
    again = open_controller()
    assert again.image.topic_configs("t1") == {"retention.ms": "2"}
    assert set(again.image.topics_by_name) == set(controller.image.topics_by_name)
    damaged = directory(tmp_path) / found[1].file_name
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert set(open_controller().image.topics_by_name) == set(controller.image.topics_by_name)


def test_old_segments_go_with_the_snapshots(open_controller: Open, tmp_path: Path, clock: Clock) -> None:
    controller = open_controller(metadata_log_segment_ms=10, metadata_max_retention_bytes=0)
    for _ in range(4):
        controller.create_topics([NewTopic(f"t{clock.now}")])
        clock.now += 100
        controller.snapshots.write(controller.image, clock.now)
    clock.now += 100_000
    controller.tick(clock.now)
    bases = sorted(int(name[:20]) for name in os.listdir(directory(tmp_path)) if name.endswith(".log"))
    assert bases[0] > 0
    known = controller.quorum.voters
    again = open_controller()
    assert (again.finalized_features["kraft.version"], again.quorum.voters) == (1, known)
    again.snapshots.write(again.image, clock.now)
    (_, voters) = again.quorum.history.at(again.quorum.end_offset)
    assert voters == known and open_controller().finalized_features["kraft.version"] == 1
    assert same(open_controller().image, controller.image) is False  # leader epochs rose: the stop was not clean
    assert set(open_controller().image.topics_by_name) == set(controller.image.topics_by_name)


def test_snapshots_come_with_time_when_there_is_something_new(
    open_controller: Open, tmp_path: Path, clock: Clock
) -> None:
    controller = open_controller()
    controller.tick(clock.now)
    assert len(list_snapshots(directory(tmp_path))) == 1
    clock.now += 3600_000
    controller.tick(clock.now)
    settle(controller, clock)
    made = list_snapshots(directory(tmp_path))
    assert made[-1].end_offset == controller.quorum.end_offset
    clock.now += 3600_000
    controller.tick(clock.now)
    assert list_snapshots(directory(tmp_path)) == made


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_wall_clock_that_is_set_makes_no_snapshot_early_or_late(
    open_controller: Open, tmp_path: Path, clock: Clock, jump_ms: int
) -> None:
    controller = open_controller()
    before = list_snapshots(directory(tmp_path))
    clock.now, clock.set_ahead_ms = clock.now + jump_ms, jump_ms
    for ms in (0, 3600_000 - 1):
        clock.now += ms
        controller.tick(clock.now)
        assert controller.snapshots.writing is None and list_snapshots(directory(tmp_path)) == before
    clock.now += 1
    controller.tick(clock.now)
    settle(controller, clock)
    assert list_snapshots(directory(tmp_path))[-1].end_offset == controller.quorum.end_offset


def test_a_snapshot_that_cannot_be_written_takes_the_directory_offline(
    open_controller: Open, tmp_path: Path, clock: Clock
) -> None:
    controller = open_controller()
    name = f"{controller.image.offset + 1:020}-{controller.image.epoch:010}.checkpoint.part"
    (directory(tmp_path) / name).mkdir()
    clock.now += 3600_000
    controller.tick(clock.now)
    settle(controller, clock)
    assert controller.quorum.offline
    (refused,) = controller.create_topics([NewTopic("a")])
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "offline" in (refused.message or "")


def test_a_directory_that_was_left_half_formatted_is_formatted_again(tmp_path: Path, open_controller: Open) -> None:
    half = tmp_path / "data" / "__cluster_metadata-0.part"
    half.mkdir(parents=True)
    (half / "rest").touch()
    (half / "partition.metadata").write_bytes(format_partition_metadata(METADATA_TOPIC_ID))
    open_controller()
    assert not half.exists()
    assert not (directory(tmp_path) / "rest").exists()


def test_what_was_left_unfinished_is_removed(open_controller: Open, tmp_path: Path) -> None:
    open_controller().close()
    rest = directory(tmp_path) / "00000000000000000009-0000000001.checkpoint.part"
    rest.write_bytes(b"half")
    open_controller()
    assert not rest.exists()


def test_a_torn_tail_is_cut_and_everything_before_it_stays(open_controller: Open, tmp_path: Path) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a")])
    controller.close()
    path = directory(tmp_path) / "00000000000000000000.log"
    whole = path.stat().st_size
    with path.open("ab") as file:
        batch = build_batch(
            [(NOW, None, b"a change that nobody was told of")], base_offset=controller.quorum.end_offset
        )
        file.write(batch[:-5])
    again = open_controller()
    assert "a" in again.image.topics_by_name
    assert path.stat().st_size > whole


def test_a_missing_beginning_is_an_error(open_controller: Open, tmp_path: Path, clock: Clock) -> None:
    controller = open_controller(metadata_log_segment_ms=10, metadata_max_retention_bytes=0)
    for _ in range(3):
        controller.create_topics([NewTopic(f"t{clock.now}")])
        clock.now += 100
        controller.snapshots.write(controller.image, clock.now)
    clock.now += 100_000
    controller.tick(clock.now)
    for snapshot in list_snapshots(directory(tmp_path)):
        (directory(tmp_path) / snapshot.file_name).unlink()
    with pytest.raises(MetadataError, match="no snapshot holds what was before"):
        open_controller()


def test_directories_of_another_node_quorum_or_future_are_refused(open_controller: Open, tmp_path: Path) -> None:
    controller = open_controller()
    with pytest.raises(ConfigError, match="belongs to node 1"):
        open_controller(node_id=2)
    controller._commit([FeatureLevelRecord(name="metadata.version", feature_level=99)])
    with pytest.raises(ConfigError, match=r"metadata\.version is finalized at 99, this node supports 7 to 30"):
        open_controller()
    state = directory(tmp_path) / "quorum-state"
    static = {"clusterId": "", "leaderId": 1, "leaderEpoch": 5, "votedId": -1, "appliedOffset": 0}
    voters = {"currentVoters": [{"voterId": 1}, {"voterId": 2}], "data_version": 0}
    state.write_text(json.dumps({**static, **voters}))
    with pytest.raises(ConfigError, match=r"voters \[2\]"):
        open_controller()


class FullDisk(Files):
    """A disk without room, once `full` is set."""

    full = False

    def write_all(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write_all(fd, data, position)


def test_a_change_that_cannot_be_written_did_not_happen(tmp_path: Path, clock: Clock) -> None:
    files = FullDisk()
    root = tmp_path / "data"
    log_dir = LogDir(str(root), files, FdBudget(16), ManualFlusher(files))
    config = BrokerConfig.from_mapping({"log.dirs": str(root)})
    controller = Controller(config, clock=clock, log_dir=log_dir)
    controller.open()
    controller.register_broker(config.advertised_listeners)
    before = controller.image
    files.full = True
    (refused,) = controller.create_topics([NewTopic("a")])
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert controller.image is before
    files.full = False  # and when there is room it goes on
    (made,) = controller.create_topics([NewTopic("b")])
    assert made.error is ErrorCode.NONE
    controller.settle()
    assert set(controller.image.topics_by_name) == {"b"}
    files.full = True
    controller.close()
    again = Controller(config, clock=clock)
    again.open()
    assert set(again.image.topics_by_name) == {"b"}
    again.close()


class FullAfter(Files):
    """A disk that has room for so many more batches."""

    room = 0

    def write_all(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if not self.room:
            raise OSError(28, "No space left on device")
        self.room -= 1
        super().write_all(fd, data, position)


def test_a_disk_that_is_full_at_the_first_start_is_named_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What a leader begins with had no room: a traceback in the log, and a controller that took changes without it."""
    files, root = FullAfter(), tmp_path / "data"
    config = BrokerConfig.from_mapping({"log.dirs": str(root)})
    for room in range(5):
        files.room = room
        caplog.clear()
        controller = Controller(
            config, clock=clock, log_dir=LogDir(str(root), files, FdBudget(16), ManualFlusher(files))
        )
        with pytest.raises(KafkaStorageError, match="No space left on device"):
            controller.open()
            controller.register_broker(config.advertised_listeners)
        assert [record.exc_info for record in caplog.records if record.levelname != "INFO"] == [None]
        assert not controller.is_active or "metadata.version" in controller.image.features
        controller.close()
    files.room = 100
    controller = Controller(config, clock=clock, log_dir=LogDir(str(root), files, FdBudget(16), ManualFlusher(files)))
    controller.open()
    controller.register_broker(config.advertised_listeners)
    assert controller.is_active and "metadata.version" in controller.image.features
    controller.close()


def test_what_kept_the_leader_of_a_term_from_being_active_is_not_said_of_the_next(tmp_path: Path, clock: Clock) -> None:
    files, root = FullAfter(), tmp_path / "data"
    config = BrokerConfig.from_mapping({"log.dirs": str(root)})
    for room in range(20):  # up to where it leads, and cannot write what a leader begins with
        files.room = room
        log_dir = LogDir(str(root), files, FdBudget(16), ManualFlusher(files))
        controller = Controller(config, clock=clock, log_dir=log_dir)
        with contextlib.suppress(KafkaStorageError):
            controller.open()
            with pytest.raises(KafkaStorageError, match="No space left on device"):
                controller.commit([TopicRecord(name="a", topic_id=b"a" * 16)])
            if controller.quorum.leads and not controller.is_active:
                break
        controller.close()
    controller._news(Became(Role.LEADER, controller.epoch + 1, 1))  # again, and what came before is not committed yet
    with pytest.raises(NotController):
        controller.commit([TopicRecord(name="a", topic_id=b"a" * 16)])
    controller.close()


def test_two_directories_leave_the_choice_to_the_broker(tmp_path: Path, clock: Clock) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": [str(tmp_path / "a"), str(tmp_path / "b")]})
    controller = Controller(config, clock=clock)
    controller.open()
    controller.register_broker(config.advertised_listeners)
    controller.create_topics([NewTopic("t")])
    assert len(set(controller.directory_ids)) == 2
    assert controller.image.topics_by_name["t"].partitions[0].directories == (UNASSIGNED_DIRECTORY,)
    assert (tmp_path / "a" / "__cluster_metadata-0").exists()
    assert (tmp_path / "b" / "meta.properties").exists()


def test_a_directory_that_is_missing_stays_registered_until_it_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    """The start after the next has to know, too, that something may be in it."""

    def opened(*names: str) -> Controller:
        config = BrokerConfig.from_mapping({"log.dirs": [str(tmp_path / name) for name in names]})
        controller = Controller(config, clock=clock)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    both = opened("a", "b")
    both.close()
    for _ in range(2):
        one = opened("a")
        assert one.missing_directories == {both.directory_ids[1]}
        assert set(one.image.brokers[1].directories) == set(both.directory_ids)
        one.close()
    one = opened("a")
    one.forget_directories()
    one.settle()
    assert one.image.brokers[1].directories == (both.directory_ids[0],)
    one.close()
    assert not opened("a").missing_directories


def test_a_start_that_was_cut_short_is_made_up_for(tmp_path: Path, clock: Clock, open_controller: Open) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path / "data")})
    directory = MetadataDirectory(config, clock=clock, monotonic_ms=clock)
    quorum = MetadataQuorum(
        config, directory, directory.open(), clock=clock, monotonic_ms=clock, on_news=lambda news: None
    )
    quorum.start()
    controller = open_controller()
    assert controller.epoch == 2
    assert controller.image.features == features.BOOTSTRAP


JOINS = {"controller.quorum.bootstrap.servers": "127.0.0.1:9093,127.0.0.1:9193"}
AMONG_OTHERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
}


@pytest.mark.parametrize(
    "quorum", [JOINS, {"controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9193"}], ids=["joins", "static"]
)
def test_a_node_among_others_does_not_make_up_a_cluster(tmp_path: Path, clock: Clock, quorum: dict[str, str]) -> None:
    """Each would have an id of its own, and refuse all others."""
    config = BrokerConfig.from_mapping({**AMONG_OTHERS, **quorum, "log.dirs": str(tmp_path / "data")})
    controller = Controller(config, clock=clock)
    with pytest.raises(
        ConfigError, match=r"data is not formatted, and .* fastq-broker format --cluster-id ID"
    ) as refusal:
        asyncio.run(opened(controller))
    joins = "--config FILE --no-initial-controllers, with the ID" in str(refusal.value)
    assert joins == ("--standalone" in str(refusal.value)) == (quorum is JOINS), "what the command takes as it stands"
    assert "mount the disk that was there" in str(refusal.value)
    assert not (tmp_path / "data").exists()
    controller.close()  # there is nothing to do, which is no error


async def opened(controller: Controller) -> None:
    controller.open(loop=asyncio.get_running_loop(), ports={"CONTROLLER": 9093})


def test_a_node_among_others_goes_on_with_the_disks_that_are_left(tmp_path: Path, clock: Clock) -> None:
    """The others know what is in the metadata log."""
    first, second = tmp_path / "first", tmp_path / "second"
    format_directories([second], 1, "c" * 22)
    (second / "logs-0").mkdir()
    (second / "logs-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    config = BrokerConfig.from_mapping({**AMONG_OTHERS, **JOINS, "log.dirs": f"{first},{second}"})

    def directory() -> MetadataDirectory:
        return MetadataDirectory(config, clock=clock, monotonic_ms=clock)

    with pytest.raises(ConfigError, match=f"first is not formatted.*--cluster-id {'c' * 22} --ignore-formatted .* -"):
        directory().open(alone=False)
    format_directories([first], 1, "c" * 22)
    log = directory().open(alone=False)
    assert log.log_end_offset == 0
    with pytest.raises(ConfigError, match="which a new metadata log would not know"):
        directory().open()  # alone, nobody does
