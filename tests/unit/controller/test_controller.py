"""The controller: what it begins with, changes, restarts, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from controller_support import APPEND, DELETE, SET, SUBTRACT, Clock, Open, change, directory, mark_clean
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
from fastq_broker.controller.config_changes import ResourceChange
from fastq_broker.controller.directory import MetadataDirectory
from fastq_broker.controller.quorum import MetadataQuorum
from fastq_broker.controller.records import encode_record
from fastq_broker.controller.snapshot import decode_batches
from fastq_broker.log import PartitionLog
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from faulty_files import Fault, FaultyFiles

from fastq.errors import ConfigError, ErrorCode, KafkaStorageError
from fastq.protocol.messages import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord, TopicRecord
from fastq.protocol.uuid import uuid_to_str


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


def test_metadata_that_could_not_be_read_is_read_by_the_next_open(
    open_controller: Open, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led with nothing but what a new log begins with. And a close took the mark away by which the next start is the more careful."""
    first = open_controller()
    first.create_topics([NewTopic("t", 1, 1)])
    first.settle()
    first.close()
    controller = Controller(first.config, clock=clock)

    def damaged(*_: object) -> None:
        raise MetadataError("it cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataQuorum, "batches", damaged)
        with pytest.raises(MetadataError):
            controller.read()
        controller.close()
        assert (directory(tmp_path) / ".in-use").exists()
        with pytest.raises(MetadataError):
            controller.open()
    assert controller.open().topic("t") is not None
    controller.close()
    assert not (directory(tmp_path) / ".in-use").exists()


def test_metadata_that_is_not_taken_leaves_nothing_open_and_is_heard_of_once(
    open_controller: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stayed open behind an error, and who opened it again heard of all that is in it twice."""
    first = open_controller()
    first.close()
    controller = Controller(first.config, clock=clock)
    heard: list[int] = []
    controller.subscribe(lambda image, delta: heard.append(image.offset))
    with monkeypatch.context() as patch:
        patch.setattr(features, "unsupported", lambda levels: ["it is of another time"])
        with pytest.raises(ConfigError, match="of another time"):
            controller.open()
    assert controller.quorum.driver.closed and not controller.quorum._log.loaded
    controller.open()
    assert heard and len(set(heard)) == len(heard)
    controller.close()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (MetadataDirectory, "check_alone"),
        (MetadataDirectory, "check_voters"),
        (MetadataQuorum, "start"),
        (MetadataQuorum, "settle"),
    ],
)
def test_metadata_that_is_refused_while_it_is_opened_leaves_nothing_open(
    open_controller: Open, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Its files stayed open behind the error until the end of the process."""
    first = open_controller()
    first.close()
    logs: list[PartitionLog] = []
    opened = MetadataDirectory.open

    def opening(self: MetadataDirectory, *given: Any, **options: Any) -> PartitionLog:
        logs.append(opened(self, *given, **options))
        return logs[-1]

    def refusing(*_: object, **options: object) -> None:
        raise ConfigError("it is another's")

    controller = Controller(first.config, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataDirectory, "open", opening)
        patch.setattr(owner, name, refusing)
        with pytest.raises(ConfigError, match="another's"):
            controller.open()
        controller.close()
    (log,) = logs
    assert not log.loaded and (directory(tmp_path) / ".in-use").exists()
    assert owner is MetadataDirectory or controller.quorum.driver.closed
    again = Controller(first.config, clock=clock)
    assert again.open().cluster_id == first.cluster_id
    again.close()


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
