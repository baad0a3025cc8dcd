"""Elections, reassignments, log directories, features, quotas, credentials and ACLs over raw sockets, on each kind of broker: what one
node answers, code by code. What fastq refuses and Apache Kafka does is in tests/unit/handlers/test_one_node_handlers.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastq_broker.handlers.api_versions import OWN_FROM
from raw_kafka import RawConnection, create_topic

import fastq.protocol.messages as m
from fastq.protocol.api import APIS

pytestmark = pytest.mark.one_node  # what one node answers

MIN_ISR, BAD_CONFIG = "min.insync.replicas", 40
NOTHING, UNKNOWN, INVALID, ASSIGNMENT, NOT_NEEDED, NOT_MOVING, NO_DIRECTORY, BAD_LEVEL = 0, 3, 42, 39, 84, 85, 57, 95


@pytest.fixture
def topic(connection: RawConnection, new_topic_name: Callable[[], str]) -> str:
    name = new_topic_name()
    create_topic(connection, name, 2)
    return name


@pytest.mark.parametrize("version", [0, 1, 2])
def test_nobody_needs_to_be_elected(connection: RawConnection, topic: str, version: int) -> None:
    def elect(election_type: int, wanted: list[tuple[str, list[int]]] | None) -> tuple[int, dict[tuple[str, int], int]]:
        named = [] if wanted is None else wanted
        topics = [m.ElectLeadersRequest.TopicPartitions(topic=name, partitions=numbers) for name, numbers in named]
        request = m.ElectLeadersRequest(
            election_type=election_type, topic_partitions=None if wanted is None else topics, timeout_ms=5000
        )
        answer = connection.call(request, version)
        return answer.error_code, {
            (item.topic, result.partition_id): result.error_code
            for item in answer.replica_election_results
            for result in item.partition_result
        }

    wanted = [(topic, [0, 1, 7]), ("nowhere", [0])]
    codes = {(topic, 0): NOT_NEEDED, (topic, 1): NOT_NEEDED, (topic, 7): UNKNOWN, ("nowhere", 0): UNKNOWN}
    assert elect(0, wanted) == (NOTHING, codes)
    assert elect(0, []) == (NOTHING, {})
    assert elect(0, None) == (NOTHING, {})  # those that need none are left out
    if version >= 1:
        assert elect(1, wanted) == (NOTHING, codes)
        assert elect(1, None) == (NOTHING, {})
        for unknown in (2, -1):
            assert elect(unknown, wanted) == (INVALID, dict.fromkeys(codes, INVALID))


@pytest.mark.parametrize("version", [0, 1])
def test_nothing_is_reassigned(connection: RawConnection, topic: str, version: int) -> None:
    kind = m.AlterPartitionReassignmentsRequest

    def alter(name: str, number: int, replicas: list[int] | None, **fields: Any) -> int:
        partition = kind.ReassignablePartition(partition_index=number, replicas=replicas)
        request = kind(topics=[kind.ReassignableTopic(name=name, partitions=[partition])], **fields)
        answer = connection.call(request, version)
        assert answer.error_code == 0
        ((result,),) = [item.partitions for item in answer.responses]
        return int(result.error_code)

    assert alter(topic, 0, [1]) == NOTHING
    assert alter(topic, 0, None) == NOT_MOVING
    for replicas in ([], [1, 1], [2], [1, 2], [-1]):
        assert alter(topic, 0, replicas) == ASSIGNMENT
        if version:
            assert alter(topic, 0, replicas, allow_replication_factor_change=False) == ASSIGNMENT
    assert (alter(topic, 9, [1]), alter(topic, 9, None)) == (UNKNOWN, UNKNOWN)
    assert (alter("nowhere", 0, [1]), alter("nowhere", 0, None)) == (UNKNOWN, UNKNOWN)
    assert connection.call(kind(topics=[]), version).responses == []


def test_no_reassignment_goes_on(connection: RawConnection, topic: str) -> None:
    kind = m.ListPartitionReassignmentsRequest
    named = [
        kind.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 9]),
        kind.ListPartitionReassignmentsTopics(name="nowhere", partition_indexes=[0]),
    ]
    for topics in (None, [], named):
        answer = connection.call(kind(topics=topics), 0)
        assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_is_where_it_is(connection: RawConnection, topic: str, version: int) -> None:
    kind = m.AlterReplicaLogDirsRequest
    asked_for = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0, 1])
    while True:  # Apache Kafka's broker makes the logs after the controller's answer
        (found,) = connection.call(m.DescribeLogDirsRequest(topics=[asked_for]), 4).results
        if sum(len(item.partitions) for item in found.topics) == 2:
            break

    def alter(*asked: tuple[str, str, Sequence[int]]) -> dict[tuple[str, int], int]:
        dirs = [
            kind.AlterReplicaLogDir(
                path=path, topics=[kind.AlterReplicaLogDirTopic(name=name, partitions=list(numbers))]
            )
            for path, name, numbers in asked
        ]
        return {
            (item.topic_name, result.partition_index): result.error_code
            for item in connection.call(kind(dirs=dirs), version).results
            for result in item.partitions
        }

    assert alter((found.log_dir, topic, [0, 1, 9])) == {(topic, 0): 0, (topic, 1): 0, (topic, 9): UNKNOWN}
    assert alter((found.log_dir, "nowhere", [0])) == {("nowhere", 0): UNKNOWN}
    for path in ("/nowhere", "relative", ""):
        assert alter((path, topic, [0, 9])) == {(topic, 0): NO_DIRECTORY, (topic, 9): NO_DIRECTORY}
    assert alter((found.log_dir, topic, [0]), ("/nowhere", topic, [0])) == {(topic, 0): NO_DIRECTORY}
    assert alter() == {}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "code"),
    [
        ("group.version", 1, 1, 0),
        ("group.version", 1, 2, 0),
        ("group.version", 0, 1, BAD_LEVEL),
        ("group.version", 0, 2, 0),
        ("group.version", 0, 3, 0),
        ("group.version", 2, 1, BAD_LEVEL),
        ("group.version", -1, 2, BAD_LEVEL),
        ("group.version", 1, 0, BAD_LEVEL),
        ("group.version", 1, 9, BAD_LEVEL),
        ("transaction.version", 1, 2, 0),
        ("transaction.version", 3, 1, BAD_LEVEL),
        ("metadata.version", 30, 1, 0),
        ("metadata.version", 31, 1, BAD_LEVEL),
        ("metadata.version", 28, 1, BAD_LEVEL),
        ("metadata.version", 20, 2, BAD_LEVEL),
        ("metadata.version", 20, 3, BAD_LEVEL),
        ("metadata.version", 1, 3, BAD_LEVEL),
        ("kraft.version", 1, 1, 0),
        ("kraft.version", 2, 1, BAD_LEVEL),
        ("kraft.version", 0, 2, BAD_LEVEL),
        ("eligible.leader.replicas.version", 1, 1, 0),
        ("nothing.version", 1, 1, BAD_LEVEL),
        ("nothing.version", 0, 2, BAD_LEVEL),
        ("", 1, 1, BAD_LEVEL),
    ],
)
def test_levels_of_features(
    connection: RawConnection, version: int, feature: str, level: int, upgrade_type: int, code: int
) -> None:
    kind = m.UpdateFeaturesRequest
    update = kind.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    answer = connection.call(kind(feature_updates=[update], validate_only=True), version)
    assert answer.error_code == code, answer.error_message
    assert [(item.feature, item.error_code) for item in answer.results] == (
        [(feature, 0)] if version == 1 and not code else []
    )


def test_features_below_version_1_and_several_at_once(connection: RawConnection) -> None:
    kind = m.UpdateFeaturesRequest

    def update(version: int, *items: Any, **fields: Any) -> int:
        return int(connection.call(kind(feature_updates=list(items), **fields), version).error_code)

    def to(level: int, **fields: Any) -> Any:
        return kind.FeatureUpdateKey(feature="group.version", max_version_level=level, **fields)

    assert update(0, to(1, allow_downgrade=True)) == 0
    assert update(0, to(0, allow_downgrade=False)) == BAD_LEVEL
    assert update(0, to(9, allow_downgrade=False)) == BAD_LEVEL
    bad = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=9)
    assert update(2, to(1), bad, validate_only=True) == BAD_LEVEL
    assert update(2, to(1), to(0, upgrade_type=2), validate_only=True) == 0
    assert update(2, validate_only=True) == 0


def test_eligible_replicas_come_and_go(connection: RawConnection) -> None:
    """What is set for the cluster, and taken from a broker, with it; what cannot be altered meanwhile."""
    kind, describe = m.IncrementalAlterConfigsRequest, m.DescribeConfigsRequest

    def enable(level: int, upgrade_type: int) -> int:
        update = m.UpdateFeaturesRequest.FeatureUpdateKey(
            feature="eligible.leader.replicas.version", max_version_level=level, upgrade_type=upgrade_type
        )
        return int(connection.call(m.UpdateFeaturesRequest(feature_updates=[update]), 2).error_code)

    def alter(broker: str, value: str | None) -> int:
        config = kind.AlterableConfig(name=MIN_ISR, config_operation=0 if value else 1, value=value)
        resource = kind.AlterConfigsResource(resource_type=4, resource_name=broker, configs=[config])
        return int(connection.call(kind(resources=[resource]), 1).responses[0].error_code)

    def told() -> tuple[str | None, int]:
        """The value in force at the broker, and where it is from: 2 this broker, 3 the cluster, 5 nowhere."""
        asked = describe.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=[MIN_ISR])
        (result,) = connection.call(describe(resources=[asked]), 4).results
        (found,) = result.configs
        return found.value, found.config_source

    def until(wanted: tuple[str, int]) -> None:
        deadline = time.monotonic() + 20
        while told() != wanted:
            assert time.monotonic() < deadline, (told(), wanted)
            time.sleep(0.01)

    assert enable(1, 1) == 0 and told() == ("1", 3), "a new cluster has it"
    assert alter("1", "2") == alter("", None) == BAD_CONFIG
    assert enable(0, 1) == BAD_LEVEL
    assert enable(0, 2) == 0 and told() == ("1", 3), "the cluster's value stays"
    assert alter("", None) == 0
    until(("1", 5))
    assert alter("1", "1") == 0
    until(("1", 2))
    assert enable(1, 2) == BAD_LEVEL and enable(1, 1) == 0
    until(("1", 3))
    assert alter("1", "2") == alter("", None) == BAD_CONFIG


def component(kind: str, match_type: int, match: str | None = None) -> Any:
    return m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], 0),
        ([component("user", 2)], 0),
        ([component("user", 1), component("client-id", 0, "c")], 0),
        ([component("user", 2, "x")], INVALID),
        ([component("user", 1, "x")], INVALID),
        ([component("user", 0)], INVALID),
        ([component("user", 9, "x")], INVALID),
        ([component("", 2)], INVALID),
        ([component("nothing", 2)], 35),
        ([component("user", 2), component("user", 2)], INVALID),
        ([component("ip", 2), component("user", 2)], INVALID),
    ],
)
def test_there_are_no_quotas(connection: RawConnection, version: int, components: list[Any], code: int) -> None:
    for strict in (False, True):
        answer = connection.call(m.DescribeClientQuotasRequest(components=components, strict=strict), version)
        assert (answer.error_code, answer.entries) == (code, None if code else [])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("entity", "key", "value", "remove", "code"),
    [
        ({"user": "x"}, "producer_byte_rate", 0.0, True, 0),
        ({"user": None}, "producer_byte_rate", 0.0, True, 0),
        ({"user": "x"}, "nothing", 1.0, True, 0),
        ({"user": "x"}, "nothing", 1.0, False, INVALID),
        ({}, "producer_byte_rate", 1.0, False, INVALID),
        ({"nothing": "x"}, "producer_byte_rate", 1.0, False, INVALID),
        ({"user": ""}, "producer_byte_rate", 1.0, False, INVALID),
        ({"user": "x", "ip": "1.2.3.4"}, "producer_byte_rate", 1.0, False, INVALID),
        ({"ip": "1.2.3.4"}, "producer_byte_rate", 1.0, False, INVALID),
        ({"ip": "no address"}, "connection_creation_rate", 1.0, False, INVALID),
        ({"ip": "1.2.3.4"}, "connection_creation_rate", 1.5, False, INVALID),
        ({"user": "x"}, "producer_byte_rate", -1.0, False, INVALID),
        ({"user": "x"}, "consumer_byte_rate", 1.5, False, INVALID),
    ],
)
def test_quotas_that_cannot_be(
    connection: RawConnection,
    version: int,
    entity: dict[str, str | None],
    key: str,
    value: float,
    remove: bool,
    code: int,
) -> None:
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type=name, entity_name=value) for name, value in entity.items()],
        ops=[kind.OpData(key=key, value=value, remove=remove)],
    )
    (result,) = connection.call(kind(entries=[entry], validate_only=True), version).entries
    assert result.error_code == code
    assert {item.entity_type: item.entity_name for item in result.entity} == entity


def test_there_are_no_credentials(connection: RawConnection) -> None:
    kind = m.DescribeUserScramCredentialsRequest
    for nobody in (None, []):
        answer = connection.call(kind(users=nobody), 0)
        assert (answer.error_code, answer.results) == (0, [])
    answer = connection.call(kind(users=[kind.UserName(name=name) for name in ("nobody", "other", "nobody")]), 0)
    codes = {item.user: item.error_code for item in answer.results}
    assert codes == {"nobody": 92, "other": 91} and len(answer.results) == 2


def deletion(name: str = "nobody", mechanism: int = 1) -> Any:
    return m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)


def upsertion(name: str = "nobody", mechanism: int = 1, iterations: int = 4096) -> Any:
    return m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"s" * 16, salted_password=b"p" * 32
    )


@pytest.mark.parametrize(
    ("deletions", "upsertions", "codes"),
    [
        ([], [], {}),
        ([deletion()], [], {"nobody": 91}),
        ([deletion(mechanism=9)], [], {"nobody": 33}),
        ([deletion(name="")], [], {"": 93}),
        ([], [upsertion(iterations=4095)], {"nobody": 93}),
        ([], [upsertion(iterations=16_385)], {"nobody": 93}),
        ([], [upsertion(mechanism=0)], {"nobody": 33}),
        ([], [upsertion(mechanism=3)], {"nobody": 33}),
        ([], [upsertion(name="")], {"": 93}),
        ([], [upsertion(), upsertion()], {"nobody": 92}),
        ([], [upsertion(), upsertion(mechanism=2)], {"nobody": 92}),
        ([], [upsertion(), upsertion(mechanism=9)], {"nobody": 92}),
        ([], [upsertion(mechanism=9), upsertion()], {"nobody": 33}),
        ([deletion()], [upsertion()], {"nobody": 91}),
        ([deletion(), deletion()], [upsertion("other", iterations=1)], {"nobody": 91, "other": 93}),
    ],
)
def test_credentials_that_cannot_be(
    connection: RawConnection, deletions: list[Any], upsertions: list[Any], codes: dict[str, int]
) -> None:
    request = m.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    answer = connection.call(request, 0)
    assert {item.user: item.error_code for item in answer.results} == codes


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_is_no_authorizer(connection: RawConnection, version: int) -> None:
    any_kind: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1 if version >= 2 else 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    answer = connection.call(m.DescribeAclsRequest(**any_kind), version)
    assert (answer.error_code, answer.resources) == (54, []) and "Authorizer" in answer.error_message
    kind = m.CreateAclsRequest
    acl = kind.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    created = connection.call(kind(creations=[acl, acl]), version)
    assert [item.error_code for item in created.results] == [54, 54]
    deleted = connection.call(m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**any_kind)]), version)
    assert [(item.error_code, item.matching_acls) for item in deleted.filter_results] == [(54, [])]


@pytest.mark.kafka
def test_what_kafka_advertises_is_in_our_table(kafka_servers: str, fastq_servers: str) -> None:
    """DESIGN.md names what we do not serve of it (tests/unit/handlers/test_served_apis.py)."""
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")

    def advertised(servers: str) -> dict[int, tuple[int, int]]:
        with RawConnection(servers) as connection:
            found = connection.call(request, 4).api_keys
        return {item.api_key: (item.min_version, item.max_version) for item in found}

    theirs, ours = advertised(kafka_servers), advertised(fastq_servers)
    with_a_reporter = {71, 72}
    assert set(theirs) | with_a_reporter == {
        key for key, info in APIS.items() if "broker" in info.listeners and key < OWN_FROM
    }
    assert {key: theirs[key] for key in ours} == ours
