"""The controller: formatting, changes, restarts, snapshots, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import (
    Controller,
    MetadataDelta,
    MetadataError,
    MetadataImage,
    NewPartitions,
    NewTopic,
    features,
)
from fastq_broker.controller.config_changes import ConfigChange, ConfigOperation, ResourceChange
from fastq_broker.controller.directory import MetadataDirectory
from fastq_broker.controller.image import UNASSIGNED_DIRECTORY
from fastq_broker.controller.quorum import MetadataQuorum
from fastq_broker.controller.records import encode_record
from fastq_broker.controller.snapshot import decode_batches, list_snapshots
from fastq_broker.controller.storage import format_directories
from fastq_broker.log.checkpoints import format_partition_metadata
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from fastq_broker.raft.roles import Became, Role
from faulty_files import Fault, FaultyFiles

from fastq._native.records import build_batch
from fastq.errors import ConfigError, ErrorCode, KafkaStorageError, NotController
from fastq.protocol.messages import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    TopicRecord,
)
from fastq.protocol.uuid import METADATA_TOPIC_ID, uuid_to_str

NOW = 1_790_000_000_000
Open = Callable[..., Controller]


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = NOW
        self.set_ahead_ms = 0  # what somebody has set it by, which is no time that went by

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_controller(tmp_path: Path, clock: Clock) -> Open:
    def opened(**settings: object) -> Controller:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_mapping(
            {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:9092", **named}
        )
        controller = Controller(config, clock=clock, monotonic_ms=lambda: clock.now - clock.set_ahead_ms - NOW)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    return opened


def directory(tmp_path: Path) -> Path:
    return tmp_path / "data" / "__cluster_metadata-0"


def settle(controller: Controller, clock: Clock) -> None:
    """Wait for a snapshot that was begun, and let the next tick take it down."""
    running = controller.snapshots.writing
    if running is not None:
        wait([running])
        controller.tick(clock.now)


def same(one: MetadataImage, other: MetadataImage) -> bool:
    """Equal but for this node's registration and the place in the log."""
    return (one.topics_by_id, one.topics_by_name, one.configs, one.features, one.next_producer_id) == (
        other.topics_by_id,
        other.topics_by_name,
        other.configs,
        other.features,
        other.next_producer_id,
    )


def mark_clean(tmp_path: Path, controller: Controller) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": controller.broker_epoch})
    (tmp_path / "data" / ".kafka_cleanshutdown").write_text(text)


def test_a_new_directory_has_all_that_kafka_expects(open_controller: Open, tmp_path: Path) -> None:
    controller = open_controller()
    root = tmp_path / "data"
    names = sorted(os.listdir(directory(tmp_path)))
    assert {"quorum-state", "partition.metadata", "00000000000000000000.log"} <= set(names)
    assert "00000000000000000000-0000000000.checkpoint" in names
    assert (root / "bootstrap.checkpoint").exists()
    assert (root / "meta.properties").exists()
    state = json.loads((directory(tmp_path) / "quorum-state").read_text())
    assert state == {
        "leaderId": 1,
        "leaderEpoch": 1,
        "votedId": -1,
        "votedDirectoryId": uuid_to_str(bytes(16)),
        "data_version": 1,
    }
    assert controller.image.features == features.BOOTSTRAP
    assert controller.finalized_features["kraft.version"] == 1
    assert controller.image.cluster_id == controller.cluster_id
    assert len(controller.cluster_id) == 22
    data = (directory(tmp_path) / "00000000000000000000.log").read_bytes()
    first, bootstrap = list(decode_batches(data))[:2]
    assert [key[3] for key, _ in first.controls] == [2, 5, 6]
    assert [record.API_KEY for record in bootstrap.records] == [23, 12, 12, 12, 12, 4, 24]
    assert {batch.epoch for batch in decode_batches(data)} == {1}


