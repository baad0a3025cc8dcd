"""What the calls about nodes, leaders and replicas ask for, and make of the answers of a small broker of any age."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from admin_fakes import answer_once, limit
from net_fakes import FakeBroker

from fastq.admin import (
    Admin,
    AsyncAdmin,
    ElectionType,
    FeatureUpdate,
    PartitionReassignment,
    RaftVoterEndpoint,
    TopicPartitionReplica,
    UpgradeType,
)
from fastq.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    InvalidUpdateVersion,
    LogDirNotFound,
    NoReassignmentInProgress,
    NotController,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
DIRECTORY = bytes(range(16))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"a": 2, "b": 1}
        yield broker


@pytest.fixture
def admin(broker: FakeBroker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address) as admin:
        yield admin


# -- the quorum --------------------------------------------------------------------------------------------------------------


def quorum(error_code: int = 0, partition_error: int = 0) -> m.DescribeQuorumResponse:
    state = m.DescribeQuorumResponse.ReplicaState
    partition = m.DescribeQuorumResponse.PartitionData(
        partition_index=0,
        error_code=partition_error,
        leader_id=1,
        leader_epoch=7,
        high_watermark=90,
        current_voters=[
            state(replica_id=1, replica_directory_id=DIRECTORY, log_end_offset=100, last_fetch_timestamp=5),
            state(replica_id=2, replica_directory_id=bytes(16), log_end_offset=88),
        ],
        observers=[state(replica_id=9, log_end_offset=100, last_caught_up_timestamp=4)],
    )
    listener = m.DescribeQuorumResponse.Listener(name="CONTROLLER", host="h", port=9093)
    return m.DescribeQuorumResponse(
        error_code=error_code,
        topics=[m.DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[partition])],
        nodes=[m.DescribeQuorumResponse.Node(node_id=1, listeners=[listener])],
    )


def test_the_quorum_as_its_leader_sees_it(broker: FakeBroker, admin: Admin) -> None:
    # The leader is not known yet, then has moved: both pass.
    asked = answer_once(broker, ApiKey.DESCRIBE_QUORUM, quorum(error_code=41), quorum(partition_error=6), quorum())
    found = admin.describe_quorum()
    assert len(asked) == 3 and asked[0].topics[0].topic_name == "__cluster_metadata"
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 7, 90)
    leader, behind = found.voters
    assert (leader.directory_id, leader.lag, leader.last_fetch_ms) == (DIRECTORY, 0, 5)
    assert (behind.directory_id, behind.lag, behind.last_fetch_ms, behind.last_caught_up_ms) == (None, 12, None, None)
    assert [(o.node_id, o.lag, o.last_caught_up_ms) for o in found.observers] == [(9, 0, 4)]
    assert found.endpoints == {1: (RaftVoterEndpoint("CONTROLLER", "h", 9093),)}


def test_a_quorum_that_is_not_told(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.DESCRIBE_QUORUM] = lambda *_: m.DescribeQuorumResponse(topics=[], nodes=[])
    with pytest.raises(UnknownServerError, match="leaves out __cluster_metadata"):
        admin.describe_quorum()
    limit(broker, ApiKey.DESCRIBE_QUORUM, -1)
    broker.drop_connections()
    with pytest.raises(UnsupportedVersion, match="DescribeQuorum"):
        admin.describe_quorum()


def test_voters(broker: FakeBroker, admin: Admin) -> None:
    refused = m.AddRaftVoterResponse(error_code=7, error_message="another change is under way")
    added = answer_once(broker, ApiKey.ADD_RAFT_VOTER, m.AddRaftVoterResponse(error_message=None), refused)
    endpoint = RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 9094)
    admin.add_raft_voter(4, DIRECTORY, [endpoint], cluster_id="c")
    (request,) = added
    assert (request.voter_id, request.voter_directory_id, request.cluster_id) == (4, DIRECTORY, "c")
    assert [(e.name, e.host, e.port) for e in request.listeners] == [endpoint]
    with pytest.raises(RequestTimedOut, match="another change is under way"):
        admin.add_raft_voter(4, DIRECTORY, [endpoint])
    assert len(added) == 2, "what was refused is not asked for again"
    removed = answer_once(broker, ApiKey.REMOVE_RAFT_VOTER, m.RemoveRaftVoterResponse(error_message=None))
    admin.remove_raft_voter(4, DIRECTORY)
    assert (removed[0].voter_id, removed[0].voter_directory_id, removed[0].cluster_id) == (4, DIRECTORY, None)


def test_a_broker_is_not_given_longer_than_its_answer_is_waited_for(broker: FakeBroker) -> None:
    """It would go on, and be asked again for what it is doing."""
    added = answer_once(broker, ApiKey.ADD_RAFT_VOTER, m.AddRaftVoterResponse(error_message=None))
    with Admin(bootstrap_servers=broker.address, request_timeout_ms=20_000) as admin:
        for timeout in (None, 40.0, 5.0):
            admin.add_raft_voter(4, DIRECTORY, [RaftVoterEndpoint("CONTROLLER", "h", 1)], timeout=timeout)
    assert [request.timeout_ms for request in added] == [18_000, 18_000, 5_000]


# -- features and registrations ----------------------------------------------------------------------------------------------


def test_features(broker: FakeBroker, admin: Admin) -> None:
    supported, finalized = m.ApiVersionsResponse.SupportedFeatureKey, m.ApiVersionsResponse.FinalizedFeatureKey
    broker.handlers[ApiKey.API_VERSIONS] = lambda *_: m.ApiVersionsResponse(
        api_keys=broker.versions,
        supported_features=[supported(name=name, min_version=0, max_version=2) for name in ("b", "a")],
        finalized_features=[finalized(name="a", max_version_level=1, min_version_level=1)],
        finalized_features_epoch=12,
    )
    found = admin.describe_features()
    assert list(found.supported.items()) == [("a", (0, 2)), ("b", (0, 2))]
    assert (found.finalized, found.finalized_epoch) == ({"a": 1}, 12)


def test_levels_of_features(broker: FakeBroker, admin: Admin) -> None:
    failed = m.UpdateFeaturesResponse.UpdatableFeatureResult(feature="b", error_code=95, error_message="no such level")
    answers = [
        m.UpdateFeaturesResponse(error_code=41, error_message=None, results=[]),
        m.UpdateFeaturesResponse(error_message=None, results=[]),
        m.UpdateFeaturesResponse(error_message=None, results=[failed]),
    ]
    asked = answer_once(broker, ApiKey.UPDATE_FEATURES, *answers)
    admin.update_features({"a": 2, "b": FeatureUpdate(0, UpgradeType.UNSAFE_DOWNGRADE)}, validate_only=True)
    request = asked[1]
    assert [(u.feature, u.max_version_level, u.upgrade_type) for u in request.feature_updates] == [
        ("a", 2, 1),
        ("b", 0, 3),
    ]
    assert request.validate_only
    limit(broker, ApiKey.UPDATE_FEATURES, 1)  # where a feature has its own error
    broker.drop_connections()
    with pytest.raises(InvalidUpdateVersion, match="no such level"):
        admin.update_features({"b": 9})
    with pytest.raises(ValueError, match="no feature is named"):
        admin.update_features({})


def test_a_broker_is_taken_out(broker: FakeBroker, admin: Admin) -> None:
    unknown = m.UnregisterBrokerResponse(error_code=102, error_message=None)
    asked = answer_once(broker, ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerResponse(error_message=None), unknown)
    admin.unregister_broker(3)
    assert asked[0].broker_id == 3
    with pytest.raises(BrokerIdNotRegistered, match="node 4"):
        admin.unregister_broker(4)


def test_brokers_that_are_not_let_in(broker: FakeBroker, admin: Admin) -> None:
    told = m.DescribeClusterResponse.DescribeClusterBroker
    broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda *_: m.DescribeClusterResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[
            told(broker_id=2, host="b", port=2, is_fenced=True),
            told(broker_id=1, host="a", port=1, rack="r"),
        ],
    )
    found = admin.describe_cluster(include_fenced=True)
    assert (found.cluster_id, [n.node_id for n in found.nodes], [n.node_id for n in found.fenced_nodes]) == (
        "c",
        [1],
        [2],
    )
    assert found.controller is not None and found.controller.rack == "r"
    assert admin.describe_cluster().fenced_nodes == ()


# -- replicas and leaders ----------------------------------------------------------------------------------------------------


def reassigned(*codes: tuple[str, int, int], error_code: int = 0) -> m.AlterPartitionReassignmentsResponse:
    topic = m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    partition = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    return m.AlterPartitionReassignmentsResponse(
        error_code=error_code,
        error_message=None,
        responses=[
            topic(name=name, partitions=[partition(partition_index=index, error_code=code, error_message=None)])
            for name, index, code in codes
        ],
    )


def test_partitions_move_and_stop(broker: FakeBroker, admin: Admin) -> None:
    asked = answer_once(
        broker,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        reassigned(error_code=41),
        reassigned(("a", 0, 0), ("a", 1, 39), ("b", 0, 85)),
    )
    outcomes = admin.alter_partition_reassignments({A0: [1, 2], ("a", 1): (9,), B0: None})  # type: ignore[dict-item]
    assert outcomes[A0].error is None
    assert isinstance(outcomes[A1].error, InvalidReplicaAssignment)
    assert isinstance(outcomes[B0].error, NoReassignmentInProgress) and "topic b" in str(outcomes[B0].error)
    assert len(asked) == 2
    assert [(t.name, [(p.partition_index, p.replicas) for p in t.partitions]) for t in asked[0].topics] == [
        ("a", [(0, [1, 2]), (1, [9])]),
        ("b", [(0, None)]),
    ]


def test_another_number_of_replicas_is_refused_by_who_can(broker: FakeBroker, admin: Admin) -> None:
    asked = answer_once(broker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassigned(("a", 0, 0)))
    admin.alter_partition_reassignments({A0: [1]}, allow_replication_factor_change=False)[A0].result()
    assert asked[0].allow_replication_factor_change is False
    limit(broker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0)
    broker.drop_connections()
    with pytest.raises(UnsupportedVersion):
        admin.alter_partition_reassignments({A0: [1]}, allow_replication_factor_change=False)


def test_what_moves(broker: FakeBroker, admin: Admin) -> None:
    partition = m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
        partition_index=0, replicas=[1, 2, 3], adding_replicas=[3], removing_replicas=[1]
    )
    topic = m.ListPartitionReassignmentsResponse.OngoingTopicReassignment(name="a", partitions=[partition])
    found = m.ListPartitionReassignmentsResponse(error_message=None, topics=[topic])
    asked = answer_once(broker, ApiKey.LIST_PARTITION_REASSIGNMENTS, found)
    assert admin.list_partition_reassignments() == {A0: PartitionReassignment((1, 2, 3), (3,), (1,))}
    assert admin.list_partition_reassignments([A0])[A0].target == (2, 3)
    assert admin.list_partition_reassignments([]) == {}, "none is not all"
    assert [request.topics and request.topics[0].partition_indexes for request in asked] == [None, [0]]


@pytest.mark.parametrize(
    ("sizes_bytes", "percent"),
    [
        ({1: 200, 2: 100, 3: 50}, 25),
        ({1: 200, 3: 300}, 100),
        ({1: 3, 3: 2}, 66),
        ({1: 200}, 0),
        ({1: 0, 3: 0}, 100),
        ({1: 0}, 0),
        ({3: 50}, None),
        ({}, None),
    ],
)
def test_how_much_of_a_move_is_copied(sizes_bytes: dict[int, int], percent: int | None) -> None:
    assert PartitionReassignment((1, 2, 3), (3,), (1,)).copied_percent(sizes_bytes) == percent
    assert PartitionReassignment((1, 2, 3), (), (1,)).copied_percent(sizes_bytes) == 100


def elected(*codes: tuple[str, int, int], error_code: int = 0) -> m.ElectLeadersResponse:
    result = m.ElectLeadersResponse.ReplicaElectionResult
    partition = m.ElectLeadersResponse.PartitionResult
    return m.ElectLeadersResponse(
        error_code=error_code,
        replica_election_results=[
            result(topic=name, partition_result=[partition(partition_id=index, error_code=code, error_message=None)])
            for name, index, code in codes
        ],
    )


def test_leaders_are_elected(broker: FakeBroker, admin: Admin) -> None:
    asked = answer_once(
        broker,
        ApiKey.ELECT_LEADERS,
        elected(error_code=41),
        elected(("a", 0, 0), ("a", 1, 84)),
        elected(error_code=41),
        elected(("b", 0, 0)),
    )
    outcomes = admin.elect_leaders(ElectionType.PREFERRED, [A0, A1])
    assert outcomes[A0].error is None and isinstance(outcomes[A1].error, ElectionNotNeeded)
    assert list(admin.elect_leaders(ElectionType.UNCLEAN)) == [B0]
    assert [(r.election_type, r.topic_partitions is None) for r in asked] == [
        (0, False),
        (0, False),
        (1, True),
        (1, True),
    ]


def test_an_unclean_election_takes_a_broker_that_knows_it(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.ELECT_LEADERS, 0)
    asked = answer_once(broker, ApiKey.ELECT_LEADERS, elected(("a", 0, 0)))
    admin.elect_leaders(ElectionType.PREFERRED, [A0])[A0].result()
    with pytest.raises(UnsupportedVersion):
        admin.elect_leaders(ElectionType.UNCLEAN, [A0])
    assert len(asked) == 1


def test_not_a_controller_for_good(broker: FakeBroker, admin: Admin) -> None:
    answer_once(
        broker, ApiKey.LIST_PARTITION_REASSIGNMENTS, m.ListPartitionReassignmentsResponse(error_code=41, topics=[])
    )
    with pytest.raises(NotController):
        admin.list_partition_reassignments(timeout=0.3)


def test_logs_go_to_other_directories_of_their_brokers(broker: FakeBroker, admin: Admin) -> None:
    asked: list[Any] = []

    def handle(request: Any, version: int) -> m.AlterReplicaLogDirsResponse:
        asked.append(request)
        topic = m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        partition = m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
        codes = {"/gone": 57, "/later": 9 if len(asked) == 1 else 0}
        return m.AlterReplicaLogDirsResponse(
            results=[
                topic(
                    topic_name=t.name,
                    partitions=[partition(partition_index=p, error_code=codes.get(d.path, 0)) for p in t.partitions],
                )
                for d in request.dirs
                for t in d.topics
            ]
        )

    broker.handlers[ApiKey.ALTER_REPLICA_LOG_DIRS] = handle
    there, gone, later, lost = (
        TopicPartitionReplica("a", 0, 1),
        TopicPartitionReplica("a", 1, 1),
        TopicPartitionReplica("b", 0, 1),
        TopicPartitionReplica("a", 0, 7),
    )
    outcomes = admin.alter_replica_log_dirs({there: "/d", gone: "/gone", later: "/later", lost: "/d"}, timeout=10)
    assert outcomes[there].error is None and outcomes[later].error is None
    assert isinstance(outcomes[gone].error, LogDirNotFound) and "node 1" in str(outcomes[gone].error)
    assert outcomes[lost].error is not None, "a broker that is not there fails its own alone"
    assert [[d.path for d in request.dirs] for request in asked] == [["/d", "/gone", "/later"], ["/later"]]


# -- topics in full ----------------------------------------------------------------------------------------------------------


class Pages:
    """Answers DescribeTopicPartitions with one partition a page."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, request: Any, version: int) -> m.DescribeTopicPartitionsResponse:
        self.asked.append(request)
        topic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
        cursor = m.DescribeTopicPartitionsResponse.Cursor
        places = [("a", 0), ("a", 1), ("b", 0), ("nothing", -1)]
        first = (request.cursor.topic_name, request.cursor.partition_index) if request.cursor else ("", 0)
        here, *later = [place for place in places if place >= first]
        name, index = here
        partitions = [
            partition(
                partition_index=index,
                leader_id=1 if index == 0 else -1,
                leader_epoch=3,
                replica_nodes=[1, 2],
                isr_nodes=[1],
                eligible_leader_replicas=[2] if index == 0 else None,
                last_known_elr=[],
                offline_replicas=[2],
            )
        ]
        return m.DescribeTopicPartitionsResponse(
            topics=[topic(name=name, topic_id=DIRECTORY, partitions=partitions)]
            if index >= 0
            else [topic(error_code=3, name=name, partitions=[])],
            next_cursor=cursor(topic_name=later[0][0], partition_index=later[0][1]) if later else None,
        )


