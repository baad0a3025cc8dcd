"""The admin client's calls about nodes, leaders and replicas, and the commands over them, of our broker and of Apache Kafka alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ElectionType, FeatureUpdate, TopicPartitionReplica, UpgradeType
from fastq.cli import main
from fastq.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    InvalidUpdateVersion,
    LogDirNotFound,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.one_node  # what one node says of itself


def test_calls_of_a_node(servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    with Admin(bootstrap_servers=servers) as admin:
        node = admin.describe_cluster(include_fenced=True).nodes[0].node_id
        admin.create_topic(name, replica_assignments={0: [node], 1: [node]})
        first, second, missing = TopicPartition(name, 0), TopicPartition(name, 1), TopicPartition(name, 9)

        parts = admin.describe_topic(name).partitions
        assert [(p.index, p.replicas, p.isr, p.offline_replicas, p.elr, p.last_known_elr) for p in parts] == [
            (index, (node,), (node,), (), (), ()) for index in (0, 1)
        ]
        quorum = admin.describe_quorum()
        assert [voter.node_id for voter in quorum.voters] == [quorum.leader_id] and quorum.voters[0].lag == 0
        features = admin.describe_features(node)
        assert features.finalized["metadata.version"] <= features.supported["metadata.version"][1]
        assert features.finalized_epoch is not None
        down = FeatureUpdate(features.finalized["metadata.version"] - 1, UpgradeType.SAFE_DOWNGRADE)
        with pytest.raises(InvalidUpdateVersion, match=r"metadata\.version"):
            admin.update_features({"metadata.version": 99})
        with pytest.raises(InvalidUpdateVersion, match=r"metadata\.version"):
            admin.update_features({"metadata.version": down.level}, validate_only=True)
        with pytest.raises(BrokerIdNotRegistered):
            admin.unregister_broker(99)

        assert admin.list_partition_reassignments() == admin.list_partition_reassignments([first]) == {}
        outcomes = admin.alter_partition_reassignments({first: None, second: [node, 99], missing: [node]})
        assert [type(outcomes[tp].error) for tp in (first, second, missing)] == [
            NoReassignmentInProgress,
            InvalidReplicaAssignment,
            UnknownTopicOrPartition,
        ]
        assert admin.alter_partition_reassignments({first: [node]}).results() == {first: None}
        elected = admin.elect_leaders(ElectionType.PREFERRED, [first, missing])
        assert [type(elected[tp].error) for tp in (first, missing)] == [ElectionNotNeeded, UnknownTopicOrPartition]
        assert first not in admin.elect_leaders(ElectionType.UNCLEAN)

        (directory,) = (d.path for d in admin.describe_log_dirs()[node].result())
        here, nowhere = TopicPartitionReplica(name, 0, node), TopicPartitionReplica(name, 1, node)
        moved = admin.alter_replica_log_dirs({here: directory, nowhere: "/no/such/directory"})
        assert moved[here].error is None and isinstance(moved[nowhere].error, LogDirNotFound)


def test_commands_of_a_node(
    servers: str,
    new_topic_name: Callable[[], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    def told(*arguments: str, code: int = 0) -> Any:
        capfd.readouterr()
        found = main([*arguments, "--json", "--bootstrap", servers])
        out, err = capfd.readouterr()
        assert found == code, err
        return json.loads(out)

    name = new_topic_name()
    facts = told("cluster", "describe")
    assert len(facts["brokers"]) == 1 and facts["partitions_without_leader"] == 0
    (row,) = told("cluster", "nodes")
    assert (row["node"], row["state"]) == (facts["brokers"][0], "running")
    assert {"metadata.version", "group.version"} <= {row["feature"] for row in told("cluster", "features")}
    assert told("quorum", "status")["leader"] == facts["active_controller"]
    assert [row["status"] for row in told("quorum", "replication") if row["status"] != "observer"] == ["leader"]
    told("topics", "create", name, "--replica-assignment", str(row["node"]))
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(100):
            producer.send(name, b"%d" % number)
    (verified,) = told("replicas", "verify", name)
    assert (verified["compared"], verified["end"], verified["result"]) == ("records", 100, "same")
    assert told("partitions", "rebalance") == {"version": 1, "partitions": []}
    assert told("partitions", "elect", "preferred", "--all") == told("partitions", "reassign", "--list") == []
    assert told("topics", "describe", "--under-replicated") == told("topics", "describe", "--unavailable") == []
    assert told("topics", "describe", name, "--at-min-isr")[0]["topic"] == name