def test_the_broker_is_registered_and_live(open_controller: Open) -> None:
    controller = open_controller(broker_rack="r1")
    (broker,) = controller.image.live_brokers()
    assert broker.epoch == controller.broker_epoch
    assert broker.rack == "r1"
    assert broker.directories == tuple(controller.directory_ids)
    endpoint = broker.endpoint("PLAINTEXT")
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, endpoint.security_protocol) == ("127.0.0.1", 9092, 0)
    assert {name: (low, high) for name, low, high in broker.features} == features.SUPPORTED


def test_topics_survive_a_restart(open_controller: Open) -> None:
    controller = open_controller()
    made = controller.create_topics(
        [NewTopic("a", 3, 1, configs=[("retention.ms", "5")]), NewTopic("b"), NewTopic("c", assignments=[(0, [1])])]
    )
    assert [(item.error, item.num_partitions, item.replication_factor) for item in made] == [
        (0, 3, 1),
        (0, 1, 1),
        (0, 1, 1),
    ]
    controller.delete_topics([made[1].topic_id])
    controller.create_partitions([NewPartitions("c", 4)])
    asyncio.run(controller.flushed())
    before = controller.image
    again = open_controller()
    assert again.epoch == 2
    assert set(again.image.topics_by_name) == {"a", "c"}
    assert again.image.topic_configs("a") == {"retention.ms": "5"}
    assert [len(topic.partitions) for topic in again.image.topics_by_name.values()] == [3, 4]
    assert again.image.topics_by_name["a"].topic_id == before.topics_by_name["a"].topic_id
    assert again.cluster_id == controller.cluster_id


def test_leader_epochs_rise_unless_the_stop_was_clean(open_controller: Open, tmp_path: Path) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a", 2)])
    mark_clean(tmp_path, controller)
    controller.close()
    after_clean = open_controller()
    assert [item.leader_epoch for item in after_clean.image.topics_by_name["a"].partitions] == [0, 0]
    # The mark names an older epoch of the broker: the last stop was not clean.
    after_crash = open_controller()
    assert [item.leader_epoch for item in after_crash.image.topics_by_name["a"].partitions] == [1, 1]
    assert [item.leader for item in after_crash.image.topics_by_name["a"].partitions] == [1, 1]


def test_a_closed_node_is_fenced(open_controller: Open) -> None:
    controller = open_controller()
    controller.close()
    assert controller.image.brokers[1].fenced


def test_a_disk_that_takes_no_fence_leaves_nothing_open(tmp_path: Path, clock: Clock) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path / "data")})
    files = FaultyFiles()
    log_dir = LogDir(str(tmp_path / "data"), files, FdBudget(64), ManualFlusher(files))
    controller = Controller(config, clock=clock, log_dir=log_dir)
    controller.open()
    controller.register_broker(config.advertised_listeners)
    files.plan(Fault("write", errno.EIO))
    with pytest.raises(KafkaStorageError, match="EIO"):
        controller.close()
    assert controller.quorum.driver.closed
    assert not controller.image.brokers[1].fenced


