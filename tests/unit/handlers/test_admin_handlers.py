"""The admin APIs in every version: create, delete and grow topics, records, cluster, log dirs, quorum; configs have a file of their own."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from admin_requests import describe, increment, versions, wanted
from fastq_broker.controller import NewTopic
from fastq_broker.handlers import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    metadata,
)
from fastq_broker.raft.voters import ReplicaKey, Voter, VoterSet

from fastq._native.records import build_batch
from fastq.errors import KafkaStorageError
from fastq.protocol import messages as m


@pytest.mark.parametrize("version", versions(create_topics))
def test_create_topics(bench: Any, version: int) -> None:
    request = m.CreateTopicsRequest(
        topics=[wanted("a", retention_ms="7"), wanted("b b"), wanted("c", 0)], timeout_ms=1000
    )
    response = bench.call(create_topics, request, version)
    assert [(item.name, item.error_code) for item in response.topics] == [("a", 0), ("b b", 17), ("c", 37)]
    assert "larger than 0" in response.topics[2].error_message
    made = response.topics[0]
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        configs = {item.name: (item.value, item.config_source) for item in made.configs}
        assert configs["retention.ms"] == ("7", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
        assert response.topics[1].num_partitions == -1
    if version >= 7:
        assert made.topic_id == bench.controller.image.topics_by_name["a"].topic_id
    again = bench.call(create_topics, request, version)
    assert again.topics[0].error_code == 36


@pytest.mark.parametrize("version", versions(create_topics))
def test_create_topics_validate_only_duplicates_and_defaults(bench: Any, version: int) -> None:
    request = m.CreateTopicsRequest(topics=[wanted("a")], timeout_ms=1000, validate_only=True)
    assert bench.call(create_topics, request, version).topics[0].error_code == 0
    assert bench.controller.image.topics_by_name == {}
    twice = m.CreateTopicsRequest(topics=[wanted("a"), wanted("a"), wanted("b", -1, -1)], timeout_ms=1000)
    found = bench.call(create_topics, twice, version).topics
    assert [(item.name, item.error_code) for item in found] == [("a", 42), ("b", 0)]


def delete_request(version: int, *names: str) -> m.DeleteTopicsRequest:
    if version < 6:
        return m.DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000)
    return m.DeleteTopicsRequest(
        topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names], timeout_ms=1000
    )


@pytest.mark.parametrize("version", versions(delete_topics))
def test_delete_topics_by_name(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a"), NewTopic("b")])
    response = bench.call(delete_topics, delete_request(version, "a", "nope"), version)
    assert {item.name: item.error_code for item in response.responses} == {"a": 0, "nope": 3}
    assert set(bench.controller.image.topics_by_name) == {"b"}
    twice = bench.call(delete_topics, delete_request(version, "b", "b"), version)
    assert [(item.name, item.error_code) for item in twice.responses] == [("b", 42)]


@pytest.mark.parametrize("version", versions(delete_topics))
def test_delete_topics_where_it_is_disabled(make_bench: Any, version: int) -> None:
    bench = make_bench(delete_topic_enable="false")
    bench.controller.create_topics([NewTopic("a")])
    (found,) = bench.call(delete_topics, delete_request(version, "a"), version).responses
    assert found.error_code == (42 if version < 3 else 73)
    assert "a" in bench.controller.image.topics_by_name


def test_delete_topics_by_id(bench: Any) -> None:
    a, b = bench.controller.create_topics([NewTopic("a"), NewTopic("b")])
    state = m.DeleteTopicsRequest.DeleteTopicState
    topics = [
        state(name=None, topic_id=a.topic_id),
        state(name=None, topic_id=b"u" * 16),
        state(name=None),
        state(name="x", topic_id=b"v" * 16),
        state(name="b"),
        state(name=None, topic_id=b.topic_id),
    ]
    response = bench.call(delete_topics, m.DeleteTopicsRequest(topics=topics, timeout_ms=1), 6)
    found = {(item.name, item.topic_id): item.error_code for item in response.responses}
    assert found[(None, a.topic_id)] == 0
    assert found[(None, b"u" * 16)] == 100
    assert found[(None, bytes(16))] == 42
    assert found[("x", b"v" * 16)] == 42
    assert found[("b", bytes(16))] == 42
    assert found[(None, b.topic_id)] == 42
    assert set(bench.controller.image.topics_by_name) == {"b"}


@pytest.mark.parametrize("version", versions(create_partitions))
def test_create_partitions(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", 2), NewTopic("b", 2)])
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic
    assignment = m.CreatePartitionsRequest.CreatePartitionsAssignment
    request = m.CreatePartitionsRequest(
        topics=[
            topic(name="a", count=3, assignments=None),
            topic(name="b", count=1, assignments=None),
            topic(name="c", count=1, assignments=None),
        ],
        timeout_ms=1,
        validate_only=False,
    )
    response = bench.call(create_partitions, request, version)
    assert [(item.name, item.error_code) for item in response.results] == [("a", 0), ("b", 37), ("c", 3)]
    assert "1 would not be an increase" in response.results[1].error_message
    assert bench.logs.get("a", 2) is not None
    given = topic(name="b", count=3, assignments=[assignment(broker_ids=[1])])
    request = m.CreatePartitionsRequest(topics=[given], timeout_ms=1, validate_only=True)
    assert bench.call(create_partitions, request, version).results[0].error_code == 0
    assert len(bench.controller.image.topics_by_name["b"].partitions) == 2


def append(bench: Any, topic: str, partition: int, count: int) -> None:
    log = bench.logs.get(topic, partition)
    for number in range(count):
        batch = build_batch([(log.clock(), b"key", b"value %d" % number)])
        log.append(batch, leader_epoch=0, now_ms=log.clock())


@pytest.mark.parametrize("version", versions(delete_records))
def test_delete_records(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", 2), NewTopic("kept", configs=[("cleanup.policy", "compact")])])
    append(bench, "a", 0, 10)
    append(bench, "kept", 0, 2)

    def delete(topic: str, partition: int, offset: int) -> tuple[int, int]:
        item = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        named = m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[item])
        response = bench.call(delete_records, m.DeleteRecordsRequest(topics=[named], timeout_ms=1), version)
        found = response.topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete("a", 0, 4) == (0, 4)
    assert delete("a", 0, 2) == (0, 4)
    assert delete("a", 0, 11) == (1, -1)
    assert delete("a", 0, -2) == (1, -1)
    assert delete("a", 0, -1) == (0, 10)
    assert delete("a", 9, 0) == (3, -1)
    assert delete("nope", 0, 0) == (3, -1)
    assert delete("kept", 0, 1) == (44, -1)
    bench.controller.create_topics([NewTopic("__consumer_offsets", configs=[("cleanup.policy", "compact,delete")])])
    append(bench, "__consumer_offsets", 0, 2)
    assert delete("__consumer_offsets", 0, 1) == (17, -1)
    assert bench.logs.get("__consumer_offsets", 0).log_start_offset == 0
    assert bench.logs.get("a", 0).log_start_offset == 10


@pytest.mark.parametrize("version", versions(describe_cluster))
def test_describe_cluster(bench: Any, version: int) -> None:
    response = bench.call(
        describe_cluster, m.DescribeClusterRequest(include_cluster_authorized_operations=True), version
    )
    assert (response.error_code, response.controller_id, response.cluster_id) == (0, 1, bench.controller.cluster_id)
    assert [(item.broker_id, item.host, item.port) for item in response.brokers] == [(1, "broker.example", 9092)]
    assert response.cluster_authorized_operations > 0
    if version >= 1:
        for kind, error in ((2, 114), (3, 115)):
            assert (
                bench.call(describe_cluster, m.DescribeClusterRequest(endpoint_type=kind), version).error_code == error
            )


def test_describe_cluster_tells_of_fenced_brokers_on_request(bench: Any) -> None:
    fence = m.FenceBrokerRecord(id=1, epoch=bench.controller.broker_epoch)
    bench.controller._commit([fence])
    assert bench.call(describe_cluster, m.DescribeClusterRequest(), 2).brokers == []
    (broker,) = bench.call(describe_cluster, m.DescribeClusterRequest(include_fenced_brokers=True), 2).brokers
    assert broker.is_fenced


def page(bench: Any, *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    kind = m.DescribeTopicPartitionsRequest
    request = kind(
        topics=[kind.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else kind.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return bench.call(describe_topic_partitions, request, 0)


def test_describe_topic_partitions_page_by_page(make_bench: Any) -> None:
    bench = make_bench(max_request_partition_size_limit=4)
    bench.controller.create_topics([NewTopic("b", 5), NewTopic("a", 3), NewTopic("c", 1)])
    found: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    pages = 0
    while True:
        response = page(bench, cursor=cursor, limit=3)
        pages += 1
        assert sum(len(topic.partitions) for topic in response.topics) <= 3
        found += [(topic.name, item.partition_index) for topic in response.topics for item in topic.partitions]
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert found == [("a", 0), ("a", 1), ("a", 2), *[("b", number) for number in range(5)], ("c", 0)]
    assert pages == 3
    assert sum(len(topic.partitions) for topic in page(bench).topics) == 4


def test_describe_topic_partitions_errors(bench: Any) -> None:
    bench.controller.create_topics([NewTopic("a", 1)])
    response = page(bench, "nope", "a", "x y")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("a", 0), ("nope", 3), ("x y", 17)]
    for cursor in (("a", -1), ("b", 0)):
        response = page(bench, "a", "c", cursor=cursor)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [("a", 42), ("c", 42)]
    assert [len(topic.partitions) for topic in page(bench, "a", limit=0).topics] == [1]


@pytest.mark.parametrize("version", versions(describe_log_dirs))
def test_describe_log_dirs(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", 2), NewTopic("b", 1)])
    append(bench, "a", 1, 3)
    (result,) = bench.call(describe_log_dirs, m.DescribeLogDirsRequest(topics=None), version).results
    assert (result.error_code, result.log_dir) == (0, bench.config.log_dirs[0])
    sizes = {
        (topic.name, item.partition_index): item.partition_size for topic in result.topics for item in topic.partitions
    }
    assert set(sizes) == {("a", 0), ("a", 1), ("b", 0)}
    assert sizes[("a", 1)] == bench.logs.get("a", 1).size_bytes > 0
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes
    some = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic="a", partitions=[0, 7])
    (result,) = bench.call(describe_log_dirs, m.DescribeLogDirsRequest(topics=[some]), version).results
    assert [(topic.name, [item.partition_index for item in topic.partitions]) for topic in result.topics] == [
        ("a", [0])
    ]


def test_describe_log_dirs_of_a_directory_that_failed(bench: Any) -> None:
    bench.controller.create_topics([NewTopic("a", 1)])
    log_dir = bench.logs.get("a", 0).dir
    log_dir.fail("writing", "somewhere", OSError(5, "Input/output error"))
    (result,) = bench.call(describe_log_dirs, m.DescribeLogDirsRequest(topics=None), 4).results
    assert (result.error_code, result.topics) == (56, [])


@pytest.mark.parametrize("version", versions(describe_quorum))
def test_describe_quorum(bench: Any, version: int) -> None:
    kind = m.DescribeQuorumRequest
    topics = [
        kind.TopicData(topic_name="__cluster_metadata", partitions=[kind.PartitionData(partition_index=0)]),
        kind.TopicData(topic_name="other", partitions=[kind.PartitionData(partition_index=0)]),
    ]
    response = bench.call(describe_quorum, kind(topics=topics), version)
    (state,), (unknown,) = (topic.partitions for topic in response.topics)
    assert (state.leader_id, state.leader_epoch) == (1, bench.controller.epoch)
    assert [item.replica_id for item in state.current_voters] == [1]
    assert state.current_voters[0].log_end_offset == bench.controller.quorum.end_offset
    assert unknown.error_code == 3
    if version >= 2:
        assert state.current_voters[0].replica_directory_id == bench.controller.directory_ids[0]
        assert [node.node_id for node in response.nodes] == [1]
        assert response.nodes[0].listeners[0].name == "CONTROLLER"


def test_voters_are_told_by_their_ids_in_whichever_order_they_joined() -> None:
    keys = [ReplicaKey(number, bytes([number]) * 16) for number in (2, 3, 1)]
    leadership = SimpleNamespace(me=keys[0], others={})
    machine = SimpleNamespace(leadership=leadership)
    quorum = SimpleNamespace(
        voters=VoterSet(Voter(key, {}) for key in keys),
        driver=SimpleNamespace(machine=machine, now=lambda: 0.0),
        end_offset=7,
        high_watermark=7,
    )
    context: Any = SimpleNamespace(
        api_version=2, controller=SimpleNamespace(quorum=quorum, node_id=2, epoch=5, clock=lambda: 0)
    )
    kind = m.DescribeQuorumRequest
    topic = kind.TopicData(topic_name="__cluster_metadata", partitions=[kind.PartitionData(partition_index=0)])
    (state,) = describe_quorum.handle(context, kind(topics=[topic])).topics[0].partitions
    assert [item.replica_id for item in state.current_voters] == [1, 2, 3]


LONG = "x y" * 10_000


def test_long_names_and_values_from_outside_fit_into_the_answers(bench: Any) -> None:
    """The wire carries 32,767 bytes of a string; a message that repeats what came must not pass that."""
    bench.controller.create_topics([NewTopic("a")])
    quorum = m.DescribeQuorumRequest
    partition = quorum.PartitionData(partition_index=0)
    answers = [
        bench.call(create_topics, m.CreateTopicsRequest(topics=[wanted(LONG), wanted("b", 2, 1, **{LONG: LONG})]), 7),
        bench.call(create_topics, m.CreateTopicsRequest(topics=[wanted("b", retention_ms=LONG)]), 7),
        bench.call(delete_topics, delete_request(6, LONG), 6),
        bench.call(describe_configs, describe(2, LONG), 4),
        bench.call(describe_configs, describe(4, LONG), 4),
        bench.call(describe_configs, describe(4, "9" * 30_000), 4),
        bench.call(describe_configs, describe(8, LONG), 4),
        bench.call(incremental_alter_configs, increment(2, "a", (LONG, 0, LONG)), 1),
        bench.call(incremental_alter_configs, increment(2, "a", ("retention.ms", 0, LONG)), 1),
        bench.call(incremental_alter_configs, increment(4, LONG, ("a", 0, LONG)), 1),
        bench.call(incremental_alter_configs, increment(4, "9" * 30_000, ("a", 0, LONG)), 1),
        bench.call(incremental_alter_configs, increment(8, "1", (LONG, 0, LONG), ("root", 0, LONG)), 1),
        bench.call(describe_quorum, quorum(topics=[quorum.TopicData(topic_name=LONG, partitions=[partition])]), 2),
    ]
    assert len(answers) == 13
    growth = m.CreatePartitionsRequest.CreatePartitionsTopic(name=LONG, count=3, assignments=None)
    (grown,) = bench.call(create_partitions, m.CreatePartitionsRequest(topics=[growth], timeout_ms=1), 3).results
    assert grown.error_code == 3
    assert len(grown.error_message) < 1000


def test_a_request_of_very_many_topics_takes_no_very_long_time(bench: Any) -> None:
    """Work grows with the names, not with their square."""
    names = [f"no such topic {number}" for number in range(20_000)]
    found = bench.call(create_topics, m.CreateTopicsRequest(topics=[wanted(name) for name in names]), 7).topics
    assert {item.error_code for item in found} == {17}
    responses = bench.call(delete_topics, delete_request(6, *names), 6).responses
    assert {item.error_code for item in responses} == {3}
    many = m.CreateTopicsRequest(topics=[wanted(f"t{number}", 10_000) for number in range(1000)], validate_only=True)
    codes = [item.error_code for item in bench.call(create_topics, many, 7).topics]
    assert codes[0] == 0
    assert set(codes[1:]) == {44}


def all_changes(kept: bytes) -> list[tuple[Any, Any, str]]:
    """A request of each API that changes the metadata, and where its response has results."""
    topic = m.IncrementalAlterConfigsRequest
    return [
        (create_topics, m.CreateTopicsRequest(topics=[wanted("new")], timeout_ms=1000), "topics"),
        (
            create_partitions,
            m.CreatePartitionsRequest(
                topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="kept", count=5, assignments=None)],
                timeout_ms=1000,
            ),
            "results",
        ),
        (
            delete_topics,
            m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="kept")], timeout_ms=1000),
            "responses",
        ),
        (
            alter_configs,
            m.AlterConfigsRequest(
                resources=[
                    m.AlterConfigsRequest.AlterConfigsResource(
                        resource_type=2,
                        resource_name="kept",
                        configs=[m.AlterConfigsRequest.AlterableConfig(name="retention.ms", value="9")],
                    )
                ]
            ),
            "responses",
        ),
        (
            incremental_alter_configs,
            topic(
                resources=[
                    topic.AlterConfigsResource(
                        resource_type=2,
                        resource_name="kept",
                        configs=[topic.AlterableConfig(name="retention.ms", config_operation=0, value="9")],
                    )
                ]
            ),
            "responses",
        ),
        (
            metadata,
            m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
            ),
            "topics",
        ),
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("when", ["written", "synced"])
def test_a_full_disk_is_the_answer_of_each_item(
    bench: Any, number: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These responses have no error code of their own: the connection was closed, and clients tried until their time was over."""
    (made,) = bench.controller.create_topics([NewTopic("kept", 1)])
    if when == "written":
        bench.controller.quorum._log.dir.fail("writing a batch", "f", OSError(errno.ENOSPC, "No space left on device"))
    else:

        async def flushed() -> None:
            raise KafkaStorageError("No space left on device")

        monkeypatch.setattr(bench.controller, "flushed", flushed)
    handler, request, field = all_changes(made.topic_id)[number]
    response = bench.call(handler, request, handler.VERSIONS[1])
    (item,) = getattr(response, field)
    assert item.error_code == 56
    if handler is not metadata:
        assert "No space left on device" in item.error_message
    elif when == "written":
        assert "new" not in bench.controller.image.topics_by_name
    if when == "written":
        assert bench.controller.image.topics_by_name.keys() == {"kept"}
        assert len(bench.controller.image.topics_by_name["kept"].partitions) == 1


