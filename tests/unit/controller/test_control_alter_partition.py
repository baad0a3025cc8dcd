"""AlterPartition: what is refused and in which order, and what is written. Cases are those of Apache Kafka's
ReplicationControlManagerTest, and those of its bugs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from control_world import Cluster, change_of, directory_id, topic_id
from fastq_broker.controller.alter_partition import plan_alter_partition
from fastq_broker.controller.elections import RECOVERED, RECOVERING
from fastq_broker.controller.image import Record

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

KIND = m.AlterPartitionRequest


def item(isr: Sequence[int | tuple[int, int]], version: int = 3, **fields: Any) -> KIND.PartitionData:
    """A change of partition 0 as its leader would ask for it; members with an epoch of their own are pairs."""
    members = [member if isinstance(member, tuple) else (member, 100 + member) for member in isr]
    asked: dict[str, Any] = {
        "partition_index": 0,
        "leader_epoch": 10,
        "partition_epoch": 20,
        "leader_recovery_state": 0,
    }
    if version >= 3:
        asked["new_isr_with_epochs"] = [KIND.BrokerState(broker_id=one, broker_epoch=epoch) for one, epoch in members]
    else:
        asked["new_isr"] = [one for one, _ in members]
    return KIND.PartitionData(**{**asked, **fields})


def request(*items: KIND.PartitionData, broker_id: int = 1, epoch: int | None = None, topic: str = "t") -> KIND:
    topics = [KIND.TopicData(topic_id=topic_id(topic), partitions=list(items))]
    return KIND(broker_id=broker_id, broker_epoch=100 + broker_id if epoch is None else epoch, topics=topics)


def alter(
    cluster: Cluster, asked: KIND, version: int = 3
) -> tuple[list[m.AlterPartitionResponse.PartitionData], list[Record]]:
    answer, records = plan_alter_partition(cluster.view, asked, version)
    assert answer.error_code == ErrorCode.NONE
    return [partition for topic in answer.topics for partition in topic.partitions], records


def cluster_of(**more: Any) -> Cluster:
    cluster = Cluster(min_isr=2)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3], isr=[1, 2], **more)
    return cluster


@pytest.mark.parametrize("version", [2, 3])
def test_a_member_more(version: int) -> None:
    cluster = cluster_of()
    (result,), records = alter(cluster, request(item([1, 2, 3], version)), version)
    assert records == [change_of(isr=[1, 2, 3])]
    assert result == m.AlterPartitionResponse.PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        leader_id=1,
        leader_epoch=10,
        isr=[1, 2, 3],
        leader_recovery_state=RECOVERED,
        partition_epoch=21,
    )
    cluster.apply(*records)
    assert cluster.state().partition_epoch == 21


def test_a_member_less_stays_eligible() -> None:
    _, records = alter(cluster_of(), request(item([1])))
    assert records == [change_of(isr=[1], eligible_leader_replicas=[2])]


def test_what_is_so_already_is_answered_and_not_written() -> None:
    (result,), records = alter(cluster_of(), request(item([1, 2])))
    assert (result.error_code, result.partition_epoch, result.isr, records) == (ErrorCode.NONE, 20, [1, 2], [])


@pytest.mark.parametrize(("broker_id", "epoch"), [(1, 100), (7, 107)])
def test_a_broker_of_another_epoch_is_refused_whole(broker_id: int, epoch: int) -> None:
    answer, records = plan_alter_partition(cluster_of().view, request(item([1]), broker_id=broker_id, epoch=epoch), 3)
    assert (answer.error_code, answer.topics, records) == (ErrorCode.STALE_BROKER_EPOCH, [], [])


FENCED, SHUTTING, GONE = 2, 3, 4


@pytest.mark.parametrize(
    ("fields", "isr", "code"),
    [
        ({"partition_index": 1}, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": -1}, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 11}, [1], ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 21}, [1], ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 9, "partition_epoch": 21}, [1], ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 9, "partition_epoch": 19}, [1], ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 19}, [9], ErrorCode.INVALID_UPDATE_VERSION),
        ({}, [], ErrorCode.INVALID_REQUEST),
        ({}, [1, 9], ErrorCode.INVALID_REQUEST),
        ({}, [1, 1], ErrorCode.INVALID_REQUEST),
        ({}, [FENCED], ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": RECOVERING}, [1, 5], ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": RECOVERING}, [1], ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 7}, [1], ErrorCode.INVALID_REQUEST),
        ({}, [1, FENCED], ErrorCode.INELIGIBLE_REPLICA),
        ({}, [1, SHUTTING], ErrorCode.INELIGIBLE_REPLICA),
        ({}, [1, GONE], ErrorCode.INELIGIBLE_REPLICA),
        ({}, [1, (5, 104)], ErrorCode.INELIGIBLE_REPLICA),
        ({}, [1, (5, -1)], ErrorCode.NONE),
        ({}, [1, 5], ErrorCode.NONE),
    ],
)
def test_what_is_refused(fields: dict[str, Any], isr: list[int | tuple[int, int]], code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.brokers(1, 5)
    cluster.broker(FENCED, fenced=True)
    cluster.broker(SHUTTING, shutting=True)
    cluster.partition(replicas=[1, FENCED, SHUTTING, GONE, 5], isr=[1])
    (result,), records = alter(cluster, request(item(isr, **fields)))
    assert result.error_code == code
    assert len(records) == (code == ErrorCode.NONE)


def test_a_topic_that_is_not_there() -> None:
    (result,), records = alter(cluster_of(), request(item([1]), topic="u"))
    assert (result.error_code, records) == (ErrorCode.UNKNOWN_TOPIC_ID, [])


def test_who_does_not_lead_may_not_ask_though_its_partition_epoch_is_old() -> None:
    (result,), _ = alter(cluster_of(), request(item([1, 2], partition_epoch=19), broker_id=2))
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_a_controller_of_the_past_says_that_it_is_none() -> None:
    """KAFKA-14154: told INVALID_REQUEST or FENCED, the leader would keep its change for good."""
    (result,), _ = alter(cluster_of(), request(item([1, 2], leader_epoch=12, partition_epoch=25), broker_id=2))
    assert result.error_code == ErrorCode.NOT_CONTROLLER


def test_before_broker_epochs_any_will_do() -> None:
    (result,), _ = alter(cluster_of(), request(item([1, 2, (3, 999)], version=2)), version=2)
    assert result.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [2, 3])
def test_the_same_request_again_says_the_same(version: int) -> None:
    """KAFKA-15353: a request that is sent again once became one with an empty ISR."""
    cluster, asked = cluster_of(), request(item([1, 2, 3], version))
    assert alter(cluster, asked, version) == alter(cluster, asked, version)


def test_a_leader_says_that_it_has_recovered() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[1], leader_recovery_state=RECOVERING)
    (result,), records = alter(cluster, request(item([1], leader_recovery_state=RECOVERING)))
    assert (result.error_code, result.leader_recovery_state, records) == (ErrorCode.NONE, RECOVERING, [])
    (result,), records = alter(cluster, request(item([1, 2])))
    assert (result.leader_recovery_state, records) == (
        RECOVERED,
        [change_of(isr=[1, 2], leader_recovery_state=RECOVERED)],
    )


def test_a_change_that_ends_a_reassignment() -> None:
    cluster = cluster_of(removing_replicas=[2], adding_replicas=[3])
    (result,), records = alter(cluster, request(item([1, 2, 3])))
    assert records == [
        change_of(
            replicas=[1, 3],
            isr=[1, 3],
            leader=1,
            removing_replicas=[],
            adding_replicas=[],
            directories=[directory_id(1), directory_id(3)],
        )
    ]
    assert (result.error_code, result.isr, result.leader_epoch) == (ErrorCode.NONE, [1, 3], 11)


def test_a_change_that_ends_a_reassignment_with_another_leader_is_made_and_refused() -> None:
    cluster = cluster_of(removing_replicas=[1], adding_replicas=[3])
    (result,), records = alter(cluster, request(item([1, 2, 3])))
    assert (result.error_code, result.isr) == (ErrorCode.NEW_LEADER_ELECTED, [])
    assert (records[0].leader, records[0].isr, records[0].replicas) == (2, [2, 3], [2, 3])


def test_a_partition_twice_in_a_request_counts_once() -> None:
    results, records = alter(cluster_of(), request(item([1]), item([1, 2, 3])))
    assert [result.error_code for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert len(records) == 1


def test_one_refusal_stops_no_other_partition() -> None:
    cluster = cluster_of()
    cluster.partition(replicas=[1, 2], isr=[1])
    results, records = alter(cluster, request(item([9]), item([1, 2], partition_index=1)))
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert [record.partition_id for record in records] == [1]