def test_listeners_hear_of_every_change_and_of_what_was_there(tmp_path: Path, clock: Clock) -> None:
    config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path / "data")})
    first = Controller(config, clock=clock)
    first.open()
    first.register_broker(config.advertised_listeners)
    first.create_topics([NewTopic("a", 2)])
    first.close()
    heard: list[tuple[list[str], list[str], set[tuple[int, str]]]] = []

    def hear(image: MetadataImage, delta: MetadataDelta) -> None:
        assert image is controller.image
        changed = [topic.name for _, topic in delta.changed_topics]
        heard.append((changed, [topic.name for topic in delta.deleted_topics], delta.changed_configs))

    controller = Controller(config, clock=clock)
    controller.subscribe(hear)
    controller.open()
    assert heard[0][0] == ["a"]
    controller.register_broker(config.advertised_listeners)
    heard.clear()
    (made,) = controller.create_topics([NewTopic("b", configs=[("retention.ms", "1")])])
    controller.delete_topics([made.topic_id])
    assert heard == [(["b"], [], {(2, "b")}), ([], ["b"], {(2, "b")})]


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [
        (NewTopic(""), 17, "empty string"),
        (NewTopic(".."), 17, "'..' is not allowed"),
        (NewTopic("a b"), 17, "characters"),
        (NewTopic("\u00e9"), 17, "characters"),
        (NewTopic("x" * 250), 17, "250 characters"),
        (NewTopic("__cluster_metadata"), 42, "prohibited"),
        (NewTopic("there"), 36, "already exists"),
        (NewTopic("with_score"), 17, "collides with existing topic: with.score"),
        (NewTopic("n", 0), 37, "larger than 0"),
        (NewTopic("n", -2), 37, "larger than 0"),
        (NewTopic("n", 1, 0), 38, "larger than 0"),
        (NewTopic("n", 1, 2), 38, "only 1 broker(s) are registered"),
        (NewTopic("n", 2**31 - 1), 44, "Excessively large"),
        (NewTopic("n", 1, configs=[("retention.ms", "x")]), 40, "retention.ms = 'x'"),
        (NewTopic("n", 1, configs=[("retention.mss", "1")]), 40, "did you mean retention.ms"),
        (NewTopic("n", 1, configs=[("retention.ms", None)]), 40, "Null value"),
        (NewTopic("n", 1, assignments=[(0, [1])]), 42, "numPartitions was not set to -1"),
        (NewTopic("n", -1, 1, assignments=[(0, [1])]), 42, "replication factor was not set to -1"),
        (NewTopic("n", assignments=[(1, [1])]), 39, "consecutive 0-based"),
        (NewTopic("n", assignments=[(0, [1]), (0, [1])]), 39, "consecutive 0-based"),
        (NewTopic("n", assignments=[(0, [])]), 39, "empty replica list"),
        (NewTopic("n", assignments=[(0, [1, 1])]), 39, "more than once"),
        (NewTopic("n", assignments=[(0, [2])]), 39, "broker 2"),
    ],
)
def test_topics_that_cannot_be(open_controller: Open, topic: NewTopic, error: int, words: str) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("there"), NewTopic("with.score")])
    end = controller.quorum.end_offset
    (result,) = controller.create_topics([topic])
    assert result.error == error
    assert result.message is not None
    assert words in result.message
    assert controller.quorum.end_offset == end


def test_one_bad_topic_stops_no_other(open_controller: Open) -> None:
    controller = open_controller()
    results = controller.create_topics(
        [NewTopic("a"), NewTopic("a b"), NewTopic("c.d"), NewTopic("c_d"), NewTopic("e")]
    )
    assert [item.error for item in results] == [0, 17, 0, 17, 0]
    assert set(controller.image.topics_by_name) == {"a", "c.d", "e"}
    twice = controller.create_topics([NewTopic("x"), NewTopic("x")])
    assert [item.error for item in twice] == [42, 42]


def test_validate_only_writes_nothing(open_controller: Open) -> None:
    controller = open_controller()
    end = controller.quorum.end_offset
    (result,) = controller.create_topics([NewTopic("a", 3)], validate_only=True)
    assert (result.error, result.num_partitions) == (0, 3)
    controller.create_topics([NewTopic("b")])
    assert controller.create_partitions([NewPartitions("b", 3)], validate_only=True)[0].error == 0
    assert "a" not in controller.image.topics_by_name
    assert controller.quorum.end_offset == end + 2


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        (NewPartitions("nope", 3), 3, "does not exist"),
        (NewPartitions("a", 2), 37, "already has 2"),
        (NewPartitions("a", 1), 37, "would not be an increase"),
        (NewPartitions("a", 20_000), 44, "Excessively large"),
        (NewPartitions("a", 4, [[1]]), 39, "but 1 assignment"),
        (NewPartitions("a", 3, [[9]]), 39, "broker 9"),
        (NewPartitions("a", 3, [[]]), 39, "empty replica list"),
    ],
)
def test_partitions_that_cannot_be(open_controller: Open, wanted: NewPartitions, error: int, words: str) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a", 2)])
    (result,) = controller.create_partitions([wanted])
    assert result.error == error
    assert result.message is not None
    assert words in result.message
    assert len(controller.image.topics_by_name["a"].partitions) == 2


