"""The table of hosted partitions: lookups by name and id, and why one finds nothing."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.controller.image import MetadataImage, PartitionImage, TopicImage
from fastq_broker.handlers import describe_producers
from fastq_broker.log import LogConfig
from fastq_broker.partitions import Partitions
from fastq_broker.purgatory import Purgatory
from fastq_broker.replicas import Replica, ReplicaTable
from fastq_broker.throttles import FOLLOWER_REPLICAS, LEADER_REPLICAS, ReplicationThrottles

from fastq.errors import KafkaStorageError
from fastq.protocol.messages import DescribeProducersRequest

ID = bytes(range(16))


def table() -> ReplicaTable:
    replicas = ReplicaTable(node_id=1)
    for partition in range(3):
        log: Any = SimpleNamespace(on_advance=lambda callback: None, remove_listener=lambda callback: None)
        replica = Replica(log, "topic", ID, partition)
        replica.leader_id, replica.leader_epoch = (1, 4) if partition < 2 else (2, 4)
        replicas.add(replica)
    return replicas


def test_both_tables_hold_the_same_replicas() -> None:
    replicas = table()
    assert len(replicas) == 3
    assert replicas.by_name[b"topic"] is replicas.by_id[ID]
    assert [replica.partition for replica in replicas] == [0, 1, 2]
    assert [replica.partition for replica in replicas.remove_topic("topic", ID)] == [0, 1, 2]
    assert (replicas.by_name, replicas.by_id) == ({}, {})


def test_a_lookup_answers_the_leader_or_why_not() -> None:
    replicas = table()
    leader = replicas.leader("topic", 0)
    assert isinstance(leader, Replica)
    assert replicas.leader("topic", 2) == 6
    assert replicas.leader("topic", 9) == 3
    assert replicas.leader("other", 0) == 3
    assert replicas.missing_error(b"\1" * 16, 0, by_id=True) == 100
    assert replicas.missing_error(ID, 9, by_id=True) == 3


def test_what_other_nodes_have_is_led_elsewhere() -> None:
    """A partition that has moved away is not unknown: who asks is told to look for its leader, and from some versions on where."""
    elsewhere = PartitionImage(2, 7, 0, (2, 3), (2, 3), ())
    topic = TopicImage("topic", ID, (elsewhere,))
    image = MetadataImage(topics_by_name={"topic": topic}, topics_by_id={ID: topic})
    replicas = ReplicaTable(node_id=1, image=lambda: image)
    assert replicas.leader("topic", 0) == replicas.missing_error(ID, 0, by_id=True) == 6
    for missing in (1, -1):
        assert replicas.leader("topic", missing) == replicas.missing_error(ID, missing, by_id=True) == 3
    assert replicas.missing_error(b"\1" * 16, 0, by_id=True) == 100
    assert replicas.leader("other", 0) == 3


def test_every_replica_tells_of_its_producers() -> None:
    """Administrators look for hanging transactions node by node (kafka-transactions find-hanging --broker-id)."""
    replicas = table()
    for replica in replicas:
        replica.log.producers = {}
    context: Any = SimpleNamespace(replicas=replicas)
    asked = DescribeProducersRequest.TopicRequest(name="topic", partition_indexes=[0, 2, 9])
    (answer,) = describe_producers.handle(context, DescribeProducersRequest(topics=[asked])).topics
    assert [partition.error_code for partition in answer.partitions] == [0, 0, 3]


def test_a_partition_whose_log_cannot_be_opened_says_so_until_it_is_deleted() -> None:
    replicas = table()
    replicas.note_failure("topic", ID, 7)
    assert replicas.leader("topic", 7) == 56
    assert replicas.missing_error(ID, 7, by_id=True) == 56
    replicas.remove_topic("topic", ID)
    assert replicas.leader("topic", 7) == 3


def test_leader_epochs_of_requests() -> None:
    replica = next(iter(table()))
    assert [replica.epoch_error(epoch) for epoch in (-1, 3, 4, 5)] == [0, 74, 0, 75]


def test_no_fetch_of_a_replica_is_served_where_there_are_no_others() -> None:
    replica = next(iter(table()))
    assert [replica.follower_error(2, epoch, -1) for epoch in (-1, 4)] == [6, 75]


@pytest.mark.parametrize(
    ("replicas", "isr", "wanted", "under"),
    [((1,), (1,), 1, False), ((1,), (1,), 5, False), ((1, 2, 3), (1,), 2, True), ((1, 2, 3), (1, 2), 2, False)],
)
def test_a_node_alone_takes_who_is_in_sync_as_the_metadata_has_it(
    replicas: tuple[int, ...], isr: tuple[int, ...], wanted: int, under: bool
) -> None:
    """A directory may come from a cluster."""
    log: Any = SimpleNamespace(
        share=lambda shared: None, assign_leader_epoch=lambda epoch: None, on_advance=lambda callback: None
    )
    replica = Replica(log, "topic", ID, 0)
    config = LogConfig()
    replica.apply_config(config, wanted)
    assert replica.apply(PartitionImage(1, 3, 0, replicas, isr, ()))
    assert not replica.apply(PartitionImage(1, 3, 1, replicas, isr, ()))
    assert (replica.under_min_isr, replica.shared, replica.leader_id, replica.leader_epoch) == (under, None, 1, 3)
    replica.apply_config(config, 1)
    assert not replica.under_min_isr


def test_a_partition_that_a_shortage_kept_from_being_led_is_led_once_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = [KafkaStorageError("loading a log failed: Too many open files") for _ in range(3)]
    applied = []

    def apply(image: Any) -> bool:
        if left:
            raise left.pop()
        applied.append(image)
        return True

    log = SimpleNamespace(name="short-0", failure=None, dir=SimpleNamespace(offline=None))
    replica = SimpleNamespace(log=log, apply=apply)
    topic = SimpleNamespace(
        name="short", topic_id=bytes(16), partitions=[SimpleNamespace(replicas=(1, 2), leader_epoch=1)]
    )
    image = SimpleNamespace(topics_by_name={"short": topic}, topic_configs=lambda name: {})
    defaults = SimpleNamespace(values={"min.insync.replicas": "1"})
    partitions = Partitions(
        SimpleNamespace(image=image, topic_defaults=defaults),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(node_id=1, get=lambda name, number: replica),  # type: ignore[arg-type]
        SimpleNamespace(changed=lambda replica: None),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    partitions._follow_topic(image, topic)  # type: ignore[arg-type]
    for _ in range(6):
        partitions.open_again()
    assert applied == topic.partitions
    assert len(caplog.records) == 1, "said once, however long it lasts"
    log.dir.offline, left[:] = KafkaStorageError("broken"), [KafkaStorageError("broken")]
    partitions._follow_topic(image, topic)  # type: ignore[arg-type]
    partitions.open_again()
    assert applied == topic.partitions, "a disk that has failed is not tried again"


def test_a_topic_that_fails_keeps_no_other_from_being_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else says so a second time; one that there was no memory for is tried again."""
    names = ["a", "b", "c", "d"]
    short = dict.fromkeys(names[:3], 2)
    topics = {name: SimpleNamespace(name=name) for name in names}
    followed: list[str] = []

    class Some(Partitions):
        def _follow_topic(self, image: Any, topic: Any) -> None:
            if short.get(topic.name, 0):
                short[topic.name] -= 1
                raise MemoryError
            if topic.name == "d":
                raise ValueError("a mistake")
            followed.append(topic.name)

    partitions = Some(
        SimpleNamespace(image=SimpleNamespace(topics_by_name=topics)),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    partitions._kept_shut.update(names)
    for _ in range(4):
        partitions.open_again()
    assert sorted(followed) == names[:3]
    assert not partitions.open_again()
    assert "a mistake" in caplog.text


class Log:
    """What a replica has need of."""

    config, unmade, failure, name = LogConfig(), False, None, "topic-0"

    def __init__(self) -> None:
        self.dir = SimpleNamespace(offline=None)
        self.listeners: tuple[object, ...] = ()

    def on_advance(self, callback: object) -> None:
        self.listeners = (*self.listeners, callback)

    def remove_listener(self, callback: object) -> None:
        self.listeners = tuple(known for known in self.listeners if known != callback)

    def share(self, shared: bool) -> None: ...

    def assign_leader_epoch(self, epoch: int) -> None: ...


def test_a_replica_is_whole_whichever_allocations_fail_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was in the table without what follows was never completed: appends woke no fetch that waited, and fewer in sync than
    min.insync.replicas asks for took an append."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    values = {"min.insync.replicas": "2", LEADER_REPLICAS: ["*"], FOLLOWER_REPLICAS: ["*"]}
    topic = TopicImage("topic", ID, (PartitionImage(1, 3, 0, (1, 2), (1,), ()),))
    image = SimpleNamespace(topics_by_name={"topic": topic}, topic_configs=lambda name: {})
    defaults = SimpleNamespace(values=values, log_config_of=lambda overrides: LogConfig())
    settings: Any = SimpleNamespace(node_id=1, replication_quota_window_num=11, replication_quota_window_size_seconds=1)
    failed = 0
    for first in range(200):
        log, table, throttles = Log(), ReplicaTable(node_id=1), ReplicationThrottles(settings, lambda: 0)
        partitions = Partitions(
            SimpleNamespace(image=image, topic_defaults=defaults, directory_ids=()),  # type: ignore[arg-type]
            SimpleNamespace(dirs=(), create=lambda *asked, log=log: log, get=lambda *key: None),  # type: ignore[arg-type]
            table,
            Purgatory(SimpleNamespace()),  # type: ignore[arg-type]
            throttles,
        )
        partitions.on_placed = lambda replica, image: None
        with suppress(MemoryError), AllocationsFail(first):
            partitions._attempt_to_follow(image, topic)  # type: ignore[arg-type]
        replica = table.get("topic", 0)
        failed += replica is None
        partitions._attempt_to_follow(image, topic)  # type: ignore[arg-type]
        replica = table.get("topic", 0)
        assert replica is not None and table.by_id[ID][0] is replica, f"allocation {first}"
        assert replica.under_min_isr and replica.leader_id == 1, f"allocation {first}"
        assert len(log.listeners) == 2, f"allocation {first}"
        assert throttles.leader.keys == {(ID, 0)}, f"allocation {first}"
    assert failed > 5


@pytest.mark.parametrize("error", [MemoryError(), KafkaStorageError("no descriptor for now")])
def test_a_replica_does_not_lead_before_it_could_begin_to(error: Exception) -> None:
    """Who asked was told that it leads, and its log had no epoch of it."""
    short = [error]

    def apply(image: PartitionImage) -> None:
        if short:
            raise short.pop()

    replica = Replica(Log(), "topic", ID, 0, SimpleNamespace(node_id=1))  # type: ignore[arg-type]
    replica.shared = SimpleNamespace(apply=apply, is_whole=True)  # type: ignore[assignment]
    image = PartitionImage(1, 3, 0, (1, 2), (1, 2), ())
    with pytest.raises(type(error)):
        replica.apply(image)
    assert replica.leader_id == -1
    assert replica.apply(image), "who waits here has to look again"
    assert replica.leader_id == 1
    short.append(error)
    with pytest.raises(type(error)):
        replica.apply(image._replace(leader=2, leader_epoch=4))
    assert replica.leader_id == 2, "and no longer than another is to lead"


def test_what_a_deleted_topic_had_here_is_retired_though_there_was_no_memory_for_all_of_it() -> None:
    """What was behind the first that failed was never told to who waited for it, and its logs stayed on the disk."""
    gone = [SimpleNamespace(partition=number, log=SimpleNamespace(name=f"t-{number}")) for number in range(3)]
    short, retired, deleted = [gone[1]], [], []

    class Some(Partitions):
        def _retire(self, replica: Any) -> None:
            if replica in short:
                raise MemoryError
            retired.append(replica.partition)

    partitions = Some(
        SimpleNamespace(image=SimpleNamespace(topics_by_name={})),  # type: ignore[arg-type]
        SimpleNamespace(delete=lambda topic, number: deleted.append(number)),  # type: ignore[arg-type]
        SimpleNamespace(remove_topic=lambda topic, topic_id: gone),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
    )
    topic: Any = SimpleNamespace(name="t", topic_id=ID, partitions=(0, 1, 2))
    partitions.metadata_changed(
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(deleted_topics=[topic], changed_topics=[], changed_configs=[]),  # type: ignore[arg-type]
    )
    assert (retired, deleted) == ([0, 2], [0, 1, 2])
    short.clear()
    partitions.open_again()
    assert retired == [0, 2, 1]
    partitions.open_again()
    assert retired == [0, 2, 1]
