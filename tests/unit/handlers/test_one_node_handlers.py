"""What one node answers where fastq and Apache Kafka differ: a change that would not be in force is refused, what a foreign directory has
is told and can be taken away. The codes that both answer are in tests/interop/test_one_node_codes.py."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from admin_requests import increment
from fastq_broker.controller.feature_changes import FeatureUpdate, plan_features
from fastq_broker.controller.snapshot import _records
from fastq_broker.controller.topics import NewTopic, Refused
from fastq_broker.handlers import (
    add_raft_voter,
    alter_client_quotas,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    describe_client_quotas,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    remove_raft_voter,
    update_features,
)

import fastq.protocol.messages as m
from fastq.errors import ErrorCode, UnsupportedVersion

REFUSED = ErrorCode.UNSUPPORTED_VERSION


def versions(handler: ModuleType) -> range:
    return range(handler.VERSIONS[0], handler.VERSIONS[1] + 1)


# --- quotas ---


def quota(key: str, value: float, **entity: str | None) -> m.ClientQuotaRecord:
    named = {name.replace("_", "-"): value for name, value in entity.items()}
    return m.ClientQuotaRecord(
        entity=[m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in named.items()],
        key=key,
        value=value,
        remove=False,
    )


def alter_quotas(
    bench: Any, entity: dict[str, str | None], version: int = 1, validate_only: bool = False, **ops: Any
) -> Any:
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type=name, entity_name=value) for name, value in entity.items()],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )
    (result,) = bench.call(alter_client_quotas, kind(entries=[entry], validate_only=validate_only), version).entries
    return result


def described(bench: Any, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    kind = m.DescribeClientQuotasRequest
    asked = [kind.ComponentData(entity_type=name, match_type=how, match=match) for name, how, match in components]
    answer = bench.call(describe_client_quotas, kind(components=asked, strict=strict), version)
    assert answer.error_code == 0
    return {
        tuple((item.entity_type, item.entity_name) for item in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", versions(alter_client_quotas))
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_quota_that_nobody_would_enforce_is_not_set(bench: Any, version: int, validate_only: bool) -> None:
    image = bench.controller.image
    for entity in ({"user": "x"}, {"user": None}, {"client-id": "c", "user": "x"}):
        result = alter_quotas(bench, entity, version, validate_only, producer_byte_rate=100.0)
        assert (result.error_code, "enforces no quotas" in result.error_message) == (REFUSED, True)
    result = alter_quotas(bench, {"ip": "::1"}, version, validate_only, connection_creation_rate=100.0)
    assert result.error_code == REFUSED
    # Not in part either.
    assert alter_quotas(bench, {"user": "x"}, consumer_byte_rate=None, producer_byte_rate=1.0).error_code == REFUSED
    assert bench.controller.image is image


def test_quotas_of_a_foreign_directory_are_told_and_can_go(bench: Any, make_bench: Any) -> None:
    user, default, both, ip = (("user", "x"),), (("user", None),), (("client-id", "c"), ("user", "x")), (("ip", "::1"),)
    bench.controller._commit(
        [
            quota("producer_byte_rate", 1.0, user="x"),
            quota("consumer_byte_rate", 2.0, user="x"),
            quota("producer_byte_rate", 3.0, user=None),
            quota("producer_byte_rate", 4.0, user="x", client_id="c"),
            quota("connection_creation_rate", 5.0, ip="::1"),
        ]
    )
    rates = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}
    for version in versions(describe_client_quotas):
        assert described(bench, version=version) == {
            user: rates,
            default: {"producer_byte_rate": 3.0},
            both: {"producer_byte_rate": 4.0},
            ip: {"connection_creation_rate": 5.0},
        }
    assert set(described(bench, ("user", 0, "x"))) == {user, both}
    assert set(described(bench, ("user", 0, "x"), strict=True)) == {user}
    assert set(described(bench, ("user", 1, None))) == {default}
    assert set(described(bench, ("user", 2, None))) == {user, default, both}
    assert set(described(bench, ("user", 2, None), ("client-id", 2, None))) == {both}
    assert described(bench, strict=True) == {}
    assert alter_quotas(bench, {"user": "x"}, validate_only=True, producer_byte_rate=None).error_code == 0
    assert described(bench, ("user", 0, "x"), strict=True) == {user: rates}
    end = bench.controller.quorum.end_offset
    assert alter_quotas(bench, {"user": "x"}, request_percentage=None).error_code == 0
    assert bench.controller.quorum.end_offset == end, "what is not there needs no record"
    assert alter_quotas(bench, {"user": "x"}, producer_byte_rate=None).error_code == 0
    assert alter_quotas(bench, {"user": None}, producer_byte_rate=None).error_code == 0
    assert alter_quotas(bench, {"user": "x", "client-id": "c"}, producer_byte_rate=None).error_code == 0
    left = {user: {"consumer_byte_rate": 2.0}, ip: {"connection_creation_rate": 5.0}}
    assert described(bench) == left
    bench.close()
    assert described(make_bench(insecure_ignore=["quotas"])) == left


# --- credentials ---


def test_credentials_that_would_keep_nobody_out_are_not_set(bench: Any) -> None:
    kind = m.AlterUserScramCredentialsRequest
    image = bench.controller.image
    upsertion = kind.ScramCredentialUpsertion(
        name="x", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"secret"
    )
    (result,) = bench.call(alter_user_scram_credentials, kind(deletions=[], upsertions=[upsertion]), 0).results
    assert (result.user, result.error_code) == ("x", REFUSED)
    assert "no listeners with SASL" in result.error_message
    assert bench.controller.image is image


def test_credentials_of_a_foreign_directory_are_told_and_can_go(bench: Any) -> None:
    def record(name: str, mechanism: int) -> m.UserScramCredentialRecord:
        return m.UserScramCredentialRecord(
            name=name, mechanism=mechanism, salt=b"s", stored_key=b"k", server_key=b"v", iterations=8192
        )

    bench.controller._commit([record("a", 1), record("a", 2), record("b", 1)])

    def told(*names: str) -> dict[str, Any]:
        kind = m.DescribeUserScramCredentialsRequest
        request = kind(users=[kind.UserName(name=name) for name in names] or None)
        results = bench.call(describe_user_scram_credentials, request, 0).results
        return {
            item.user: [(info.mechanism, info.iterations) for info in item.credential_infos] or item.error_code
            for item in results
        }

    assert told() == {"a": [(1, 8192), (2, 8192)], "b": [(1, 8192)]}
    assert told("b", "c") == {"b": [(1, 8192)], "c": 91}

    kind = m.AlterUserScramCredentialsRequest

    def delete(*credentials: tuple[str, int]) -> dict[str, int]:
        deletions = [kind.ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in credentials]
        results = bench.call(alter_user_scram_credentials, kind(deletions=deletions, upsertions=[]), 0).results
        return {item.user: item.error_code for item in results}

    assert delete(("a", 1), ("a", 2), ("b", 1)) == {"a": 92, "b": 0}, "a user with a mistake keeps all"
    assert told() == {"a": [(1, 8192), (2, 8192)]}
    assert delete(("a", 2), ("b", 1)) == {"a": 0, "b": 91}
    assert told() == {"a": [(1, 8192)]}


# --- features ---


def update(bench: Any, *levels: tuple[str, int, int], version: int = 2, validate_only: bool = False) -> Any:
    kind = m.UpdateFeaturesRequest
    updates = [
        kind.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how) for name, level, how in levels
    ]
    return bench.call(update_features, kind(feature_updates=updates, validate_only=validate_only), version)


def test_levels_are_finalized_all_or_none_and_stay(bench: Any, make_bench: Any) -> None:
    assert update(bench, ("group.version", 0, 2), ("transaction.version", 9, 1)).error_code == 95
    assert update(bench, ("group.version", 0, 2), validate_only=True).error_code == 0
    assert bench.controller.finalized_features["group.version"] == 1
    assert update(bench, ("group.version", 0, 2), ("transaction.version", 1, 2)).error_code == 0
    levels = bench.controller.finalized_features
    assert (levels.get("group.version", 0), levels["transaction.version"]) == (0, 1)
    bench.close()
    again = make_bench()
    levels = again.controller.finalized_features
    assert (levels.get("group.version", 0), levels["transaction.version"]) == (0, 1)
    assert update(again, ("group.version", 1, 1)).error_code == 0
    assert again.controller.finalized_features["group.version"] == 1


def test_a_level_goes_the_way_that_is_asked_for(bench: Any) -> None:
    def refused(name: str, level: int, how: int) -> str:
        answer = update(bench, (name, level, how))
        assert answer.error_code == 95
        return str(answer.error_message)

    assert update(bench, ("group.version", 0, 2)).error_code == 0
    assert refused("group.version", 1, 2).endswith("group.version. Can't downgrade to a newer version.")
    assert refused("kraft.version", 0, 2).endswith("kraft.version. Can't downgrade the version of this feature.")
    assert update(bench, ("kraft.version", 1, 1)).error_code == 0, "where it is"


@pytest.mark.parametrize("name", ["share.version", "streams.version"])
def test_a_level_that_this_node_would_not_honour_is_refused(bench: Any, name: str) -> None:
    before = bench.controller.finalized_features.get(name, 0)
    answer = update(bench, (name, 1 - before, 2 if before else 1))
    assert answer.error_code == 95 and "this version" in answer.error_message
    assert bench.controller.finalized_features.get(name, 0) == before
    assert update(bench, (name, before, 1)).error_code == 0


def min_insync(bench: Any) -> dict[str, str]:
    """By the brokers whose it is; "" for the cluster."""
    configs = bench.controller.image.configs
    found = {name: values.get("min.insync.replicas") for (kind, name), values in configs.items() if kind == 4}
    return {name: value for name, value in found.items() if value is not None}


def test_eligible_replicas_come_and_go_while_it_runs(make_bench: Any) -> None:
    """Enabled, min.insync.replicas is the cluster's alone, as Apache Kafka has it (tests/interop/test_one_node_codes.py)."""
    name, bench = "eligible.leader.replicas.version", make_bench(min_insync_replicas=2)

    def alter(broker: str, operation: int, value: str | None) -> int:
        request = increment(4, broker, ("min.insync.replicas", operation, value))
        return int(bench.call(incremental_alter_configs, request, 1).responses[0].error_code)

    assert min_insync(bench) == {"": "2"}
    assert alter("1", 0, "1") == alter("", 1, None) == 40
    assert update(bench, (name, 0, 1)).error_code == 95, "that is no upgrade"
    assert update(bench, (name, 0, 2)).error_code == 0
    assert bench.controller.finalized_features.get(name, 0) == 0 and min_insync(bench) == {"": "2"}
    assert alter("1", 0, "1") == alter("", 1, None) == 0
    assert min_insync(bench) == {"1": "1"}
    assert update(bench, (name, 1, 1), validate_only=True).error_code == 0 and min_insync(bench) == {"1": "1"}
    assert update(bench, (name, 1, 1)).error_code == 0
    assert bench.controller.finalized_features[name] == 1 and min_insync(bench) == {"": "2"}
    assert alter("1", 0, "1") == 40
    bench.controller.create_topics([NewTopic("t", configs=[("min.insync.replicas", "2")])])
    change(bench, "t", 0, replicas=[1, 2, 3], eligible_leader_replicas=[2, 3])
    snapshot = list(bench.controller.image.topic("t").partitions)
    assert snapshot[0].eligible_leader_replicas == (2, 3)
    for level, eligible in ((1, [2, 3]), (0, None)):
        update(bench, (name, level, 1 if level else 2))
        (record,) = [each for each in _records(bench.controller.image) if isinstance(each, m.PartitionRecord)]
        assert record.eligible_leader_replicas == eligible