def test_partitions_grow(open_controller: Open) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a", 2)])
    assert controller.create_partitions([NewPartitions("a", 3, [[1]])])[0].error == 0
    assert controller.create_partitions([NewPartitions("a", 4), NewPartitions("a", 5)])[0].error == 42
    assert [item.leader for item in controller.image.topics_by_name["a"].partitions] == [1, 1, 1]


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = ResourceType.TOPIC, replace: bool = False
) -> ResourceChange:
    return ResourceChange(kind, name, [ConfigChange(*item) for item in changes], replace=replace)


SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def test_configs_are_changed_one_by_one_or_replaced(open_controller: Open) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a", configs=[("retention.ms", "5"), ("segment.ms", "6")])])

    def alter(item: ResourceChange) -> dict[str, str]:
        (result,) = controller.alter_configs([item])
        assert result.error == 0, result.message
        return dict(controller.image.topic_configs("a"))

    assert alter(change("a", ("retention.ms", SET, "7"))) == {"retention.ms": "7", "segment.ms": "6"}
    assert alter(change("a", ("segment.ms", DELETE, None))) == {"retention.ms": "7"}
    appended = alter(change("a", ("cleanup.policy", APPEND, "compact")))
    assert appended["cleanup.policy"] == "delete,compact"
    assert alter(change("a", ("cleanup.policy", APPEND, "compact")))["cleanup.policy"] == "delete,compact"
    assert alter(change("a", ("cleanup.policy", SUBTRACT, "delete")))["cleanup.policy"] == "compact"
    assert alter(change("a", ("max.message.bytes", SET, "9"), replace=True)) == {"max.message.bytes": "9"}
    end = controller.quorum.end_offset
    alter(change("a", ("max.message.bytes", SET, "9")))
    assert controller.quorum.end_offset == end


def test_replacing_configs_leaves_a_mirrors_topic_to_its_mirror(open_controller: Open) -> None:
    """As older tools do for a change of retention: the topic stays read-only."""
    controller = open_controller()
    (made,) = controller.create_topics([NewTopic("m", configs=[("mirror.source", "A/c/t"), ("segment.ms", "6")])])
    assert made.error == 0
    (result,) = controller.alter_configs([change("m", ("retention.ms", SET, "7"), replace=True)])
    assert result.error == 0
    assert controller.image.topic_configs("m") == {"mirror.source": "A/c/t", "retention.ms": "7"}
    (result,) = controller.alter_configs([change("m", ("mirror.source", SET, ""), replace=True)])
    assert result.error == 0
    assert not controller.image.topic_configs("m").get("mirror.source")


def test_broker_configs_change_topic_defaults(open_controller: Open) -> None:
    controller = open_controller()
    assert controller.topic_defaults is controller.topic_defaults
    for name, value in (("", "11"), ("1", "12")):
        (result,) = controller.alter_configs([change(name, ("log.retention.ms", SET, value), kind=ResourceType.BROKER)])
        assert result.error == 0
        assert controller.topic_defaults.log_config.retention_ms == int(value)


