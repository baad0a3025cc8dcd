"""Metadata in every version: topics by name and id, creation on the way, addresses by listener."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.controller import NewTopic
from fastq_broker.handlers import describe_topic_partitions, metadata

from fastq.protocol.messages import DescribeTopicPartitionsRequest, MetadataRequest, PartitionChangeRecord
from fastq.protocol.uuid import ZERO_UUID

VERSIONS = range(metadata.VERSIONS[0], metadata.VERSIONS[1] + 1)
Topic = MetadataRequest.MetadataRequestTopic


def named(*names: str, create: bool = False, **fields: Any) -> MetadataRequest:
    # Before version 4 a request cannot say that it wants nothing created.
    return MetadataRequest(topics=[Topic(name=name) for name in names], allow_auto_topic_creation=create, **fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_by_name(bench: Any, version: int) -> None:
    (made,) = bench.controller.create_topics([NewTopic("a", 2)])
    response = bench.call(metadata, named("a", create=True), version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, "a")
    assert topic.topic_id == (made.topic_id if version >= 10 else ZERO_UUID)
    assert [(item.partition_index, item.leader_id, item.error_code) for item in topic.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert [(item.replica_nodes, item.isr_nodes, item.offline_replicas) for item in topic.partitions] == [
        ([1], [1], [])
    ] * 2
    assert {item.leader_epoch for item in topic.partitions} == ({0} if version >= 7 else {-1})
    if version >= 2:
        assert response.cluster_id == bench.controller.cluster_id
    if version >= 1:
        assert response.controller_id == 1


@pytest.mark.parametrize("name", [None, "a"])
@pytest.mark.parametrize("version", [10, 11])
def test_ids_before_their_time_are_refused(bench: Any, version: int, name: str | None) -> None:
    """The response of these versions cannot be without a name: it could not be encoded, and the connection was closed."""
    (made,) = bench.controller.create_topics([NewTopic("a")])
    asked = [Topic(name=name, topic_id=made.topic_id), Topic(name="a")]
    response = bench.call(metadata, MetadataRequest(topics=asked), version)
    assert [(topic.error_code, topic.name) for topic in response.topics] == [(42, name or ""), (42, "a")]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a"), NewTopic("b")])
    everything = MetadataRequest(topics=[] if version == 0 else None)
    response = bench.call(metadata, everything, version)
    assert sorted(topic.name for topic in response.topics) == ["a", "b"]
    if version >= 1:
        assert bench.call(metadata, MetadataRequest(topics=[]), version).topics == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_created_when_request_and_broker_allow_it(make_bench: Any, version: int) -> None:
    bench = make_bench(num_partitions=3)
    (topic,) = bench.call(metadata, named("new", create=True), version).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 3)
    assert bench.logs.get("new", 2) is not None
    if version >= 4:
        (topic,) = bench.call(metadata, named("other"), version).topics
        assert (topic.error_code, topic.partitions) == (3, [])
        assert bench.controller.image.topic("other") is None


def test_clients_that_name_a_new_topic_at_the_same_time_all_get_it(bench: Any) -> None:
    answers = bench.call_together(metadata, [named("new", create=True) for _ in range(3)], metadata.VERSIONS[1])
    assert [topic.error_code for answer in answers for topic in answer.topics] == [0, 0, 0]
    assert len({topic.topic_id for answer in answers for topic in answer.topics}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_created_where_the_broker_forbids_it(make_bench: Any, version: int) -> None:
    bench = make_bench(auto_create_topics_enable="false")
    (topic,) = bench.call(metadata, named("new", create=True), version).topics
    assert topic.error_code == 3
    assert bench.controller.image.topics_by_name == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["a b", "..", "x" * 250])
def test_a_bad_name(bench: Any, version: int, name: str) -> None:
    (topic,) = bench.call(metadata, named(name, create=True), version).topics
    assert (topic.error_code, topic.name) == (17, name)


def test_a_name_that_collides_is_not_created(bench: Any) -> None:
    bench.controller.create_topics([NewTopic("a.b")])
    topics = bench.call(metadata, named("a_b", "c", create=True), 12).topics
    assert [(topic.name, topic.error_code) for topic in topics] == [("a_b", 17), ("c", 0)]


def test_the_metadata_log_is_never_created(bench: Any) -> None:
    (topic,) = bench.call(metadata, named("__cluster_metadata", create=True), 12).topics
    assert topic.error_code == 3


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(bench: Any, version: int) -> None:
    (made,) = bench.controller.create_topics([NewTopic("a")])
    wanted = [Topic(topic_id=made.topic_id, name=None), Topic(topic_id=b"u" * 16, name=None)]
    known, unknown = bench.call(metadata, MetadataRequest(topics=wanted), version).topics
    assert (known.error_code, known.name, len(known.partitions)) == (0, "a", 1)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, b"u" * 16)


@pytest.mark.parametrize("version", VERSIONS)
def test_addresses_are_those_of_the_listener(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a")])
    (broker,) = bench.call(metadata, named("a"), max(version, 4), listener="INSIDE").brokers
    assert (broker.host, broker.port) == ("::1", 9094)
    response = bench.call(metadata, named("a"), max(version, 4), listener="OTHER")
    assert response.brokers == []
    expected = 72 if max(version, 4) >= 6 else 5
    assert [(item.error_code, item.leader_id) for item in response.topics[0].partitions] == [(expected, -1)]


@pytest.mark.parametrize("version", range(4, 14))
def test_a_partition_without_a_leader(bench: Any, version: int) -> None:
    (made,) = bench.controller.create_topics([NewTopic("a")])
    bench.controller._commit([PartitionChangeRecord(partition_id=0, topic_id=made.topic_id, leader=-1)])
    (topic,) = bench.call(metadata, named("a"), version).topics
    assert [(item.error_code, item.leader_id) for item in topic.partitions] == [(5, -1)]


def test_internal_topics_take_their_settings(make_bench: Any) -> None:
    bench = make_bench(offsets_topic_num_partitions=4, transaction_state_log_num_partitions=2)
    topics = bench.call(metadata, named("__consumer_offsets", "__transaction_state", create=True), 12).topics
    assert [(item.error_code, item.is_internal, len(item.partitions)) for item in topics] == [
        (0, True, 4),
        (0, True, 2),
    ]
    assert bench.controller.image.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"
    assert bench.controller.image.topic_configs("__transaction_state")["min.insync.replicas"] == "1"


def test_authorized_operations_on_request(bench: Any) -> None:
    bench.controller.create_topics([NewTopic("a")])
    for version in (8, 9, 10):
        quiet = bench.call(metadata, named("a"), version)
        assert (quiet.cluster_authorized_operations, quiet.topics[0].topic_authorized_operations) == (-(2**31),) * 2
        asked = named("a", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
        told = bench.call(metadata, asked, version)
        assert told.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
        assert told.topics[0].topic_authorized_operations == sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))


def test_a_replica_in_a_directory_that_failed_is_offline_and_so_is_one_that_the_listener_does_not_reach(
    bench: Any,
) -> None:
    """What Metadata and DescribeTopicPartitions say alike."""
    (made,) = bench.controller.create_topics([NewTopic("a", 2)])
    record = PartitionChangeRecord(partition_id=1, topic_id=made.topic_id, directories=[b"\xff" * 16])
    bench.controller._commit([record])

    def told(listener: str) -> list[list[int]]:
        (topic,) = bench.call(metadata, named("a"), 13, listener).topics
        request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.TopicRequest(name="a")])
        (described,) = bench.call(describe_topic_partitions, request, 0, listener).topics
        found = [item.offline_replicas for item in topic.partitions]
        assert [item.offline_replicas for item in described.partitions] == found
        return found

    assert told("INSIDE") == [[], [1]]
    assert told("ELSEWHERE") == [[1], [1]]