Config = m.IncrementalAlterConfigsRequest.AlterConfigsResource
TOPIC, APPEND = 2, 2


def test_of_equal_requests_at_the_same_time_one_is_the_first(bench: Any) -> None:
    """As on Apache Kafka, whose controller takes one after the other: what is looked at is acted upon in the same step."""

    def twice(handler: Any, request: Any) -> list[Any]:
        return bench.call_together(handler, [request, request], handler.VERSIONS[1])  # type: ignore[no-any-return]

    made = twice(create_topics, m.CreateTopicsRequest(topics=[wanted("a")], timeout_ms=1000))
    assert [answer.topics[0].error_code for answer in made] == [0, 36]
    grow = m.CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=None)
    grown = twice(create_partitions, m.CreatePartitionsRequest(topics=[grow], timeout_ms=1000))
    assert [answer.results[0].error_code for answer in grown] == [0, 37]
    item = m.IncrementalAlterConfigsRequest.AlterableConfig(
        name="cleanup.policy", config_operation=APPEND, value="compact"
    )
    resource = Config(resource_type=TOPIC, resource_name="a", configs=[item])
    altered = twice(incremental_alter_configs, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert [answer.responses[0].error_code for answer in altered] == [0, 0]
    assert bench.controller.image.topic_configs("a")["cleanup.policy"] == "delete,compact"
    ids = twice(init_producer_id, m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
    assert len({answer.producer_id for answer in ids}) == 2 and {answer.error_code for answer in ids} == {0}
    found = twice(find_coordinator, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert [answer.coordinators[0].error_code for answer in found] == [0, 0]
    named = m.DeleteTopicsRequest.DeleteTopicState(name="a")
    deleted = twice(delete_topics, m.DeleteTopicsRequest(topics=[named], timeout_ms=1000))
    assert [answer.responses[0].error_code for answer in deleted] == [0, 3]


@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_a_producer_id_without_an_epoch_is_none(bench: Any, transactional_id: str | None) -> None:
    def answered(**fields: int) -> int:
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000, **fields)
        return int(bench.call(init_producer_id, request, 5).error_code)

    assert answered(producer_id=5) == answered(producer_epoch=5) == 42
    assert transactional_id or answered(producer_id=5, producer_epoch=5) == 0
