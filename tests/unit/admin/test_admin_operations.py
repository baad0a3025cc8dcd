"""What the admin operations do when brokers are old, busy, incomplete or gone: against a small broker that plays it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq.admin import Admin, AdminConfig, ConfigResource, OffsetSpec
from fastq.admin.core import _passes
from fastq.errors import (
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    ConnectionRefused,
    ConnectionTimeout,
    NotAKafkaBroker,
    NotController,
    NotLeaderOrFollower,
    UnknownServerError,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import (
    ApiVersionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    DescribeConfigsResponse,
    DescribeLogDirsResponse,
    ListOffsetsResponse,
    MetadataResponse,
)

Created = CreateTopicsResponse.CreatableTopicResult


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"logs": 2, "__internal": 1}
        yield broker


@pytest.fixture
def admin(broker: FakeBroker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address, default_api_timeout_ms=60_000) as admin:
        yield admin


def limit(broker: FakeBroker, api_key: int, max_version: int) -> None:
    """Make the broker an old one in this API."""
    broker.versions = [entry for entry in broker.versions if entry.api_key != api_key]
    broker.versions.append(ApiVersionsResponse.ApiVersion(api_key=api_key, min_version=0, max_version=max_version))


def test_items_that_hit_the_wrong_controller_are_sent_again_alone(broker: FakeBroker, admin: Admin) -> None:
    asked: list[list[str]] = []

    def create(request: Any, version: int) -> CreateTopicsResponse:
        names = [topic.name for topic in request.topics]
        asked.append(names)
        codes = {"b": 41} if len(asked) < 3 else {}
        topics = [Created(name=name, error_code=codes.get(name, 0), error_message=None) for name in names]
        return CreateTopicsResponse(topics=topics)

    broker.handlers[ApiKey.CREATE_TOPICS] = create
    from fastq.admin import NewTopic

    outcomes = admin.create_topics([NewTopic(name="a"), NewTopic(name="b")])
    assert asked == [["a", "b"], ["b"], ["b"]]
    assert list(outcomes.results()) == ["a", "b"]


def test_an_error_that_does_not_pass_in_time_is_the_outcome(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(
        topics=[Created(name="a", error_code=41, error_message="ask another")]
    )
    started = time.monotonic()
    with pytest.raises(NotController, match="ask another"):
        admin.create_topic("a", timeout=2.0)
    assert time.monotonic() - started < 30


def test_an_item_that_the_answer_leaves_out_is_an_error(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(topics=[])
    with pytest.raises(UnknownServerError, match="leaves out a"):
        admin.create_topic("a")


def test_old_versions(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.DELETE_TOPICS, 1)
    limit(broker, ApiKey.CREATE_TOPICS, 2)
    limit(broker, ApiKey.METADATA, 1)
    limit(broker, ApiKey.LIST_OFFSETS, 1)

    def delete(request: Any, version: int) -> DeleteTopicsResponse:
        assert version == 1
        results = [DeleteTopicsResponse.DeletableTopicResult(name=name) for name in request.topic_names]
        return DeleteTopicsResponse(responses=results)

    broker.handlers[ApiKey.DELETE_TOPICS] = delete
    broker.handlers[ApiKey.CREATE_TOPICS] = lambda request, version: CreateTopicsResponse(topics=[Created(name="n")])
    broker.handlers[ApiKey.LIST_OFFSETS] = answer_offsets
    admin.delete_topic("logs")
    created = admin.create_topic("n", 1, 1)
    assert created.partitions is None and created.replication_factor is None and created.configs is None
    assert list(admin.list_topics()) == ["__internal", "logs"]  # no broker before version 1 of Metadata says internal
    partition = TopicPartition("logs", 1)
    assert admin.list_offsets({partition: OffsetSpec.EARLIEST})[partition].result().offset == 7
    with pytest.raises(UnsupportedVersion, match="ListOffsets"):
        admin.list_offsets({partition: OffsetSpec.MAX_TIMESTAMP})[partition].result()


def answer_offsets(request: Any, version: int) -> ListOffsetsResponse:
    assert request.replica_id == -1
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, offset=7, timestamp=5
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_list_offsets_of_many_partitions_is_one_request_to_their_leader(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.LIST_OFFSETS] = answer_offsets
    wanted = {TopicPartition("logs", 0): OffsetSpec.LATEST, TopicPartition("logs", 1): 123}
    results = admin.list_offsets(wanted).results()
    assert [result.offset for result in results.values()] == [7, 7] and list(results) == list(wanted)
    assert [key for key, _, _ in broker.requests].count(ApiKey.LIST_OFFSETS) == 1


def test_log_dirs_that_are_offline_or_do_not_say_their_size(broker: FakeBroker, admin: Admin) -> None:
    result = DescribeLogDirsResponse.DescribeLogDirsResult
    broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda request, version: DescribeLogDirsResponse(
        results=[result(log_dir="/a"), result(log_dir="/b", error_code=56, total_bytes=10, usable_bytes=0)]
    )
    first, second = admin.describe_log_dirs()[1].result()
    assert first.error is None and first.total_bytes is None and first.usable_bytes is None
    assert second.error is not None and second.error.name == "KAFKA_STORAGE_ERROR" and second.usable_bytes == 0


def test_unknown_sources_and_types_of_configs_are_no_error(broker: FakeBroker, admin: Admin) -> None:
    resource = ConfigResource.topic("logs")
    broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.DescribeConfigsResult(
                error_message=None,
                resource_type=2,
                resource_name="logs",
                configs=[
                    DescribeConfigsResponse.DescribeConfigsResourceResult(
                        name="future", value=None, config_source=99, config_type=99, is_sensitive=True
                    )
                ],
            )
        ]
    )
    entry = admin.describe_configs([resource])[resource].result()["future"]
    assert (entry.source, entry.type, entry.value, entry.is_sensitive) == (0, 0, None, True)


def test_a_broker_that_never_answers(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.CREATE_TOPICS] = lambda request, version: None
    started = time.monotonic()
    with pytest.raises(ConnectionTimeout):
        admin.create_topic("a", timeout=0.3)
    assert time.monotonic() - started < 30
    assert admin.list_topics(), "other calls go on"


def test_a_broker_that_hangs_up_is_asked_again(broker: FakeBroker, admin: Admin) -> None:
    assert admin.list_topics()
    hung_up = threading.Event()
    good = broker.handlers[ApiKey.METADATA]

    def metadata(request: Any, version: int) -> Any:
        if not hung_up.is_set():
            hung_up.set()
            broker.drop_connections()
        return good(request, version)

    broker.handlers[ApiKey.METADATA] = metadata
    assert list(admin.list_topics()) and hung_up.is_set()


def test_no_broker_at_all() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1") as admin:
        with pytest.raises(ConnectionRefused, match=r"127\.0\.0\.1:1"):
            admin.describe_cluster(timeout=0.3)
        admin.close()
        with pytest.raises(ClientClosed):
            admin.describe_cluster()


def test_configuration() -> None:
    assert AdminConfig.from_mapping({"default.api.timeout.ms": "5"}).default_api_timeout_ms == 5
    with pytest.raises(ConfigError, match="default_api_timeout_ms"):
        Admin({"default.api.timeout": 5})

    from fastq.admin import AdminOptions

    assert set(AdminOptions.__annotations__) == set(AdminConfig.options())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answer_deletions(request: Any, version: int) -> DeleteRecordsResponse:
    topic, partition = (
        DeleteRecordsResponse.DeleteRecordsTopicResult,
        DeleteRecordsResponse.DeleteRecordsPartitionResult,
    )
    parts = [partition(partition_index=p.partition_index, low_watermark=3) for p in request.topics[0].partitions]
    return DeleteRecordsResponse(topics=[topic(name="logs", partitions=parts)])


@pytest.mark.parametrize("stays", [True, False], ids=["cannot be reached", "has left the cluster"])
@pytest.mark.parametrize("what", ["offsets", "deletion"])
def test_where_a_leader_is_not_there_its_successor_is_asked(
    broker: FakeBroker, admin: Admin, what: str, stays: bool
) -> None:
    """The first look at the topic names a leader that is gone, and another one leads by then."""
    good, looks, port = broker.handlers[ApiKey.METADATA], 0, closed_port()

    def metadata(request: Any, version: int) -> Any:
        nonlocal looks
        response = good(request, version)
        looks += bool(request.topics)
        first = bool(request.topics) and looks == 1
        if stays or first:
            node = MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=port)
            response.brokers = [*response.brokers, node]
        for partition in response.topics[0].partitions if first else ():
            partition.leader_id = 2
        return response

    broker.handlers[ApiKey.METADATA] = metadata
    broker.handlers[ApiKey.LIST_OFFSETS] = answer_offsets
    broker.handlers[ApiKey.DELETE_RECORDS] = answer_deletions
    tp = TopicPartition("logs", 0)
    if what == "offsets":
        assert admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result().offset == 7
    else:
        assert admin.delete_records({tp: 3})[tp].result() == 3
    assert looks == 2


def test_a_leader_that_is_gone_for_good_is_named(broker: FakeBroker) -> None:
    good, port = broker.handlers[ApiKey.METADATA], closed_port()

    def metadata(request: Any, version: int) -> Any:
        response = good(request, version)
        if request.topics:
            node = MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=port)
            response.brokers = [*response.brokers, node]
            for partition in response.topics[0].partitions:
                partition.leader_id = 2
        return response

    broker.handlers[ApiKey.METADATA] = metadata
    tp = TopicPartition("logs", 0)
    with (
        Admin(bootstrap_servers=broker.address, default_api_timeout_ms=1000) as admin,
        pytest.raises(ConnectionFailed, match="node 2, which led what it was to be asked about, has left the cluster"),
    ):
        admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result()


def test_what_is_settled_when_the_time_is_over_is_told(broker: FakeBroker) -> None:
    """One partition's error would pass, and nobody can be asked about it again before the time is over."""
    good, asked = broker.handlers[ApiKey.METADATA], threading.Event()

    def metadata(request: Any, version: int) -> Any:
        if not asked.is_set():
            return good(request, version)
        broker.drop_connections()
        return None

    def offsets(request: Any, version: int) -> Any:
        asked.set()
        response = answer_offsets(request, version)
        response.topics[0].partitions[0].error_code = NotLeaderOrFollower.code
        return response

    broker.handlers[ApiKey.METADATA] = metadata
    broker.handlers[ApiKey.LIST_OFFSETS] = offsets
    first, second = TopicPartition("logs", 0), TopicPartition("logs", 1)
    with Admin(bootstrap_servers=broker.address, default_api_timeout_ms=1500) as admin:
        outcomes = admin.list_offsets({first: OffsetSpec.LATEST, second: OffsetSpec.LATEST})
    assert outcomes[second].result().offset == 7
    assert isinstance(outcomes[first].error, NotLeaderOrFollower)


@pytest.mark.parametrize(("error", "passes"), [(ConnectionRefused(), True), (NotAKafkaBroker(), False)])
def test_who_speaks_another_protocol_is_not_looked_for_anew(error: ConnectionFailed, passes: bool) -> None:
    assert _passes(error, finds=True) is passes and not _passes(error, finds=False)