def test_eligible_replicas_need_metadata_that_has_a_place_for_them() -> None:
    with pytest.raises(Refused, match=r"depends on metadata\.version level 23"):
        plan_features(1, {"metadata.version": 22}, [FeatureUpdate("eligible.leader.replicas.version", 1, 1)])
    both = [FeatureUpdate("eligible.leader.replicas.version", 1, 1), FeatureUpdate("metadata.version", 23, 1)]
    assert len(plan_features(1, {"metadata.version": 22}, both).records) == 2


# --- partitions ---


def change(bench: Any, topic: str, number: int, **fields: Any) -> None:
    topic_id = bench.controller.image.topic(topic).topic_id
    bench.controller._commit([m.PartitionChangeRecord(partition_id=number, topic_id=topic_id, **fields)])


@pytest.mark.parametrize("version", versions(elect_leaders))
def test_who_was_not_in_sync_leads_only_where_that_is_asked_for(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("t", 3)])
    change(bench, "t", 1, leader=-1, replicas=[1, 2], isr=[2])
    change(bench, "t", 2, leader=-1)
    kind = m.ElectLeadersRequest

    def elect(election_type: int, partitions: list[int] | None) -> dict[int, int]:
        topics = None if partitions is None else [kind.TopicPartitions(topic="t", partitions=partitions)]
        answer = bench.call(elect_leaders, kind(election_type=election_type, topic_partitions=topics), version)
        (topic,) = answer.replica_election_results
        return {item.partition_id: item.error_code for item in topic.partition_result}

    assert elect(0, [0, 1]) == {0: 84, 1: 80}
    assert elect(0, None) == {1: 80, 2: 0}
    assert bench.controller.image.partition("t", 2).leader == 1
    assert bench.controller.image.partition("t", 1).leader == -1
    if version >= 1:
        assert elect(1, [0, 1]) == {0: 84, 1: 0}
        found = bench.controller.image.partition("t", 1)
        assert (found.leader, found.isr) == (1, (1,))