@pytest.mark.parametrize(
    ("item", "error", "words"),
    [
        (change("nope", ("retention.ms", SET, "1")), 3, "does not exist"),
        (change("a b", ("retention.ms", SET, "1")), 17, "characters"),
        (change("a", ("retention.mss", SET, "1")), 40, "did you mean retention.ms"),
        (change("a", ("retention.ms", SET, "x")), 40, "'x'"),
        (change("a", ("retention.ms", SET, None)), 42, "Null value"),
        (change("a", ("retention.ms", APPEND, "1")), 40, "not LIST"),
        (change("a", ("retention.ms", 9, "1")), 42, "operation type 9"),
        (change("a", ("cleanup.policy", APPEND, "shred")), 40, "shred"),
        (change("a", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")), 42, "duplicate"),
        (change("a", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")), 40, "above"),
        (change("7", ("log.retention.ms", SET, "1"), kind=ResourceType.BROKER), 42, "expected 1, but received '7'"),
        (change("x", ("log.retention.ms", SET, "1"), kind=ResourceType.BROKER), 42, "broker id"),
        (change("1", ("num.partitions", SET, "1"), kind=ResourceType.BROKER), 42, "num.partitions"),
        (change("1", ("num.partition", SET, "1"), kind=ResourceType.BROKER), 42, "num.partitions"),
        (change("1", ("log.retention.ms", SET, "x"), kind=ResourceType.BROKER), 42, "'x'"),
        (change("1", ("min.insync.replicas", SET, "1"), kind=ResourceType.BROKER), 40, "ELR"),
        (change("", ("min.insync.replicas", DELETE, None), kind=ResourceType.BROKER), 40, "ELR"),
        (change("", kind=ResourceType.BROKER, replace=True), 40, "ELR"),
        (change("", ("retention.ms", SET, "1")), 42, "Default topic"),
        (change("m", ("x", SET, "1"), kind=ResourceType.CLIENT_METRICS), 42, "resource type 16"),
        (
            change("g", ("consumer.session.timeout.ms", SET, "1"), kind=ResourceType.GROUP),
            40,
            "min.session.timeout.ms = 45000",
        ),
        (change("", ("consumer.session.timeout.ms", SET, "50000"), kind=ResourceType.GROUP), 42, "Default group"),
    ],
)
def test_changes_that_cannot_be(open_controller: Open, item: ResourceChange, error: int, words: str) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a")])
    end = controller.quorum.end_offset
    (result,) = controller.alter_configs([item])
    assert result.error == error
    assert result.message is not None
    assert words in result.message
    assert controller.quorum.end_offset == end


def test_a_resource_named_twice(open_controller: Open) -> None:
    controller = open_controller()
    controller.create_topics([NewTopic("a")])
    results = controller.alter_configs([change("a", ("retention.ms", SET, "1"))] * 2)
    assert [item.error for item in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_producer_ids_are_never_given_twice(open_controller: Open) -> None:
    controller = open_controller()
    given = [controller.allocate_producer_ids() for _ in range(2)]
    assert [(block.first, block.count) for block in given] == [(0, 1000), (1000, 1000)]
    asyncio.run(controller.flushed())
    again = open_controller()
    block = again.allocate_producer_ids()
    assert (block.first, block.count) == (2000, 1000)


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


def test_flushed_waits_for_the_disk(tmp_path: Path, clock: Clock) -> None:
    files = Files()
    flusher = ManualFlusher(files)
    root = tmp_path / "data"
    log_dir = LogDir(str(root), files, FdBudget(16), flusher)
    config = BrokerConfig.from_mapping({"log.dirs": str(root)})
    controller = Controller(config, clock=clock, log_dir=log_dir)
    controller.open()
    controller.register_broker(config.advertised_listeners)

    async def run() -> None:
        controller.create_topics([NewTopic("t")])
        waiting = asyncio.ensure_future(controller.flushed())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert controller.image.topic("t") is None and controller.pending.topic("t") is not None
        while flusher.drain():
            pass
        await waiting
        assert controller.image is controller.pending
        assert controller.quorum.high_watermark == controller.quorum.end_offset

    asyncio.run(run())


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


def test_records_of_a_transaction_count_once_it_ends(open_controller: Open) -> None:
    controller = open_controller()
    topic = TopicRecord(name="half", topic_id=b"h" * 16)
    abandoned = TopicRecord(name="abandoned", topic_id=b"a" * 16)
    begin, end, abort = BeginTransactionRecord(name="x"), EndTransactionRecord(), AbortTransactionRecord(reason=None)
    written = [begin, topic, end, begin, abandoned, abort, begin, abandoned]
    controller.quorum.append([encode_record(record, 30) for record in written])
    asyncio.run(controller.flushed())
    again = open_controller()
    assert set(again.image.topics_by_name) == {"half"}
    # The one that nobody ended was ended at the start: what came after it is not a part of it.
    again.create_topics([NewTopic("later")])
    asyncio.run(again.flushed())
    assert set(open_controller().image.topics_by_name) == {"half", "later"}


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
