"""Admin and AsyncAdmin, the same steps with both, against a fastq broker process."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastq import Producer
from fastq.admin import (
    Admin,
    AlterConfigOp,
    AsyncAdmin,
    CommittedOffset,
    ConfigResource,
    ConfigSource,
    ConfigType,
    NewPartitions,
    NewTopic,
    OffsetReset,
    OffsetSpec,
)
from fastq.errors import (
    ClientClosed,
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    OffsetOutOfRange,
    TopicAlreadyExists,
    TransactionalIdNotFound,
    TransactionFenced,
    UnknownTopicOrPartition,
)
from fastq.metadata import TopicPartition
from fastq.testing import Broker

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"auto.create.topics.enable": "true"}) as broker:
        yield broker


@pytest.fixture(params=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Run]:
    """`run("method", ...)`: a call of either client, awaited when need be."""
    if request.param == "blocking":
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            yield lambda method, *arguments, **options: getattr(admin, method)(*arguments, **options)
        return
    loop = asyncio.new_event_loop()
    async_admin = AsyncAdmin({"bootstrap.servers": broker.bootstrap_servers})
    yield lambda method, *arguments, **options: loop.run_until_complete(
        getattr(async_admin, method)(*arguments, **options)
    )
    loop.run_until_complete(async_admin.close())
    loop.close()


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t-{time.monotonic_ns()}"
    run("create_topic", name, 3, configs={"retention.ms": "3600000"})
    yield name
    run("delete_topic", name)


def test_the_two_clients_have_the_same_methods() -> None:
    def signatures(cls: type) -> dict[str, str]:
        methods = inspect.getmembers(cls, inspect.isfunction)
        return {name: str(inspect.signature(f)) for name, f in methods if not name.startswith("_")}

    assert {**signatures(Admin), "aclose": "(self) -> 'None'"} == signatures(AsyncAdmin)
    assert all(inspect.getdoc(f) for name, f in inspect.getmembers(Admin, inspect.isfunction) if name[0] != "_")


def test_create_describe_list_delete(run: Run) -> None:
    name = f"life-{time.monotonic_ns()}"
    created = run("create_topic", name, 4, configs={"cleanup.policy": "compact"})
    assert (created.name, created.partitions, created.replication_factor) == (name, 4, 1)
    assert created.configs["cleanup.policy"].value == "compact"
    assert created.configs["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    listing = run("list_topics")[name]
    assert listing.topic_id == created.topic_id != bytes(16) and not listing.is_internal
    described = run("describe_topic", name)
    assert [p.index for p in described.partitions] == [0, 1, 2, 3]
    assert all(p.leader is not None and p.isr == p.replicas == (p.leader.node_id,) for p in described.partitions)
    run("delete_topic", name)
    assert name not in run("list_topics")
    with pytest.raises(UnknownTopicOrPartition) as caught:
        run("delete_topic", name)
    assert caught.value.topic == name


def test_errors_of_single_items_leave_the_others_alone(run: Run, topic: str) -> None:
    fresh = f"fresh-{time.monotonic_ns()}"
    outcomes = run(
        "create_topics",
        [
            NewTopic(name=topic, partitions=1),
            NewTopic(name=fresh, partitions=1),
            NewTopic(name="bad/name", partitions=1),
            NewTopic(name="zero", partitions=0),
            NewTopic(name="copies", partitions=1, replication_factor=7),
            NewTopic(name="config", partitions=1, configs={"retention.ms": "soon"}),
        ],
    )
    assert list(outcomes) == [topic, fresh, "bad/name", "zero", "copies", "config"]
    assert outcomes[fresh].result().partitions == 1
    expected = {
        topic: TopicAlreadyExists,
        "bad/name": InvalidTopic,
        "zero": InvalidPartitions,
        "copies": InvalidReplicationFactor,
        "config": InvalidConfig,
    }
    assert {name: type(error) for name, error in outcomes.errors.items()} == expected
    assert all(error.topic == name for name, error in outcomes.errors.items())
    with pytest.raises(TopicAlreadyExists):
        outcomes.results()
    assert run("delete_topics", [fresh, "no-such-topic"]).errors.keys() == {"no-such-topic"}


def test_validate_only_writes_nothing(run: Run) -> None:
    created = run("create_topic", "only-checked", 2, validate_only=True)
    assert created.partitions == 2 and "only-checked" not in run("list_topics")
    with pytest.raises(InvalidPartitions):
        run("create_topic", "only-checked", 0, validate_only=True)


def test_replica_assignments(run: Run) -> None:
    name, node = f"placed-{time.monotonic_ns()}", run("describe_cluster").nodes[0].node_id
    run("create_topic", name, replica_assignments={0: [node], 1: [node]})
    assert len(run("describe_topic", name).partitions) == 2
    run("delete_topic", name)
    with pytest.raises(ValueError, match="leave partitions and replication_factor out"):
        run("create_topic", name, 2, replica_assignments={0: [node]})


def test_an_unknown_topic_is_not_created_by_asking(run: Run) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        run("describe_topic", "never-made")
    assert run("list_offsets", {TopicPartition("never-made", 0): OffsetSpec.LATEST}).errors
    assert "never-made" not in run("list_topics")


def test_create_partitions(run: Run, topic: str) -> None:
    assert not run("create_partitions", {topic: 5}, validate_only=True).errors
    assert len(run("describe_topic", topic).partitions) == 3
    run("create_partitions", {topic: NewPartitions(5)}).results()
    assert len(run("describe_topic", topic).partitions) == 5
    outcomes = run("create_partitions", {topic: 2, "absent": 3})
    assert isinstance(outcomes[topic].error, InvalidPartitions)
    assert isinstance(outcomes["absent"].error, UnknownTopicOrPartition)


def test_configs(run: Run, topic: str) -> None:
    resource = ConfigResource.topic(topic)

    def value(name: str) -> Any:
        described = run("describe_configs", [resource], include_synonyms=True, include_documentation=True)
        return described[resource].result()[name]

    assert value("retention.ms").value == "3600000" and not value("retention.ms").is_default
    assert value("retention.ms").type is ConfigType.LONG
    assert value("retention.ms").synonyms[0].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert value("segment.bytes").is_default
    run("set_config", resource, "segment.bytes", "2000000")
    run("set_configs", resource, {"retention.ms": None, "max.message.bytes": "5000"})
    assert value("segment.bytes").value == "2000000" and value("max.message.bytes").value == "5000"
    assert value("retention.ms").is_default
    changes = {resource: [(AlterConfigOp.APPEND, "cleanup.policy", "compact")]}
    run("incremental_alter_configs", changes).results()
    assert value("cleanup.policy").value == "delete,compact"
    run("alter_configs", {resource: {"retention.ms": "1000"}}).results()
    assert value("segment.bytes").is_default and value("retention.ms").value == "1000"
    with pytest.raises(InvalidConfig):
        run("set_config", resource, "segment.bytes", "small")
    with pytest.raises(UnknownTopicOrPartition):
        run("set_config", ConfigResource.topic("absent"), "segment.bytes", "2000000")


def test_configs_of_a_broker(run: Run) -> None:
    node = run("describe_cluster").nodes[0].node_id
    resource = ConfigResource.broker(node)
    described = run("describe_configs", [resource])[resource].result()
    assert "log.retention.ms" in described or "log.retention.hours" in described
    assert str(resource) == f"broker {node}" and str(ConfigResource.broker()) == "broker (default)"


def test_offsets_and_records(run: Run, topic: str) -> None:
    partitions = [TopicPartition(topic, index) for index in range(3)]
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        assert {r.offset for r in run("list_offsets", dict.fromkeys(partitions, spec)).results().values()} == {0}
    times = run("list_offsets", {partitions[0]: OffsetSpec.MAX_TIMESTAMP, partitions[1]: 0}).results()
    assert {(r.offset, r.timestamp_ms) for r in times.values()} == {(-1, -1)}
    missing = TopicPartition(topic, 99)
    outcomes = run("list_offsets", {missing: OffsetSpec.LATEST, partitions[0]: OffsetSpec.LATEST}, read_committed=True)
    assert isinstance(outcomes[missing].error, UnknownTopicOrPartition) and outcomes[missing].error.partition == 99
    assert outcomes[partitions[0]].result().offset == 0
    assert run("delete_records", {partitions[0]: -1})[partitions[0]].result() == 0
    assert isinstance(run("delete_records", {partitions[0]: 10})[partitions[0]].error, OffsetOutOfRange)


def test_cluster_log_dirs_and_versions(run: Run, topic: str, broker: Broker) -> None:
    cluster = run("describe_cluster")
    node = cluster.nodes[0]
    assert cluster.cluster_id and cluster.controller is not None
    assert f"{node.host}:{node.port}" == broker.bootstrap_servers
    (directory,) = run("describe_log_dirs", topics=[topic])[node.node_id].result()
    assert directory.path == str(broker.data_dir) and directory.error is None
    assert {replica.topic_partition for replica in directory.replicas} == {TopicPartition(topic, i) for i in range(3)}
    assert len(run("describe_log_dirs", [node.node_id])) == 1
    versions = run("api_versions", node.node_id)
    assert versions["Produce"].max_version >= 9 and versions["ApiVersions"].api_key == 18
    assert run("api_versions") == versions


def test_groups(run: Run, topic: str) -> None:
    group, places = f"g-{time.monotonic_ns()}", [TopicPartition(topic, index) for index in range(3)]
    with pytest.raises(GroupIdNotFound):
        run("describe_group", group)
    assert not run("alter_group_offsets", group, {places[0]: 0, places[1]: CommittedOffset(0, "note")}).errors
    described = run("describe_group", group)
    assert (described.state, described.members, described.is_active) == ("Empty", (), False)
    assert run("list_groups", states=["Empty"])[group].type == "classic"
    assert run("list_groups", types=["consumer"]) == {}
    offsets = run("list_group_offsets", group).results()
    assert offsets[places[1]].metadata == "note" and len(offsets) == 2
    assert {lag.lag for lag in run("group_lag", group, places).results().values()} == {0, None}
    plan = run("reset_group_offsets", group, OffsetReset.to_latest(), topics=[topic], dry_run=True)
    assert [change.before for change in plan.values()] == [0, 0, None]
    run("reset_group_offsets", group, OffsetReset.to_latest(), partitions=[places[2]])
    assert len(run("list_group_offsets", group)) == 3
    assert not run("delete_group_offsets", group, places[:1]).errors
    assert run("remove_members", group) == {}
    assert not run("delete_groups", [group]).errors
    assert isinstance(run("delete_groups", [group])[group].error, GroupIdNotFound)


def test_transactions(run: Run, topic: str, broker: Broker) -> None:
    id_, place = f"t-{time.monotonic_ns()}", TopicPartition(topic, 0)
    assert isinstance(run("describe_transactions", [id_])[id_].error, TransactionalIdNotFound)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=id_) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0).result(20)
        (state,) = run("describe_producers", [place])[place].result()
        assert state.transaction_start_offset == 0
        assert run("list_transactions", states=["Ongoing"])[id_].producer_id == state.producer_id
        assert run("describe_transactions", [id_])[id_].result().partitions == (place,)
        assert run("find_hanging_transactions", topics=[topic], max_transaction_timeout_ms=0) == []
        with pytest.raises(ValueError, match="begins at offset 5"):
            run("abort_open_transaction", place, 5)
        assert run("abort_open_transaction", place, 0).producer_id == state.producer_id
        # Its coordinator still counts the partition in, so that this was no hanging one: fencing ends the rest.
        fenced = run("fence_producers", [id_])[id_].result()
        assert fenced.producer_id == state.producer_id
        with pytest.raises(TransactionFenced):
            producer.commit_transaction()
    assert run("describe_producers", [place], node_id=1)[place].result()[0].transaction_start_offset is None


def test_a_string_is_not_a_list_of_names(run: Run) -> None:
    with pytest.raises(TypeError, match="a list of names"):
        run("describe_groups", "billing")
    with pytest.raises(TypeError, match="a list of names"):
        run("delete_topics", "logs")


def test_closed_pickled_and_configured(broker: Broker) -> None:
    admin = Admin(bootstrap_servers=broker.bootstrap_servers, client_id="me")
    copy = pickle.loads(pickle.dumps(admin))
    assert copy.config == admin.config and copy.config.client_id == "me"
    assert copy.list_topics() is not None
    copy.close()
    copy.close()
    with pytest.raises(ClientClosed):
        copy.list_topics()
    admin.close()
    restored = pickle.loads(pickle.dumps(AsyncAdmin(admin.config)))
    assert restored.config == admin.config