def test_topics_page_by_page_with_eligible_leaders(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = pages = Pages()
    outcomes = admin.describe_topics(["b", "nothing", "a"])
    assert list(outcomes) == ["b", "nothing", "a"]
    first, second = outcomes["a"].result().partitions
    assert first.leader is not None and (first.leader.port, first.leader_epoch) == (broker.port, 3)
    assert (first.replicas, first.isr, first.offline_replicas) == ((1, 2), (1,), (2,))
    assert (first.elr, first.last_known_elr) == ((2,), ())
    assert second.leader is None and second.elr is None
    assert [part.index for part in outcomes["b"].result().partitions] == [0]
    assert isinstance(outcomes["nothing"].error, UnknownTopicOrPartition)
    assert [[t.name for t in request.topics] for request in pages.asked] == [
        ["a", "b", "nothing"],
        ["a", "b", "nothing"],
        ["b", "nothing"],
        ["nothing"],
    ]


def test_topics_of_a_broker_without_pages(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, -1)
    (first, _) = admin.describe_topic("a").partitions
    assert first.leader is not None and first.elr is None and first.last_known_elr is None


def hears_no_leader(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastq.cli import quorum as command

    monkeypatch.setattr(command, "LEADER_S", 0.3)
    answer = quorum(partition_error=6)
    answer.topics[0].partitions[0].error_message = "node 1 hears no leader of the metadata quorum: it is in epoch 4"
    broker.handlers[ApiKey.DESCRIBE_QUORUM] = lambda *_: answer


def test_without_a_leader_the_command_says_what_the_nodes_know(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastq.cli import main

    hears_no_leader(broker, monkeypatch)
    assert main(["quorum", "status", "--bootstrap", broker.address]) == 1
    said = capsys.readouterr().err
    assert "no leader of the metadata quorum answers; node 1 hears no leader of" in said and said.count("\n") == 1
    assert "A majority of the controllers must run and reach each other" in said


def tells_of_itself(broker: FakeBroker) -> None:
    told = m.DescribeClusterResponse.DescribeClusterBroker(broker_id=1, host="a", port=1)
    response = m.DescribeClusterResponse(cluster_id="c", controller_id=1, brokers=[told])
    broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda *_: response
    limit(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, -1)


def test_without_a_leader_the_clusters_commands_say_so(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that have died since count as running in what the others know, and describing it took a minute."""
    from fastq.cli import main

    hears_no_leader(broker, monkeypatch)
    tells_of_itself(broker)
    assert main(["cluster", "nodes", "--json", "--bootstrap", broker.address]) == 1
    told = capsys.readouterr()
    assert [row["node"] for row in json.loads(told.out)] == [1]
    assert "no leader of the metadata quorum answers; node 1 hears no leader" in told.err
    assert "a node that has died since counts as running" in told.err and told.err.count("\n") == 1
    assert main(["cluster", "describe", "--bootstrap", broker.address]) == 1
    told = capsys.readouterr()
    assert not told.out and "A majority of the controllers must run and reach each other" in told.err


def test_nodes_are_told_where_nobody_may_ask_about_the_quorum(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastq.cli import main

    broker.handlers[ApiKey.DESCRIBE_QUORUM] = lambda *_: quorum(error_code=31)
    tells_of_itself(broker)
    assert main(["cluster", "nodes", "--json", "--bootstrap", broker.address]) == 0
    told = capsys.readouterr()
    assert [row["node"] for row in json.loads(told.out)] == [1] and not told.err


@contextmanager
def one_stands_still(broker: FakeBroker) -> Iterator[None]:
    """The broker tells of another one, node 2, as which the system takes connections, as it does for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as still:
        port = still.getsockname()[1]

        def metadata(request: Any, version: int) -> m.MetadataResponse:
            response = broker._metadata(request, version)
            second = m.MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=port)
            response.brokers = [*response.brokers, second]
            return response

        broker.handlers[ApiKey.METADATA] = metadata
        yield


def test_what_the_others_say_is_shown_beside_who_stands_still(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastq.cli import api_versions, main

    monkeypatch.setattr(api_versions, "NODE_S", 0.3)
    with one_stands_still(broker):
        assert main(["api-versions", "--api", "Metadata", "--json", "--bootstrap", broker.address]) == 1
    told = capsys.readouterr()
    (row,) = json.loads(told.out)
    assert row["brokers"] == [1] and told.err == "fastq: node 2 does not answer\n"


def test_a_broker_that_stands_still_is_named_and_holds_nobody_up(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastq.cli import main
    from fastq.cli import quorum as command

    monkeypatch.setattr(command, "NODE_S", 0.3)
    broker.handlers[ApiKey.DESCRIBE_QUORUM] = lambda *_: quorum()
    with one_stands_still(broker):
        assert main(["quorum", "status", "--json", "--bootstrap", broker.address]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["voters"]
    # On a busy machine the client's own word comes first: a connection has been under way for most of a second.
    assert told.err.splitlines()[-1] == "fastq: node 2 does not answer" and told.err.count("does not answer") == 1


def test_a_node_that_has_come_since_is_asked_for_anew(broker: FakeBroker) -> None:
    """An answer to a request that was out before the question tells nothing about it."""
    out, release = threading.Event(), threading.Event()

    async def main(second: FakeBroker) -> None:
        def metadata(request: Any, version: int) -> m.MetadataResponse:
            response = broker._metadata(request, version)
            if not out.is_set():
                out.set()
                assert release.wait(30)
                return response
            node = m.MetadataResponse.MetadataResponseBroker(node_id=2, host=second.host, port=second.port)
            response.brokers = [*response.brokers, node]
            return response

        broker.handlers[ApiKey.METADATA] = metadata
        async with AsyncAdmin(bootstrap_servers=broker.address) as admin:
            first = asyncio.create_task(admin.api_versions(broker.node_id))
            assert await asyncio.to_thread(out.wait, 30)
            asked = asyncio.create_task(admin.api_versions(2))
            for _ in range(10):
                await asyncio.sleep(0)
            release.set()
            assert await asked == await first

    with FakeBroker(node_id=2) as second:
        asyncio.run(main(second))