@pytest.mark.parametrize("replicas", [[1], None])
def test_a_reassignment_of_a_foreign_directory_is_told_and_ended(bench: Any, replicas: list[int] | None) -> None:
    bench.controller.create_topics([NewTopic("t", 2), NewTopic("u")])
    change(bench, "t", 1, replicas=[1, 2], adding_replicas=[2])
    kind = m.ListPartitionReassignmentsRequest
    for topics in (
        None,
        [kind.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1, 9])],
    ):
        answer = bench.call(list_partition_reassignments, kind(topics=topics), 0)
        ((name, (ongoing,)),) = [(item.name, item.partitions) for item in answer.topics]
        assert (name, ongoing.partition_index, ongoing.replicas) == ("t", 1, [1, 2])
        assert (ongoing.adding_replicas, ongoing.removing_replicas) == ([2], [])
    named = [kind.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
    assert bench.call(list_partition_reassignments, kind(topics=named), 0).topics == []

    def alter(replicas: list[int] | None, **fields: Any) -> tuple[int, str]:
        request = m.AlterPartitionReassignmentsRequest
        partition = request.ReassignablePartition(partition_index=1, replicas=replicas)
        topics = [request.ReassignableTopic(name="t", partitions=[partition])]
        answer = bench.call(alter_partition_reassignments, request(topics=topics, **fields), 1)
        (result,) = answer.responses[0].partitions
        return result.error_code, result.error_message

    assert alter([1], allow_replication_factor_change=False)[0] == 38
    assert alter([1, 3])[0] == 39
    assert alter(replicas) == (0, None)
    found = bench.controller.image.partition("t", 1)
    assert (found.replicas, found.adding_replicas, found.leader) == ((1,), (), 1)
    assert alter(None)[0] == 85


@pytest.mark.parametrize("handler", [add_raft_voter, remove_raft_voter])
def test_who_is_the_only_voter_takes_no_others(bench: Any, handler: ModuleType) -> None:
    kind = m.AddRaftVoterRequest if handler is add_raft_voter else m.RemoveRaftVoterRequest
    with pytest.raises(UnsupportedVersion, match="only voter"):
        bench.call(handler, kind(voter_id=2, voter_directory_id=b"d" * 16), 0)
