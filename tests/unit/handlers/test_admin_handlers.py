"""The admin APIs in every version: create, delete and grow topics, configs, records, cluster, log dirs, quorum."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest
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
    list_config_resources,
    metadata,
)
from fastq_broker.raft.voters import ReplicaKey, Voter, VoterSet

from fastq._native.records import build_batch
from fastq.errors import KafkaStorageError
from fastq.protocol import messages as m


def versions(handler: Any) -> range:
    return range(handler.VERSIONS[0], handler.VERSIONS[1] + 1)


def wanted(name: str, partitions: int = 2, replicas: int = 1, **configs: str) -> m.CreateTopicsRequest.CreatableTopic:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[
            m.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


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


def describe(kind: int, name: str, keys: list[str] | None = None, **options: bool) -> m.DescribeConfigsRequest:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return m.DescribeConfigsRequest(resources=[resource], **options)


@pytest.mark.parametrize("version", versions(describe_configs))
def test_describe_configs_of_a_topic(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("retention.ms", "7")])])
    request = describe(2, "a", include_synonyms=True)
    request.include_documentation = version >= 3
    (result,) = bench.call(describe_configs, request, version).results
    assert result.error_code == 0
    found = {item.name: item for item in result.configs}
    assert len(found) == 35
    entry = found["retention.ms"]
    assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == ("7", 1, False, False)
    assert [(item.name, item.value, item.source) for item in entry.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.hours", "168", 5),
    ]
    # Like Kafka, a new cluster sets this for all brokers, for eligible leader replicas.
    assert found["min.insync.replicas"].config_source == 3
    if version >= 3:
        assert entry.config_type == 5
        assert "Age beyond which" in entry.documentation
        assert "Has no effect" in found["remote.storage.enable"].documentation
    (only,) = bench.call(describe_configs, describe(2, "a", ["segment.bytes"]), version).results
    assert [(item.name, item.synonyms) for item in only.configs] == [("segment.bytes", [])]
    assert only.configs[0].documentation == (None if version >= 3 else "")  # it was not asked for


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (2, "a", ["segment.bytes", "cleanup.policy", "nope", "segment.bytes", "retention.ms"]),
        (4, "1", ["num.partitions", "log.dirs", "nope", "node.id", "log.dirs"]),
        (8, "1", ["ROOT", "nope", "ROOT"]),
        (32, "g", ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]),
    ],
)
def test_named_keys_come_once_in_the_order_asked(bench: Any, kind: int, name: str, keys: list[str]) -> None:
    bench.controller.create_topics([NewTopic("a")])
    (result,) = bench.call(describe_configs, describe(kind, name, keys), 4).results
    known = [key for key in dict.fromkeys(keys) if key not in ("nope", "ROOT")]
    assert [item.name for item in result.configs if item.name != "ROOT"] == known
    assert all(item.documentation is None for item in result.configs)


@pytest.mark.parametrize("version", versions(describe_configs))
def test_describe_configs_of_brokers(make_bench: Any, version: int) -> None:
    bench = make_bench(num_partitions=3, ssl_key_password="secret", insecure_ignore=["ssl.key.password"])
    (result,) = bench.call(describe_configs, describe(4, "1", include_synonyms=True), version).results
    found = {item.name: item for item in result.configs}
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("3", 4)
    assert found["num.partitions"].read_only
    secret = found["ssl.key.password"]
    assert (secret.value, secret.is_sensitive) == (None, True)
    assert [item.value for item in secret.synonyms] == [None]
    (default,) = bench.call(describe_configs, describe(4, ""), version).results
    assert [(item.name, item.value, item.config_source) for item in default.configs] == [
        ("min.insync.replicas", "1", 3)
    ]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [(2, "nope", 3), (2, "a b", 17), (4, "9", 42), (4, "x", 42), (8, "9", 42), (0, "x", 42), (32, "", 42)],
)
def test_describe_configs_of_what_is_not_there(bench: Any, kind: int, name: str, error: int) -> None:
    for version in versions(describe_configs):
        (result,) = bench.call(describe_configs, describe(kind, name), version).results
        assert (result.error_code, result.configs) == (error, [])
        assert result.error_message


def increment(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> Any:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[config(name=key, config_operation=operation, value=value) for key, operation, value in changes],
    )
    return m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_incremental_alter_configs(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("segment.ms", "7")])])
    changes = (("retention.ms", 0, "5"), ("segment.ms", 1, None), ("cleanup.policy", 2, "compact"))
    assert _errors(bench.call(incremental_alter_configs, increment(2, "a", *changes, validate=True), version)) == [0]
    assert bench.controller.image.topic_configs("a") == {"segment.ms": "7"}
    assert _errors(bench.call(incremental_alter_configs, increment(2, "a", *changes), version)) == [0]
    assert bench.controller.image.topic_configs("a") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    bad = bench.call(incremental_alter_configs, increment(2, "a", ("retention.ms", 0, "x")), version)
    assert _errors(bad) == [40]
    assert "'x'" in bad.responses[0].error_message
    assert _errors(bench.call(incremental_alter_configs, increment(4, "1", ("num.partitions", 0, "5")), version)) == [
        42
    ]


def _errors(response: Any) -> list[int]:
    return [item.error_code for item in response.responses]


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_levels_of_loggers(bench: Any, version: int) -> None:
    name = "fastq_broker.test_levels"
    logger = logging.getLogger(name)
    try:
        assert _errors(
            bench.call(incremental_alter_configs, increment(8, "1", (name, 0, "DEBUG"), validate=True), version)
        ) == [0]
        assert logger.level == logging.NOTSET
        assert _errors(bench.call(incremental_alter_configs, increment(8, "1", (name, 0, "DEBUG")), version)) == [0]
        assert logger.level == logging.DEBUG
        (result,) = bench.call(describe_configs, describe(8, "1", [name]), 4).results
        assert [(item.name, item.value, item.config_source) for item in result.configs] == [(name, "DEBUG", 6)]
        assert _errors(bench.call(incremental_alter_configs, increment(8, "1", (name, 1, None)), version)) == [0]
        assert logger.level == logging.NOTSET
        for bad in ((name, 0, "LOUD"), ("no.such.logger", 0, "INFO"), (name, 2, "INFO"), ("root", 1, None)):
            assert _errors(bench.call(incremental_alter_configs, increment(8, "1", bad), version)) in ([40], [42])
        assert _errors(bench.call(incremental_alter_configs, increment(8, "2", (name, 0, "INFO")), version)) == [42]
    finally:
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("version", versions(alter_configs))
def test_alter_configs_replaces(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("segment.ms", "7")])])
    config = m.AlterConfigsRequest.AlterableConfig(name="retention.ms", value="5")
    resources = [
        m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="a", configs=[config]),
        m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="nope", configs=[]),
    ]
    response = bench.call(alter_configs, m.AlterConfigsRequest(resources=resources, validate_only=False), version)
    assert _errors(response) == [0, 3]
    assert bench.controller.image.topic_configs("a") == {"retention.ms": "5"}


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


def test_a_default_that_no_broker_key_stands_for_is_no_synonym(bench: Any) -> None:
    """As Kafka tells it of topics, of the rates that bound moves of replicas, and of loggers."""
    name, rate = "leader.replication.throttled.replicas", "leader.replication.throttled.rate"
    bench.controller.create_topics([NewTopic("a", configs=[(name, "0:1")])])
    for resource, of, value in ((2, "a", "0:1"), (4, "1", "7")):
        key = name if resource == 2 else rate
        if resource == 4:
            assert _errors(bench.call(incremental_alter_configs, increment(4, "1", (rate, 0, "7")), 1)) == [0]
        (result,) = bench.call(describe_configs, describe(resource, of, [key], include_synonyms=True), 4).results
        (entry,) = result.configs
        assert [(item.name, item.value) for item in entry.synonyms] == [(key, value)]
    unset = "follower.replication.throttled.replicas"
    (result,) = bench.call(describe_configs, describe(2, "a", [unset], include_synonyms=True), 4).results
    assert [(item.config_source, item.synonyms) for item in result.configs] == [(5, [])]
    (result,) = bench.call(describe_configs, describe(8, "1", ["root"], include_synonyms=True), 4).results
    assert [item.synonyms for item in result.configs] == [[]]


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


GROUP = 32


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_settings_of_groups(make_bench: Any, version: int) -> None:
    """A group, also one that is not there, has its own settings, the broker's, or the defaults; within the broker's bounds."""
    bench = make_bench(group_consumer_heartbeat_interval_ms=6000)

    def alter(*changes: tuple[str, int, str | None]) -> tuple[int, str | None]:
        (answer,) = bench.call(incremental_alter_configs, increment(GROUP, "g", *changes), version).responses
        return answer.error_code, answer.error_message

    def settings() -> dict[str, tuple[str | None, int]]:
        (result,) = bench.call(describe_configs, describe(GROUP, "g"), 4).results
        assert result.error_code == 0
        return {item.name: (item.value, item.config_source) for item in result.configs}

    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    before = {session: ("45000", 5), heartbeat: ("6000", 4), "consumer.assignment.interval.ms": ("1000", 5)}
    assert settings() == before
    assert alter((session, 0, "50000"), (heartbeat, 0, "7000")) == (0, None)
    assert settings() == {**before, session: ("50000", 8), heartbeat: ("7000", 8)}
    synonyms = bench.call(describe_configs, describe(GROUP, "g", [heartbeat], include_synonyms=True), 4).results[0]
    assert [(item.name, item.value, item.source) for item in synonyms.configs[0].synonyms] == [
        (heartbeat, "7000", 8),
        ("group.consumer.heartbeat.interval.ms", "6000", 4),
        ("group.consumer.heartbeat.interval.ms", "5000", 5),
    ]
    assert alter((heartbeat, 1, None)) == (0, None)
    assert settings() == {**before, session: ("50000", 8)}
    for name, value, words in (
        (session, "44999", "group.consumer.min.session.timeout.ms = 45000"),
        (session, "60001", "group.consumer.max.session.timeout.ms = 60000"),
        (heartbeat, "15001", "group.consumer.max.heartbeat.interval.ms = 15000"),
        (heartbeat, "often", "'often'"),
        ("consumer.sesion.timeout.ms", "50000", "did you mean consumer.session.timeout.ms?"),
    ):
        code, message = alter((name, 0, value))
        assert code == 40
        assert words in str(message)
    (refused,) = bench.call(incremental_alter_configs, increment(GROUP, "", (session, 0, "50000")), version).responses
    assert refused.error_code == 42
    assert settings() == {**before, session: ("50000", 8)}


@pytest.mark.parametrize("version", versions(list_config_resources))
def test_list_config_resources(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a"), NewTopic("b")])
    change = increment(GROUP, "g", ("consumer.session.timeout.ms", 0, "50000"))
    assert _errors(bench.call(incremental_alter_configs, change, 1)) == [0]

    def listed(*kinds: int) -> list[tuple[int, str]]:
        response = bench.call(list_config_resources, m.ListConfigResourcesRequest(resource_types=list(kinds)), version)
        assert response.error_code == 0
        return [(item.resource_type, item.resource_name) for item in response.config_resources]

    if version == 0:  # client metrics alone, of which nothing is set
        assert listed() == []
        return
    assert listed() == [(2, "a"), (2, "b"), (4, "1"), (8, "1"), (GROUP, "g")]
    assert listed(GROUP, 16) == [(GROUP, "g")]
    unknown = bench.call(list_config_resources, m.ListConfigResourcesRequest(resource_types=[3]), version)
    assert (unknown.error_code, unknown.config_resources) == (35, [])


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
