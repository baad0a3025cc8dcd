"""Reassignments and directories: what is asked for, what is written, what is refused. Cases are those of Apache Kafka's
ReplicationControlManagerTest, and what it leaves unfinished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from control_world import Cluster, change_of, directory_id, topic_id
from fastq_broker.controller.assign_directories import plan_assignments
from fastq_broker.controller.elections import PartitionChange
from fastq_broker.controller.image import Record
from fastq_broker.controller.reassignment import list_reassignments, plan_reassignments

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

KIND = m.AlterPartitionReassignmentsRequest
DIRS = m.AssignReplicasToDirsRequest


def asked(replicas: Sequence[int] | None, number: int = 0, topic: str = "t", may_change: bool = True) -> KIND:
    partition = KIND.ReassignablePartition(
        partition_index=number, replicas=None if replicas is None else list(replicas)
    )
    return KIND(
        allow_replication_factor_change=may_change,
        topics=[KIND.ReassignableTopic(name=topic, partitions=[partition])],
    )


def move(
    cluster: Cluster, replicas: Sequence[int] | None, **more: Any
) -> tuple[ErrorCode | int, str | None, list[Record]]:
    answer, records = plan_reassignments(cluster.view, asked(replicas, **more))
    ((result,),) = [response.partitions for response in answer.responses]
    return result.error_code, result.error_message, records


def three(**more: Any) -> Cluster:
    cluster = Cluster(**more)
    cluster.brokers(1, 2, 3, 4, 5)
    cluster.partition(replicas=[1, 2, 3])
    return cluster


def test_all_replicas_at_once_with_those_to_come_and_those_to_go() -> None:
    code, _, records = move(three(), [4, 2, 5])
    assert code == ErrorCode.NONE
    assert records == [
        change_of(
            replicas=[4, 2, 5, 1, 3],
            adding_replicas=[4, 5],
            removing_replicas=[1, 3],
            directories=[directory_id(broker_id) for broker_id in (4, 2, 5, 1, 3)],
        )
    ]


def test_fewer_replicas_at_once_where_they_are_in_sync() -> None:
    code, _, records = move(three(), [2, 1])
    assert code == ErrorCode.NONE
    assert records == [change_of(replicas=[2, 1], isr=[1, 2], leader=1, directories=[directory_id(2), directory_id(1)])]


def test_another_order_at_once() -> None:
    _, _, (record,) = move(three(), [3, 2, 1])
    assert (record.replicas, record.leader, record.adding_replicas) == ([3, 2, 1], -2, None)


def test_what_is_so_already_is_no_record() -> None:
    assert move(three(), [1, 2, 3]) == (ErrorCode.NONE, None, [])


@pytest.mark.parametrize(
    ("replicas", "more", "code"),
    [
        ([1], {"topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1], {"number": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1], {"number": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, {}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], {"may_change": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([1, 2, 4], {"may_change": False}, ErrorCode.NONE),
    ],
)
def test_what_is_refused(replicas: list[int] | None, more: dict[str, Any], code: ErrorCode) -> None:
    found, words, records = move(three(), replicas, **more)
    assert found == code
    assert bool(words) is bool(code)
    assert bool(records) is not bool(code)


def test_the_factor_of_a_partition_that_moves_is_that_of_its_end() -> None:
    cluster = three()
    cluster.apply(*move(cluster, [3, 4])[2])
    assert move(cluster, [1, 2, 3], may_change=False)[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(cluster, [1, 5], may_change=False)[0] == ErrorCode.NONE


def test_a_reassignment_ends_with_the_isr() -> None:
    cluster = three()
    cluster.apply(*move(cluster, [4, 2])[2])
    change = PartitionChange(cluster.view, cluster.located())
    change.isr = [1, 2, 3, 4]
    cluster.apply(change.build())
    state = cluster.state()
    assert (state.replicas, state.isr, state.leader) == ((4, 2), (2, 4), 4)
    assert (state.adding_replicas, state.removing_replicas) == ((), ())


def test_a_reassignment_is_taken_back() -> None:
    cluster = three()
    before = cluster.state()
    cluster.apply(*move(cluster, [4, 5])[2])
    code, _, records = move(cluster, None)
    assert code == ErrorCode.NONE
    cluster.apply(*records)
    state = cluster.state()
    assert set(state.replicas) == {1, 2, 3}
    assert (state.isr, state.leader, state.adding_replicas, state.removing_replicas) == ((1, 2, 3), 1, (), ())
    assert state.leader_epoch == before.leader_epoch + 1  # replicas left
    assert dict(zip(state.replicas, state.directories, strict=True)) == dict(
        zip(before.replicas, before.directories, strict=True)
    )


def only_new_ones(unclean: bool) -> Cluster:
    cluster = Cluster(elr=False)
    cluster.brokers(1, 2)
    cluster.partition(replicas=[2, 1], isr=[2], adding_replicas=[2], removing_replicas=[])
    if unclean:
        cluster.config("t", "unclean.leader.election.enable", "true")
    return cluster


def nobody_in_sync(eligible: list[int], last_known: list[int] | None = None) -> Cluster:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(
        replicas=[2, 1],
        isr=[],
        leader=-1,
        adding_replicas=[2],
        eligible_leader_replicas=eligible,
        last_known_elr=last_known,
    )
    return cluster


def test_a_reassignment_is_taken_back_with_a_loss_only_where_the_topic_allows_it() -> None:
    code, words, records = move(only_new_ones(False), None)
    assert (code, records) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])
    assert "unclean" in (words or "") and "in sync are [2], all of them new" in (words or "")
    code, _, (record,) = move(only_new_ones(True), None)
    assert code == ErrorCode.NONE
    assert (record.replicas, record.isr, record.leader) == ([1], [1], 1)


@pytest.mark.parametrize(
    ("eligible", "last_known", "advice"),
    [
        ([1], None, "nobody is in sync; start a broker that may lead without a loss first (one of [1])"),
        ([2, 1], None, "nobody is in sync; start a broker that may lead without a loss first (one of [1])"),
        ([], [1], "nobody is in sync; start a broker that may lead without a loss first (one of [1])"),
        ([], None, "nobody is in sync; start a broker that may lead without a loss first (one of [1])"),
        (
            [2],
            None,
            "nobody is in sync, and of [2], which may lead without a loss, all are new; start one of them, and have [1] in sync",
        ),
    ],
)
def test_where_nobody_is_in_sync_it_is_said_whom_to_start(
    eligible: list[int], last_known: list[int] | None, advice: str
) -> None:
    """With a replica that is new in sync alone it would be refused again."""
    code, words, records = move(nobody_in_sync(eligible, last_known), None)
    assert (code, records) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])
    assert advice in (words or "")


def test_to_go_back_by_hand_ends_the_reassignment() -> None:
    """Apache Kafka leaves the replica among those to come, and the reassignment never ends."""
    cluster = three()
    cluster.apply(*move(cluster, [2, 3, 4])[2])
    code, _, records = move(cluster, [1, 2, 3])
    assert code == ErrorCode.NONE
    cluster.apply(*records)
    state = cluster.state()
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((1, 2, 3), (), ())


def test_who_was_to_go_and_is_asked_for_stays() -> None:
    """Apache Kafka leaves it among those to go."""
    cluster = three()
    cluster.apply(*move(cluster, [2, 3, 4])[2])
    cluster.apply(*move(cluster, [1, 2, 3, 4])[2])
    state = cluster.state()
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((1, 2, 3, 4), (4,), ())


def test_who_has_not_come_yet_is_still_to_come() -> None:
    cluster = three()
    cluster.apply(*move(cluster, [1, 2, 3, 4])[2])
    cluster.apply(*move(cluster, [1, 2, 3, 4, 5])[2])
    assert cluster.state().adding_replicas == (4, 5)
    cluster.apply(*move(cluster, None)[2])
    assert cluster.state().replicas == (1, 2, 3)


def test_the_list_of_what_moves() -> None:
    cluster = three()
    cluster.partition(replicas=[1, 2])
    cluster.partition("u", replicas=[1])
    cluster.apply(*move(cluster, [1, 4], number=1)[2])
    (topic,) = list_reassignments(cluster.image, None).topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == ("t", 1)
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ([1, 4, 2], [4], [2])
    assert list_reassignments(cluster.image, [("t", [0]), ("u", [0]), ("v", [0]), ("t", [7])]).topics == []
    assert [topic.name for topic in list_reassignments(cluster.image, [("t", [1])]).topics] == ["t"]


# Directories


def assignment(directory: bytes, *numbers: int, topic: str = "t") -> DIRS.DirectoryData:
    partitions = [DIRS.PartitionData(partition_index=number) for number in numbers]
    return DIRS.DirectoryData(id=directory, topics=[DIRS.TopicData(topic_id=topic_id(topic), partitions=partitions)])


def assign(
    cluster: Cluster, *directories: DIRS.DirectoryData, broker_id: int = 1, epoch: int = 101
) -> tuple[list[int], list[Record]]:
    answer, records = plan_assignments(
        cluster.view, DIRS(broker_id=broker_id, broker_epoch=epoch, directories=list(directories))
    )
    assert answer.error_code == ErrorCode.NONE
    return [
        partition.error_code
        for directory in answer.directories
        for topic in directory.topics
        for partition in topic.partitions
    ], records


def two_directories() -> Cluster:
    cluster = Cluster()
    cluster.broker(1, directories=2)
    cluster.brokers(2)
    cluster.partition(replicas=[1, 2])
    cluster.partition(replicas=[2, 1])
    cluster.partition(replicas=[2])
    return cluster


def test_a_broker_says_where_its_replicas_are() -> None:
    codes, records = assign(two_directories(), assignment(directory_id(1, 1), 0, 1))
    assert codes == [ErrorCode.NONE] * 2
    assert records == [
        change_of(number=0, directories=[directory_id(1, 1), directory_id(2)]),
        change_of(number=1, directories=[directory_id(2), directory_id(1, 1)]),
    ]
    assert assign(two_directories(), assignment(directory_id(1), 0))[1] == []  # is there already


def test_a_replica_in_a_directory_that_has_failed_leaves_the_isr() -> None:
    codes, records = assign(two_directories(), assignment(directory_id(1, 7), 0))
    assert codes == [ErrorCode.NONE]
    assert records == [
        change_of(directories=[directory_id(1, 7), directory_id(2)]),
        change_of(leader=2, isr=[2]),
    ]


def test_assignments_that_are_refused() -> None:
    cluster = two_directories()
    codes, records = assign(
        cluster, assignment(directory_id(1, 1), 2, 3, -1), assignment(directory_id(1, 1), 0, topic="u")
    )
    assert codes == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert records == []


@pytest.mark.parametrize(
    ("level", "epoch", "code"),
    [(30, 100, ErrorCode.STALE_BROKER_EPOCH), (16, 101, ErrorCode.UNSUPPORTED_VERSION)],
)
def test_assignments_that_are_refused_whole(level: int, epoch: int, code: ErrorCode) -> None:
    cluster = Cluster(elr=False, level=level)
    cluster.brokers(1)
    answer, records = plan_assignments(cluster.view, DIRS(broker_id=1, broker_epoch=epoch, directories=[]))
    assert (answer.error_code, answer.directories, records) == (code, [], [])
